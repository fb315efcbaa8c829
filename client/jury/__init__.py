"""The work of a juror.

`jury`   be drawn, re-run, commit, reveal, and move a dispute on when a clock has run out
`votes`  the juror's votes and salts, on disk before anything about them is sent
"""
