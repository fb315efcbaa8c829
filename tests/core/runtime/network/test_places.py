"""Who makes room for whom, and whose handshake waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

from core.runtime.network.places import (
    HANDSHAKES_AT_ONCE,
    HANDSHAKES_WAITING,
    HandshakePace,
    NoPlace,
    StreamLimits,
    address_of,
    to_drop,
)


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


async def test_handshakes_of_one_address_wait_and_those_of_others_do_not() -> None:
    pace, came = HandshakePace(), Counter[str]()

    async def shake(address: str) -> None:
        try:
            await pace.turn(address)
            came[address] += 1
        except NoPlace:
            came["refused"] += 1

    many = HANDSHAKES_AT_ONCE + HANDSHAKES_WAITING + 40
    flood = [asyncio.create_task(shake("203.0.113.7")) for _ in range(many)]
    await asyncio.sleep(0)
    await asyncio.wait_for(shake("203.0.113.8"), 1)
    for _ in range(many):
        await asyncio.wait_for(shake(""), 1)  # this machine itself
    assert came["203.0.113.8"] == 1 and came[""] == many
    await asyncio.gather(*flood)
    assert came["refused"] >= 40
    assert came["203.0.113.7"] + came["refused"] == many
    await asyncio.wait_for(shake("203.0.113.7"), 1)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("127.0.0.1", 5), ""),
        (("::1", 5, 0, 0), ""),
        (("::ffff:127.0.0.1", 5, 0, 0), ""),
        (("127.0.0.2", 5), "127.0.0.2"),
        (("203.0.113.7", 5), "203.0.113.7"),
        (("::ffff:203.0.113.7", 5, 0, 0), "203.0.113.7"),
        ("", ""),
        (None, ""),
        ((), ""),
        (("a/b", 1), ""),
    ],
)
def test_an_address_counts_as_one(peer: object, address: str) -> None:
    assert address_of(peer) == address


def test_a_network_of_ipv6_counts_as_one() -> None:
    one, other = address_of(("2001:db8::1", 5)), address_of(("2001:db8::ffff:1%eth0", 5))
    assert one == other != address_of(("2001:db8:1::1", 5))
