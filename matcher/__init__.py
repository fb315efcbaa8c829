"""The matcher: plans who holds which layers, finds the chain for each order, opens and settles jobs.

It holds nobody's money and sees no prompt.
"""
