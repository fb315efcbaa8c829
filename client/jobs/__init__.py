"""A file of requests, from the order to the last receipt.

`wishes`        what a submission asks for, whether an offer is within it, its result files
`replicas`      the same work bought several times, compared token by token
`batch`         order, match, stream, acknowledge, and go on after a lost pipeline
`earlier`       what an earlier run of the program came to, by its records
`job_run`       one matched job over its stages' streams
`registering`   an order that its requester opens on chain, for its matcher to see there
`withdrawal`    an order that its matcher did not answer, and how it is made void
`failover`      what is left of each answer when a pipeline breaks, and where it goes on
`answer_lines`  an answer as a line in the OpenAI batch format
"""
