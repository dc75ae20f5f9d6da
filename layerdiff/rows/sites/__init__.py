"""The table of sites: its tree, its lists, the curve above it, and what is known of one line."""
