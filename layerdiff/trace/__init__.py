"""Traces: the schema, the writer and its journal, recovery, the checked reader."""
