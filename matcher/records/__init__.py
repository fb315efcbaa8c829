"""The database of the matcher.

`jobs`         what a job is, as its matcher knows it
`store`        what is written when, and how it is read back after a kill
`tables`       what the matcher remembers between two starts
`migrations/`  how an older database becomes today's
"""
