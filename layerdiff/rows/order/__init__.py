"""How one sum was added, as lines."""
