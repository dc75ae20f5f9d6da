"""The command line: one command a file. exits.py owns exit codes and stderr; heavy imports happen inside `run`."""
