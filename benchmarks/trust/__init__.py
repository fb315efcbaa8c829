"""What the trust machinery reaches: the table of `python -m benchmarks.trust`."""
