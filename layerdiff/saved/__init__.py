"""A Comparison: its type, its JSON, and the `.ldiff` file it is kept in. Needs neither the traces nor torch."""
