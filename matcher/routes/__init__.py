"""Which chain of machines answers an order now.

`offers`        what serves a model now, and the least that an order must pay for it
`routes`        the best chain, stand-ins for it, and what it has been promised
`round_robin`   chains by turns over a flow, if the matcher is told to route so
`waiting_line`  orders that find every machine taken, first come first served
"""
