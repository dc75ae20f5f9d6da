"""What two programs of one body compute: the same or not, from which call on, and how exactly."""
