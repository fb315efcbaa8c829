"""What published systems do and print, where rows compare with it.

`preflow`              the maximum flow that Helix's paper names
`token_rates`          Helix's T(k), from the curves that it was measured at
`quality10`            the cluster of ten machines on which Helix judges its solver
`memory_proportional`  the policy that LLMFabric compares its placement with
"""
