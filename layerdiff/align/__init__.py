"""Which call of the reference goes with which of the target: from names, steps and shapes, with a reason where none does."""
