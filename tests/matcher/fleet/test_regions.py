"""Machines are where they say, unless others measure them next to those who say otherwise."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from matcher.fleet.fleet_view import fleet_of
from matcher.fleet.regions import FAR_MS, NEAR_MS, regions_of
from tests.town.fleet import machine_key, sighting

#: Where machines really are, one way in ms from a fixed point of the line between two coasts.
EU, US = 0.0, 45.0


def world(at: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """What machines at these places honestly measure."""
    return {a: {b: 1 + abs(x - y) for b, y in at.items() if b != a} for a, x in at.items()}


HONEST = {"e1": EU, "e2": EU + 2, "e3": EU + 4, "u1": US, "u2": US + 2, "u3": US + 3}
STATED = {"e1": "eu", "e2": "eu", "e3": "", "u1": "us", "u2": "us", "u3": ""}
TRUTH = {"e1": "eu", "e2": "eu", "e3": "eu", "u1": "us", "u2": "us", "u3": "us"}


def test_those_who_state_nothing_are_where_the_nearest_who_do_are() -> None:
    assert regions_of(STATED, world(HONEST)) == TRUTH


def test_one_hop_after_another_leads_to_a_name() -> None:
    told = {"e1": {"e2": 2.0}, "e2": {"e3": 2.0}, "e3": {}}
    assert regions_of({"e1": "eu", "e2": "", "e3": ""}, told) == dict.fromkeys(told, "eu")


def test_where_nobody_near_states_a_region_those_near_each_other_share_a_label() -> None:
    found = regions_of(dict.fromkeys(HONEST, ""), world(HONEST))
    assert found["e1"] == found["e2"] == found["e3"] != found["u1"] == found["u2"]
    operators = {machine_key(number).address: "" for number in (1, 2, 3)}
    one, two, three = sorted(operators)
    labels = regions_of(operators, {one: {two: 1.0}, two: {three: 99.0}})
    assert labels[one] == labels[two] == f"near-{one[2:8].lower()}"
    assert labels[three] == f"near-{three[2:8].lower()}"


def test_a_machine_that_nobody_measured_and_that_says_nothing_is_nowhere() -> None:
    assert regions_of({"a": "", "b": "eu"}, {}) == {"a": "", "b": "eu"}


def test_a_stated_region_stands_where_distances_do_not_contradict_it() -> None:
    lonely = {**HONEST, "moon": 400.0}
    stated = {**STATED, "moon": "eu"}
    assert regions_of(stated, world(lonely))["moon"] == "eu", "far from all, near no other region"


def test_a_liar_is_where_others_measure_it() -> None:
    at = {**HONEST, "liar": US + 1}
    told = world(at)
    told["liar"] = {**dict.fromkeys(("e1", "e2", "e3"), 0.0), **dict.fromkeys(("u1", "u2"), 500.0)}
    found = regions_of({**STATED, "liar": "eu"}, told)
    assert found["liar"] == "us"
    assert {name: found[name] for name in TRUTH} == TRUTH, "and nobody else is moved"


def test_an_accomplice_of_a_liar_does_not_help_against_a_majority() -> None:
    at = {**HONEST, "liar": US + 1, "friend": US + 1}
    stated = {**STATED, "e3": "eu", "liar": "eu", "friend": "eu"}
    found = regions_of(stated, world(at))
    assert (found["liar"], found["friend"]) == ("us", "us")


def test_liars_elsewhere_do_not_push_an_honest_machine_out_of_its_region() -> None:
    liars = {f"x{number}": US for number in range(9)}
    stated = {**STATED, **dict.fromkeys(liars, "eu")}
    found = regions_of(stated, world({**HONEST, **liars}))
    assert (found["e1"], found["e2"], found["u1"]) == ("eu", "eu", "us")


def test_a_fleet_has_the_regions_that_are_found() -> None:
    numbers = {name: number for number, name in enumerate(HONEST, start=1)}
    operator = {name: machine_key(number).address for name, number in numbers.items()}
    told = world(HONEST)
    fleet = fleet_of(
        sighting(
            number,
            region=STATED[name],
            rho_ms={operator[peer]: ms for peer, ms in told[name].items()},
        )
        for name, number in numbers.items()
    )
    assert {name: fleet.by_id[operator[name]].region for name in HONEST} == TRUTH


_NAMES = st.sampled_from("abcdef")
_TOLD = st.dictionaries(_NAMES, st.floats(0, 100), max_size=6)


@given(
    st.dictionaries(_NAMES, st.sampled_from(["", "eu", "us"])),
    st.dictionaries(_NAMES, _TOLD),
    st.integers(0, 9),
)
def test_everybody_gets_one_name_whatever_is_said_and_in_whatever_order(
    stated: dict[str, str], told: dict[str, dict[str, float]], seed: int
) -> None:
    told = {
        a: {b: ms for b, ms in peers.items() if b in stated and b != a}
        for a, peers in told.items()
        if a in stated
    }
    found = regions_of(stated, told)
    assert set(found) == set(stated)
    shuffled = list(stated.items())
    random.Random(seed).shuffle(shuffled)
    assert regions_of(dict(shuffled), dict(reversed(told.items()))) == found
    assert NEAR_MS < FAR_MS
