"""One prompt at a time, over an order that stays open.

`answering`  one prompt in, tokens as they come, and what it cost
`pool`       which session answers a request, when one is opened or closed
`budget`     what may still begin in a session, and when it is over
`session`    an open order's pipeline: each request begins by a signature
`recovery`   what becomes of the sessions of a program that died
"""
