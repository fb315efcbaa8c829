"""The database of the requester.

`keeper`      which running program keeps a session or a submission
`store`       jobs, prompts, answers, receipts and used nonces in one SQLite file
`statements`  the statements that every request runs, at the driver's own speed
"""
