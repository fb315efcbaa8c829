"""Prices, spenders, and who pays for audits.

`pricing`       what a job costs and who gets what: the twin of `libraries/Split.sol`
`spending`      who may sign for a requester: itself, or a spender that the Escrow lets spend
`break_even`    from which rate on a machine earns its keep (DeServe §3)
`lottery`       which requests an audit falls on (`docs/trust.md` §9)
`paid_audits`   what a matcher and an auditor that it pays say to each other
`audit_report`  what an auditor says of operators, in its own signed word
"""
