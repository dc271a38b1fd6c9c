"""Entry points: parse, build, call, print."""
