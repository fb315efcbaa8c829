"""How are the layers that a machine holds run on a request?

The layers, masks, rotary tables and norms are transformers' own modules; this file only decides
what goes in and what comes out. Same dtype and same shapes therefore give the whole model's bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from core.engine.memory.kv import Cache
from core.engine.model.spread import Spread
from core.protocol.errors import ContextTooLong
from core.protocol.types import LayerRange

_ALIGNMENT_BYTES = 64
#: No decoder comes near it, and squares of it still fit float32. A stage that computed on more
#: would be blamed for the overflow that its predecessor provoked.
MAX_ACTIVATION = 1e8


class Final(NamedTuple):
    """What is left at a model's end: rows of its last layer [n, D], before norm and head, and their
    logits [n, V]. Where a `Draw` took the logits, what it made of each.
    """

    rows: Tensor
    logits: Any


Draw = Callable[[Tensor], Sequence[Any]]
"""Makes something of each row of logits [n, V], a token mostly.

Float32, or float64 where that is judged in. Called with some rows after the others.
"""


class WholePass(Protocol):
    """Runs whole requests through a shard, faster than `forward` (`batch.whole`)."""

    def run(
        self,
        x: Tensor,
        rows: Tensor,
        draw: Draw | None = None,
        served: Tensor | None = None,
    ) -> Tensor | Final:
        """x [T] or [T, D] → activations [n, D] of `rows` [n], a `Final` at the model's end: with
        the logits of `served` [n, D] instead where that is given.
        """


def without_states(outs: Sequence[Any]) -> list[Tensor]:
    """Of each of these, a `Final` or activations, the logits or the activations."""
    return [out.logits if isinstance(out, Final) else out for out in outs]


class ModelShard:
    """Layers [start, end) of a model in memory, and what runs them.

    Holds no state of any request: that is in the `Cache`. Not safe to call from two threads at
    once.
    """

    def __init__(
        self,
        model: Any,
        layers: LayerRange,
        *,
        num_layers: int,
        windows: list[int],
        context: int,
        numerics: str,
        decoder_layers: nn.ModuleList,
        spread: Spread,
    ) -> None:
        """`model` is a causal LM cut to these layers (`core.engine.weights.load_shard`)."""
        self.model = model
        self.layers = layers
        self.num_layers = num_layers
        #: The name in `formats.FORMATS` of what weights are held and computed in.
        self.numerics = numerics
        #: The owned layers; number i is layer `layers.start + i` of the model.
        self.decoder_layers = decoder_layers
        self.spread = spread
        #: Where rows enter; they leave where `spread` ends.
        self.device = spread.first
        self.hidden: int = model.config.hidden_size
        self.vocab: int = model.config.vocab_size
        self.context = context
        self.is_first = layers.start == 0
        self.is_last = layers.end == num_layers
        self.dtype: torch.dtype = model.get_input_embeddings().weight.dtype
        #: Runs whole requests faster than `forward`, where `core.engine.batch.whole` has made it.
        self.whole: WholePass | None = None
        self._windows = windows
        self._decoder_takes = set(inspect.signature(model.base_model.forward).parameters)
        self._model_takes = set(inspect.signature(model.forward).parameters)

    @property
    def bytes(self) -> int:
        """Memory that the weights take; a tied matrix held once counts once."""
        return sum({id(t): _held_bytes(t) for t in _stored(self.model)}.values())

    def room(self, memory_bytes: int) -> int:
        """What the weights leave of the memory for keys and values, in bytes.

        On several devices every layer can have as much as the fullest of them has left for each of
        its layers.
        """
        spread = self.spread
        if len(spread.devices) == 1:
            return memory_bytes - self.bytes
        head = self.model.get_output_embeddings()
        parts = [
            *zip(self.decoder_layers, spread.part_of, strict=True),
            (head, len(spread.sizes) - 1),
        ]
        part_of = {id(t): part for module, part in parts for t in _stored(module)}
        held = [0] * len(spread.sizes)
        for tensor in {id(t): t for t in _stored(self.model)}.values():
            held[part_of.get(id(tensor), 0)] += _held_bytes(tensor)
        sizes = zip(spread.sizes, held, spread.counts, strict=True)
        return int(min((size - used) / count for size, used, count in sizes) * len(self.layers))

    @property
    def windows(self) -> list[int]:
        """Of every owned layer: how many tokens it looks back on, 0 for all of them."""
        return list(self._windows)

    def new_cache(self) -> Cache:
        """An empty memory for one request."""
        return Cache(self._windows)

    def forward(self, x: Tensor, cache: Cache, *, last_only: bool = False) -> Tensor:
        """Run positions `cache.length … cache.length + T − 1` of one request.

        `x` is ids [T] int64 on the first stage, else activations [T, D]. Returns activations [T, D]
        or, on the last stage, logits [T, V] ([1, V] with `last_only`) in float32, float64 for a
        float64 shard. Raises ContextTooLong past the model's context, ValueError for a wrong shape,
        an id that does not exist, or activations that are NaN or beyond `MAX_ACTIVATION`; the cache
        is then unchanged.
        """
        return self._run(x, cache, logits_to_keep=1 if last_only else 0)

    def forward_rows(self, x: Tensor, cache: Cache, rows: Tensor) -> Tensor:
        """The same with the last stage's logits of these rows of `x` only: [len(rows), V]."""
        return self._run(x, cache, logits_to_keep=rows)

    def _run(self, x: Tensor, cache: Cache, *, logits_to_keep: int | Tensor) -> Tensor:
        self.check(x, cache.length)
        came_from, x = x.device, x.to(self.device)
        inputs: dict[str, Any] = {"past_key_values": cache.library, "use_cache": True}
        if self.is_first:
            inputs["input_ids"] = x.unsqueeze(0)
        else:
            inputs["inputs_embeds"] = aligned(x.to(self.dtype)).unsqueeze(0)  # [1, T, D]
        if "position_ids" in self._decoder_takes:
            end = cache.length + x.shape[0]
            positions = torch.arange(cache.length, end, device=self.device)
            inputs["position_ids"] = positions.unsqueeze(0)
        with torch.no_grad(), self.precision():
            if not self.is_last:
                hidden: Tensor = self.model.base_model(**inputs).last_hidden_state[0]
                return hidden.to(came_from)
            logits = self._logits(inputs, logits_to_keep)
            return (logits if self.dtype == torch.float64 else logits.float()).to(came_from)

    def _logits(self, inputs: dict[str, Any], keep: int | Tensor) -> Tensor:
        keep = keep.to(self.spread.last) if isinstance(keep, Tensor) else keep
        if "logits_to_keep" in self._model_takes:
            logits: Tensor = self.model(**inputs, logits_to_keep=keep).logits[0]
            return logits
        every: Tensor = self.model(**inputs).logits[0]
        return every[keep] if isinstance(keep, Tensor) else every[-keep:]

    def check(self, x: Tensor, length: int) -> None:
        """Raise, as `forward` does, unless `x`, ids [T] or activations [T, D], can
        follow `length` positions of a request."""
        if self.is_first:
            if x.dim() != 1 or x.dtype != torch.int64 or not x.shape[0]:
                raise ValueError(f"the first stage takes ids [T] int64, not {_kind(x)}")
            if not 0 <= int(x.min()) <= int(x.max()) < self.vocab:
                raise ValueError(f"ids outside [0, {self.vocab}): {int(x.min())} … {int(x.max())}")
        elif x.dim() != 2 or x.shape[1] != self.hidden or not x.shape[0]:
            raise ValueError(
                f"stage {self.layers} takes activations [T, {self.hidden}], not {_kind(x)}"
            )
        elif not bool((x.abs() <= MAX_ACTIVATION).all()):
            raise ValueError(f"activations hold NaN or values beyond ±{MAX_ACTIVATION:.0e}")
        if length + x.shape[0] > self.context:
            raise ContextTooLong(
                prompt_tokens=length + x.shape[0], max_new_tokens=0, context_tokens=self.context
            )

    def precision(self) -> AbstractContextManager[Any]:
        """Within, the library's modules compute in the shard's own precision throughout."""
        return _KeepDouble() if self.dtype == torch.float64 else nullcontext()


@contextmanager
def output_of(
    layer: nn.Module, rows: Tensor | None = None, instead: Tensor | None = None
) -> Iterator[list[Tensor]]:
    """Within, what the layer gives is kept. With `instead` [n, D] the model goes on with that at
    the positions `rows` [n].
    """
    kept: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> Any:
        is_many = isinstance(output, tuple | list)
        own = output[0] if is_many else output
        kept.append(own)
        if instead is None:
            return None
        other = own.reshape(-1, own.shape[-1]).clone()
        other[rows] = instead.to(other)
        other = other.view(own.shape)
        return (other, *output[1:]) if is_many else other

    handle = layer.register_forward_hook(keep)
    try:
        yield kept
    finally:
        handle.remove()


class _KeepDouble(TorchFunctionMode):
    """Keeps float64 values in float64 where model code rounds to float32 on the way (norms,
    softmax). Rotary angles are born float32 from integer positions and are not touched: the float32
    table is part of what the model means, for every machine.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            if func is Tensor.float:
                return args[0]
            if func in (
                Tensor.to,
                Tensor.type,
                torch.softmax,
                nn.functional.softmax,
                Tensor.softmax,
            ):
                args = tuple(torch.float64 if a is torch.float32 else a for a in args)
                if kwargs.get("dtype") is torch.float32:
                    kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def _stored(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers that are here; one that is shared comes more than once."""
    return [t for t in module.state_dict(keep_vars=True).values() if not t.is_meta]


def _held_bytes(tensor: Tensor) -> int:
    """Memory of a tensor, quantised or not."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    names, _ = tensor.__tensor_flatten__()
    return sum(getattr(tensor, name).nbytes for name in names)


def aligned(x: Tensor) -> Tensor:
    """The same values [...] where matrix kernels expect them: bytes off the wire start anywhere."""
    if x.is_contiguous() and x.data_ptr() % _ALIGNMENT_BYTES == 0:
        return x
    return x.contiguous().clone()


def _kind(x: Tensor) -> str:
    return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}"
