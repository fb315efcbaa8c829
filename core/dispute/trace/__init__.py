"""What a float64 trace is: its operators, their order, how it is committed, opened, judged.

`families`     the operator program of each model family
`program`      operators in bytes that a program's id commits to (`docs/trust.md` §1)
`calibration`  when a model's machines may be slashed for deviating
`layout`       where each value of a trace stands (`docs/trust.md` §2)
`derive`       which leaf the value at a place stands or falls by (`docs/trust.md` §1)
`sources`      what a trace reads: the model's tensors and the signed rows
`evaluate`     the values of a trace, operator by operator, for small shapes
`held`         a whole trace in memory, with the evidence for any leaf
`chunks`       how chunks are committed, opened in runs, descended to (`docs/trust.md` §2)
`check`        whether every leaf holds: what both sides run before a move
`calls`        claims and evidence in a transaction, in the field order of `ITraceJudge.sol`
`draw`         the draw that an order prescribes, and whether the accused token was served
`rows`         what signed rows say when they are opened by themselves
`answer`       where an accused points
`evidence`     whether opened bytes are the committed operands of a leaf
`judge`        what the chain rules on opened evidence
"""
