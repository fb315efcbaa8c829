"""What goes over a stream: every message, how it is framed, and the limits a stranger cannot pass.

A frame is `u32be length ‖ body`; after decryption a body is `u8 version ‖ u32be id ‖ u32be re ‖
u32be header length ‖ header ‖ payload`. `id` ≠ 0 asks for an answer, whose `re` names it. The
header is the msgpack of one message below; the payload is raw little-endian tensor bytes, so
activations are never copied through a serialiser. No pickle, ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Literal

import msgspec

from core.protocol import types as t
from core.protocol.errors import FrameTooLarge, FrameTruncated, MalformedMessage, VersionUnknown

VERSION = 3
MAX_FRAME_BYTES = 16 * 2**20
MAX_HEADER_BYTES = 8 * 2**20
MAX_REQUESTS = 4096  # in one receipt, so that all receipts of a job fit in a header
MAX_STAGES = 64
MAX_PARTS = 1024
PREFIX_BYTES = 13

Side = Annotated[str, msgspec.Meta(pattern=r"^(?:in|out|states|inner-[0-9]{1,5})\Z")]
"""Rows that entered a stage, that left it (of a last stage: token ids), a last stage's state rows,
from which its tokens were drawn, and rows at a boundary inside a stage (`inner_side`)."""


def inner_side(number: int) -> Side:
    """Rows at boundary `number` inside a stage, the first one 0."""
    return f"inner-{number}"


Finish = Literal["", "stop", "length", "cancelled"]
Proof = Annotated[list[t.Hash32], msgspec.Meta(max_length=32)]
Plan = Annotated[list[t.Stage], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
Endpoint = Annotated[str, msgspec.Meta(max_length=255)]
Endpoints = Annotated[list[Endpoint], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
Logprob = Annotated[float, msgspec.Meta(ge=-1e4, le=0.0)]
Text = Annotated[str, msgspec.Meta(max_length=2000)]
#: Rows of guessed tokens that one frame may carry.
MAX_GUESSED = 7
Trace = Annotated[list[t.U32], msgspec.Meta(max_length=3 * MAX_STAGES)]
"""Of each stage passed: rows of its batch (0: with prompts), microseconds waited and computed."""

RequestId = Annotated[str, msgspec.Meta(max_length=64, pattern=r"^[A-Za-z0-9_.:-]*\Z")]
Traceparent = Annotated[
    str, msgspec.Meta(max_length=55, pattern=r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z")
]


class Message(msgspec.Struct, frozen=True, tag=True, rename="camel", forbid_unknown_fields=True):
    """Base of every message; the tag is the class name."""


class OfJob(Message, frozen=True):
    """Base of what is about one job."""

    order_hash: t.Hash32


class OfRequest(OfJob, frozen=True):
    """Base of what is about one request of a job."""

    request: t.U32


# --- anyone ---


class Ping(Message, frozen=True):
    """Are you there? The asker's clock measures the round trip."""


class Pong(Message, frozen=True):
    """Here. The step that computes now has taken `step_ms` of its own and should take `due_ms`."""

    step_ms: t.U32 = 0
    due_ms: t.U32 = 0


class Failed(Message, frozen=True):
    """The answer to a call that was refused: a stable code, and the reason in words."""

    code: Annotated[str, msgspec.Meta(max_length=40)]
    reason: Text


# --- what to hold ---


class Allocate(Message, frozen=True):
    """Matcher to miner: hold these layers of the model; None: stand by. → Allocated | Failed

    A later sequence of the same matcher replaces an earlier one. Said again while it holds: a
    matcher that falls silent may be followed by another.
    """

    model_id: t.Hash32
    layers: t.LayerRange | None
    sequence: t.U63


class Allocated(Message, frozen=True):
    """Heard, and followed as soon as what runs has ended."""


# --- opening a job ---


class Propose(Message, frozen=True):
    """Matcher to miner: be stage `stage` of this plan under this order. → Accepted | Failed

    `continues` is the same requester's order that this one goes on with: it inherits its slots.
    """

    signed: t.SignedOrder
    plan: Plan
    endpoints: Endpoints
    stage: t.U16
    continues: t.Hash32 | None = None


class Accepted(Message, frozen=True):
    signed: t.SignedAcceptance


class Withdraw(OfJob, frozen=True):
    """Matcher to miner: the order that you accepted is not opened with you. → ProposalWithdrawn

    It holds nothing any more, unless the chain shows it.
    """


class ProposalWithdrawn(Message, frozen=True):
    """Heard."""


class Continues(t.Value, frozen=True):
    """What a job goes on with: its request i was request `requests[i]` of that order; None: new."""

    order_hash: t.Hash32
    requests: Annotated[list[t.U32 | None], msgspec.Meta(max_length=MAX_REQUESTS)]


class OpenJob(Message, frozen=True):
    """Client to every stage, once the job is matched on chain. → JobOpened | Failed

    Tokens and receipts are pushed to the stream that this came by. A stage takes over what it still
    remembers of the requests that the job continues. Opened again, it repeats before its answer
    what is known of requests, but of those that the client has whole (`known`).
    """

    signed: t.SignedOrder
    plan: Plan
    endpoints: Endpoints
    stage: t.U16
    continues: Continues | None = None
    known: Annotated[list[t.U32], msgspec.Meta(max_length=MAX_REQUESTS)] = []


class JobOpened(Message, frozen=True):
    """`again`: the job was open here before, and the results of its requests are still known.

    The stage does `credit` rows more than the requester acknowledged tokens; 0: any number.
    """

    again: bool = False
    credit: t.U32 = 0


# --- one request ---


class Origin(t.Value, frozen=True):
    """A request's name in all logs, and its span (W3C Trace Context). No signature covers it."""

    request: RequestId = ""
    traceparent: Traceparent = ""


class Submit(OfRequest, frozen=True):
    """Client to the first and the last stage: a prompt and how to sample from it.

    Payload: prompt ids, u32le. Both check the openings of `Order.inputRoot` and
    `Order.samplingRoot` before they work, or of an open order the signed opening of this request,
    whose proofs are empty. → Submitted | Failed
    """

    salt: t.Hash32
    prompt_proof: Proof
    sampling: t.SamplingParams
    sampling_proof: Proof
    opening: t.SignedOpening | None = None
    origin: Origin | None = None


class GoesOn(OfRequest, frozen=True):
    """Client to every stage: the request goes on with another one. → Submitted | Failed"""

    continues: t.Hash32
    continued: t.U32


class Submitted(Message, frozen=True):
    """The request is taken."""


class Activations(OfRequest, frozen=True, omit_defaults=True):
    """Stage i to stage i+1: rows [start, start + rows) of one request.

    Payload: float32 little-endian [rows, D]. `halved`: only the upper 16 bits of each number are
    sent, all others being zero, as in rows of bfloat16. `again`: all rows carried over from `start`
    on are void, these come instead. The first frame has `most_rows`, how many rows there will be at
    most, `group`, the same number for requests of this sender that come together (0 in both:
    unknown), and `origin`. The last `guessed` rows are of guessed tokens: the next frame begins
    where they became void.
    """

    start: t.U32
    rows: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    halved: bool = False
    again: bool = False
    guessed: Annotated[int, msgspec.Meta(ge=0, le=MAX_GUESSED)] = 0
    most_rows: t.U32 = 0
    trace: Trace | None = None
    origin: Origin | None = None
    group: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0


class Carry(OfRequest, frozen=True):
    """Stage i to stage i+1, before the first rows of a continued request: what is left of it?

    At most the first `rows` rows count. Rows from `decoded_from` on were decoded one at a time.
    → Carried | Failed
    """

    rows: t.U32
    decoded_from: t.U32


class Carried(Message, frozen=True):
    """The rows left, and their root; the sender goes on there if its own match, else from row 0."""

    rows: t.U32
    root: t.Hash32


class Token(OfRequest, frozen=True, omit_defaults=True):
    """Last stage to the client and to the first stage: token number `step` of the answer.

    Only the client is told log probabilities, and only if its parameters ask: the token's own, and
    the likeliest ones with theirs. Only the first stage is told, with the last token, the root of
    the state rows and the last stage's word of the request.
    """

    step: t.U32
    token: t.U32
    finish: Finish = ""
    trace: Trace | None = None
    logprob: Logprob | None = None
    top: Annotated[tuple[tuple[t.U32, Logprob], ...], msgspec.Meta(max_length=t.MAX_LOGPROBS)] = ()
    states_root: t.Hash32 | None = None
    word: t.SignedWord | None = None


class FinishRequest(OfRequest, frozen=True):
    """Down the pipeline: this request is over; commit, sign, free its memory.

    With the sender's word of it, without which the receiver signs nothing.
    """

    tokens_in: t.U32
    tokens_out: t.U32
    word: t.SignedWord | None = None


class Waiting(OfRequest, frozen=True):
    """Stage to client and round the ring: the request waits for memory at `stage`."""

    stage: t.U16


class Stopped(OfRequest, frozen=True):
    """No more of this request: from the client to a stage, or the answer to rows or a token of it.

    So a machine that slept learns that it was left out. It keeps what it did, as after the loss of
    a neighbour.
    """


class RequestFailed(OfRequest, frozen=True):
    """Stage to client: this request cannot go on here; other requests may.

    `lost` is the neighbour that fell silent, if any: a continuation or a Cut may follow.
    """

    code: Annotated[str, msgspec.Meta(max_length=40)]
    reason: Text
    lost: t.Address | None = None


class Cut(OfRequest, frozen=True):
    """Client to what is left of a pipeline: sign `tokens_out` tokens. → Receipt | Failed"""

    tokens_in: t.U32
    tokens_out: t.U32


class Cancel(OfRequest, frozen=True):
    """Client to every stage: no more of this request.

    A first stage forgets one that has not begun and says so (RequestFailed). One that has begun
    ends with the last stage's next token, and is signed for.
    """


class Receipt(Message, frozen=True):
    """Stage to client, one per finished request; also the answer to CloseJob."""

    signed: t.SignedReceipt


Push = Activations | Token | FinishRequest | RequestFailed | Stopped | Cancel | Receipt


class Bundle(Message, frozen=True):
    """Pushes that left together, as those of one step of a stage; each is as if it had come alone.

    Payload: theirs, one after the other, of `sizes` bytes.
    """

    parts: Annotated[list[Push], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]
    sizes: Annotated[list[t.U32], msgspec.Meta(min_length=1, max_length=MAX_PARTS)]


# --- paying and closing a job ---


class Acknowledge(Message, frozen=True):
    """Client to every stage of an open order, after an answer: all that is due so far.

    The stage keeps the newest for the chain.
    """

    ack: t.Ack
    signature: t.Signature


class EndJob(OfJob, frozen=True):
    """Client to every stage of an open order: no further request will begin."""


class Progress(OfJob, frozen=True):
    """Client or matcher: which requests of the job are finished? → Finished | Failed"""


class Finished(Message, frozen=True):
    requests: list[t.U32]


class CloseJob(OfJob, frozen=True):
    """Client or matcher: sign one receipt over these finished requests. → Receipt | Failed"""

    requests: Annotated[list[t.U32], msgspec.Meta(min_length=1, max_length=MAX_REQUESTS)]


# --- answering for what was signed ---


class FetchOpening(OfRequest, frozen=True):
    """Auditor or juror: the prompt and sampling of one request, as committed. → Opening | Failed"""

    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Opening(Message, frozen=True):
    """Payload: prompt ids, u32le."""

    salt: t.Hash32
    prompt_proof: Proof
    sampling: t.SamplingParams
    sampling_proof: Proof
    opening: t.SignedOpening | None = None  # of an open order's request, instead of proofs


class FetchRows(OfRequest, frozen=True):
    """Auditor or juror: rows that crossed this stage's `side` boundary. → Rows | Failed"""

    side: Side
    start: t.U32
    count: t.U32
    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Rows(Message, frozen=True):
    """Payload: `rows` rows of `row_bytes` each, of the `total` that the request has here.

    A last stage signed its tokens and its state rows under one root (`commit.answer_root`):
    `beside` is the root of the other half.
    """

    start: t.U32
    rows: t.U32
    row_bytes: t.U32
    total: t.U32
    beside: t.Hash32 | None = None


class FetchReceipts(OfJob, frozen=True):
    """Auditor or juror: every receipt this stage signed for the order. → Receipts | Failed"""

    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Receipts(Message, frozen=True):
    """Also the words of the stage before this one; of the last stage, at the first."""

    signed: list[t.SignedReceipt]
    words: list[t.SignedWord] = []


class ShowNode(Message, frozen=True):
    """Accuser: what is below a node of its trace, before it opens it on chain. → Differs | Failed

    Payload: hashes, or at level 0 the chunk.
    """

    dispute: t.Hash32
    level: t.U8
    index: t.U63


class Differs(Message, frozen=True):
    """Which of the hashes shown differs from ours; 0 of a chunk, whose value is shown on chain."""

    child: t.U8


# --- files of the model that is served ---


class FetchFile(Message, frozen=True):
    """Anybody to a miner: bytes [start, end) of a file that its model was published with.

    → FileBytes | Failed
    """

    model_id: t.Hash32
    file: Annotated[str, msgspec.Meta(pattern=r"^[^/\\\x00]{1,255}\Z")]
    start: t.U63
    end: t.U63


class FileBytes(Message, frozen=True):
    """Payload: bytes from `start` on, at least one, of a file of `size` bytes.

    They are fewer than were asked for where the miner has no more of them, or sends no more at
    once.
    """

    size: t.U63


_Plans = Allocate | Allocated
_Begins = Submit | Submitted | GoesOn | Carry | Carried
_Opens = Propose | Accepted | Withdraw | ProposalWithdrawn | OpenJob | JobOpened | _Begins
_Ends = Acknowledge | EndJob | Progress | Finished | CloseJob | Cut | Waiting
_Shows = FetchOpening | Opening | FetchRows | Rows | FetchReceipts | Receipts | ShowNode | Differs
_Files = FetchFile | FileBytes
AnyMessage = Ping | Pong | Failed | _Plans | _Opens | Push | Bundle | _Ends | _Shows | _Files

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
    """Body of a frame as buffers to send in turn; a payload in several buffers is one payload.

    The payload is not copied. Raises FrameTooLarge if a peer would refuse it.
    """
    header = _encoder.encode(message)
    buffers = [payload] if isinstance(payload, (bytes, bytearray, memoryview)) else payload
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    size = PREFIX_BYTES + len(header) + sum(len(view) for view in views)
    if size > MAX_FRAME_BYTES or len(header) > MAX_HEADER_BYTES:
        raise _too_large(size, MAX_FRAME_BYTES)
    fields = (id, re, len(header))
    prefix = bytes([VERSION]) + b"".join(field.to_bytes(4, "big") for field in fields)
    return [memoryview(prefix + header), *views]


def bundle(
    items: Sequence[tuple[Push, bytes | memoryview]],
) -> tuple[Bundle, list[bytes | memoryview]]:
    """Several pushes as one message and its payload, for `encode`."""
    payloads = [payload for _, payload in items]
    sizes = [memoryview(payload).nbytes for payload in payloads]
    return Bundle(parts=[message for message, _ in items], sizes=sizes), payloads


def unbundle(frame: Frame) -> list[Frame]:
    """The frames in a bundle, with views of its payload. Raises MalformedMessage."""
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

    Of a peer's bytes it raises only the WireError family: FrameTooLarge, FrameTruncated,
    VersionUnknown, MalformedMessage.
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
