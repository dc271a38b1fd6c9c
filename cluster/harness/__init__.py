"""lm-evaluation-harness through jobs: its requests become a table, a job answers them, its metrics judge."""
