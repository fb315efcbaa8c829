"""The trace of a real shard, and the moves of the two sides (`docs/trust.md`).

`program`       the operator program and the tables of a model folder, kept beside the model
`tables`        rotary tables and channel scales, the same bytes on every machine
`corpus.jsonl`  the texts by which channel scales are measured
`claims`        what exactly an accuser claims: which window, which token instead of which
`prepare`       the canonical trace of what a claim is about
`model`         a model folder's tensors, read for a trace and opened under the registered roots
`build`         the trace of one request through one shard, section by section
`operators`     each operator in float64, in any order of summation
`nearest`       each operator rounded to the nearest float64 (`docs/trust.md` §5)
`in_c`          the same from C of ours, where it compiles
`doubles`       arithmetic with twice a float64's digits, over whole arrays
`shakes`        a plea's second pass: all that an operator made, shaken
`plea`          whether the noise of rows explains a deviation, and by which seed
`values`        the values in the order of the trace, in memory or in a mapped file
`tree`          a trace of millions of chunks, committed and opened
`held`          a real shard's trace with its tree: what is posted, opened and proven
`selfcheck`     whether a sample of a trace holds to the bit, before money is staked on it
`loop`          one side of a game played to its end, move by move, across restarts
`players`       the next move of an accuser and of an accused that both have the trace
"""
