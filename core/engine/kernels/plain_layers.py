"""How does a run of plain decoder layers take one call instead of thirty operators each?

Layers of the llama kind (norm, joined products, rotary halves, norm, gated products) and Gemma's
(four norms, GELU) go through `layers.c`: between two products nothing is dispatched. Every layer is
first compared with the library's own module; whatever differs, has other parts or lies elsewhere
runs through the library as before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from inspect import signature
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from core.engine.kernels.layouts import Panels
from core.engine.kernels.prepack import JoinedLinear, PackedLinear
from core.engine.memory.row_attention import is_plain
from core.engine.model import boundary
from core.engine.model.attention import ForwardingCache, attending
from core.engine.model.blocks import ModelShard
from core.engine.native.native import NoKernels, kernels

#: Decoders whose layers are looked at. Others could pass the comparison and do more on other rows.
_KINDS = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma3_text"})
#: Class names of activations → whether they are GELU.
_ACTIVATIONS = {"SiLU": 0, "SiLUActivation": 0, "GELUTanh": 1}
_PROOF_ROWS = 3
_TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}
_FIELDS = [
    *(
        (name, ctypes.c_void_p)
        for name in (
            "norm",
            "qkv",
            "qkv_bias",
            "query_norm",
            "key_norm",
            "out",
            "out_bias",
            "added_norm",
            "inner_norm",
            "gate_up",
            "gate_up_bias",
            "down",
            "down_bias",
            "inner_added_norm",
        )
    ),
    *(
        (name, ctypes.c_int64)
        for name in ("hidden", "heads", "kv_heads", "head_width", "inner", "is_gelu")
    ),
]
_REALS = ("epsilon", "inner_epsilon", "head_epsilon", "scale")


class _Layer32(ctypes.Structure):
    """`Layer` of layers.c."""

    _fields_ = [*_FIELDS, *((name, ctypes.c_float) for name in _REALS)]


class _Layer64(ctypes.Structure):
    """The same in float64."""

    _fields_ = [*_FIELDS, *((name, ctypes.c_double) for name in _REALS)]


_Layer = _Layer32 | _Layer64
_LAYERS: dict[torch.dtype, type[_Layer]] = {torch.float32: _Layer32, torch.float64: _Layer64}


class LayerPlan(Protocol):
    """What these layers ask of a `PassPlan`, or of rows that are whole requests."""

    @property
    def rows(self) -> int: ...

    def seen_alone(self, start: int, end: int) -> npt.NDArray[np.int64] | None: ...

    def attend_at(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """[1, H, T, d] over [1, K, T, d] and [1, K, T, e] → [1, T, H, e], by one layer."""
        ...


class _Unlike(Exception):
    """A layer is not of this kind."""


class PlainLayers:
    """The owned layers of one shard, in C. Called from the compute thread alone."""

    def __init__(self, shard: ModelShard) -> None:
        """Raises _Unlike where a layer is not plain; see `plain_layers`."""
        self._dtype = shard.dtype
        self._library = kernels(8 * shard.dtype.itemsize)
        self._rotary: nn.Module = shard.model.base_model.rotary_emb
        self._kind = _LAYERS[shard.dtype]
        layers = list(shard.decoder_layers)
        #: Where layers are rotated unlike, what the library's rotation knows theirs by; else None.
        self._types = [None] * len(layers)
        if "layer_type" in signature(self._rotary.forward).parameters:
            self._types = [layer.self_attn.layer_type for layer in layers]
        described = [_Described(layer, shard.dtype) for layer in layers]
        self._kept = [each.kept for each in described]  # tensors that the layers point at
        self._layers = (self._kind * len(layers))(*(self._kind(*each.fields) for each in described))
        self._space = self._empty(0)
        for number, layer in enumerate(shard.decoder_layers):
            self._prove(shard, number, layer)

    def run(self, plan: LayerPlan, x: Tensor, positions: Tensor, start: int, end: int) -> Tensor:
        """Layers [start, end) for rows x [T, D] of a plan, in the shard's dtype → [T, D]."""
        rows, first = len(x), self._layers[start]
        assert rows == plan.rows, "rows that nobody planned have no pages"
        out = x.clone(memory_format=torch.contiguous_format)
        angles = {kind: self._angles(positions, kind) for kind in {*self._types[start:end]}}
        threads = torch.get_num_threads()
        heads = (2 * first.heads + 2 * first.kv_heads) * first.head_width
        space = self._room(rows * (first.hidden + heads + 3 * first.inner))
        seen = plan.seen_alone(start, end)
        at = ctypes.addressof(self._layers)
        size = ctypes.sizeof(self._kind)
        if seen is not None:
            of_layers = [
                part.data_ptr() for kind in self._types[start:end] for part in angles[kind]
            ]
            pointers = np.array(of_layers, np.uintp)
            if self._library.single_rows(
                at + start * size,
                seen.ctypes.data,
                end - start,
                out.data_ptr(),
                pointers.ctypes.data,
                space.data_ptr(),
                rows,
                threads,
            ):
                raise MemoryError("no memory for the scores of a step")
            return out
        width, query_width = first.heads + 2 * first.kv_heads, first.heads
        for number in range(start, end):
            here, (cosine, sine) = at + number * size, angles[self._types[number]]
            qkv = self._empty(rows, width, first.head_width)
            self._library.before_attention(
                here,
                out.data_ptr(),
                cosine.data_ptr(),
                sine.data_ptr(),
                qkv.data_ptr(),
                space.data_ptr(),
                rows,
                threads,
            )
            query, key, value = qkv.transpose(0, 1)[None].split(
                [query_width, first.kv_heads, first.kv_heads], 1
            )
            options = {"scaling": self._layers[number].scale}
            attended = plan.attend_at(number, query, key, value, options).contiguous()
            self._library.after_attention(
                here, out.data_ptr(), attended.data_ptr(), space.data_ptr(), rows, threads
            )
        return out

    def _angles(self, positions: Tensor, kind: str | None) -> tuple[Tensor, Tensor]:
        """cos and sin [T, d] as the model itself makes them for layers of a kind."""
        options = {} if kind is None else {"layer_type": kind}
        cosine, sine = self._rotary(self._empty(0), position_ids=positions[None], **options)
        return cosine[0].contiguous(), sine[0].contiguous()

    def _room(self, count: int) -> Tensor:
        if len(self._space) < count:
            self._space = self._empty(count)
        return self._space

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=self._dtype)

    def _prove(self, shard: ModelShard, number: int, layer: Any) -> None:
        """Raises _Unlike unless ours gives what the library's does, attention left out."""
        made = torch.Generator().manual_seed(number)
        mine = self._layers[number]
        x = torch.randn(_PROOF_ROWS, mine.hidden, generator=made).to(self._dtype)
        attended = torch.randn(_PROOF_ROWS, mine.heads, mine.head_width, generator=made)
        attended = attended.to(self._dtype)
        positions = torch.tensor([0, 5, 131])[:_PROOF_ROWS]
        probe = _AttentionProbe(attended)
        cosine, sine = self._angles(positions, self._types[number])
        with torch.inference_mode(), shard.precision(), attending(shard.model.config, probe):
            theirs = layer.forward(
                x[None],
                position_embeddings=(cosine[None], sine[None]),
                position_ids=positions[None],
                past_key_values=ForwardingCache(),
                use_cache=True,
            )
        theirs = theirs[0] if isinstance(theirs, tuple) else theirs
        if probe.seen is None or not is_plain(probe.options):
            raise _Unlike("its attention is not plain")
        mine.scale = probe.options["scaling"]
        given = torch.cat([part[0].transpose(0, 1) for part in probe.seen], 1)
        qkv, ours = torch.empty_like(given, memory_format=torch.contiguous_format), x.clone()
        space = self._room(_PROOF_ROWS * (mine.hidden + 3 * mine.inner))
        here = ctypes.addressof(mine)
        self._library.before_attention(
            here,
            x.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            qkv.data_ptr(),
            space.data_ptr(),
            _PROOF_ROWS,
            1,
        )
        self._library.after_attention(
            here, ours.data_ptr(), attended.data_ptr(), space.data_ptr(), _PROOF_ROWS, 1
        )
        for one, other in ((qkv, given), (ours, theirs.reshape(ours.shape))):
            off = float((one - other).abs().max() / other.abs().max().clamp_min(1e-30))
            if not off <= _TOLERANCES[self._dtype]:
                raise _Unlike(f"layer {number} is off by {off:.1e}")


class _AttentionProbe:
    """Attention that remembers what it was asked and answers with given rows."""

    def __init__(self, answer: Tensor) -> None:
        self._answer = answer
        self.seen: tuple[Tensor, Tensor, Tensor] | None = None
        self.options: dict[str, Any] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        self.seen, self.options = (query, key, value), options
        return self._answer[None]


def plain_layers(shard: ModelShard) -> PlainLayers | None:
    """The shard's layers in C; None unless all are plain, packed, float32 or float64, and here."""
    if shard.model.config.model_type not in _KINDS or shard.dtype not in _LAYERS:
        return None
    if shard.device.type != "cpu" or _is_watched(shard):
        return None
    if shard.is_last and getattr(shard.model.config, "final_logit_softcapping", None) is not None:
        return None  # after such layers callers go through norm and head themselves
    try:
        return PlainLayers(shard)
    except (NoKernels, _Unlike, AttributeError):
        return None


def _is_watched(shard: ModelShard) -> bool:
    """Whether foreign code was put around what the library runs: it would see nothing of ours."""
    inside = [module for layer in shard.decoder_layers for module in layer.modules()]
    for module in (shard.model, shard.model.base_model, *inside):
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if "forward" in vars(module) or any(h.__module__ != boundary.__name__ for h in hooks):
            return True
    return False


class _Described:
    """What `_Layer` takes of a layer, and the tensors of our own that it points at."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        """Raises _Unlike."""
        attention, mlp = layer.self_attn, layer.mlp
        self._dtype, self.kept = dtype, list[Tensor]()
        is_gelu = _ACTIVATIONS.get(type(mlp.act_fn).__name__)
        if is_gelu is None:
            raise _Unlike("gates are of another kind")
        qkv, qkv_bias, sizes = _joined(
            [attention.q_proj, attention.k_proj, attention.v_proj], dtype
        )
        gate_up, gate_up_bias, inner = _joined([mlp.gate_proj, mlp.up_proj], dtype)
        width = attention.head_dim
        if sizes[1] != sizes[2] or inner[0] != inner[1] or width % 2 or sizes[0] % sizes[1]:
            raise _Unlike("its parts are of other sizes")
        out, out_bias = _packed(attention.o_proj, dtype)
        down, down_bias = _packed(mlp.down_proj, dtype)
        norm, epsilon = self._norm(layer.input_layernorm)
        before, after = layer.post_attention_layernorm, None
        added = None
        if hasattr(layer, "pre_feedforward_layernorm"):  # what is added is normed too
            added, _ = self._norm(before, epsilon)
            before, after = layer.pre_feedforward_layernorm, layer.post_feedforward_layernorm
        inner_norm, inner_epsilon = self._norm(before)
        inner_added, _ = self._norm(after, inner_epsilon)
        head_norms, head_epsilon = [], None
        for name in ("q_norm", "k_norm"):
            found, head_epsilon = self._norm(getattr(attention, name, None), head_epsilon)
            head_norms.append(found)
        self.fields = (
            norm,
            qkv,
            qkv_bias,
            *head_norms,
            out,
            out_bias,
            added,
            inner_norm,
            gate_up,
            gate_up_bias,
            down,
            down_bias,
            inner_added,
            attention.o_proj.out_features,
            sizes[0] // width,
            sizes[1] // width,
            width,
            inner[0],
            is_gelu,
            epsilon,
            inner_epsilon,
            head_epsilon or 0.0,
            0.0,  # the scale is learnt from the layer's own call
        )

    def _norm(
        self, norm: nn.Module | None, epsilon: float | None = None
    ) -> tuple[int | None, float | None]:
        """Where a norm's factors lie, and its `epsilon`: the one that is given, else its own."""
        if norm is None:
            return None, epsilon
        if hasattr(norm, "variance_epsilon"):
            weight, own = norm.weight, norm.variance_epsilon
        else:  # Gemma's weights are what its factors are above 1
            weight, own = (1.0 + norm.weight.to(self._dtype)).contiguous(), norm.eps
            self.kept.append(weight)
        if epsilon not in (None, own):
            raise _Unlike("its norms differ")
        return _number(weight, self._dtype), own


def _joined(parts: Sequence[nn.Module], dtype: torch.dtype) -> tuple[int, int | None, list[int]]:
    if not all(isinstance(part, JoinedLinear) for part in parts):
        raise _Unlike("its products are not joined")
    wholes = {id(part.whole): part for part in parts if isinstance(part, JoinedLinear)}
    if len(wholes) > 1:
        raise _Unlike("its products are not one")
    one = next(iter(wholes.values()))
    return *_packed(one.whole, dtype), [int(part.out_features) for part in parts]


def _packed(module: nn.Module, dtype: torch.dtype) -> tuple[int, int | None]:
    if not isinstance(module, PackedLinear) or not isinstance(module.layout, Panels):
        raise _Unlike("a product does not lie in panels")
    return module.packed.data_ptr(), None if module.bias is None else _number(module.bias, dtype)


def _number(tensor: Tensor, dtype: torch.dtype) -> int:
    """Where a vector lies."""
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.is_meta:
        raise _Unlike(f"a vector of {tensor.dtype}")
    return tensor.data_ptr()
