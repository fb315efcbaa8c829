"""Who makes room for whom."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from core.runtime.network.places import NoPlace, StreamLimits, to_drop


@dataclass(frozen=True)
class Held:
    peer: str
    heard_at: float = 0.0


TEN = StreamLimits(most=10, of_a_key=4)
KNOWN = frozenset({"0xa", "0xb"})


def test_there_is_room_until_there_is_none() -> None:
    assert to_drop([], "0xC", KNOWN, TEN) is None
    strangers = [Held(f"0x{number}") for number in range(7)]
    assert to_drop(strangers[:6], "0xC", KNOWN, TEN) is None
    assert to_drop(strangers, "0xC", KNOWN, TEN) is not None, "seven of ten places"
    assert to_drop(strangers, "0xA", KNOWN, TEN) is None


def test_a_key_beyond_its_share_drops_its_own_idlest_even_with_standing() -> None:
    own = [Held("0xA", at) for at in (3.0, 1.0, 2.0, 4.0)]
    assert to_drop([*own, Held("0x1")], "0xA", KNOWN, TEN) == Held("0xA", 1.0)


def test_strangers_with_many_keys_or_many_streams_keep_nobody_out() -> None:
    many = [Held(f"0x{number}", number) for number in range(10)]
    assert to_drop(many, "0xA", KNOWN, TEN) == Held("0x0", 0)
    assert to_drop(many, "0xNEW", KNOWN, TEN) == Held("0x0", 0)
    greedy = [*many[:6], *(Held("0xGREEDY", at) for at in (50.0, 40.0, 60.0))]
    assert to_drop(greedy, "0xNEW", KNOWN, TEN) == Held("0xGREEDY", 40.0)


def test_a_stranger_takes_no_place_of_those_with_standing() -> None:
    full = [Held("0xA"), Held("0xB")] * 5
    for newcomer in ("0xNEW", "0xC"):
        with pytest.raises(NoPlace):
            to_drop(full, newcomer, KNOWN, StreamLimits(most=10, of_a_key=9))
    assert to_drop([*full[:-1], Held("0xS")], "0xB", KNOWN, StreamLimits(10, 9)) == Held("0xS")
