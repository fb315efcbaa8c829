"""Messages leave in order, nobody waits for a slow reader, and what cannot leave is reported."""

from __future__ import annotations

import asyncio

from core.protocol import wire
from core.protocol.errors import HeadraceError, PeerUnreachable
from miner import links
from miner.links import Line

PING = wire.Ping()


class Sink:
    """A channel's sending half. `gate` holds messages back, `fails` breaks so many of them."""

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[wire.AnyMessage] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails, self.opened = fails, 0

    async def open(self) -> Sink:
        self.opened += 1
        return self

    async def send(self, message: wire.AnyMessage, payload: bytes = b"") -> None:
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise PeerUnreachable("peer", "stream closed")
        self.sent.append(message)


def numbered(step: int) -> wire.Token:
    return wire.Token(order_hash="0x" + "00" * 32, request=0, step=step, token=1)


async def test_messages_arrive_in_the_order_they_were_put() -> None:
    sink = Sink()
    line = Line("peer", sink.open)  # type: ignore[arg-type]
    for step in range(100):
        line.put(numbered(step))
    await line.flush(5.0)
    assert [m.step for m in sink.sent if isinstance(m, wire.Token)] == list(range(100))
    await line.close()


async def test_a_broken_stream_is_opened_anew_once_and_then_reported() -> None:
    failed: list[HeadraceError] = []
    sink = Sink(fails=1)
    line = Line("peer", sink.open, attempts=2)  # type: ignore[arg-type]
    line.put(PING, b"", failed.append)
    await line.flush(5.0)
    assert (len(sink.sent), failed, sink.opened) == (1, [], 2)
    sink.fails = 2
    line.put(PING, b"", failed.append)
    line.put(PING, b"", failed.append)
    await line.flush(5.0)
    assert len(sink.sent) == 2, "the one after the failed one still leaves"
    assert [error.code for error in failed] == ["E-NET-03"]
    await line.close()


async def test_a_full_line_refuses_instead_of_growing() -> None:
    failed: list[HeadraceError] = []
    sink = Sink()
    sink.gate.clear()
    line = Line("peer", sink.open)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    for _ in range(links.LINE_MESSAGES + 10):
        line.put(PING, b"", failed.append)
    assert len(failed) in (9, 10)
    await line.flush(0.05)
    sink.gate.set()
    await line.flush(5.0)
    assert len(sink.sent) + len(failed) == links.LINE_MESSAGES + 10
    await line.close()


async def test_a_peer_that_takes_nothing_is_given_up(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(links, "SEND_TIMEOUT_S", 0.05)
    failed: list[HeadraceError] = []
    sink = Sink()
    sink.gate.clear()
    line = Line("peer", sink.open)  # type: ignore[arg-type]
    line.put(PING, b"", failed.append)
    await line.flush(5.0)
    assert len(failed) == 1
    await line.close()
