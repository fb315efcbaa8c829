"""The matcher's HTTP API.

`api`    the addresses: what can be read, and what is signed and handed in
`views`  what the API says, as JSON-ready values
"""
