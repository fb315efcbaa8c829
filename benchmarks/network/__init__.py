"""What a network of strangers takes: `python -m benchmarks.network`.

`people`    somebody at a host of its own, with a wallet and a keyboard
`walk`      from a chain without any contract to a paid answer, on six hosts
`size`      a swarm of many machines: who comes, who goes, what it takes
`matchers`  a batch whose matcher fails, at each point
"""
