"""Numbers of a pair of values, from arrays alone: no names, no calls, no opinion."""
