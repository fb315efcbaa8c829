"""What goes over a stream: every message, how it is framed, and the limits a stranger cannot pass.

A frame is `u32be length ‖ body`; after decryption a body is `u8 version ‖ u32be id ‖ u32be re ‖ u32be header length ‖ header ‖
payload`. `id` ≠ 0 asks for an answer, whose `re` names it. The header is the msgpack of one message below; the payload
is raw little-endian tensor bytes, so activations are never copied through a serialiser. No pickle, ever.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from core.protocol import types as t
from core.protocol.errors import (
    FrameTooLarge,
    FrameTruncated,
    MalformedMessage,
    VersionUnknown,
)

VERSION = 1
MAX_FRAME_BYTES = 16 * 2**20
MAX_HEADER_BYTES = 8 * 2**20
MAX_REQUESTS = 4096  # in one receipt, so that all receipts of a job fit in a header
MAX_STAGES = 64
PREFIX_BYTES = 13

Side = Literal["in", "out"]
Finish = Literal["", "stop", "length"]
Proof = Annotated[list[t.Hash32], msgspec.Meta(max_length=32)]
Plan = Annotated[list[t.Stage], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
Endpoint = Annotated[str, msgspec.Meta(max_length=255)]
Endpoints = Annotated[list[Endpoint], msgspec.Meta(min_length=1, max_length=MAX_STAGES)]
Text = Annotated[str, msgspec.Meta(max_length=2000)]


class Message(msgspec.Struct, frozen=True, tag=True, rename="camel", forbid_unknown_fields=True):
    """Base of every message; the tag is the class name."""


# --- anyone ---


class Ping(Message, frozen=True):
    """Are you there; the asker's clock gives the round trip."""


class Pong(Message, frozen=True):
    active_requests: t.U32 = 0


class Failed(Message, frozen=True):
    """The answer to a call that was refused: a stable code, and why in words."""

    code: Annotated[str, msgspec.Meta(max_length=40)]
    reason: Text


# --- opening a job ---


class Propose(Message, frozen=True):
    """Matcher to miner: will you be stage `stage` of this plan under this order. → Accepted | Failed"""

    signed: t.SignedOrder
    plan: Plan
    endpoints: Endpoints
    stage: t.U16


class Accepted(Message, frozen=True):
    signed: t.SignedAcceptance


class OpenJob(Message, frozen=True):
    """Client to every stage once the job is matched on chain: I am here, push my tokens and receipts to this
    stream. → JobOpened | Failed"""

    signed: t.SignedOrder
    plan: Plan
    endpoints: Endpoints
    stage: t.U16


class JobOpened(Message, frozen=True):
    pass


# --- one request ---


class Submit(Message, frozen=True):
    """Client to the first and the last stage: a prompt and how to sample from it. Payload: prompt ids, u32le.

    Both check the openings of `Order.inputRoot` and `Order.samplingRoot` before they work. → Submitted | Failed
    """

    order_hash: t.Hash32
    request: t.U32
    salt: t.Hash32
    prompt_proof: Proof
    sampling: t.SamplingParams
    sampling_proof: Proof


class Submitted(Message, frozen=True):
    pass


class Activations(Message, frozen=True):
    """Stage i to stage i+1: rows [start, start + rows) of one request. Payload: float32 little-endian [rows, D]."""

    order_hash: t.Hash32
    request: t.U32
    start: t.U32
    rows: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    checkpoint: t.HopCheckpoint | None = None
    checkpoint_signature: t.Signature | None = None


class Token(Message, frozen=True):
    """Last stage to the client and to the first stage: token number `step` of the answer."""

    order_hash: t.Hash32
    request: t.U32
    step: t.U32
    token: t.U32
    finish: Finish = ""


class FinishRequest(Message, frozen=True):
    """Down the pipeline: this request is over; commit, sign, free its memory."""

    order_hash: t.Hash32
    request: t.U32
    tokens_in: t.U32
    tokens_out: t.U32


class RequestFailed(Message, frozen=True):
    """Stage to client: this request cannot go on here; other requests may."""

    order_hash: t.Hash32
    request: t.U32
    code: Annotated[str, msgspec.Meta(max_length=40)]
    reason: Text


class Cancel(Message, frozen=True):
    """Client to every stage: forget this request."""

    order_hash: t.Hash32
    request: t.U32


class Receipt(Message, frozen=True):
    """Stage to client, one per finished request; also the answer to CloseJob."""

    signed: t.SignedReceipt


# --- closing a job ---


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
    """Payload: `rows` rows of `row_bytes` each; `total` is how many the request has at this boundary."""

    start: t.U32
    rows: t.U32
    row_bytes: t.U32
    total: t.U32


class FetchReceipts(Message, frozen=True):
    """Auditor or juror: every receipt this stage signed for the order. → Receipts | Failed"""

    order_hash: t.Hash32
    delegation: t.AuditorDelegation | None = None
    delegation_signature: t.Signature | None = None


class Receipts(Message, frozen=True):
    signed: list[t.SignedReceipt]


AnyMessage = (
    Ping | Pong | Failed | Propose | Accepted | OpenJob | JobOpened | Submit | Submitted
    | Activations | Token | FinishRequest | RequestFailed | Cancel | Receipt | Progress | Finished
    | CloseJob | FetchOpening | Opening | FetchRows | Rows | FetchReceipts | Receipts
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


def encode(
    message: AnyMessage, payload: bytes | memoryview = b"", *, id: int = 0, re: int = 0
) -> bytes:
    """Body of a frame. Raises FrameTooLarge if a peer would refuse it."""
    header = _encoder.encode(message)
    view = memoryview(payload).cast("B")
    size = PREFIX_BYTES + len(header) + len(view)
    if size > MAX_FRAME_BYTES or len(header) > MAX_HEADER_BYTES:
        raise _too_large(size, MAX_FRAME_BYTES)
    prefix = (
        bytes([VERSION])
        + id.to_bytes(4, "big")
        + re.to_bytes(4, "big")
        + len(header).to_bytes(4, "big")
    )
    return b"".join((prefix, header, view))


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
