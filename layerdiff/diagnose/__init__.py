"""What is said of a comparison: notices, origins, causes."""
