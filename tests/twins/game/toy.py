"""A decoder of a few numbers with whole-number weights: whole games on it run in milliseconds."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass, replace
from functools import cached_property

from core.dispute.trace.derive import Choice, Derivation
from core.dispute.trace.families import SIGMA, Traits, compile_program
from core.dispute.trace.layout import Place, TraceLayout
from core.dispute.trace.program import Program
from core.dispute.trace.sources import CommittedRows, answer_rows
from core.protocol.commit import Half
from tests.twins.game.sources import CommittedTensors, HeldSources
from tests.twins.game.traces import Evaluator, HeldTrace, Tamper

LLAMA = Traits(
    hidden=8,
    inner=12,
    vocab=19,
    layers=3,
    heads=4,
    key_heads=2,
    head_dim=4,
    context=16,
    epsilon=1e-5,
    scale=0.5,
    sliding=(0, 0, 0),
)
QWEN2 = LLAMA
QWEN3 = replace(LLAMA, head_norms=True)
GEMMA2 = replace(
    LLAMA,
    gain_plus_one=True,
    post_norms=True,
    gelu=True,
    attention_cap=50.0,
    logit_cap=30.0,
    embed_scale=2.5,
    sliding=(3, 0, 3),
)
GEMMA3 = replace(
    GEMMA2, attention_cap=0.0, logit_cap=0.0, head_norms=True, two_ropes=True, sliding=(3, 3, 0)
)
#: Wide enough that reductions go by partial sums.
WIDE = replace(LLAMA, hidden=264, inner=300, layers=1, sliding=(0,))
FAMILIES = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "wide": WIDE,
}


def f32(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def shapes_of_layer(t: Traits, biases: bool) -> dict[str, tuple[int, int]]:
    query, keys = t.heads * t.head_dim, t.key_heads * t.head_dim
    found = {
        "input_layernorm.weight": (1, t.hidden),
        "self_attn.q_proj.weight": (query, t.hidden),
        "self_attn.k_proj.weight": (keys, t.hidden),
        "self_attn.v_proj.weight": (keys, t.hidden),
        "self_attn.o_proj.weight": (t.hidden, query),
        "post_attention_layernorm.weight": (1, t.hidden),
        "mlp.gate_proj.weight": (t.inner, t.hidden),
        "mlp.up_proj.weight": (t.inner, t.hidden),
        "mlp.down_proj.weight": (t.hidden, t.inner),
    }
    if t.head_norms:
        found |= {f"self_attn.{n}_norm.weight": (1, t.head_dim) for n in "qk"}
    if t.post_norms:
        found |= {f"{n}_feedforward_layernorm.weight": (1, t.hidden) for n in ("pre", "post")}
    if biases:
        sizes = {"q": query, "k": keys, "v": keys}
        found |= {f"self_attn.{n}_proj.bias": (1, size) for n, size in sizes.items()}
    return found


def whole(rng: random.Random, rows: int, columns: int, norm: bool) -> list[bytes]:
    low, high = (1, 3) if norm else (-3, 3)
    return [f32([rng.randint(low, high) / 4 for _ in range(columns)]) for _ in range(rows)]


@dataclass(frozen=True)
class Toy:
    """A model, one request through one stage, and what the stage signed."""

    traits: Traits
    parts: dict[int, CommittedTensors]
    program: Program
    names: dict[str, list[str]]

    @classmethod
    def make(cls, traits: Traits, seed: int = 0, biases: bool = False) -> Toy:
        rng = random.Random(seed)
        tensors: dict[int, dict[str, list[bytes]]] = {}
        for layer in range(traits.layers):
            tensors[layer] = {
                f"model.layers.{layer}.{name}": whole(rng, *shape, "norm" in name)
                for name, shape in shapes_of_layer(traits, biases).items()
            }
        embed = whole(rng, traits.vocab, traits.hidden, False)
        tensors[-1] = {"model.embed_tokens.weight": embed}
        tensors[traits.layers] = {
            "model.embed_tokens.weight": embed,
            "model.norm.weight": whole(rng, 1, traits.hidden, True),
        }
        tables = {"rope.0": cls._rope(traits, 10_000.0)}
        if traits.two_ropes:
            tables["rope.1"] = cls._rope(traits, 100.0)
        tables[SIGMA] = [
            f32([rng.choice((0.5, 1.0, 2.0)) for _ in range(traits.hidden)])
            for _ in range(traits.layers + 1)
        ]
        tensors[-2] = tables
        parts = {number: CommittedTensors(named) for number, named in tensors.items()}
        names = {"embed": parts[-1].names, "head": parts[traits.layers].names}
        names |= {f"layer {i}": parts[i].names for i in range(traits.layers)}
        return cls(traits, parts, compile_program(traits, names, parts[-2].root), names)

    @staticmethod
    def _rope(traits: Traits, theta: float) -> list[bytes]:
        rows = []
        for position in range(traits.context):
            row: list[float] = []
            for i in range(traits.head_dim // 2):
                angle = position * theta ** (-2 * i / traits.head_dim)
                row += [math.cos(angle), math.sin(angle)]
            rows.append(f32(row))
        return rows

    def inputs(self, layer_from: int, positions: int, seed: int = 1) -> CommittedRows:
        rng = random.Random(seed)
        if layer_from == 0:
            return CommittedRows(
                [rng.randrange(self.traits.vocab).to_bytes(4, "little") for _ in range(positions)]
            )
        width = self.traits.hidden
        return CommittedRows(
            [f32([rng.randint(-8, 8) / 8 for _ in range(width)]) for _ in range(positions)]
        )

    def stage(
        self, layer_from: int, layer_to: int, positions: int, window_from: int = 0, seed: int = 1
    ) -> Stage:
        layout = TraceLayout(self.program, layer_from, layer_to, positions, window_from)
        return Stage(self, layout, self.inputs(layer_from, positions, seed))

    def last_stage(self, layer_from: int, positions: int, choice: Choice, seed: int = 1) -> Stage:
        """A last stage whose token of the last position is accused, with state rows at random."""
        layout = TraceLayout.of_token(self.program, positions - TOKENS_IN)
        states = self.inputs(1, positions - TOKENS_IN + 1, seed + 1)
        inputs = self.inputs(layer_from, positions, seed)
        return Stage(self, layout, inputs, choice, states, layer_from)


#: Of every request here: so the first row that a last stage signs is of position 1.
TOKENS_IN = 2
#: What stands beside the half of a last stage's root that is looked at.
BESIDE = b"\x5a" * 32


@dataclass(frozen=True)
class Stage:
    """One request through one stage."""

    toy: Toy
    layout: TraceLayout
    inputs: CommittedRows
    choice: Choice | None = None
    states: CommittedRows | None = None  # of an accused token
    token_from: int = 0  # first layer of a stage whose token is accused

    @property
    def span(self) -> tuple[int, int, int, int]:
        """First layer, last one's end, positions and window as a claim says them."""
        at = self.layout
        if self.choice is None:
            return at.layer_from, at.layer_to, at.positions, at.window_from
        return self.token_from, at.layer_to, len(self.inputs.rows), 0

    def ids(self, *tokens: int) -> CommittedRows:
        """These tokens as a last stage signs them, beside its state rows."""
        assert self.states is not None
        return answer_rows([i.to_bytes(4, "little") for i in tokens], self.states.rows)[0]

    @property
    def half(self) -> Half:
        """What of the stage's `outRoot` is accused: all, or a last stage's tokens or state rows."""
        if self.layout.layer_to < self.toy.traits.layers:
            return Half.NONE
        return Half.STATES if self.choice is None else Half.TOKENS

    @property
    def first_out(self) -> int:
        return 0 if self.half == Half.NONE else TOKENS_IN - 1

    @cached_property
    def entry(self) -> int:
        """The first tolerance that is promised for this depth and window."""
        layout = self.layout
        return next(
            number
            for number, t in enumerate(self.toy.program.tolerances)
            if layout.depth <= t.max_depth and layout.window_rows >= t.min_rows
        )

    def pleaded(self, seed: int) -> Stage:
        """The same work with a trace of two passes, the second shaken."""
        return replace(self, layout=replace(self.layout, plea=seed))

    @cached_property
    def derivation(self) -> Derivation:
        tolerance = self.toy.program.tolerances[self.entry].parts_per_trillion
        return Derivation(self.layout, tolerance, self.choice, self.first_out)

    def sources(self, outputs: CommittedRows) -> HeldSources:
        states = outputs if self.half == Half.STATES else None
        if self.states is not None:
            states = replace(self.states, beside=outputs.root)
        return HeldSources(self.toy.parts, self.inputs, outputs, states)

    @cached_property
    def honest_outputs(self) -> CommittedRows:
        """What an honest machine signs: the true rows in float32."""
        signed = range(self.first_out, self.layout.positions)
        trace = self.evaluate(CommittedRows([f32([0.0] * self.toy.traits.hidden)] * len(signed)))
        last = self.layout.depth
        op = len(self.layout.section(last).ops) - 1
        width = self.toy.traits.hidden
        rows = [f32([trace[Place(last, op, t, 0, i)] for i in range(width)]) for t in signed]
        return CommittedRows(rows, BESIDE if self.half else b"")

    def lying_outputs(self, factor: float) -> CommittedRows:
        """Rows of a machine that is off by `factor`."""
        rows = [
            f32([value * factor for value in struct.unpack(f"<{len(row) // 4}f", row)])
            for row in self.honest_outputs.rows
        ]
        return CommittedRows(rows, self.honest_outputs.beside)

    def evaluate(self, outputs: CommittedRows, tamper: Tamper | None = None) -> HeldTrace:
        """The one trace that there is with these outputs, but for what `tamper` does to it."""
        return Evaluator(self.derivation, self.sources(outputs)).evaluate(self.layout, tamper)


#: What a liar's rows are off by.
LIE = 1.01


def make_stage(name: str) -> Stage:
    """One request through a stage of a family's toy; `last` and `alone` end their model."""
    biases = name in ("qwen2", "wide")
    if name == "wide":
        toy = Toy.make(replace(WIDE, layers=2, sliding=(0, 0)), biases=True)
        return toy.stage(0, 1, 2, 1)
    if name == "last":
        return Toy.make(LLAMA, seed=5).stage(1, 3, 4, 1)
    if name == "alone":  # first and last at once
        return Toy.make(GEMMA2, seed=5).stage(0, 3, 4, 2)
    toy = Toy.make(FAMILIES[name], biases=biases)
    return toy.stage(0 if name in ("llama", "gemma2") else 1, 2, 4, 1)
