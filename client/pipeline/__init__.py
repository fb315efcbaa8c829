"""What a requester and the stages of one job say to each other.

`streams`   which streams are open, what comes on them, and which stage fell silent
`pipeline`  one matched job from open to receipts
`on_chain`  where the job stands on chain, and under which plan
`verify`    whether receipts say what was bought
"""
