"""Which pipelines serve best, by throughput and latency together?

`plan`        the answer, of several drafts
`localities`  machines that are near each other
`draft`       one draft: locality by locality, or the fleet at once
`kinds`       machines that are alike, and what each kind can do
`coarse`      kinds that are near enough to be planned as one
`columns`     the patterns that a scope can use
`table`       the patterns of a whole plan with what each is worth
`score`       the worth of one pattern
`hops`        the hops between the machines of a pattern
`scope`       the patterns for the machines of one scope, and how far from the best
`hand_out`    which machine of its kind goes into which pipeline
`split`       the order of a pipeline, and layers for each of its machines
"""
