"""One devnet with a gateway before it."""
