"""Is the scheduler where it must be? `python -m benchmarks.scheduler` prints the whole table."""
