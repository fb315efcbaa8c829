"""How far an honest machine may be from the exact answer.

`numerics`  the re-run in float64, and from where on its distance is a fault
`margin`    how far a served token is from being the answer
"""
