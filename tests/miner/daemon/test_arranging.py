"""Do machines that no matcher speaks to come to one arrangement, and leave it alone then?"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol.types import LayerRange
from miner.daemon.arranging import Arranger, SeenMachine, own_layers

GIB = 2**30
LAYERS, LAYER_BYTES = 30, GIB
ROUND_S, STEADY_S = 3.0, 12.0


def held(number: int, layers: tuple[int, int] | None, gib: float) -> SeenMachine:
    return SeenMachine(f"0x{number:040x}", LayerRange(*layers) if layers else None, int(gib * GIB))


def all_layers(machines: list[SeenMachine]) -> list[LayerRange | None]:
    """What each machine chooses, all seeing the same."""
    return [
        own_layers(one, [m for m in machines if m is not one], LAYERS, LAYER_BYTES)
        for one in machines
    ]


def test_machines_that_hold_nothing_share_the_model_by_their_memory() -> None:
    machines = [held(1, None, 20), held(2, None, 40), held(3, None, 20)]
    assert all_layers(machines) == [LayerRange(15, 22), LayerRange(0, 15), LayerRange(22, 30)]


def test_a_machine_that_comes_doubles_what_fewest_hold_and_nobody_else_moves() -> None:
    machines = [held(1, (0, 15), 40), held(2, (15, 30), 40), held(3, (0, 15), 40)]
    comes = [*machines, held(4, None, 16), held(5, None, 16)]
    assert all_layers(comes)[:3] == [LayerRange(0, 15), LayerRange(15, 30), LayerRange(0, 15)]
    assert all_layers(comes)[3] == LayerRange(15, 27)
    assert all_layers(comes)[4] is not None


def test_machines_that_hold_nothing_fill_a_gap() -> None:
    machines = [held(1, (0, 10), 20), held(2, None, 8), held(3, (22, 30), 20), held(4, None, 12)]
    found = all_layers(machines)
    assert (found[0], found[2]) == (LayerRange(0, 10), LayerRange(22, 30)), "they keep theirs"
    assert (found[3], found[1]) == (LayerRange(10, 17), LayerRange(17, 22))


def test_all_begin_anew_where_a_gap_cannot_be_filled_otherwise() -> None:
    machines = [held(1, (0, 10), 40), held(2, (20, 30), 40)]
    assert all_layers(machines) == [LayerRange(0, 15), LayerRange(15, 30)]
    small = [*machines, held(3, None, 4)]
    assert all_layers(small) == [LayerRange(0, 14), LayerRange(14, 28), LayerRange(28, 30)]


def test_too_little_memory_for_the_model_moves_nobody_for_nothing() -> None:
    machines = [held(1, (0, 7), 10), held(2, None, 10)]
    assert all_layers(machines)[0] == LayerRange(0, 7)


def test_a_machine_without_room_for_a_layer_holds_nothing() -> None:
    assert all_layers([held(1, (0, 30), 50), held(2, None, 1)])[1] is None


def test_a_step_is_taken_when_it_was_called_for_all_the_time() -> None:
    arranger, one, other = Arranger(STEADY_S), LayerRange(0, 4), LayerRange(4, 8)
    assert not arranger.decide(one, None, 0.0)
    assert not arranger.decide(one, None, 11.9)
    assert arranger.decide(one, None, 12.0)
    assert not arranger.decide(other, None, 13.0), "another one waits anew"
    assert not arranger.decide(other, other, 20.0)
    assert not arranger.decide(other, None, 26.0), "it was held meanwhile"
    assert not arranger.decide(None, one, 90.0), "what is held is not dropped for nothing"


@dataclass
class Node:
    """A machine of the simulation, which loads for a while and sees others late."""

    is_now: SeenMachine
    said: list[SeenMachine] = field(default_factory=list)
    arranger: Arranger = field(default_factory=lambda: Arranger(STEADY_S))
    loading: LayerRange | None = None
    left_rounds: int = 0
    moves: int = 0

    def look(self, others: list[SeenMachine], now_s: float, rng: random.Random) -> None:
        if self.loading is not None:
            self.left_rounds -= 1
            if self.left_rounds <= 0:
                self.is_now = replace(self.is_now, layers=self.loading)
                self.loading = None
            return
        wanted = own_layers(self.is_now, others, LAYERS, LAYER_BYTES)
        if self.arranger.decide(wanted, self.is_now.layers, now_s):
            self.loading, self.left_rounds = wanted, rng.randint(1, 20)
            self.is_now = replace(self.is_now, layers=None)
            self.moves += 1


def run(nodes: list[Node], rounds: int, rng: random.Random, from_s: float = 0.0) -> float:
    """Let time pass: records take up to two rounds to reach another machine."""
    for number in range(rounds):
        for node in nodes:
            node.said.append(node.is_now)
        for node in nodes:
            late = [one.said[-1 - rng.randint(0, min(2, len(one.said) - 1))] for one in nodes]
            others = [s for s, one in zip(late, nodes, strict=True) if one is not node]
            node.look(others, from_s + number * ROUND_S, rng)
    return from_s + rounds * ROUND_S


def is_covered(nodes: list[Node]) -> bool:
    held_now = [n.is_now.layers for n in nodes if n.is_now.layers]
    return all(any(layer in one for one in held_now) for layer in range(LAYERS))


@pytest.mark.parametrize("count", [1, 3, 8])
@given(seed=st.integers(0, 2**32))
def test_they_cover_the_model_stay_still_and_do_so_again_after_losses(
    count: int, seed: int
) -> None:
    rng = random.Random(seed)
    memories = [rng.uniform(44, 120) / count for _ in range(count)]
    nodes = [Node(held(i + 1, None, memory)) for i, memory in enumerate(memories)]
    now_s = run(nodes, 80, rng)
    assert is_covered(nodes)
    moves = [node.moves for node in nodes]
    now_s = run(nodes, 40, rng, now_s)
    assert [node.moves for node in nodes] == moves, "what covers the model is left alone"

    nodes.append(Node(held(99, None, 60)))
    now_s = run(nodes, 40, rng, now_s)
    assert nodes[-1].is_now.layers is not None
    assert [node.moves for node in nodes[:-1]] == moves, "who comes moves nobody"

    if count > 1:
        nodes.pop(rng.randrange(count))
        now_s = run(nodes, 160, rng, now_s)
        assert is_covered(nodes)
        moves = [node.moves for node in nodes]
        run(nodes, 40, rng, now_s)
        assert [node.moves for node in nodes] == moves


def test_a_machine_that_only_says_that_it_holds_everything_keeps_nobody_from_holding_it() -> None:
    liar = held(9, (0, LAYERS), 100)
    machines = [liar, *(held(number, None, 14) for number in (1, 2, 3))]
    others = [found for found in all_layers(machines)[1:] if found is not None]
    assert all(any(layer in one for one in others) for layer in range(LAYERS))
