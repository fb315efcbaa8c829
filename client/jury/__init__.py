"""The work of a juror.

`jury`   be drawn, re-run, commit, reveal, and move a dispute on when a clock has run out
`enrolment`  put one's stake on the roll once it is mature
`votes`  the juror's votes and salts, on disk before anything about them is sent
"""
