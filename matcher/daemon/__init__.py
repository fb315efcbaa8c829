"""The running matcher.

`start`    a matcher put together from settings, and taken apart again
`service`  the loop that follows chain and swarm, plans, publishes and moves jobs on
"""
