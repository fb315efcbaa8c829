"""The programs of the requester and of the auditor: buy answers, keep receipts, dispute lies.

`cli`              the `client` program: what a requester can type
`options`          the flags of an order and of sampling, which several commands share
`commands/`        what the commands of both programs do
`context`          the connections that one command opens: chain, matcher, model, records
`wallet`           the requester's money, in the wallet and prepaid in the escrow
`orders/`          what the requester asks for and signs
`jobs/`            a file of requests, from the order to the last receipt
`sessions/`        one prompt at a time, over an order that stays open
`pipeline/`        what a requester and the stages of one job say to each other
`records/`         the database of the requester
`gateway/`         the OpenAI endpoint that pays from its owner's wallet
`dashboard/`       the pages of the gateway
`auditor_cli`      the `auditor` program: what an auditor or a juror can type
`audit/`           whether a stage did what it signed
`disputes/`        an audit's finding as an accusation on chain, played to its verdict
`jury/`            the work of a juror
`watch/`           the auditor that watches a network by itself
"""
