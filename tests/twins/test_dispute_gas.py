"""A dispute stays affordable on models of any size, and its gas is what the snapshot says."""

from __future__ import annotations

import json

import pytest

from tests.twins.dispute_gas import (
    MAX_DESCENT_GAS,
    MAX_MOVE_BYTES,
    MAX_MOVE_GAS,
    MAX_MOVES,
    MAX_PLEADED_GAS,
    MAX_TOTAL_GAS,
    SHAPES,
    SNAPSHOT,
    Way,
    measure,
    widths,
)

pytestmark = pytest.mark.chain

TOLERANCE = 0.03
#: What TaskRegistry adds to opening a game: order, a plan of eight stages and receipt as calldata,
#: and their signatures.
OPENING_GAS = 131_000
#: What it adds to executing one: it hears of the ruling.
RESOLVING_GAS = 16_300


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return measure()


def test_gas_is_as_in_the_snapshot(found: dict[str, int]) -> None:
    expected = {name: int(value) for name, value in json.loads(SNAPSHOT.read_text()).items()}
    assert found.keys() == expected.keys()
    off = {
        n: (expected[n], v)
        for n, v in found.items()
        if abs(v - expected[n]) > TOLERANCE * expected[n]
    }
    assert off == {}


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("shape", [shape.name for shape in SHAPES])
def test_no_move_is_too_large(found: dict[str, int], shape: str, way: Way) -> None:
    assert found[f"{shape}, {way}: largest gas"] <= MAX_MOVE_GAS
    assert found[f"{shape}, {way}: largest calldata"] <= MAX_MOVE_BYTES
    assert found[f"{shape}, {way}: transactions"] <= MAX_MOVES
    most = MAX_DESCENT_GAS if way.descends else MAX_TOTAL_GAS
    if way.is_pleaded:
        most = MAX_PLEADED_GAS
    assert found[f"{shape}, {way}: total"] + OPENING_GAS + RESOLVING_GAS <= most


def test_32_hashes_an_opening_cost_least() -> None:
    cost = {width: gas for width, _, gas in widths(29)}
    assert min(cost, key=cost.__getitem__) == 32
