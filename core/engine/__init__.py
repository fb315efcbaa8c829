"""How does a machine turn tokens into activations and activations into tokens?

Tensor letters, used in shape comments everywhere: B batch, T positions, D hidden width, H heads, K
key/value heads, L layers, V vocabulary. A request is always B = 1 and travels without that axis:
ids are `[T]`, activations `[T, D]`, logits `[T, V]`.

    shape.py      what a model looks like, without loading it
    tensors.py    which tensors a model folder holds, and their bytes
    naming.py     which tensor belongs to the embedding, a layer or the head
    families.py   the commonest models, and those that are looked into
    facts.py      what a configuration says, whatever it calls it
    formats.py    the numbers that weights are held and multiplied in
    anatomy.py    the parts of an architecture, found by running a small clone
    clone.py      that small clone
    refusal.py    architectures that cannot be cut
    dryrun.py     what a layer remembers of a token
    model.py      load any decoder by layer range; building.py cut a model to them
    library.py    transformers without what no shard asks of it
    boundary.py   activations into and out of a cut model
    loading.py    stored bytes into parameters
    conversion.py stored names and experts into the library's parameters
    quantise.py   matrices held as integers
    selfcheck.py  proof that cutting changes nothing
    blocks.py     run the loaded layers on a request; head.py logits, a few rows at a time
    kv.py         what a request remembers

    batch.py      one step of many requests at different positions, over pages
    pieces.py     what a request asks of a step; plan.py which rows go through which layers together
    gates.py      only some of the layers; attention.py over pages
    library_pass.py the library's layers with both
    graphs.py     steps that a graphics processor runs by one launch
    compat.py     the slow way, for the rest
    pages.py      who owns which page; layout.py what a page holds; pool.py the memory behind them
    learned_layout.py what a layer keeps of a token, found by running it
    paged_kv.py   a request's pages; prefix.py those that prompts share
    offload.py    pages swapped while another microbatch computes; sizing.py how many of them
    prepack.py    matrices in the order that the processor likes; layouts.py those orders
    lookup.py     the embedding from its file
    native.py     our C kernels, compiled where they run: products.c, paged_rows.c, layers.c
    direct.py     rows that attend to their pages by these
    plain_layers.py layers of the llama kind, whole runs of them in one call
    determinism.py  proof that other rows of a batch change no bit

    sampling.py   logits to token, reproducible
    numerics.py   how far an honest machine may be from float64
    weights.py    commitments to the weights
    tokenizer.py  text to ids and back
    store.py      where models live on this machine

`tensors`, `formats`, `sampling`, `tokenizer` and `store` never import torch; `shape`, `facts`,
`naming` and `weights` only for families that `families` does not write down.
"""
