"""An audit's finding as an accusation on chain, played to its verdict.

`bonds`         how much an unattended accuser may lock
`inquest`       rows that are withheld or malformed: questions on chain before an accusation
`charge`        the claim, its canonical trace, and for a token how it was ordered
`prosecution`   the tolerance game played to its end, move by move, across restarts
`show_trace`    the trace shown to the accused off chain, so that it can point at once
`game_record`   what happened in a game, read from the chain alone
`jury_dispute`  a dispute before the jury: who may open it, what it costs, the transaction
"""
