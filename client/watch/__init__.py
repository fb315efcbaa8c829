"""The auditor that watches a network by itself.

`watcher`     which jobs are due, who is drawn, what was found, whom to accuse
`watch_book`  its secret, the jobs it has seen, what it drew and found
"""
