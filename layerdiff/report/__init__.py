"""Exporters of a Comparison: a reporter is a plain function, Comparison -> str. formats.py lists them."""
