"""A model's files, from their bytes to a shard that is loaded and proven.

`store`        the folder on this machine that a model's name means
`tokenizer`    text to ids, ids to text
`stored`       stored bytes as float32 numbers, and the root over a tensor
`packed`       weights that are stored as codes and scales, and the numbers they stand for
`packed_formats`  how people publish such weights
`headers`      the tensors that a folder's files say they hold
`contents`     a folder's files and tensors, each with its hash
`manifest`     a published model in one document
`pulled`       which tensors of a published model are here
`proof`        bytes that were read, held to the published roots
`tensors`      a tensor's bytes, read and proven
`shape`        sizes of a model, its layers and its pages, without loading it
`weights`      the 32 bytes that commit to all weights, and what of them a shard proves
`formats`      the number formats that weights are held and multiplied in
`load_shard`   any decoder by layer range, its weights on this machine
`cut_shard`    the configuration of a whole model as the configuration of some of its layers
`loading`      stored bytes to parameters, never held twice
`quantise`     matrices held as integers
`precision`    devices that round factors before they multiply, refused
`selfcheck`    proof on a small clone that cutting changes nothing
"""
