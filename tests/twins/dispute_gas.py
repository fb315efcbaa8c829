"""What does every move of a tolerance game cost on models of 270 million, 8 and 70 billion weights?

    python -m tests.twins.dispute_gas            write contracts/snapshots/ToleranceGame.json
    python -m tests.twins.dispute_gas --print    print the table, and the curve of opening widths

The disputed element is the most expensive there is: one of the down projection, after a descent
from the root.
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from core.dispute.referee import LeafKind
from core.dispute.trace import chunks
from core.dispute.trace.derive import Choice, Derivation, TraceRun
from core.dispute.trace.families import Traits, compile_program
from core.dispute.trace.judge import Case, Claim
from core.dispute.trace.layout import Place, TraceLayout
from core.protocol import commit
from core.protocol.types import RequestLeaf
from tests.accounts import devnet_accounts
from tests.conftest import CHAIN_ID, ROOT, start_anvil
from tests.twins.dispute_chain import Bench, TwinGame
from tests.twins.game.players import lowest
from tests.twins.game.sparse import SparseTrace, evidence, nothing, open_weights
from tests.twins.game.toy import shapes_of_layer

SNAPSHOT = Path(ROOT) / "contracts" / "snapshots" / "ToleranceGame.json"
#: Of a dispute in which the accuser shows nothing off chain and has to open the trace on chain,
#: level by level: it pays for that itself.
MAX_DESCENT_GAS, MAX_PLEADED_GAS = 1_500_000, 1_750_000
MAX_TOTAL_GAS, MAX_MOVE_GAS, MAX_MOVE_BYTES, MAX_MOVES = 1_050_000, 500_000, 16_384, 20
POSITIONS, WINDOW_ROWS = 1024, 64
SEED = 200

GEMMA_270M = Traits(
    hidden=640,
    inner=2048,
    vocab=262_144,
    layers=18,
    heads=4,
    key_heads=1,
    head_dim=256,
    context=32_768,
    epsilon=1e-6,
    scale=256**-0.5,
    sliding=tuple(0 if (i + 1) % 6 == 0 else 512 for i in range(18)),
    head_norms=True,
    gain_plus_one=True,
    post_norms=True,
    gelu=True,
    embed_scale=25.25,
    two_ropes=True,
)
LLAMA_8B = Traits(
    hidden=4096,
    inner=14_336,
    vocab=128_256,
    layers=32,
    heads=32,
    key_heads=8,
    head_dim=128,
    context=131_072,
    epsilon=1e-5,
    scale=128**-0.5,
    sliding=(0,) * 32,
)
LLAMA_70B = replace(LLAMA_8B, hidden=8192, inner=28_672, layers=80, heads=64, sliding=(0,) * 80)


@dataclass(frozen=True)
class Shape:
    name: str
    traits: Traits
    layer_from: int
    layer_to: int


SHAPES = (
    Shape("270M", GEMMA_270M, 6, 12),
    Shape("8B", LLAMA_8B, 8, 14),
    Shape("70B", LLAMA_70B, 40, 50),
)


class Way(StrEnum):
    """Whether the accused was shown the trace off chain, or has to go down it on chain."""

    POINTED = "pointed at once"
    DESCENT = "descent"
    PLEADED = "pleaded, pointed at once"
    PLEADED_DESCENT = "pleaded, descent"

    @property
    def is_pleaded(self) -> bool:
        return self in (Way.PLEADED, Way.PLEADED_DESCENT)

    @property
    def descends(self) -> bool:
        return self in (Way.DESCENT, Way.PLEADED_DESCENT)


def play(bench: Bench, shape: Shape, tag: int, way: Way) -> list[tuple[str, int, int]]:
    """A whole dispute that the accuser wins.

    Returns each transaction's name, gas and calldata bytes.
    """
    traits = shape.traits
    names = {
        f"layer {i}": [f"model.layers.{i}.{n}" for n in shapes_of_layer(traits, False)]
        for i in range(traits.layers)
    }
    names |= {
        "embed": ["model.embed_tokens.weight"],
        "head": ["model.embed_tokens.weight", "model.norm.weight"],
    }
    program = compile_program(traits, names, nothing("tables"))
    spans = shape.layer_from, shape.layer_to, POSITIONS, POSITIONS - WINDOW_ROWS
    accused = TraceLayout(program, *spans)
    layout = replace(accused, plea=SEED) if way.is_pleaded else accused
    section = layout.depth + (layout.once if way.is_pleaded else 0)
    ops = layout.section(section).ops
    down = max(i for i, op in enumerate(ops) if op.kind == LeafKind.LINEAR)
    place = Place(section, down, POSITIONS - 3, 0, traits.hidden // 2 + 5)
    derivation = Derivation(layout, 1)
    trial = derivation.trial(place)
    rng = random.Random(tag)
    part = trial.parts // 2
    leaf = derivation.part(place, part)
    (run,) = leaf.runs
    x = [rng.uniform(-2, 2) for _ in range(run.count)]
    assert leaf.weights is not None
    w = [
        struct.unpack("<f", struct.pack("<f", rng.uniform(-0.2, 0.2)))[0] for _ in range(run.count)
    ]
    stated = [rng.uniform(-1, 1) for _ in range(trial.parts)]
    stated[part] = float(sum(Fraction(a) * Fraction(b) for a, b in zip(x, w, strict=True)))
    trace = SparseTrace(layout, {run: x, TraceRun(place, 1): [math.fsum(stated)]})
    chunk = layout.first_chunk(place) + place.item // 8
    low = lowest(chunks.height(layout.chunks))
    first = chunk >> low << low
    shown = trace.show(first, min(first + (1 << low), layout.chunks))
    tree = trace.commit()
    weights, layer_root = open_weights(leaf.weights, w)
    roots = [nothing("part", i) for i in range(traits.layers + 2)]
    roots[1 + leaf.weights.part] = layer_root
    rows = nothing("in"), nothing("out")
    claim = Claim(
        RequestLeaf(0, commit.to_hex(rows[0]), commit.to_hex(rows[1]), POSITIONS, 200),
        shape.layer_from,
        shape.layer_to,
        POSITIONS,
        POSITIONS - WINDOW_ROWS,
        2,
        tree.root,
        plea=layout.plea,
    )
    case = Case(program, tuple(roots), claim)
    model = bench.register(case, tag)
    hashes = [nothing("request", i) for i in range(2 * 64)]
    hashes[2 * 17] = commit.leaf_hash(commit.request_leaf_bytes(claim.leaf))
    bench.gas_used.clear()
    game = TwinGame.open(bench, case, hashes, model)

    def open_child() -> None:
        child, node = game.game.picked_node(), game.game.node
        assert node is not None
        proof = tree.proof(child.index, child.index + 1, child.level, node.level - child.level)
        if child.level > chunks.STEP_LEVELS:
            game.open_node(tree.below(child.level, child.index), proof)
        else:
            game.open_chunks(shown, proof)

    below, proof = tree.below(tree.height, 0), commit.merkle_proof(hashes, 2 * 17)
    if way.is_pleaded:
        plain = SparseTrace(accused, {TraceRun(Place(1, 0), 1): [1.0]}).commit()
        first = replace(claim, plea=None, trace_root=plain.root)
        game.accuse(replace(case, claim=first), 17, proof, plain.below(plain.height, 0))
        game.plead(SEED)
        game.restate(case, below)
    else:
        game.accuse(case, 17, proof, below)
    while way.descends and (node := game.game.node) is not None and node.level:
        step = min(chunks.STEP_LEVELS, node.level)
        game.pick((chunk >> (node.level - step)) - (node.index << step))
        open_child()
    sums = struct.pack(f"<{len(stated)}d", *stated)
    game.point(place, bench.operator)
    game.expand(sums)
    game.pick_part(part)
    game.prove_part(evidence(trace, leaf, weights, None))
    assert game.game.verdict == 2
    game.execute()
    return list(bench.gas_used)


def measure() -> dict[str, int]:
    """Gas and calldata of every move by shape, by name of the snapshot's entries."""
    node = start_anvil("--hardfork", "prague")
    try:
        bench = Bench.make(node.rpc_url, devnet_accounts(10, chain_id=CHAIN_ID))
        found: dict[str, int] = {}
        for tag, shape in enumerate(SHAPES):
            for number, way in enumerate(Way):
                moves = play(bench, shape, 1000 + 10 * tag + number, way)
                title = f"{shape.name}, {way}"
                for number, (name, gas, _size) in enumerate(moves):
                    found[f"{title}: {number:02d} {name}"] = gas
                found[f"{title}: total"] = sum(gas for _, gas, _ in moves)
                found[f"{title}: transactions"] = len(moves)
                found[f"{title}: largest calldata"] = max(size for *_, size in moves)
                found[f"{title}: largest gas"] = max(gas for _, gas, _ in moves)
        return found
    finally:
        node.stop()


#: Of a round, the pick and its opening: base fees and what else the bytes of a call are; then each
#: hash that is shown, and each sibling on the way up to the node before, by the floor of calldata.
ROUND_GAS, HASH_GAS = 53_800, 1_280


def widths(levels: int) -> list[tuple[int, int, int]]:
    """(children an opening shows, rounds, gas of a descent of `levels` levels)."""
    found = []
    for step in range(1, 9):
        rounds = -(-levels // step)
        found.append((1 << step, rounds, rounds * (ROUND_GAS + HASH_GAS * ((1 << step) + step))))
    return found


def main() -> int:
    found = measure()
    if "--print" in sys.argv:
        for name, value in found.items():
            print(f"{name:60} {value:>10,}")
        print("\nwidth  rounds  gas of the descent (29 levels)")
        for width, rounds, gas in widths(29):
            print(f"{width:5}  {rounds:6}  {gas:>10,}")
        return 0
    SNAPSHOT.write_text(json.dumps({k: str(v) for k, v in found.items()}, indent=2) + "\n")
    return 0


__all__ = ["Choice", "main", "measure", "play", "widths"]

if __name__ == "__main__":
    raise SystemExit(main())
