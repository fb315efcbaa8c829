"""A job and its requests at this stage, from the proposal to the receipt.

`stage`           which message, from whom, about which job leads to what
`job_table`       jobs that were taken on, their proof on the chain, their request slots
`request_state`   how far a request is, and which move may come next
`request_run`     one request through this stage: rows in, compute, rows or a token out
`committed_rows`  rows of a request that are kept, under one root
`bf16_rows`       rows of bfloat16 at half their bytes
`outbox`          messages out, in order, with no request waiting for a slow reader
`neighbours`      whether the stages that come next are still there
`receipts`        what is signed, and never two different things
`answers`         which peers may see what was signed for
`sharing`         which bytes of the model's files are sent to whom, and how many in a second
"""
