"""Where small real models come from, and what the chain calls them.

`unpack`            a real, small model on a machine that has only a package index
`convert_gguf`      a GGUF file as a folder of safetensors with tokenizer and chat template
`tiny_models`       random models of every architecture, small enough for tests
`model_spec`        what the chain calls a model folder
`registering`       which operator program a model is registered with, and whether it may be
`calibration`       how far honest machines may be from float64, as measured
`calibration.json`  what was measured
`calibrate`         the program that measures it
`measure`           how fast one process generates with transformers' own loop
"""
