"""The OpenAI endpoint that pays from its owner's wallet (`client serve`).

`commands`          what `client serve`, `client pages` and `client keys` do
`start`             a gateway put together from settings, and taken apart again
`gateway`           one running gateway: all that its API and its pages work with
`logins`            links that open the pages once
`identity`          the random name of a gateway, which one process at a time may use
`app`               the addresses of the API
`openai/`           the OpenAI protocol: what a body asks for, how an answer looks
`accepting`         whether a key may ask for this at this price, and as which prompts
`money/`            keys, limits, prices, and where every unit goes
`answers/`          one request from its body to its last byte
`stored_responses`  responses that a key may read again, and go on from
`bodies`            how many bytes of requests are in memory
`workers`           threads for long work on texts, so that the event loop goes on
`exchange`          an answer in the making, apart from the connections that read it
`balance_watch`     what can still be spent; alerts before it runs out
`batches/`          files and batches of requests
`metrics`           what the gateway counts for Prometheus
`copied`            a value made of another one with fields of the same names
`errors`            what a caller can do wrong, and how failures look to an OpenAI client
`records/`          the database of the gateway
"""
