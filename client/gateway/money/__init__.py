"""Who may spend how much at the gateway, and where every unit goes.

`keyring`  API keys: made, found by their secret, listed, revoked
`limits`   requests and tokens per minute and key
`prices`   what a request may cost at most, without a question to the matcher
`ledger`   what is reserved before a request, what it cost after, what a retry is told
`signed`   what stages signed for the requests of jobs, from the requester's records
"""
