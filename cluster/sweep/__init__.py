"""A sweep: many jobs that differ in a few settings, done together and compared in one table."""
