"""Recording: hooks on the modules of a torch model, and a thread that writes what they see into a trace."""
