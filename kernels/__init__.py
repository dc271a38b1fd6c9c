"""The arithmetic that must be fast: one file per operation, with its maths and a slow twin. torch and triton only."""
