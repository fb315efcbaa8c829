"""The database of the gateway.

`database`     one file, one writer at a time, never on the event loop
`tables`       what the gateway remembers between two starts
`migrations/`  how an older database becomes today's
"""
