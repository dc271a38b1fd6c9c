"""Data sets into shards, shards into part files, Ray actors into a job that survives. Knows no policy names."""
