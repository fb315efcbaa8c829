"""How do the two sides of a tolerance game find their moves? (`docs/trust.md` §3)"""
