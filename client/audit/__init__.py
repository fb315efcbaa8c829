"""Whether a stage did what it signed: find the job, fetch its rows, compute them again, judge.

`investigation`  how an auditor gets to a job, its stages and the registered weights
`evidence`       the order, plan and receipts from the chain, the rows from the stages
`contradictions` which of a stage's signed words convict it, by which call of Evidence
`programs`       the operator program behind a model's numerics profile, compared with ours
`spans`          the layers between two boundaries that a stage signed, and their rows
`rerun`          the stage's layers in float64 from the committed inputs, compared once
`precheck`       whether a float32 re-run clears a stage, so that none in float64 is needed
`suspicion`      whether a stage stands out of the noise of an honest machine on the same rows
`explain`        how far each layer of a stage is from float64: `auditor check --explain`
`audit_rate`     the share of an operator's requests that a watching auditor looks at
"""
