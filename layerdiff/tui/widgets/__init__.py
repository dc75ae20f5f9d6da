"""The widgets, a file each with its style sheet."""
