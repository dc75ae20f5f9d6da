"""Many ranks as one program: the bodies that all of them run together, in exact arithmetic, against the reference's."""
