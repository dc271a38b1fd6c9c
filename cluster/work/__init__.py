"""Shards decoded by workers that a driver keeps busy and replaces. The only package that knows Ray."""
