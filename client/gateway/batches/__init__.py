"""Files and batches of requests.

`files`        uploaded and written files, streamed to a folder of the owner's alone
`upload`       a file out of a form, while it arrives
`batch_lines`  the requests of a file, and the lines that answer them
`kept_answers` the answers of a batch, kept as they come
`results`      the files that a batch writes when it ends
`batches`      the life of a batch, from validating to its end, over restarts too
`offline`      one order for all lines of a batch, taken up after a restart, paid to the unit
"""
