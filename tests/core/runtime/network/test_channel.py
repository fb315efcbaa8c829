"""Direct streams over loopback: which key is at the other end, and what survives a stranger."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from dataclasses import dataclass, field

import pytest

from core.keys.signer import Signer
from core.protocol import signing, wire
from core.protocol.errors import AuthenticationFailed, FrameTooLarge, NoCapacity, PeerUnreachable
from core.protocol.signing import Domain
from core.runtime.network import channel as channels
from core.runtime.network.channel import Answer, Channel, Listener, Peers, StreamIdentity, connect
from tests.frames import encode

DEADLINE_S = 30.0
HANDSHAKE_S = 1.0
HASH = "0x" + "ab" * 32
GREETING_BYTES = 72
SIGNATURE_BYTES = 65


@dataclass
class Server:
    """A listener that records what it is told and answers by `reply`."""

    listener: Listener
    received: list[wire.Frame] = field(default_factory=list)
    opened: list[Channel] = field(default_factory=list)
    reply: Callable[[Channel, wire.Frame], Awaitable[Answer]] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.listener.port}"

    async def counted(self, reason: str, times: int = 1) -> None:
        await until(lambda: self.listener.stats.counts[reason] >= times)
        assert self.listener.stats.counts[reason] == times


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Every test ends with the tasks it began with, after its listeners and channels are closed."""
    yield
    with contextlib.suppress(TimeoutError):
        await until(lambda: not leftovers())
    assert not leftovers()


def leftovers() -> set[asyncio.Task[object]]:
    return {
        task
        for task in asyncio.all_tasks()
        if "channel" in task.get_name()
        or "Listener.accept" in repr(task)
        or "_answer" in repr(task)
    }


@pytest.fixture
def identities(signers: list[Signer], domain: Domain) -> list[StreamIdentity]:
    return [StreamIdentity(signer, domain) for signer in signers]


@pytest.fixture
async def serve(
    identities: list[StreamIdentity],
) -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    servers: list[Server] = []

    async def start(
        max_channels: int = 16, standing: Callable[[], Set[str]] | None = None
    ) -> Server:
        async def handle(channel: Channel, frame: wire.Frame) -> Answer:
            server.received.append(frame)
            return await server.reply(channel, frame) if server.reply else None

        listener = Listener(
            identities[0],
            handle,
            max_channels=max_channels,
            standing=standing,
            on_open=lambda channel: server.opened.append(channel),
            handshake_timeout_s=HANDSHAKE_S,
        )
        server = Server(listener)
        servers.append(server)
        await listener.start("127.0.0.1", 0)
        return server

    yield start
    for server in servers:
        await server.listener.close()
        assert not server.listener.channels


@pytest.fixture
async def server(serve: Callable[..., Awaitable[Server]]) -> Server:
    return await serve()


@pytest.fixture
async def dial(
    identities: list[StreamIdentity],
) -> AsyncIterator[Callable[..., Awaitable[Channel]]]:
    """Connect as the second account and expect the first."""
    opened: list[Channel] = []

    async def to(server: Server, who: int = 1, **options: object) -> Channel:
        options.setdefault("expected", identities[0].signer.address)
        stream = await connect(server.endpoint, identities[who], **options)
        opened.append(stream)
        return stream

    yield to
    for stream in opened:
        await stream.close()


async def pong(_: Channel, frame: wire.Frame) -> Answer:
    return wire.Pong(7), bytes(frame.payload)


# --- handshake ---


async def test_each_side_learns_the_other_s_address(  # type: ignore[no-untyped-def]
    server: Server, dial, signers: list[Signer]
) -> None:
    stream = await dial(server)
    await until(lambda: server.opened)
    assert stream.peer == signers[0].address
    assert server.opened[0].peer == signers[1].address
    assert server.listener.channels == {server.opened[0]}


async def test_a_wrong_operator_is_refused(server: Server, dial, signers: list[Signer]) -> None:
    with pytest.raises(AuthenticationFailed):
        await dial(server, expected=signers[5].address)
    await server.counted("IncompleteReadError")
    assert not server.listener.channels


async def test_another_network_s_peer_is_refused(  # type: ignore[no-untyped-def]
    server: Server, signers: list[Signer], domain: Domain
) -> None:
    other = Domain(domain.chain_id + 1, domain.verifying_contract)
    elsewhere = StreamIdentity(signers[1], other, private_addresses=True)
    with pytest.raises(AuthenticationFailed):
        await connect(server.endpoint, elsewhere, expected=None)


@contextlib.asynccontextmanager
async def raw(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other side has closed; whatever it still sent is dropped."""
    async with asyncio.timeout(DEADLINE_S):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass


async def still_serves(server: Server, dial) -> None:  # type: ignore[no-untyped-def]
    server.reply = pong
    stream = await dial(server, who=2)
    answer = await stream.call(wire.Ping(), timeout_s=DEADLINE_S)
    assert answer.message == wire.Pong(7)


async def test_a_replayed_handshake_is_refused(server: Server, dial, identities) -> None:
    victim = identities[1]
    recorded: list[bytes] = []
    real_sign, greeting = victim._sign, channels._greeting

    def tapped(hello: signing.Hello) -> bytes:
        recorded.append(real_sign(hello))
        return recorded[-1]

    def tapped_greeting(public: bytes, address: str) -> bytes:
        made = greeting(public, address)
        if address == victim.signer.address:
            recorded.append(made)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victim, "_sign", tapped)
        patch.setattr(channels, "_greeting", tapped_greeting)
        await dial(server)
    first_greeting, signature = recorded
    async with raw(server) as (reader, writer):
        writer.write(first_greeting + signature)
        await ended(reader)
    await server.counted("AuthenticationFailed")
    assert len(server.opened) == 1
    await still_serves(server, dial)


@pytest.mark.parametrize(("role", "accepted"), [(0, True), (1, False)])
async def test_a_signature_of_the_other_role_is_refused(  # type: ignore[no-untyped-def]
    server: Server, identities, role: int, accepted: bool
) -> None:
    me = identities[1]
    private = channels.X25519PrivateKey.generate()
    mine = channels._greeting(private.public_key().public_bytes_raw(), me.signer.address)
    async with raw(server) as (reader, writer):
        writer.write(mine)
        theirs = await reader.readexactly(GREETING_BYTES)
        await reader.readexactly(SIGNATURE_BYTES)
        writer.write(me._sign(channels._hello(mine, theirs, role)[0]))
        if accepted:
            await until(lambda: server.opened)
        else:
            await ended(reader)
            await server.counted("AuthenticationFailed")
            assert not server.opened


async def test_a_responder_that_echoes_our_greeting_is_refused(identities) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.readexactly(GREETING_BYTES)
        writer.write(greeting + bytes(64) + b"\x1b")
        await ended(reader)
        writer.close()

    fake = await asyncio.start_server(echo, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{fake.sockets[0].getsockname()[1]}"
    with pytest.raises(AuthenticationFailed):
        await connect(endpoint, identities[1], expected=None)
    fake.close()


async def test_a_claimed_address_without_its_key_is_refused(  # type: ignore[no-untyped-def]
    server: Server, identities, signers: list[Signer]
) -> None:
    me = identities[1]
    private = channels.X25519PrivateKey.generate()
    mine = channels._greeting(private.public_key().public_bytes_raw(), signers[2].address)
    async with raw(server) as (reader, writer):
        writer.write(mine)
        theirs = await reader.readexactly(GREETING_BYTES)
        await reader.readexactly(SIGNATURE_BYTES)
        writer.write(me._sign(channels._hello(mine, theirs, 0)[0]))
        await ended(reader)
    await server.counted("AuthenticationFailed")
    assert not server.opened


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100), "AuthenticationFailed"),
        (bytes(200), "AuthenticationFailed"),
        (b"HRD1" + bytes(200), "AuthenticationFailed"),
        (b"HRD1", "TimeoutError"),
        (b"", "TimeoutError"),
    ],
)
async def test_garbage_and_silence_before_the_handshake_are_counted_and_end(
    server: Server, dial, garbage: bytes, reason: str
) -> None:
    async with raw(server) as (reader, writer):
        writer.write(garbage)
        await ended(reader)
    await server.counted(reason)
    assert not server.listener.channels
    await still_serves(server, dial)


async def test_a_peer_that_hangs_up_in_the_handshake_is_counted(server: Server, dial) -> None:
    async with raw(server) as (_, writer):
        writer.write(b"HRD1")
        await writer.drain()
        writer.close()
        await server.counted("IncompleteReadError")
    await still_serves(server, dial)


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:-1", ""]
)
async def test_an_endpoint_that_is_none_is_unreachable(identities, endpoint: str) -> None:
    with pytest.raises(PeerUnreachable):
        await connect(endpoint, identities[1], expected=None, timeout_s=2.0)


async def test_nobody_listening_and_nobody_answering_are_unreachable(
    identities, free_port: Callable[[], int]
) -> None:
    with pytest.raises(PeerUnreachable):
        await connect(f"127.0.0.1:{free_port()}", identities[1], expected=None)
    silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    with pytest.raises(PeerUnreachable):
        await connect(endpoint, identities[1], expected=None, timeout_s=0.1)
    silent.close()


async def test_silent_strangers_do_not_lock_an_honest_peer_out(  # type: ignore[no-untyped-def]
    serve, dial
) -> None:
    server = await serve(max_channels=3)
    async with contextlib.AsyncExitStack() as strangers:
        for _ in range(7):
            await strangers.enter_async_context(raw(server))
        await until(lambda: server.listener.stats.counts["TooManyHandshakes"] == 4)
        await still_serves(server, dial)


# --- messages ---


async def test_frames_arrive_in_order_with_their_payloads(server: Server, dial) -> None:
    stream = await dial(server)
    for step in range(300):
        await stream.send(wire.Token(HASH, 1, step, step), step.to_bytes(4, "big") * step)
    await until(lambda: len(server.received) == 300)
    for step, frame in enumerate(server.received):
        assert frame.message == wire.Token(HASH, 1, step, step)
        assert bytes(frame.payload) == step.to_bytes(4, "big") * step


async def test_the_largest_frame_arrives_and_a_larger_one_is_not_sent(server: Server, dial) -> None:
    stream = await dial(server)
    room = wire.MAX_FRAME_BYTES - len(encode(wire.Ping()))
    await stream.send(wire.Ping(), bytes(room))
    with pytest.raises(FrameTooLarge):
        await stream.send(wire.Ping(), bytes(room + 1))
    await until(lambda: server.received)
    assert len(server.received[0].payload) == room
    assert stream.is_open


async def test_calls_are_answered_whatever_their_order(server: Server, dial) -> None:
    released = asyncio.Event()

    async def reply(_: Channel, frame: wire.Frame) -> Answer:
        if bytes(frame.payload) == b"0":
            await released.wait()
        else:
            released.set()
        return wire.Pong(int(bytes(frame.payload)))

    server.reply = reply
    stream = await dial(server)
    first = asyncio.create_task(stream.call(wire.Ping(), b"0", timeout_s=DEADLINE_S))
    await until(lambda: server.received)
    others = await asyncio.gather(
        *(stream.call(wire.Ping(), str(i).encode(), timeout_s=DEADLINE_S) for i in range(1, 30))
    )
    assert [a.message for a in [await first, *others]] == [wire.Pong(i) for i in range(30)]


async def test_both_sides_may_call_at_once(server: Server, dial) -> None:
    server.reply = pong
    stream = await dial(server, handler=pong)
    await until(lambda: server.opened)
    there, back = await asyncio.gather(
        stream.call(wire.Ping(), b"there"), server.opened[0].call(wire.Ping(), b"back")
    )
    assert (bytes(there.payload), bytes(back.payload)) == (b"there", b"back")


async def test_an_unanswered_call_is_unreachable_and_the_stream_lives(server: Server, dial) -> None:
    stream = await dial(server)
    with pytest.raises(PeerUnreachable, match="no answer"):
        await stream.call(wire.Ping(), timeout_s=0.05)
    assert stream.is_open
    server.reply = pong
    assert (await stream.call(wire.Ping(), timeout_s=DEADLINE_S)).message == wire.Pong(7)


async def test_a_late_answer_is_counted_and_harms_nobody(server: Server, dial) -> None:
    released = asyncio.Event()
    stats = channels.StreamStats()

    async def late(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return wire.Pong(1)

    server.reply = late
    stream = await dial(server, stats=stats)
    with pytest.raises(PeerUnreachable):
        await stream.call(wire.Ping(), timeout_s=0.05)
    released.set()
    await until(lambda: stats.counts["UnexpectedAnswer"] == 1)
    assert stream.is_open


async def test_a_refusal_is_answered_as_failed_with_its_code(server: Server, dial) -> None:
    async def refuse(_: Channel, frame: wire.Frame) -> Answer:
        raise NoCapacity("all slots are taken", "x" * 5000)

    server.reply = refuse
    stream = await dial(server)
    answer = (await stream.call(wire.Ping(), timeout_s=DEADLINE_S)).message
    assert isinstance(answer, wire.Failed)
    assert answer.code == "E-MATCH-01"
    assert answer.reason.startswith("all slots are taken")
    await server.counted("NoCapacity")


async def test_our_own_bug_is_answered_without_its_details(server: Server, dial) -> None:
    async def broken(_: Channel, frame: wire.Frame) -> Answer:
        raise KeyError("secret")

    server.reply = broken
    stream = await dial(server)
    answer = (await stream.call(wire.Ping(), timeout_s=DEADLINE_S)).message
    assert isinstance(answer, wire.Failed)
    assert answer.code == "E-BUG-01"
    assert "secret" not in answer.reason
    await server.counted("HandlerBug")
    await stream.send(wire.Ping())
    await server.counted("HandlerBug", 2)


async def test_an_answer_too_large_for_a_frame_becomes_failed(server: Server, dial) -> None:
    async def huge(_: Channel, frame: wire.Frame) -> Answer:
        return wire.Pong(), bytes(wire.MAX_FRAME_BYTES)

    server.reply = huge
    stream = await dial(server)
    answer = (await stream.call(wire.Ping(), timeout_s=DEADLINE_S)).message
    assert isinstance(answer, wire.Failed)
    assert answer.code == FrameTooLarge.code


async def test_more_calls_than_allowed_are_answered_at_once(server: Server, dial) -> None:
    released = asyncio.Event()

    async def wait(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return wire.Pong()

    server.reply = wait
    stream = await dial(server)
    held = [
        asyncio.create_task(stream.call(wire.Ping(), timeout_s=DEADLINE_S))
        for _ in range(channels._MAX_CALLS_IN_FLIGHT)
    ]
    await until(lambda: len(server.received) == len(held))
    answer = (await stream.call(wire.Ping(), timeout_s=DEADLINE_S)).message
    assert isinstance(answer, wire.Failed)
    released.set()
    assert {(await call).message for call in held} == {wire.Pong()}


async def test_a_party_that_only_asks_refuses_calls(server: Server, dial) -> None:
    await dial(server)
    await until(lambda: server.opened)
    answer = (await server.opened[0].call(wire.Ping(), timeout_s=DEADLINE_S)).message
    assert isinstance(answer, wire.Failed)


# --- a stranger who has a key ---


async def write_raw(stream: Channel, data: bytes) -> None:
    stream._writer.write(data)
    await stream._writer.drain()


def seal(stream: Channel, body: bytes) -> bytes:
    sealed = stream._send_cipher.encrypt(next(stream._sent).to_bytes(12, "big"), body, None)
    return len(sealed).to_bytes(4, "big") + sealed


async def closes_after(  # type: ignore[no-untyped-def]
    server: Server, dial, attack: Callable[[Channel], bytes], reason: str
) -> None:
    stream = await dial(server)
    await write_raw(stream, attack(stream))
    async with asyncio.timeout(DEADLINE_S):
        await stream.wait_closed()
    await server.counted(reason)
    await until(lambda: not server.listener.channels)
    with pytest.raises(PeerUnreachable):
        await stream.send(wire.Ping())
    await still_serves(server, dial)


@pytest.mark.parametrize("length", [0, 15, wire.MAX_FRAME_BYTES + 17, 2**32 - 1])
async def test_an_impossible_length_ends_the_stream(server: Server, dial, length: int) -> None:
    await closes_after(server, dial, lambda _: length.to_bytes(4, "big"), "FrameTooLarge")


async def test_a_flipped_ciphertext_bit_ends_the_stream(server: Server, dial) -> None:
    def flipped(stream: Channel) -> bytes:
        data = bytearray(seal(stream, encode(wire.Ping())))
        data[10] ^= 1
        return bytes(data)

    await closes_after(server, dial, flipped, "AuthenticationFailed")
    assert all(frame.id for frame in server.received)


async def test_a_replayed_frame_ends_the_stream(server: Server, dial) -> None:
    await closes_after(
        server,
        dial,
        lambda stream: seal(stream, encode(wire.Pong(1))) * 2,
        "AuthenticationFailed",
    )
    assert [f.message for f in server.received].count(wire.Pong(1)) == 1


async def test_frames_out_of_order_end_the_stream(server: Server, dial) -> None:
    def swapped(stream: Channel) -> bytes:
        first, second = (seal(stream, encode(wire.Pong(i))) for i in range(2))
        return second + first

    await closes_after(server, dial, swapped, "AuthenticationFailed")
    assert not [f for f in server.received if isinstance(f.message, wire.Pong)]


async def test_a_frame_sealed_for_the_other_direction_ends_the_stream(server: Server, dial) -> None:
    def reflected(stream: Channel) -> bytes:
        sealed = stream._receive_cipher.encrypt(bytes(12), encode(wire.Ping()), None)
        return len(sealed).to_bytes(4, "big") + sealed

    await closes_after(server, dial, reflected, "AuthenticationFailed")


async def test_a_truncated_frame_ends_only_its_own_stream(server: Server, dial) -> None:
    stream, other = await dial(server), await dial(server, who=3)
    await write_raw(stream, seal(stream, encode(wire.Ping()))[:-3])
    stream._writer.close()
    await until(lambda: len(server.listener.channels) == 1)
    assert not server.received
    await other.send(wire.Ping())
    await until(lambda: server.received)
    await still_serves(server, dial)


async def test_malformed_bodies_are_counted_and_the_eighth_ends_the_stream(
    server: Server, dial
) -> None:
    stream = await dial(server)
    ours = bytes([wire.VERSION])
    bad = [b"", b"\x07" * 20, ours + bytes(8) + b"\x00\x00\x00\x01\xc0", ours * 13]
    for body in (bad * 2)[:7]:
        await write_raw(stream, seal(stream, body))
    await stream.send(wire.Ping())
    await until(lambda: server.received)
    assert stream.is_open
    counts = server.listener.stats.counts
    assert counts == {
        "FrameTruncated": 2,
        "VersionUnknown": 2,
        "MalformedMessage": 2,
        "FrameTooLarge": 1,
    }
    await write_raw(stream, seal(stream, b""))
    async with asyncio.timeout(DEADLINE_S):
        await stream.wait_closed()
    await still_serves(server, dial)


async def test_a_peer_cannot_answer_a_call_that_it_has_not_read(server: Server, dial) -> None:
    """Else it could seem nearer, or to take bytes faster, than it does."""
    asked: list[int] = []

    async def reply(channel: Channel, frame: wire.Frame) -> wire.AnyMessage:
        for ahead in range(1, 33) if asked else ():  # by what it knew before this call came
            early = wire.encode_parts(wire.Pong(99), re=(asked[-1] + ahead) % 2**32)
            await channel._send_body(early)
        asked.append(frame.id)
        return wire.Pong(7)

    server.reply = reply
    stream = await dial(server)
    for _ in range(20):
        answer = await stream.call(wire.Ping(), timeout_s=DEADLINE_S)
        assert answer.message == wire.Pong(7)
    assert len(set(asked)) == 20
    assert all(1 <= call_id < 2**32 for call_id in asked)


async def test_answers_to_nothing_are_counted(server: Server, dial) -> None:
    stream = await dial(server)
    await stream._send_body(encode(wire.Pong(), re=12345))
    await server.counted("UnexpectedAnswer")
    assert stream.is_open


async def test_who_has_standing_is_let_in_and_strangers_make_room_for_each_other(
    serve, dial, identities
) -> None:
    async def answer(_: Channel, frame: wire.Frame) -> Answer:
        return wire.Pong()

    known = frozenset({identities[1].signer.address.lower()})
    server = await serve(max_channels=4, standing=lambda: known)
    server.reply = answer
    strangers = [await dial(server, who) for who in (2, 3, 4)]
    await until(lambda: len(server.listener.channels) == 3)
    await strangers[0].call(wire.Ping())
    await dial(server, 5)  # of four places three are for strangers
    await server.counted("StreamsDropped")
    await until(lambda: not strangers[1].is_open)
    assert strangers[0].is_open, "it was heard later"
    kept = [await dial(server) for _ in range(4)]
    await until(lambda: all(not stream.is_open for stream in strangers))
    with pytest.raises(PeerUnreachable):
        await (await dial(server, 2)).call(wire.Ping())
    await server.counted("TooManyStreams")
    assert all(stream.is_open for stream in kept)


async def test_a_stranger_has_little_held_for_it_until_it_is_party_to_something(
    serve, dial, identities
) -> None:
    known: set[str] = set()
    server = await serve(standing=lambda: known)
    released = asyncio.Event()

    async def slow(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return wire.Pong()

    server.reply = slow
    large, small = bytes(channels.STRANGER_FRAME_BYTES), bytes(channels.STRANGER_FRAME_BYTES // 2)
    stream = await dial(server)
    calls = [asyncio.create_task(stream.call(wire.Ping(), small)) for _ in range(64)]
    await until(
        lambda: server.listener.stats.counts["TooManyCalls"] == 64 - channels.STRANGER_CALLS
    )
    assert len(server.received) == channels.STRANGER_CALLS
    released.set()
    answers = [(await call).message for call in calls]
    assert sum(isinstance(answer, wire.Pong) for answer in answers) == channels.STRANGER_CALLS
    with pytest.raises(PeerUnreachable):
        await stream.call(wire.Ping(), large)
    await server.counted("FrameTooLarge")
    stream = await dial(server)
    known.add(identities[1].signer.address.lower())
    assert (await stream.call(wire.Ping(), bytes(2**20))).message == wire.Pong()


async def test_strangers_share_a_pace_and_keep_up_nobody_who_has_standing(
    serve, dial, identities, monkeypatch
) -> None:
    async def answer(_: Channel, frame: wire.Frame) -> Answer:
        return wire.Pong()

    monkeypatch.setattr(channels, "STRANGER_FRAMES_PER_S", 1.0)
    monkeypatch.setattr(channels, "STRANGER_BURST", 10)
    known = frozenset({identities[1].signer.address.lower()})
    server = await serve(standing=lambda: known)
    server.reply = answer
    strangers, friend = [await dial(server, who) for who in (2, 3)], await dial(server)
    flood = [
        asyncio.create_task(stranger.call(wire.Ping(), timeout_s=0.5))
        for stranger in strangers
        for _ in range(100)
    ]
    for _ in range(50):
        await friend.call(wire.Ping())
    ended = await asyncio.gather(*flood, return_exceptions=True)
    assert 10 <= sum(isinstance(one, wire.Frame) for one in ended) <= 13
    assert all(isinstance(one, wire.Frame | PeerUnreachable) for one in ended)


async def test_handshakes_at_once_are_computed_one_in_a_turn_of_the_loop(
    serve, dial, identities, monkeypatch
) -> None:
    server, computed, most = await serve(max_channels=64), 0, 0
    check = StreamIdentity._check

    def counted(self: StreamIdentity, *args: object) -> str:
        nonlocal computed
        computed += self is identities[0]
        return check(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamIdentity, "_check", counted)
    dialling = asyncio.gather(*(dial(server, who) for who in (1, 2, 3) for _ in range(10)))
    async with asyncio.timeout(30):
        while computed < 30:
            before = computed
            await asyncio.sleep(0)
            most = max(most, computed - before)
    await dialling
    assert most == 1


# --- slow and dead peers ---


async def test_a_slow_handler_makes_the_sender_wait(server: Server, dial) -> None:
    released = asyncio.Event()

    async def slow(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return None

    server.reply = slow
    stream = await dial(server)
    sent, payload = 0, bytes(2**20)

    async def flood() -> None:
        nonlocal sent
        for _ in range(64):
            await stream.send(wire.Ping(), payload)
            sent += 1

    flooding = asyncio.create_task(flood())
    await until(lambda: server.received)
    previous = -1
    while sent != previous:  # until nothing moves any more
        previous = sent
        await asyncio.sleep(0.2)
    # Held: kernel buffers of both ends, at most one frame of ours and a few hundred KiB of theirs.
    assert sent < 32
    assert len(server.received) == 1
    assert stream._writer.transport.get_write_buffer_size() <= 2 * 2**20
    assert len(server.opened[0]._reader._buffer) <= 2 * 2**20  # type: ignore[attr-defined]
    released.set()
    await flooding
    await until(lambda: len(server.received) == 64)


@pytest.mark.parametrize("size", [2**16 - 100, 2**16, 2**18, 2**18 + 1, 3 * 2**20 + 7])
async def test_large_frames_arrive_as_they_were_sent(server: Server, dial, size: int) -> None:
    payload = os.urandom(size)
    stream = await dial(server)
    await stream.send(wire.Ping(), [payload[: size // 3], memoryview(payload)[size // 3 :]])
    await stream.send(wire.Ping(), b"small")
    await until(lambda: len(server.received) == 2)
    assert [bytes(frame.payload) for frame in server.received] == [payload, b"small"]


@pytest.mark.parametrize("at", [3, 70_000, -1])
async def test_a_large_frame_that_was_altered_ends_the_stream(
    server: Server, dial, at: int
) -> None:  # type: ignore[no-untyped-def]
    stream = await dial(server)
    true, written = stream._writer.write, 0

    def altered(data: bytes) -> None:
        nonlocal written
        changed, end = bytearray(data), written + len(data)
        place = 4 + at if at >= 0 else end - 1
        if written <= place < end and (at >= 0 or len(data) == 16):
            changed[place - written] ^= 1
        written = end
        true(bytes(changed))

    stream._writer.write = altered  # type: ignore[method-assign]
    await stream.send(wire.Ping(), bytes(300_000))
    await until(lambda: not stream.is_open)
    assert not server.received


async def test_a_call_to_a_peer_that_does_not_read_ends_in_time(server: Server, dial) -> None:
    released = asyncio.Event()

    async def stuck(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return None

    server.reply = stuck
    stream = await dial(server)
    await stream.send(wire.Ping())
    filling = asyncio.create_task(fill(stream))
    await until(lambda: stream._writer.transport.get_write_buffer_size() > 2**16)
    with pytest.raises(PeerUnreachable):
        await stream.call(wire.Ping(), timeout_s=0.2)
    async with asyncio.timeout(DEADLINE_S):
        await stream.close()
        with pytest.raises(PeerUnreachable):
            await filling
    released.set()


async def fill(stream: Channel) -> None:
    while True:
        await stream.send(wire.Ping(), bytes(4 * 2**20))


async def test_a_sender_gives_up_on_a_peer_that_never_reads(  # type: ignore[no-untyped-def]
    server: Server, dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "STALL_TIMEOUT_S", 0.2)
    released = asyncio.Event()

    async def stuck(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return None

    server.reply = stuck
    stream = await dial(server)
    with pytest.raises(PeerUnreachable):
        async with asyncio.timeout(DEADLINE_S):
            await fill(stream)
    assert not stream.is_open
    released.set()


async def test_a_sender_cancelled_in_the_middle_of_a_frame_ends_the_stream(
    server: Server, dial
) -> None:
    released = asyncio.Event()

    async def stuck(_: Channel, frame: wire.Frame) -> Answer:
        await released.wait()
        return None

    server.reply = stuck
    stream = await dial(server)
    await stream.send(wire.Ping())
    filling = asyncio.create_task(fill(stream))
    await until(lambda: stream._writer.transport.get_write_buffer_size() > 2**16)
    await asyncio.sleep(0.2)  # the kernel takes no more, and no frame fits into our own buffer
    filling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await filling
    assert not stream.is_open, "what comes next would be read as the rest of that frame"
    released.set()


async def test_pending_calls_fail_when_the_stream_ends(server: Server, dial) -> None:
    stream = await dial(server)
    call = asyncio.create_task(stream.call(wire.Ping(), timeout_s=DEADLINE_S))
    await until(lambda: server.received)
    await server.opened[0].close()
    with pytest.raises(PeerUnreachable, match="stream closed"):
        await call
    assert not stream.is_open


async def test_what_was_sent_before_close_still_arrives(server: Server, dial) -> None:
    stream = await dial(server)
    for step in range(50):
        await stream.send(wire.Token(HASH, 1, step, 0), bytes(20_000))
    await stream.close()
    await until(lambda: len(server.received) == 50)


async def test_a_handler_may_close_its_own_stream(server: Server, dial) -> None:
    finished = []

    async def leave(channel: Channel, frame: wire.Frame) -> Answer:
        await channel.close()
        finished.append(frame.id)
        return None

    server.reply = leave
    for ask in (Channel.send, Channel.call):
        stream = await dial(server)
        with contextlib.suppress(PeerUnreachable):
            await ask(stream, wire.Ping())
        async with asyncio.timeout(DEADLINE_S):
            await stream.wait_closed()
    await until(lambda: len(finished) == 2)


async def test_closing_twice_and_using_a_closed_stream(server: Server, dial) -> None:
    stream = await dial(server)
    await stream.close()
    await stream.close()
    assert not stream.is_open
    for use in (stream.send(wire.Ping()), stream.call(wire.Ping())):
        with pytest.raises(PeerUnreachable):
            await use


async def test_closing_a_listener_ends_handshakes_and_streams(serve, dial, identities) -> None:
    server = await serve()
    stream, endpoint = await dial(server), server.endpoint
    async with raw(server) as (reader, writer):
        writer.write(b"HRD1")
        await until(lambda: server.listener._handshakes)
        await server.listener.close()
        await ended(reader)
    async with asyncio.timeout(DEADLINE_S):
        await stream.wait_closed()
    assert not leftovers() - {stream._loop_task}
    with pytest.raises(PeerUnreachable):
        await connect(endpoint, identities[1], expected=None)


# --- peers ---


async def test_peers_keep_one_stream_and_reconnect_after_a_drop(  # type: ignore[no-untyped-def]
    server: Server, identities, signers: list[Signer]
) -> None:
    server.reply = pong
    peers = Peers(identities[1])
    operator = signers[0].address
    first, same, lower = await asyncio.gather(
        peers.get(operator, server.endpoint),
        peers.get(operator, server.endpoint),
        peers.get(operator.lower(), server.endpoint),
    )
    assert first is same is lower
    await until(lambda: server.opened)
    await server.opened[0].close()
    await until(lambda: not first.is_open)
    again = await peers.get(operator, server.endpoint)
    assert again is not first
    assert (await again.call(wire.Ping())).message == wire.Pong(7)
    await peers.close()
    assert not again.is_open


async def test_peers_find_a_restarted_peer_and_refuse_an_impostor_in_its_place(
    serve, identities, signers: list[Signer]
) -> None:
    server = await serve()
    peers = Peers(identities[1])
    operator = signers[0].address
    stream = await peers.get(operator, server.endpoint)
    port = server.listener.port
    await server.listener.close()
    await until(lambda: not stream.is_open)
    with pytest.raises(PeerUnreachable):
        await peers.get(operator, f"127.0.0.1:{port}", timeout_s=1.0)
    impostor = Listener(identities[4], pong)
    await impostor.start("127.0.0.1", port)
    with pytest.raises(AuthenticationFailed):
        await peers.get(operator, f"127.0.0.1:{port}", timeout_s=1.0)
    await impostor.close()
    returned = Listener(identities[0], pong)
    await returned.start("127.0.0.1", port)
    back = await peers.get(operator, f"127.0.0.1:{port}", timeout_s=DEADLINE_S)
    assert (await back.call(wire.Ping())).message == wire.Pong(7)
    await peers.close()
    await returned.close()


async def test_many_waiting_for_one_dead_peer_wait_no_longer_than_one(identities) -> None:
    silent = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    endpoint = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    peers = Peers(identities[1])
    start = asyncio.get_running_loop().time()
    results = await asyncio.gather(
        *(peers.get(HASH[:42], endpoint, timeout_s=0.3) for _ in range(20)),
        return_exceptions=True,
    )
    assert all(isinstance(r, PeerUnreachable) for r in results)
    assert asyncio.get_running_loop().time() - start < 3.0
    await peers.close()
    silent.close()


async def test_closed_peers_open_nothing(server: Server, identities, signers: list[Signer]) -> None:
    peers = Peers(identities[1])
    await peers.close()
    with pytest.raises(PeerUnreachable):
        await peers.get(signers[0].address, server.endpoint)
