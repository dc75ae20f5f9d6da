"""The plain face of the rows: the summary of `diff`, for a terminal or a file."""
