"""Which calls and which values stand side by side, of one process or of many, and the numbers of each pair."""
