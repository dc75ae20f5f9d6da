"""What error an operator may make: exact results, spreads, rounding intervals, and the ladder for one call.

numpy alone: arrays and plain scalars come in, frozen dataclasses go out. Nothing here knows files, pairs or torch.
"""
