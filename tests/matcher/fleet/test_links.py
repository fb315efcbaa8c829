"""Of two words about a link the worse one counts, one alone up to what others saw."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matcher.fleet.fleet_view import fleet_of
from matcher.fleet.links import LEAST_MB_S, UNPROVEN_MB_S, agreed_mb_s, links_of, said_of
from scheduler.fleet.fleet import UNMEASURED_RHO_MS, Link, Links
from tests.town.fleet import machine_key, make_record, sighting

ABSURD_MB_S = 1e9


def op(number: int) -> str:
    return machine_key(number).address


def links(**said: Mapping[str, float]) -> Links:
    """Links where all are 1 ms apart by everybody's word, with these speeds by machine."""
    names = sorted(said.keys() | {peer for told in said.values() for peer in told})
    rho_ms = {a: {b: 1.0 for b in names if b != a} for a in names}
    return links_of(rho_ms, said)


def mbit_s(found: Links, a: str, b: str) -> float | None:
    return found.pairs[a, b].bandwidth_mbit_s


def test_the_slower_of_two_words_counts_both_ways() -> None:
    found = links(a={"b": 9.0}, b={"a": 4.0})
    assert mbit_s(found, "a", "b") == mbit_s(found, "b", "a") == 32.0


def test_the_longer_of_two_distances_counts_both_ways() -> None:
    found = links_of({"a": {"b": 0.0}, "b": {"a": 70.0}}, {})
    assert found.pairs == {("a", "b"): Link(70.0), ("b", "a"): Link(70.0)}


def test_a_boaster_is_as_fast_as_the_others_find_it() -> None:
    found = links(liar=dict.fromkeys("abc", ABSURD_MB_S), a={"liar": 2.0}, b={"liar": 3.0})
    assert mbit_s(found, "liar", "a") == 16.0
    assert mbit_s(found, "liar", "b") == 24.0
    assert mbit_s(found, "liar", "c") == 16.0, "half of those that measured it found no more"
    alone = links(liar={"a": ABSURD_MB_S})
    assert mbit_s(alone, "liar", "a") == 8 * UNPROVEN_MB_S, "nobody has measured it"


def test_one_accomplice_does_not_make_a_boaster_fast_to_others() -> None:
    liar = dict.fromkeys("abcd", ABSURD_MB_S)
    found = links(liar=liar, friend={"liar": ABSURD_MB_S}, a={"liar": 2.0}, b={"liar": 2.0})
    assert mbit_s(found, "liar", "c") == 16.0


def test_a_slanderer_slows_its_own_links_alone() -> None:
    honest: dict[str, Any] = {"a": {"b": 9.0, "liar": 9.0}, "b": {"a": 9.0, "liar": 9.0}}
    found = links(**honest, liar={"a": 0.0, "b": 0.0})
    assert mbit_s(found, "a", "b") == 72.0
    assert mbit_s(found, "liar", "a") == 8 * LEAST_MB_S


def test_an_unmeasured_pair_is_as_fast_as_the_slower_end_and_an_unknown_one_as_the_middle() -> None:
    said: dict[str, Any] = {"a": {"b": 9.0}, "b": {"a": 9.0}, "c": {"d": 2.0}, "d": {"c": 2.0}}
    found = links(**said)
    assert mbit_s(found, "a", "c") == 16.0
    assert found.default_mbit_s == 16.0
    assert links(a={}, b={}).pairs["a", "b"] == Link(1.0), "nobody knows"
    assert links(a={}, b={}).default_mbit_s is None


def test_what_is_said_of_strangers_or_oneself_or_in_other_spelling() -> None:
    one, two = op(1), op(2)
    told = {one: 5.0, two.lower(): 2.0, op(9): 1.0, f"0x{0:040x}": math.nan}
    records = [(one, make_record(1, rho_ms=told)), (two, make_record(2, link_mb_s={one: 3.0}))]
    assert said_of(records) == ({one: {two: 2.0}, two: {}}, {one: {}, two: {one: 3.0}})


def test_a_fleet_has_its_links_as_both_ends_say() -> None:
    one, two = op(1), op(2)
    here = [
        sighting(1, rho_ms={two: 3.0}, link_mb_s={two: ABSURD_MB_S}),
        sighting(2, rho_ms={one: 5.0}, link_mb_s={one: 10.0}),
        sighting(3),
    ]
    fleet = fleet_of(here)
    a, b, c = (fleet.by_id[op(number)] for number in (1, 2, 3))
    assert fleet.links.between(a, b) == fleet.links.between(b, a) == Link(5.0, 80.0)
    assert fleet.links.between(a, c) == Link(UNMEASURED_RHO_MS, 80.0)


_NAMES = st.sampled_from("abcd")
_SAID = st.dictionaries(_NAMES, st.dictionaries(_NAMES, st.floats(0, 1e9), max_size=4), max_size=4)


@given(_SAID, st.dictionaries(_NAMES, st.floats(0, 1e9), max_size=4))
def test_no_word_of_one_machine_makes_a_link_of_others_other_or_its_own_better_than_they_say(
    said: dict[str, dict[str, float]], boast: dict[str, float]
) -> None:
    honest = {a: {b: v for b, v in told.items() if a != b} for a, told in said.items() if a != "d"}
    boast = {peer: value for peer, value in boast.items() if peer != "d"}
    without, found = agreed_mb_s(honest), agreed_mb_s({**honest, "d": boast})
    for (a, b), mb_s in found.items():
        if "d" in (a, b):
            own = honest.get(b if a == "d" else a, {}).get("d")
            assert own is None or mb_s <= max(own, LEAST_MB_S)
        elif b in honest.get(a, {}) and a in honest.get(b, {}):
            assert mb_s == without[a, b], "two words: nobody else's counts"
    assert all(mb_s >= LEAST_MB_S for mb_s in found.values())


@pytest.mark.parametrize("many", [200])
def test_the_order_of_records_does_not_matter(many: int) -> None:
    here = [
        sighting(
            n, rho_ms={op(n % many + 1): float(n)}, link_mb_s={op((n + 6) % many + 1): 1.0 + n}
        )
        for n in range(1, many + 1)
    ]
    assert fleet_of(here) == fleet_of(here[::-1])
