"""The chain as one object.

`chain`     read, send in nonce order, decode what contracts say: the only file with web3
`follower`  events since the last look, across reorganisations and restarted nodes
"""
