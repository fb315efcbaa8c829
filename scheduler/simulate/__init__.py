"""What would a placement with a router serve?

`simulation`   the event loop; `simulate` is the entry
`options`      what is simulated, and for how long
`work`         where requests come from: a trace, or a feed that keeps KV caches filled
`traces`       synthetic traces
`coordinator`  requests let in, tokens that come home, machines that come and go
`dispatch/`    the route of each request
`network`      what is on its way, and when it arrives
`world`        workers, links and requests in flight
`passes`       what a worker is made of, and how long a batch takes it
`pass_cost`    how long a machine takes over one pass
`histogram`    mean and percentiles of latencies
`report`       what a simulation says
"""
