"""What travels between the parties: the frozen values that are signed, committed, stored and sent.

Field names in JSON and on the chain are the camelCase of the names here; `docs/protocol.md` §2 lists the EIP-712
types. Hashes are lower-case `0x` hex strings and addresses checksummed strings, so that one value reads the same in
a log, a table, a page and a contract call. Decoding checks every pattern and bound, so a decoded value is well-formed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

Hash32 = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")]
Signature = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{130}\Z")]
U8 = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U16 = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[
    int, msgspec.Meta(ge=0, le=2**63 - 1)
]  # what msgpack, SQLite and JSON readers all keep exactly
MAX_MATCHER_FEE_BPS = 500  # TaskRegistry and Escrow refuse more
MatcherFeeBps = Annotated[int, msgspec.Meta(ge=0, le=MAX_MATCHER_FEE_BPS)]
# Every whole number of the token's base units that we accept fits: 2^63 base units are nine trillion usd.
Units = U63

ZERO_ADDRESS = "0x0000000000000000000000000000000000000000"
ZERO_HASH = "0x" + "00" * 32


class Value(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of everything that travels: immutable, camelCase outside, unknown fields refused."""


class JobState(IntEnum):
    """Where a job is in its life: `ITaskRegistry.State`."""

    NONE = 0
    OPEN = 1
    MATCHED = 2
    DELIVERED = 3
    DISPUTED = 4
    SETTLED = 5
    CANCELLED = 6
    EXPIRED = 7


class LayerRange(
    msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True
):
    """Layers [start, end) of a model with `end - start` ≥ 1 layers."""

    start: U16
    end: U16

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"layer range [{self.start}, {self.end}) is empty or reversed")

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, layer: int) -> bool:
        return self.start <= layer < self.end

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}"


class Order(Value, frozen=True):
    """What a requester buys: a batch of requests against one model, with every cap it will pay."""

    requester: Address
    model_id: Hash32
    input_root: Hash32
    sampling_root: Hash32
    requests: U32
    max_tokens_in: U32
    max_tokens_out: U32
    price_in: U63  # nano base units per token per layer unit
    price_out: U63
    matcher: Address
    matcher_fee_bps: MatcherFeeBps
    min_stake: Units
    deadline: U63  # chain time, seconds
    window: U32  # seconds
    auditor: Address
    arbitrator: Address
    numerics_profile: Hash32
    nonce: U63


class Stage(Value, frozen=True):
    """One shard's place in a pipeline."""

    operator: Address
    layer_from: U16
    layer_to: U16

    @property
    def layers(self) -> LayerRange:
        return LayerRange(self.layer_from, self.layer_to)


class Acceptance(Value, frozen=True):
    """A stage's consent to an order, a plan and its place in it."""

    order_hash: Hash32
    plan_hash: Hash32
    stage: U16
    expiry: U63


class HopCheckpoint(Value, frozen=True):
    """What a stage says it sent so far for one request: decides "he sent me other bytes"."""

    order_hash: Hash32
    plan_hash: Hash32
    stage: U16
    request_index: U32
    rows: U32
    running_root: Hash32


class StageReceipt(Value, frozen=True):
    """What a stage says it did, over one or many requests of a job."""

    order_hash: Hash32
    plan_hash: Hash32
    stage: U16
    layer_from: U16
    layer_to: U16
    shard_root: Hash32
    input_root: Hash32
    output_root: Hash32
    requests_root: Hash32
    requests: U32
    tokens_in: U32
    tokens_out: U32
    started_at: U63
    signed_at: U63


class RequestLeaf(Value, frozen=True):
    """A leaf under `StageReceipt.requests_root`: one request as one stage saw it."""

    request_index: U32
    in_root: Hash32
    out_root: Hash32
    tokens_in: U32
    tokens_out: U32


class Ack(Value, frozen=True):
    """The requester is content: pay now."""

    order_hash: Hash32
    plan_hash: Hash32
    result_root: Hash32
    tokens_in: U32
    tokens_out: U32


class Voucher(Value, frozen=True):
    """Cumulative promise out of a session: only the newest one needs the chain."""

    session_id: Hash32
    plan_hash: Hash32
    cumulative: Units
    last_result_root: Hash32


class AuditorDelegation(Value, frozen=True):
    """The requester lets someone else dispute this order."""

    order_hash: Hash32
    auditor: Address
    expiry: U63


class SamplingParams(Value, frozen=True):
    """How tokens of one request are drawn; part of what the order commits to (`docs/protocol.md` §5).

    Millionths instead of floats, so that the requester, the miner and a verifier mean the same number.
    """

    temperature_micro: U32 = 0  # 0: greedy
    top_k: U32 = 0  # 0: off
    min_p_micro: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 128
    seed: U63 = 0

    def canonical(self) -> bytes:
        """The bytes that `Order.samplingRoot` commits to."""
        return (
            b"\x01"
            + self.temperature_micro.to_bytes(4, "big")
            + self.top_k.to_bytes(4, "big")
            + self.min_p_micro.to_bytes(4, "big")
            + self.max_new_tokens.to_bytes(4, "big")
            + self.seed.to_bytes(8, "big")
        )


class SignedOrder(Value, frozen=True):
    order: Order
    signature: Signature


class SignedAcceptance(Value, frozen=True):
    acceptance: Acceptance
    signature: Signature


class SignedReceipt(Value, frozen=True):
    """A receipt with the leaves under its `requests_root`, so that one request can be opened later."""

    receipt: StageReceipt
    signature: Signature
    leaves: list[RequestLeaf]


class ModelSpec(Value, frozen=True):
    """What a model is; its hash is the model id (`ModelRegistry.ModelSpec`)."""

    architecture: Hash32
    layers: U16
    hidden: U32
    heads: U16
    kv_heads: U16
    ffn: U32
    vocab: U32
    context: U32
    embed_units: U8
    head_units: U8
    dtype: Hash32
    numerics_profile: Hash32
    weights_root: Hash32
    manifest_hash: Hash32

    @property
    def layer_units(self) -> int:
        return self.layers + self.embed_units + self.head_units


def to_json(value: object) -> bytes:
    """Canonical-enough JSON of a Value (camelCase keys in field order)."""
    return msgspec.json.encode(value)
