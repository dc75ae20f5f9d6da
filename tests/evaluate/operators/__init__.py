"""Trials of the judge on traces with operators: faults in programs and in kernels, and harmless variations."""
