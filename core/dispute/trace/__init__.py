"""What a float64 trace is: its operators, their order, how it is committed, opened, judged.

`families`     the operator program of each model family
`program`      operators in bytes that a program's id commits to
`calibration`  how large a tolerance must be, for what honest machines do
`layout`       where each value of a trace stands
`length`       how long a request may be, for a trace of so much work
`shake`        by how much a value of a plea's second pass is changed
`derive`       which leaf the value at a place stands or falls by
`draw`         the draw that an order's sampling bytes prescribe
`sources`      what a trace reads: the model's tensors and the signed rows
`rows`         which rows a stage signed for, and how long they are
`chunks`       how chunks are committed, opened in runs, descended to
`evidence`     whether opened bytes are the committed operands of a leaf
`operands`     the operands of a leaf, and what an accuser opens for it
`check`        whether a leaf holds: what both sides run before a move
`answer`       where an accused points, and lists of tokens
`judge`        what is claimed, and the leaf that opened evidence makes
`calls`        claims and evidence in a transaction, in the field order of `ITraceJudge.sol`
"""
