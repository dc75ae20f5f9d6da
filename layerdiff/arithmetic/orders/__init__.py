"""In which order a sum was added: trees, candidate orders replayed bit by bit, and the race between them."""
