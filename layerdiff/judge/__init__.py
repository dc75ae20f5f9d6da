"""Verdicts: tables, profiles, regions, thresholds."""
