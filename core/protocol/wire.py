"""What goes over a stream: every message, how it is framed, and the limits a stranger cannot pass.

A frame is `u32be length ‖ body`; after decryption a body is `u8 version ‖ u32be id ‖ u32be re ‖ u32be header length ‖ header ‖
payload`. `id` ≠ 0 asks for an answer, whose `re` names it. The header is the msgpack of one message below; the payload
is raw little-endian tensor bytes, so activations are never copied through a serialiser. No pickle, ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal

import msgspec

from core.protocol import types as t
from core.protocol.errors import (
    FrameTooLarge,
    FrameTruncated,
    MalformedMessage,
    VersionUnknown,
)

VERSION = 2
MAX_FRAME_BYTES = 16 * 2**20
MAX_HEADER_BYTES = 8 * 2**20
MAX_REQUESTS = 4096  # in one receipt, so that all receipts of a job fit in a header
MAX_STAGES = 64
MAX_PARTS = 1024
PREFIX_BYTES = 13

Side = Literal["in", "out", "states"]
"""Rows that entered a stage, that left it (of a last stage: token ids), and a last stage's state rows, from which its tokens were drawn."""

Finish = Literal["", "stop", "length"]
Proof = Annotated[list[t.Hash32], msgspec.Meta(max_length=32)]
Plan = Annotated[list[t.Stage], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
Endpoint = Annotated[str, msgspec.Meta(max_length=255)]
Endpoints = Annotated[list[Endpoint], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
Logprob = Annotated[float, msgspec.Meta(ge=-1e4, le=0.0)]
Text = Annotated[str, msgspec.Meta(max_length=2000)]
#: Rows of guessed tokens that one frame may carry.
MAX_GUESSED = 7
Trace = Annotated[list[t.U32], msgspec.Meta(max_length=3 * MAX_STAGES)]
"""Of each stage passed so far: rows of its batch (0: prompts were among them), microseconds waited, microseconds computed."""

RequestId = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9_.:-]*\Z")]
Traceparent = Annotated[
    str, msgspec.Meta(max_length=55, pattern=r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z")
]


class Message(msgspec.Struct, frozen=True, tag=True, rename="camel", forbid_unknown_fields=True):
    """Base of every message; the tag is the class name."""


# --- anyone ---


class Ping(Message, frozen=True):
    """Are you there; the asker's clock gives the round trip."""


class Pong(Message, frozen=True):
    """Here. The step that computes now has taken `step_ms`, what other programs held up left out, and was expected to take `due_ms`."""

    step_ms: t.U32 = 0
    due_ms: t.U32 = 0


class Failed(Message, frozen=True):
    """The answer to a call that was refused: a stable code, and why in words."""

    code: Annotated[str, msgspec.Meta(max_length=40)]
    reason: Text


# --- opening a job ---


class Propose(Message, frozen=True):
    """Matcher to miner: will you be stage `stage` of this plan under this order. → Accepted | Failed

    `continues` is the order of the same requester that this one goes on with: its slots pass to this one.
    """

    signed: t.SignedOrder
    plan: Plan
    endpoints: Endpoints
    stage: t.U16
    continues: t.Hash32 | None = None


class Accepted(Message, frozen=True):
    signed: t.SignedAcceptance


class Continues(t.Value, frozen=True):
    """What a job goes on with: request i of it was request `requests[i]` of that order; None where it begins here."""

    order_hash: t.Hash32
    requests: Annotated[list[t.U32 | None], msgspec.Meta(max_length=MAX_REQUESTS)]


class OpenJob(Message, frozen=True):
    """Client to every stage once the job is matched on chain: I am here, push my tokens and receipts to this
    stream. What a stage still remembers of the requests that the job continues it takes over. → JobOpened | Failed"""

    signed: t.SignedOrder
    plan: Plan
    endpoints: Endpoints
    stage: t.U16
    continues: Continues | None = None


class JobOpened(Message, frozen=True):
    """`again`: the job was open here before, and what its requests came to is still known."""

    again: bool = False


# --- one request ---


class Origin(t.Value, frozen=True):
    """What a request is called in everybody's logs, and the span (W3C Trace Context) that it belongs to. Nobody signs for it."""

    request: RequestId = ""
    traceparent: Traceparent = ""


class Submit(Message, frozen=True):
    """Client to the first and the last stage: a prompt and how to sample from it. Payload: prompt ids, u32le.

    Both check the openings of `Order.inputRoot` and `Order.samplingRoot` before they work, or of an open order the signed
    opening of this request, whose proofs are empty. → Submitted | Failed
    """

    order_hash: t.Hash32
    request: t.U32
    salt: t.Hash32
    prompt_proof: Proof
    sampling: t.SamplingParams
    sampling_proof: Proof
    opening: t.SignedOpening | None = None
    origin: Origin | None = None


class GoesOn(Message, frozen=True):
    """Client to every stage, before the Submit of an open order's request: it goes on with that one of another order.

    → Submitted | Failed
    """

    order_hash: t.Hash32
    request: t.U32
    continues: t.Hash32
    continued: t.U32


class Submitted(Message, frozen=True):
    pass


class Activations(Message, frozen=True, omit_defaults=True):
    """Stage i to stage i+1: rows [start, start + rows) of one request. Payload: float32 little-endian [rows, D].

    `halved`: only the upper 16 bits of each number are sent, all others being zero, as in rows of bfloat16.
    `again`: all rows from `start` on that were carried over are void, these come instead.
    With the first ones, `most_rows` says how many there will be at most, 0 for nobody knows, `group` which requests of
    this sender's come together (those with the same number, 0 for nobody knows), and `origin` where they come from.
    The last `guessed` rows are of guessed tokens: those from where the next frame begins are void.
    """

    order_hash: t.Hash32
    request: t.U32
    start: t.U32
    rows: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    halved: bool = False
    again: bool = False
    guessed: Annotated[int, msgspec.Meta(ge=0, le=MAX_GUESSED)] = 0
    checkpoint: t.HopCheckpoint | None = None
    checkpoint_signature: t.Signature | None = None
    most_rows: t.U32 = 0
    trace: Trace | None = None
    origin: Origin | None = None
    group: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0


class Carry(Message, frozen=True):
    """Stage i to stage i+1, before the first rows of a continued request: how much of it do you remember?

    At most the first `rows` rows count. Rows from `decoded_from` on were decoded one at a time. → Carried | Failed
    """

    order_hash: t.Hash32
    request: t.U32
    rows: t.U32
    decoded_from: t.U32


class Carried(Message, frozen=True):
    """So many rows, and the root over them; the sender goes on from there if it would send the same, else from row 0."""

    rows: t.U32
    root: t.Hash32


class Token(Message, frozen=True, omit_defaults=True):
    """Last stage to the client and to the first stage: token number `step` of the answer.

    Only the client is told logarithms of probabilities, and only if its parameters ask: the token's own, and the likeliest
    ones with theirs.
    """

    order_hash: t.Hash32
    request: t.U32
    step: t.U32
    token: t.U32
    finish: Finish = ""
    trace: Trace | None = None
    logprob: Logprob | None = None
    top: Annotated[tuple[tuple[t.U32, Logprob], ...], msgspec.Meta(max_length=t.MAX_LOGPROBS)] = ()


class FinishRequest(Message, frozen=True):
    """Down the pipeline: this request is over; commit, sign, free its memory."""

    order_hash: t.Hash32
    request: t.U32
    tokens_in: t.U32
    tokens_out: t.U32


class Waiting(Message, frozen=True):
    """Stage to client and round the ring: this request waits for memory at stage `stage`, and nothing of it is lost."""

    order_hash: t.Hash32
    request: t.U32
    stage: t.U16


class Stopped(Message, frozen=True):
    """Client to stage, or back to the stage that sent rows or a token of a request which is stopped or over: no more of it here.

    So a machine that slept learns that it was left out. It keeps what it did, as after the loss of a neighbour.
    """

    order_hash: t.Hash32
    request: t.U32


class RequestFailed(Message, frozen=True):
    """Stage to client: this request cannot go on here; other requests may.

    `lost` is the neighbour that fell silent, if that is why: what was done is then kept for a continuation or a Cut.
    """

    order_hash: t.Hash32
    request: t.U32
    code: Annotated[str, msgspec.Meta(max_length=40)]
    reason: Text
    lost: t.Address | None = None


class Cut(Message, frozen=True):
    """Client to a stage that remains of a broken pipeline: the answer ends here with `tokens_out` tokens; sign for it.

    → Receipt | Failed
    """

    order_hash: t.Hash32
    request: t.U32
    tokens_in: t.U32
    tokens_out: t.U32


class Cancel(Message, frozen=True):
    """Client to every stage: forget this request."""

    order_hash: t.Hash32
    request: t.U32


class Receipt(Message, frozen=True):
    """Stage to client, one per finished request; also the answer to CloseJob."""

    signed: t.SignedReceipt


Push = Activations | Token | FinishRequest | RequestFailed | Stopped | Cancel | Receipt


class Bundle(Message, frozen=True):
    """Pushes that left together, such as what one step of a stage made for the next. Each is as if it had come alone.

    Payload: theirs, one after the other, of `sizes` bytes.
    """

    parts: Annotated[list[Push], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    sizes: Annotated[list[t.U32], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]


# --- paying and closing a job ---


class Acknowledge(Message, frozen=True):
    """Client to every stage of an open order, after an answer: all that is due so far. The newest is kept for the chain."""

    ack: t.Ack
    signature: t.Signature


class EndJob(Message, frozen=True):
    """Client to every stage of an open order: no request will begin any more."""

    order_hash: t.Hash32


class Progress(Message, frozen=True):
    """Client or matcher: which requests of the job have you finished. → Finished | Failed"""

    order_hash: t.Hash32


class Finished(Message, frozen=True):
    requests: list[t.U32]


class CloseJob(Message, frozen=True):
    """Client or matcher: sign one receipt over exactly these finished requests. → Receipt | Failed"""

    order_hash: t.Hash32
    requests: Annotated[list[t.U32], msgspec.Meta(min_length=1, max_length=MAX_REQUESTS)]


# --- answering for what was signed ---


class FetchOpening(Message, frozen=True):
    """Auditor or juror: the prompt and sampling of one request, as committed. → Opening | Failed"""

    order_hash: t.Hash32
    request: t.U32
    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Opening(Message, frozen=True):
    """Payload: prompt ids, u32le."""

    salt: t.Hash32
    prompt_proof: Proof
    sampling: t.SamplingParams
    sampling_proof: Proof
    opening: t.SignedOpening | None = None  # of an open order's request, instead of proofs


class FetchRows(Message, frozen=True):
    """Auditor or juror: rows that crossed this stage's `side` boundary. → Rows | Failed"""

    order_hash: t.Hash32
    request: t.U32
    side: Side
    start: t.U32
    count: t.U32
    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Rows(Message, frozen=True):
    """Payload: `rows` rows of `row_bytes` each; `total` is how many the request has at this boundary.

    A last stage signed its tokens and its state rows under one root (`commit.answer_root`): `beside` is the root of the other ones.
    """

    start: t.U32
    rows: t.U32
    row_bytes: t.U32
    total: t.U32
    beside: t.Hash32 | None = None


class FetchReceipts(Message, frozen=True):
    """Auditor or juror: every receipt this stage signed for the order. → Receipts | Failed"""

    order_hash: t.Hash32
    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Receipts(Message, frozen=True):
    signed: list[t.SignedReceipt]


class ShowNode(Message, frozen=True):
    """Accuser: what is below a node of its trace, instead of opening it on chain. Payload: hashes, or at level 0 the chunk. → Differs | Failed"""

    dispute: t.Hash32
    level: t.U8
    index: t.U63


class Differs(Message, frozen=True):
    """Which of the hashes shown is not ours; 0 of a chunk, in which the accused points on chain."""

    child: t.U8


AnyMessage = (
    Ping | Pong | Failed | Propose | Accepted | OpenJob | JobOpened | Submit | Submitted
    | Activations | Carry | Carried | Token | FinishRequest | RequestFailed | Cut | Cancel | Receipt | Bundle
    | Progress | Finished | GoesOn | Acknowledge | EndJob | Waiting | Stopped
    | CloseJob | FetchOpening | Opening | FetchRows | Rows | FetchReceipts | Receipts | ShowNode | Differs
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)


class Frame(msgspec.Struct, frozen=True):
    """One decoded body. `payload` is a view into the body it came from."""

    message: AnyMessage
    payload: memoryview
    id: int = 0
    re: int = 0


def _too_large(have: int, limit: int) -> FrameTooLarge:
    return FrameTooLarge(f"frame of {have} bytes", f"the limit is {limit}")


def _truncated(have: int, need: int) -> FrameTruncated:
    return FrameTruncated(f"frame of {have} bytes", f"its prefix announces {need}")


def encode_parts(
    message: AnyMessage,
    payload: bytes | memoryview | Sequence[bytes | memoryview] = b"",
    *,
    id: int = 0,
    re: int = 0,
) -> list[memoryview]:
    """Body of a frame as buffers that follow each other, the payload not copied; one in several buffers is sent as one.

    Raises FrameTooLarge if a peer would refuse it.
    """
    header = _encoder.encode(message)
    buffers = [payload] if isinstance(payload, (bytes, bytearray, memoryview)) else payload
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    size = PREFIX_BYTES + len(header) + sum(len(view) for view in views)
    if size > MAX_FRAME_BYTES or len(header) > MAX_HEADER_BYTES:
        raise _too_large(size, MAX_FRAME_BYTES)
    prefix = (
        bytes([VERSION])
        + id.to_bytes(4, "big")
        + re.to_bytes(4, "big")
        + len(header).to_bytes(4, "big")
    )
    return [memoryview(prefix + header), *views]


def bundle(
    items: Sequence[tuple[Push, bytes | memoryview]],
) -> tuple[Bundle, list[bytes | memoryview]]:
    """Several pushes as one message and its payload, for `encode`."""
    payloads = [payload for _, payload in items]
    sizes = [memoryview(payload).nbytes for payload in payloads]
    return Bundle(parts=[message for message, _ in items], sizes=sizes), payloads


def unbundle(frame: Frame) -> list[Frame]:
    """The frames in a bundle, their payloads views into its own; any other frame alone. Raises MalformedMessage."""
    message = frame.message
    if not isinstance(message, Bundle):
        return [frame]
    sizes, payload = message.sizes, frame.payload
    if frame.id or frame.re or len(sizes) != len(message.parts) or sum(sizes) != len(payload):
        raise MalformedMessage(
            "a bundle that does not fit its payload",
            f"{len(message.parts)} parts, {len(sizes)} sizes, {len(payload)} bytes",
        )
    ends = [0, *accumulate(sizes)]
    return [
        Frame(message=part, payload=payload[start:end])
        for part, (start, end) in zip(message.parts, pairwise(ends), strict=True)
    ]


def decode(body: bytes | memoryview) -> Frame:
    """The frame in a body.

    Raises only the WireError family: FrameTooLarge, FrameTruncated, VersionUnknown, MalformedMessage. A stranger's bytes can
    do nothing else.
    """
    view = memoryview(body).cast("B")
    if len(view) > MAX_FRAME_BYTES:
        raise _too_large(len(view), MAX_FRAME_BYTES)
    if len(view) < PREFIX_BYTES:
        raise _truncated(len(view), PREFIX_BYTES)
    if view[0] != VERSION:
        raise VersionUnknown(f"version {view[0]} frame", f"this program speaks version {VERSION}")
    header_bytes = int.from_bytes(view[9:13], "big")
    if header_bytes > MAX_HEADER_BYTES:
        raise _too_large(header_bytes, MAX_HEADER_BYTES)
    end = PREFIX_BYTES + header_bytes
    if len(view) < end:
        raise _truncated(len(view), end)
    try:
        message = _decoder.decode(view[PREFIX_BYTES:end])
    except (msgspec.MsgspecError, RecursionError, ValueError, MemoryError) as error:
        raise MalformedMessage("unreadable header", str(error)[:200]) from None
    return Frame(
        message=message,
        payload=view[end:],
        id=int.from_bytes(view[1:5], "big"),
        re=int.from_bytes(view[5:9], "big"),
    )
