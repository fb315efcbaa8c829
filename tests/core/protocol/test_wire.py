"""What a frame is, and that a stranger's bytes can do nothing but raise a WireError."""

from __future__ import annotations

import itertools
import random
import tracemalloc
import typing

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.protocol import types as t
from core.protocol import wire
from core.protocol.errors import (
    FrameTooLarge,
    FrameTruncated,
    MalformedMessage,
    VersionUnknown,
    WireError,
)
from tests.core.protocol.test_types import ADDRESS, HASH, ORDER
from tests.frames import encode

SIGNATURE = "0x" + "1b" * 65
SIGNED = t.SignedOrder(ORDER, SIGNATURE)
TERMS = t.Terms(4, (ADDRESS,), (t.ZERO_ADDRESS,), 100)
PLAN = [t.Stage(ADDRESS, 0, 4), t.Stage(t.ZERO_ADDRESS, 4, 9)]
PLACES = ["10.0.0.1:4000", "[::1]:4000"]
WORD = t.SignedWord(t.RequestWord(HASH, HASH, 0, 7, HASH, HASH, 5, 6), SIGNATURE)
DELEGATION = t.AuditorDelegation(HASH, ADDRESS, 99)
RECEIPT = t.SignedReceipt(
    t.StageReceipt(HASH, HASH, 0, 0, 4, HASH, HASH, HASH, HASH, 1, 5, 6, 1, 2),
    SIGNATURE,
    [t.RequestLeaf(7, HASH, HASH, 5, 6)],
    [HASH],
)
OPENED = t.SignedOpening(t.RequestOpening(HASH, 7, HASH, HASH), SIGNATURE)
SAMPLING = t.SamplingParams(
    700_000,
    40,
    50_000,
    64,
    11,
    key_index=3,
    logit_bias=((5, -1), (6, 2)),
    stop=(b"END", "é".encode()),
)

MESSAGES: list[wire.AnyMessage] = [
    wire.Ping(),
    wire.Pong(3),
    wire.Pong(1500, 20),
    wire.Failed("E-NET-03", "no"),
    wire.Allocate(HASH, t.LayerRange(0, 4), 7),
    wire.Allocate(HASH, None, 8),
    wire.Allocated(),
    wire.Propose(SIGNED, PLAN, PLACES, 1),
    wire.Accepted(t.SignedAcceptance(t.Acceptance(HASH, HASH, 1, 9), SIGNATURE)),
    wire.Propose(SIGNED, PLAN, PLACES, 1, HASH),
    wire.OpenJob(SIGNED, PLAN, PLACES, 1),
    wire.Propose(t.SignedOrder(ORDER, SIGNATURE, TERMS), PLAN, PLACES, 1),
    wire.OpenJob(SIGNED, PLAN, PLACES, 1, wire.Continues(HASH, [3, None])),
    wire.JobOpened(),
    wire.JobOpened(again=True, credit=2500),
    wire.Submit(HASH, 7, HASH, [HASH], SAMPLING, []),
    wire.Submit(HASH, 7, HASH, [], SAMPLING, [], OPENED),
    wire.GoesOn(HASH, 7, HASH, 3),
    wire.Acknowledge(t.Ack(HASH, HASH, HASH, 5, 6), SIGNATURE),
    wire.EndJob(HASH),
    wire.Withdraw(HASH),
    wire.ProposalWithdrawn(),
    wire.Submitted(),
    wire.Activations(HASH, 7, 32, 1),
    wire.Activations(HASH, 7, 0, 32, again=True),
    wire.Activations(HASH, 7, 0, 32, halved=True),
    wire.Carry(HASH, 7, 32, 24),
    wire.Carried(32, HASH),
    wire.Token(HASH, 7, 0, 49_151, "stop"),
    wire.Token(HASH, 7, 0, 49_151, "", None, -0.25, ((49_151, -0.25), (3, -9999.0))),
    wire.Token(HASH, 7, 0, 49_151, "stop", states_root=HASH, word=WORD),
    wire.FinishRequest(HASH, 7, 5, 6, WORD),
    wire.RequestFailed(HASH, 7, "E-CHECK-01", "rows differ"),
    wire.RequestFailed(HASH, 7, "E-NET-03", "it is gone", ADDRESS),
    wire.Waiting(HASH, 7, 1),
    wire.Stopped(HASH, 7),
    wire.Cut(HASH, 7, 5, 3),
    wire.Cancel(HASH, 7),
    wire.Receipt(RECEIPT),
    wire.Bundle(
        [wire.Activations(HASH, 7, 33, 1, trace=[8, 0, 900]), wire.Token(HASH, 8, 0, 5)], [7, 0]
    ),
    wire.Progress(HASH),
    wire.Finished([1, 2, 3]),
    wire.CloseJob(HASH, [1, 2, 3]),
    wire.FetchOpening(HASH, 7, DELEGATION, SIGNATURE),
    wire.Opening(HASH, [HASH], SAMPLING, [HASH, HASH]),
    wire.Opening(HASH, [], SAMPLING, [], OPENED),
    wire.FetchRows(HASH, 7, "in", 0, 100),
    wire.FetchRows(HASH, 7, "states", 0, 100),
    wire.Rows(0, 100, 2304, 250),
    wire.Rows(0, 100, 4, 250, HASH),
    wire.FetchReceipts(HASH),
    wire.Receipts([RECEIPT, RECEIPT]),
    wire.ShowNode(HASH, 29, 2**34),
    wire.Differs(31),
    wire.FetchFile(HASH, "model-00001-of-00002.safetensors", 0, 2**62),
    wire.FileBytes(2**34),
]
any_message = st.sampled_from(MESSAGES)
u32 = st.integers(0, 2**32 - 1)


def body(
    header: bytes, payload: bytes = b"", version: int = wire.VERSION, announced: int = -1
) -> bytes:
    size = len(header) if announced < 0 else announced
    return bytes([version]) + bytes(8) + size.to_bytes(4, "big") + header + payload


def decode_or_wire_error(data: bytes) -> wire.Frame | None:
    try:
        frame = wire.decode(data)
    except WireError as error:
        assert len(str(error)) < 1000
        return None
    assert isinstance(frame.message, wire.Message)
    return frame


def test_the_examples_cover_every_message() -> None:
    assert {type(m) for m in MESSAGES} == set(typing.get_args(wire.AnyMessage))


@given(any_message, st.binary(max_size=100), u32, u32)
def test_a_message_survives_the_round_trip(
    message: wire.AnyMessage, payload: bytes, id: int, re: int
) -> None:
    frame = wire.decode(encode(message, payload, id=id, re=re))
    assert (frame.message, bytes(frame.payload), frame.id, frame.re) == (message, payload, id, re)


def test_the_payload_is_a_view_into_the_body() -> None:
    raw = bytearray(encode(wire.Activations(HASH, 7, 0, 1), bytes(1000)))
    frame = wire.decode(raw)
    raw[-1] = 0xAB
    assert frame.payload[-1] == 0xAB
    assert frame.payload.obj is raw


def test_decoding_a_large_frame_allocates_next_to_nothing() -> None:
    raw = encode(wire.Activations(HASH, 7, 0, 1), bytes(8 * 2**20))
    tracemalloc.start()
    frame = wire.decode(raw)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(frame.payload) == 8 * 2**20
    assert peak_bytes < 100_000


def test_a_payload_of_floats_is_sent_as_its_bytes() -> None:
    floats = memoryview(bytearray(16)).cast("f")
    floats[1] = 1.5
    frame = wire.decode(encode(wire.Activations(HASH, 7, 0, 1), floats))
    assert frame.payload.cast("f").tolist() == [0.0, 1.5, 0.0, 0.0]


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x01" * 13)
def test_random_bytes_raise_only_wire_errors(data: bytes) -> None:
    decode_or_wire_error(data)


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_random_headers_raise_only_wire_errors(header: bytes, payload: bytes) -> None:
    decode_or_wire_error(body(header, payload))


@given(any_message, st.data())
def test_every_truncation_of_the_header_is_refused(
    message: wire.AnyMessage, data: st.DataObject
) -> None:
    raw = encode(message)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(FrameTruncated):
        wire.decode(raw[:cut])


@given(any_message, st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
def test_flipped_bits_raise_only_wire_errors(message: wire.AnyMessage, bits: list[int]) -> None:
    raw = bytearray(encode(message, b"payload", id=1))
    for bit in bits:
        raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    decode_or_wire_error(bytes(raw))


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(any_message, st.data(), json_like)
def test_a_field_of_any_other_shape_raises_only_wire_errors(
    message: wire.AnyMessage, data: st.DataObject, value: object
) -> None:
    fields = msgspec.to_builtins(message)
    fields[data.draw(st.sampled_from(sorted(fields)))] = value
    frame = decode_or_wire_error(body(msgspec.msgpack.encode(fields)))
    if frame is not None:
        assert wire.decode(encode(frame.message)).message == frame.message


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc0",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode({"type": "Exec", "code": "1"}),
        msgspec.msgpack.encode({"type": "Ping", "extra": 1}),
        msgspec.msgpack.encode({"type": "Pong", "stepMs": "3"}),
        msgspec.msgpack.encode({"type": "Pong", "stepMs": -1}),
        msgspec.msgpack.encode({"type": 7}),
        msgspec.msgpack.encode(wire.Ping()) + b"\x00",
        b"\x81\xa4type\xa4\xff\xfe\xfd\xfc",
        b"\x91" * 100_000,
        b"\x81\xa4type" * 100_000,
        b"\x82\xa4type\xa8Finished\xa8requests\xdd\xff\xff\xff\xff",
        b"\x82\xa4type\xa8Finished\xa8requests\xdf\xff\xff\xff\xff",
        b"\x82\xa4type\xa6Failed\xa4code\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
    ],
)
def test_headers_that_are_no_message_are_malformed(header: bytes) -> None:
    with pytest.raises(MalformedMessage):
        wire.decode(body(header))


def test_deep_nesting_inside_a_known_field_is_malformed() -> None:
    for opening in (b"\x91", b"\x81\xa1a"):
        header = b"\x82\xa4type\xa8Finished\xa8requests" + opening * 200_000
        with pytest.raises(MalformedMessage):
            wire.decode(body(header))


@pytest.mark.parametrize("version", [0, wire.VERSION - 1, wire.VERSION + 1, 255])
def test_another_version_is_named(version: int) -> None:
    with pytest.raises(VersionUnknown, match=str(version)):
        wire.decode(body(msgspec.msgpack.encode(wire.Ping()), version=version))


def test_announced_lengths_are_believed_only_within_limits() -> None:
    with pytest.raises(FrameTooLarge):
        wire.decode(body(b"", announced=wire.MAX_HEADER_BYTES + 1))
    with pytest.raises(FrameTooLarge):
        wire.decode(body(b"", announced=2**32 - 1))
    with pytest.raises(FrameTruncated):
        wire.decode(body(b"", announced=wire.MAX_HEADER_BYTES))
    with pytest.raises(FrameTooLarge):
        wire.decode(bytes(wire.MAX_FRAME_BYTES + 1))


def test_what_a_peer_would_refuse_is_not_sent() -> None:
    room = wire.MAX_FRAME_BYTES - len(encode(wire.Ping()))
    assert len(encode(wire.Ping(), bytes(room))) == wire.MAX_FRAME_BYTES
    with pytest.raises(FrameTooLarge):
        encode(wire.Ping(), bytes(room + 1))
    long_header = wire.Receipts([RECEIPT] * (wire.MAX_HEADER_BYTES // 800))
    with pytest.raises(FrameTooLarge):
        encode(long_header)


def test_a_job_of_the_most_requests_can_be_closed_and_its_receipts_fetched() -> None:
    count = wire.MAX_REQUESTS
    last = 2**32 - 1
    leaf = t.RequestLeaf(last, HASH, HASH, last, last)
    receipt = msgspec.structs.replace(
        RECEIPT.receipt,
        requests=last,
        tokens_in=last,
        tokens_out=last,
        started_at=2**63 - 1,
        signed_at=2**63 - 1,
    )
    whole = t.SignedReceipt(receipt, SIGNATURE, [leaf] * count, [HASH] * count)
    single = t.SignedReceipt(receipt, SIGNATURE, [leaf], [HASH])
    for message in (
        wire.CloseJob(HASH, [last] * count),
        wire.Finished([last] * count),
        wire.Receipt(whole),
        wire.Receipts([*itertools.repeat(single, count), whole]),
    ):
        assert wire.decode(encode(message)).message == message


def test_lists_beyond_their_bounds_are_malformed() -> None:
    for message in (
        wire.CloseJob(HASH, []),
        wire.CloseJob(HASH, [1] * (wire.MAX_REQUESTS + 1)),
        wire.Propose(SIGNED, [], PLACES, 0),
        wire.Propose(SIGNED, PLAN * 40, PLACES, 0),
        wire.Propose(SIGNED, PLAN, PLACES * 40, 0),
        wire.Submit(HASH, 7, HASH, [HASH] * 33, SAMPLING, []),
        wire.Failed("E" * 41, ""),
        wire.Failed("E", "x" * 2001),
        wire.Activations(HASH, 7, 0, 0),
        wire.Activations(HASH, 7, 0, 2**20 + 1),
    ):
        with pytest.raises(MalformedMessage):
            wire.decode(encode(message))


def test_a_thousand_mutations_of_each_message_raise_only_wire_errors() -> None:
    rng = random.Random(7)
    for message in MESSAGES:
        raw = encode(message, b"p" * 40, id=1)
        for _ in range(1000):
            data = bytearray(raw)
            for _ in range(rng.randrange(1, 6)):
                place = rng.randrange(len(data))
                kind = rng.randrange(3)
                if kind == 0:
                    data[place] = rng.randrange(256)
                elif kind == 1:
                    del data[place : place + rng.randrange(1, 9)]
                else:
                    data[place:place] = rng.randbytes(rng.randrange(1, 9))
                if not data:
                    break
            decode_or_wire_error(bytes(data))


pushes = [m for m in MESSAGES if isinstance(m, wire.Push)]


@given(st.lists(st.tuples(st.sampled_from(pushes), st.binary(max_size=50)), min_size=1))
def test_a_bundle_gives_back_what_was_put_in(items: list[tuple[wire.Push, bytes]]) -> None:
    frame = wire.decode(encode(*wire.bundle(items)))
    assert [(f.message, bytes(f.payload)) for f in wire.unbundle(frame)] == items
    assert all(f.id == f.re == 0 for f in wire.unbundle(frame))


def test_parts_of_a_bundle_are_views_and_other_frames_stay_alone() -> None:
    raw = bytearray(encode(*wire.bundle([(pushes[0], bytes(8)), (pushes[0], bytes(8))])))
    first, second = wire.unbundle(wire.decode(raw))
    raw[-1] = 7
    assert second.payload[-1] == 7
    assert first.payload[-1] == 0
    alone = wire.decode(encode(wire.Ping(), id=4))
    assert wire.unbundle(alone) == [alone]


@pytest.mark.parametrize(
    ("sizes", "payload", "id"),
    [([4], 5, 0), ([4], 3, 0), ([4, 4], 8, 0), ([2**32 - 1], 4, 0), ([4], 4, 9)],
)
def test_a_bundle_that_does_not_fit_its_payload_is_refused(
    sizes: list[int], payload: int, id: int
) -> None:
    raw = encode(wire.Bundle([pushes[0]], sizes), bytes(payload), id=id)
    with pytest.raises(MalformedMessage):
        wire.unbundle(wire.decode(raw))


def test_bundles_hold_neither_questions_nor_bundles() -> None:
    ping = msgspec.msgpack.encode({"type": "Bundle", "parts": [{"type": "Ping"}], "sizes": [0]})
    inner = {"type": "Bundle", "parts": [], "sizes": []}
    nested = msgspec.msgpack.encode({"type": "Bundle", "parts": [inner], "sizes": [0]})
    for header in (ping, nested):
        with pytest.raises(MalformedMessage):
            wire.decode(body(header))
