"""The contracts that ship, one family a file; each file's CONTRACTS maps "aten.name" (every overload) or "aten.name.overload"."""
