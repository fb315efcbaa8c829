"""How does a machine turn tokens into activations and activations into tokens?

Tensor letters, used in shape comments everywhere: B batch, T positions, D hidden width, H heads, K
key/value heads, L layers, V vocabulary. A request is always B = 1 and travels without that axis:
ids are `[T]`, activations `[T, D]`, logits `[T, V]`.

`weights/`   a model's files: which tensors, in which format, committed to how, loaded how
`model/`     what is a layer in any architecture, and how one is run by itself
`batch/`     one step of many requests at different positions
`memory/`    pages of keys and values: which request holds which, and where they lie
`kernels/`   how weights are laid out and multiplied, what a step spends its time on
`native/`    the same in C, compiled on the machine that runs it
`sampling/`  logits to a token that an auditor can draw again
"""
