"""Which GPUs serve which of several models, and how are they split among them (LLMFabric §3.3)?

`place`      the answer, with a proof
`world`      GPU types, models and their demand
`objective`  what makes one placement better than another
`columns`    every way to serve one model, and those that can be best
`replica`    the time of a request on one replica under load
`roofline`   the time of one iteration of an engine
`sharing`    two models on the same GPUs
`switching`  what it costs to serve otherwise than now
`pool`       the columns in play, and more that prices ask for
`lazy`       the columns worth building where there are too many
`knapsack`   one column for each model within the GPUs: the question
`solver`     the same, put to HiGHS
"""
