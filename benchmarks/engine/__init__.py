"""Is the shard engine where it must be? `python -m benchmarks.engine` prints the whole table."""
