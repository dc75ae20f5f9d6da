"""Recorded calls run again in float64.

Importing this package imports torch: whoever uses it imports it late, and says what cannot be done without.
"""
