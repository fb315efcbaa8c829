"""Messages leave in order, nobody waits for a slow reader, and what cannot leave is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from core.protocol import wire
from core.protocol.errors import HeadraceError, PeerUnreachable
from miner.serving import outbox as links
from miner.serving.outbox import Outbox
from tests.frames import encode

PING = wire.Ping()
#: What is awaited comes at once; a busy machine needs longer.
WITHIN_S = 60.0


class Sink:
    """A channel's sending half. `gate` holds messages back, `fails` breaks so many of them."""

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[wire.AnyMessage] = []
        self.payloads: list[bytes] = []
        self.frames = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails, self.opened = fails, 0

    async def open(self) -> Sink:
        self.opened += 1
        return self

    def send_now(self, message: wire.AnyMessage, payload: Sequence[bytes]) -> bool:
        return False

    async def send(self, message: wire.AnyMessage, payload: Sequence[bytes]) -> None:
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise PeerUnreachable("peer", "stream closed")
        self.frames += 1
        frames = wire.unbundle(wire.decode(encode(message, payload)))
        self.sent += [frame.message for frame in frames]
        self.payloads += [bytes(frame.payload) for frame in frames]


def numbered(step: int) -> wire.Token:
    return wire.Token(order_hash="0x" + "00" * 32, request=0, step=step, token=1)


async def test_messages_arrive_in_the_order_they_were_put() -> None:
    sink = Sink()
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    for step in range(100):
        outbox.put(numbered(step))
    await outbox.flush(WITHIN_S)
    assert [m.step for m in sink.sent if isinstance(m, wire.Token)] == list(range(100))
    await outbox.close()


async def test_a_broken_stream_is_opened_anew_once_and_then_reported() -> None:
    failed: list[HeadraceError] = []
    sink = Sink(fails=1)
    outbox = Outbox("peer", sink.open, attempts=2)  # type: ignore[arg-type]
    outbox.put(PING, b"", failed.append)
    await outbox.flush(WITHIN_S)
    assert (len(sink.sent), failed, sink.opened) == (1, [], 2)
    sink.fails = 2
    outbox.put(PING, b"", failed.append)
    outbox.put(PING, b"", failed.append)
    await outbox.flush(WITHIN_S)
    assert len(sink.sent) == 2, "the one after the failed one still leaves"
    assert [error.code for error in failed] == ["E-NET-03"]
    await outbox.close()


async def test_a_full_line_refuses_instead_of_growing() -> None:
    failed: list[HeadraceError] = []
    sink = Sink()
    sink.gate.clear()
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for _ in range(links.OUTBOX_MESSAGES + 10):
        outbox.put(PING, b"", failed.append)
    assert len(failed) in (9, 10)
    await outbox.flush(0.05)
    sink.gate.set()
    await outbox.flush(WITHIN_S)
    assert len(sink.sent) + len(failed) == links.OUTBOX_MESSAGES + 10
    await outbox.close()


async def test_a_peer_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SEND_TIMEOUT_S", 0.05)
    failed: list[HeadraceError] = []
    sink = Sink()
    sink.gate.clear()
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    outbox.put(PING, b"", failed.append)
    await outbox.flush(WITHIN_S)
    assert len(failed) == 1
    await outbox.close()


async def test_what_was_put_together_leaves_in_one_frame_with_its_payloads() -> None:
    sink = Sink()
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    for step in range(16):
        outbox.put(numbered(step), bytes([step]) * step)
    await outbox.flush(WITHIN_S)
    assert (len(sink.sent), sink.frames) == (16, 1)
    assert sink.payloads == [bytes([step]) * step for step in range(16)]
    await outbox.close()


async def test_questions_travel_alone_and_in_order_between_pushes() -> None:
    sink = Sink()
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    for message in (numbered(0), numbered(1), PING, numbered(2)):
        outbox.put(message)
    await outbox.flush(WITHIN_S)
    assert sink.sent == [numbered(0), numbered(1), PING, numbered(2)]
    assert sink.frames == 3
    await outbox.close()


async def test_a_frame_that_cannot_leave_fails_each_of_its_messages() -> None:
    failed: list[HeadraceError] = []
    sink = Sink(fails=1)
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    for step in range(5):
        outbox.put(numbered(step), b"", failed.append)
    await outbox.flush(WITHIN_S)
    assert len(failed) == 5
    await outbox.close()


async def test_who_makes_more_than_the_peer_takes_is_asked_to_wait() -> None:
    sink = Sink()
    sink.gate.clear()
    outbox = Outbox("peer", sink.open)  # type: ignore[arg-type]
    outbox.put(numbered(0), bytes(links.OUTBOX_BYTES + 1))
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    sink.gate.set()
    await asyncio.wait_for(waiting, WITHIN_S)
    await outbox.close()
