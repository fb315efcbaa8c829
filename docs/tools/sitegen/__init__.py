"""Which pages of the site are made from the code, each time the site is built?

Nothing that they say is written twice.
"""
