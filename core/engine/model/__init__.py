"""What a model is made of, and how some of its layers run by themselves.

`families`      the commonest families, and those whose tensors are examined
`config_facts`  a configuration's sizes, whatever it calls them
`naming`        the tensors of embedding, layers and head in a checkpoint
`refusal`       architectures that cannot be cut by layers
`clone`         the smallest model of the same architecture
`anatomy`       embedding, layers and head of an architecture, found by running the clone
`dryrun`        what each layer remembers of a token, found by running the clone
`library`       transformers, loaded without what no shard asks of it
`conversion`    stored tensors to the library's parameters
`boundary`      activations into and out of a model that was cut
`coded_linear`  a linear layer whose weight stays packed
`spread`        layers on several devices of one machine
`wide_end`      final norm and head in float32 behind layers of bfloat16
`blocks`        the loaded layers, run on one request
`gates`         rows that enter and leave at any of the owned layers
`library_pass`  rows of a pass through a run of the library's layers
`attention`     rows of many requests, each over its own pages
"""
