"""How is the trace of a real shard made, committed and opened? (`docs/trust.md`)"""
