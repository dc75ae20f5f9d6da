"""The only view-model: a Comparison as rows, tones, figures and sentences.

Terminal, text and HTML show what this package says; none of them computes or words anything
itself. It sees numpy and `saved` only, so that every row can be tested without a terminal.
"""
