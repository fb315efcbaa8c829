"""What a requester asks for, and what became of it.

`orders`      `client orders`: signed orders whose jobs are not known, made void or taken back
`offers`      `client models` and `client miners`: what a matcher says is on offer
`submit`      `client quote`, `submit`, `jobs retry-failed`: a file in, answers and receipts out
`render`      a running batch on a terminal: text, progress, money
`detach`      `client submit --detach`: a submission that goes on without its terminal
`job_list`    `client jobs ls` and more: what was submitted and what the stages signed for it
`job_follow`  `client jobs wait` and more: a job until its end, and its answers as files
`left`        what a program left behind that was killed, and how it is paid
`receipts`    one receipt in words, and a file of receipts checked without a network
`chat`        `client chat`: each turn a request that is paid for by itself
"""
