"""How does a machine turn tokens into activations and activations into tokens?

Tensor letters, used in shape comments everywhere: B batch, T positions, D hidden width, H heads,
K key/value heads, L layers, V vocabulary. A request is always B = 1 and travels without that axis: ids
are `[T]`, activations `[T, D]`, logits `[T, V]`.

    shape.py      what a model looks like, without loading it
    tensors.py    which tensors a model folder holds, and their bytes
    naming.py     which tensor belongs to the embedding, a layer or the head
    model.py      load any dense decoder by layer range
    blocks.py     run the loaded layers on a request
    kv.py         what a request remembers
    sampling.py   logits to token, reproducible
    numerics.py   how far an honest machine may be from float64
    weights.py    commitments to the weights
    tokenizer.py  text to ids and back
    store.py      where models live on this machine

`shape`, `tensors`, `naming`, `sampling`, `weights`, `tokenizer` and `store` never import torch.
"""
