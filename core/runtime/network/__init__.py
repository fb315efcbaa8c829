"""Streams between two parties, and the swarm.

`transport`  the swarm: who is there and what they say of themselves (hivemind's DHT)
`swarm_peer` our peer of it, in a process of its own that is started anew when it ends
`replicas`   which nodes keep a topic, told and asked without a search
`channel`    direct streams between two proven keys: connect, call, push, answer
`sending`    how fast a peer takes bytes from us
`places`     which stream makes room for a new one
`pace`       how many frames strangers may have read in a second
`targets`    which addresses a stranger's endpoint may make us dial
`circuits`   a machine that cannot be dialled, reached through a libp2p relay
`collecting` what the stages of a job have finished, and what they sign for it
`pulse`      whether a peer is still there, and still computes
"""
