"""One pair of values: its numbers, its elements, its profile along each axis, its picture."""
