"""What the requester asks for and signs.

`requests`        a JSONL file in the OpenAI batch format as requests, bad lines beside good ones
`sampling`        the sampling parameters of a request, in OpenAI's words and the command line's
`answer_formats`  the grammar that an answer must follow, as fields ask for it
`demands`         who may serve, and the share to be audited
`arbitrator`      who settles an order's disputes: the tolerance game, the jury, or an address
`matcher_api`     the matcher's HTTP API: offers, orders, acknowledgements
`matchers`        which matcher is asked, and which one rests because it failed
`orders`          a batch of prompts, its commitments, and an order with every cap
`shard_roots`     what the chain has registered for the layers of a plan
"""
