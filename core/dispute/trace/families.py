"""What is the operator program of a llama, qwen2, qwen3, mistral, gemma2 or gemma3 model?

Read from the model's `config.json` and the names of its tensors; the reference is the float64
reading of what the model's library computes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.dispute.referee import LeafKind
from core.dispute.trace.program import (
    EXACT,
    INPUT,
    NONE,
    Form,
    Op,
    Plea,
    Program,
    Section,
    Tolerance,
)
from core.protocol.errors import ModelUnsupported

#: T by depth and window for float32 activations, accumulation and wire; windows under 64 rows have
#: twice the room.
FP32_TOLERANCES = (
    Tolerance(1, 64, 10 * 10**6),
    Tolerance(6, 64, 30 * 10**6),
    Tolerance(30, 64, 100 * 10**6),
    Tolerance(1, 16, 20 * 10**6),
    Tolerance(6, 16, 60 * 10**6),
    Tolerance(10, 1, 100 * 10**6),
    Tolerance(30, 16, 200 * 10**6),
)
#: Layers between two boundaries that a stage signs. A lie in one layer stands out of the noise of
#: six as it does of one; of more layers it is within what is tolerated.
SPAN_LAYERS = 6
#: The profile of models in float32 without an operator program, by the hash of its name.
FP32_PROFILE = "fp32"
#: δ in 10^-6 nat, at least: no norm and head in float32 is further off on natural rows.
LEAST_DELTA_MICRO = 10_000
FP32_PLEA = Plea(16 * 10**12, 24)
#: The same for bfloat16 weights and activations with sums in float32. No model may be deeper a
#: stage: honest noise reaches what coarser weights do.
BF16_TOLERANCES = (
    Tolerance(1, 64, 15 * 10**9),
    Tolerance(6, 64, 33 * 10**9),
    Tolerance(18, 64, 65 * 10**9),
    Tolerance(1, 16, 30 * 10**9),
    Tolerance(6, 16, 66 * 10**9),
    Tolerance(10, 1, 250 * 10**9),
    Tolerance(18, 16, 130 * 10**9),
)
BF16_PLEA = Plea(4 * 10**12, 9)
#: Tensors under the tables' root, in order of name.
ROPE_FULL, ROPE_SLIDING, SIGMA = "rope.0", "rope.1", "sigma"

_GEMMAS = ("gemma2", "gemma3_text")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", *_GEMMAS)


@dataclass(frozen=True)
class Traits:
    """What sets one decoder apart from another, in so far as its operators differ."""

    hidden: int
    inner: int
    vocab: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    context: int
    epsilon: float
    scale: float
    sliding: tuple[int, ...]  # window of each layer, 0 where it sees everything
    head_norms: bool = False
    gain_plus_one: bool = False
    post_norms: bool = False
    gelu: bool = False
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embed_scale: float = 1.0
    two_ropes: bool = False


def traits_of(config: Mapping[str, Any]) -> Traits:
    """Raises ModelUnsupported for a family or a setting that no program is written for."""
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise unsupported(f"no operator program for the family {family}")
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    gemma = family in _GEMMAS
    activation = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if activation not in ("silu", "gelu_pytorch_tanh"):
        raise unsupported(f"the activation {activation}")
    if float(config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise unsupported("a rotation of part of a head")
    head_dim = int(config.get("head_dim") or hidden // heads)
    if head_dim > 256 or head_dim % 2:
        raise unsupported(f"heads of {head_dim} numbers")
    before_scale = (
        float(config.get("query_pre_attn_scalar") or head_dim) if gemma else float(head_dim)
    )
    return Traits(
        hidden=hidden,
        inner=int(config["intermediate_size"]),
        vocab=int(config["vocab_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        key_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        context=int(config["max_position_embeddings"]),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
        scale=before_scale**-0.5,
        sliding=_windows(config),
        head_norms=family in ("qwen3", "gemma3_text"),
        gain_plus_one=gemma,
        post_norms=gemma,
        gelu=activation == "gelu_pytorch_tanh",
        attention_cap=float(config.get("attn_logit_softcapping") or 0.0) if gemma else 0.0,
        logit_cap=float(config.get("final_logit_softcapping") or 0.0) if gemma else 0.0,
        embed_scale=_float32(hidden**0.5) if gemma else 1.0,
        two_ropes=family == "gemma3_text",
    )


def compile_program(
    traits: Traits,
    tensors: Mapping[str, Sequence[str]],
    tables_root: bytes,
    tolerances: Sequence[Tolerance] = FP32_TOLERANCES,
    delta_micro: int = LEAST_DELTA_MICRO,
    plea: Plea = FP32_PLEA,
) -> Program:
    """The program of a model.

    `tensors` names its tensors under `embed`, `layer i` and `head` as its manifest does.

    Raises ModelUnsupported where a tensor is missing, or one is there that no operator reads.
    """
    kinds = sorted({(bool(window), window) for window in traits.sliding})
    book = _Constants()
    layers = []
    for sliding, window in kinds:
        number = next(i for i, w in enumerate(traits.sliding) if w == window)
        layers.append(_layer(traits, tensors[f"layer {number}"], book, sliding, window))
    embed = _Names(tensors["embed"])
    enter = Op(
        LeafKind.EMBED,
        Form.HIDDEN,
        tensor=embed["embed_tokens.weight"],
        constant=book.number(traits.embed_scale),
    )
    head = _head(traits, tensors["head"], book)
    two = traits.two_ropes
    return Program(
        hidden=traits.hidden,
        query=traits.heads * traits.head_dim,
        keys=traits.key_heads * traits.head_dim,
        inner=traits.inner,
        vocab=traits.vocab,
        context=traits.context,
        heads=traits.heads,
        key_heads=traits.key_heads,
        head_dim=traits.head_dim,
        part_terms=_part_terms(traits),
        delta_micro=delta_micro,
        tables_root=tables_root,
        tables=3 if two else 2,
        sigma=2 if two else 1,
        plea=plea,
        tolerances=tuple(tolerances),
        sections=(
            Section(0, (Op(LeafKind.INPUT, Form.HIDDEN),)),
            Section(len(embed), (enter,)),
            Section(0, _LEAVE),
            head,
            Section(0, _PLEADED),
            *layers,
        ),
        constants=tuple(book.words),
        layer_types=bytes(kinds.index((bool(w), w)) for w in traits.sliding),
        span_layers=SPAN_LAYERS,
    )


_LEAVE = (
    Op(LeafKind.WHITEN_DIFFERENCE, Form.WINDOW, INPUT),
    Op(LeafKind.WHITEN_REFERENCE, Form.WINDOW, INPUT),
    Op(LeafKind.SQUARES, Form.WINDOW_SCALAR, 0),
    Op(LeafKind.SQUARES, Form.WINDOW_SCALAR, 1),
    Op(LeafKind.SUM, Form.TOTAL, 2),
    Op(LeafKind.SUM, Form.TOTAL, 3),
    Op(LeafKind.EXCEEDS, Form.VERDICT, 4, 5),
)


#: D², S² of the first pass, N² between the passes; D is held to T·S and to K·N.
_PLEADED = (
    Op(LeafKind.WHITEN_DIFFERENCE, Form.WINDOW, EXACT),
    Op(LeafKind.WHITEN_REFERENCE, Form.WINDOW, EXACT),
    Op(LeafKind.WHITEN_CHANGE, Form.WINDOW, INPUT, EXACT),
    Op(LeafKind.SQUARES, Form.WINDOW_SCALAR, 0),
    Op(LeafKind.SQUARES, Form.WINDOW_SCALAR, 1),
    Op(LeafKind.SQUARES, Form.WINDOW_SCALAR, 2),
    Op(LeafKind.SUM, Form.TOTAL, 3),
    Op(LeafKind.SUM, Form.TOTAL, 4),
    Op(LeafKind.SUM, Form.TOTAL, 5),
    Op(LeafKind.EXCEEDS, Form.VERDICT, 6, 7),
    Op(LeafKind.EXCEEDS, Form.VERDICT, 6, 8, flag=1),
)


class _Constants:
    def __init__(self) -> None:
        self.words: list[int] = []

    def word(self, word: int) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def number(self, value: float) -> int:
        return self.word(int.from_bytes(struct.pack(">d", value), "big"))


class _Names:
    """Tensors of one part by the end of their names; every one must be asked for."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = sorted(names)
        self._asked: set[int] = set()

    def __getitem__(self, end: str) -> int:
        found = self.get(end)
        if found == NONE:
            raise unsupported(f"there is no tensor {end}")
        return found

    def get(self, end: str) -> int:
        for number, name in enumerate(self._names):
            if name == end or name.endswith("." + end):
                self._asked.add(number)
                return number
        return NONE

    def __len__(self) -> int:
        return len(self._names)

    def check_all_asked(self) -> None:
        left = [name for i, name in enumerate(self._names) if i not in self._asked]
        if left:
            raise unsupported(f"no operator reads {', '.join(left)}")


class _Ops:
    def __init__(self, names: _Names, traits: Traits, book: _Constants) -> None:
        self.found: list[Op] = []
        self._names, self._traits, self._book = names, traits, book

    def add(self, kind: LeafKind, form: Form, a: int = NONE, b: int = NONE, **more: int) -> int:
        self.found.append(Op(kind, form, a, b, **more))
        return len(self.found) - 1

    def linear(self, form: Form, a: int, module: str) -> int:
        weight, bias = self._names[f"{module}.weight"], self._names.get(f"{module}.bias")
        return self.add(LeafKind.LINEAR, form, a, tensor=weight, bias=bias)

    def norm(self, form: Form, scalar: Form, a: int, module: str) -> int:
        q = self.add(LeafKind.SQUARES, scalar, a)
        epsilon = self._book.number(self._traits.epsilon)
        r = self.add(LeafKind.NORM_SCALE, scalar, q, constant=epsilon)
        weight, plus = self._names[f"{module}.weight"], int(self._traits.gain_plus_one)
        return self.add(LeafKind.NORM, form, a, r, tensor=weight, flag=plus)

    def section(self) -> Section:
        self._names.check_all_asked()
        return Section(len(self._names), tuple(self.found))


def _layer(
    traits: Traits, tensors: Sequence[str], book: _Constants, sliding: bool, window: int
) -> Section:
    ops = _Ops(_Names(tensors), traits, book)
    x = ops.norm(Form.HIDDEN, Form.SCALAR, INPUT, "input_layernorm")
    q = ops.linear(Form.QUERY, x, "self_attn.q_proj")
    k = ops.linear(Form.KEYS, x, "self_attn.k_proj")
    v = ops.linear(Form.KEYS, x, "self_attn.v_proj")
    if traits.head_norms:
        q = ops.norm(Form.QUERY, Form.PER_HEAD, q, "self_attn.q_norm")
        k = ops.norm(Form.KEYS, Form.PER_KEY_HEAD, k, "self_attn.k_norm")
    rope = 1 if traits.two_ropes and sliding else 0
    q = ops.add(LeafKind.ROPE, Form.QUERY, q, tensor=rope)
    k = ops.add(LeafKind.ROPE, Form.KEYS, k, tensor=rope)
    turned = ops.add(LeafKind.COPY, Form.TURNED, v)
    hides = book.word(window) if window else NONE
    s = ops.add(LeafKind.SCORE, Form.SCORES, q, k, bias=hides, constant=book.number(traits.scale))
    if traits.attention_cap:
        s = ops.add(LeafKind.SOFTCAP, Form.SCORES, s, constant=book.number(traits.attention_cap))
    m = ops.add(LeafKind.STABILISER, Form.PER_HEAD, s)
    e = ops.add(LeafKind.EXP, Form.SCORES, m, s)
    z = ops.add(LeafKind.SUM, Form.PER_HEAD, e)
    p = ops.add(LeafKind.PROBABILITY, Form.SCORES, e, z)
    mixed = ops.add(LeafKind.MIX, Form.QUERY, p, turned)
    o = ops.linear(Form.HIDDEN, mixed, "self_attn.o_proj")
    if traits.post_norms:
        o = ops.norm(Form.HIDDEN, Form.SCALAR, o, "post_attention_layernorm")
    h = ops.add(LeafKind.ADD, Form.HIDDEN, INPUT, o)
    before = "pre_feedforward_layernorm" if traits.post_norms else "post_attention_layernorm"
    x = ops.norm(Form.HIDDEN, Form.SCALAR, h, before)
    gate = ops.linear(Form.INNER, x, "mlp.gate_proj")
    up = ops.linear(Form.INNER, x, "mlp.up_proj")
    acted = ops.add(LeafKind.GELU_TANH if traits.gelu else LeafKind.SILU, Form.INNER, gate)
    gated = ops.add(LeafKind.PRODUCT, Form.INNER, acted, up)
    down = ops.linear(Form.HIDDEN, gated, "mlp.down_proj")
    if traits.post_norms:
        down = ops.norm(Form.HIDDEN, Form.SCALAR, down, "post_feedforward_layernorm")
    ops.add(LeafKind.ADD, Form.HIDDEN, h, down)
    return ops.section()


def _head(traits: Traits, tensors: Sequence[str], book: _Constants) -> Section:
    names = _Names(tensors)
    ops = _Ops(names, traits, book)
    x = ops.norm(Form.HIDDEN, Form.SCALAR, INPUT, "norm")
    weight = names.get("lm_head.weight")
    if weight == NONE:
        weight = names["embed_tokens.weight"]
    logits = ops.add(LeafKind.LINEAR, Form.LOGITS, x, tensor=weight, bias=names.get("lm_head.bias"))
    if traits.logit_cap:
        cap = book.number(traits.logit_cap)
        logits = ops.add(LeafKind.SOFTCAP, Form.LOGITS, logits, constant=cap)
    ops.add(LeafKind.GREEDY, Form.VERDICT, logits)
    return ops.section()


def _windows(config: Mapping[str, Any]) -> tuple[int, ...]:
    layers = int(config["num_hidden_layers"])
    window = int(config.get("sliding_window") or 0)
    family = config.get("model_type")
    if family in ("qwen2", "qwen3") and not config.get("use_sliding_window"):
        window = 0
    types = config.get("layer_types")
    if types:
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    if family == "gemma2":
        return tuple(window if i % 2 == 0 else 0 for i in range(layers))
    if family == "gemma3_text":
        pattern = int(config.get("sliding_window_pattern") or 6)
        return tuple(window if (i + 1) % pattern else 0 for i in range(layers))
    if family in ("qwen2", "qwen3"):
        last_full = int(config.get("max_window_layers") or 0)
        return tuple(window if i >= last_full else 0 for i in range(layers))
    return (window,) * layers


def _part_terms(traits: Traits) -> int:
    """A move is cheapest with 128 terms.

    255 partial sums of them, and a bias, must make the widest row.
    """
    widest = max(traits.hidden, traits.inner, traits.heads * traits.head_dim)
    if widest > 255 * 256:
        raise unsupported(f"rows of {widest} weights")
    return 128 if widest <= 255 * 128 else 256


def _float32(value: float) -> float:
    (found,) = struct.unpack("<f", struct.pack("<f", value))
    return float(found)


def unsupported(why: str) -> ModelUnsupported:
    """No program describes the model, so no tolerance game is about it."""
    return ModelUnsupported(
        "the tolerance game cannot judge this model",
        why=why,
        next_step="name the jury as the order's arbitrator",
    )
