"""Finished runs as one page to look at: figures of each run, plots beside tables, answers as they came about."""
