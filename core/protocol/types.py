"""What travels between the parties: the frozen values that are signed, committed, stored and sent.

Field names in JSON and on the chain are the camelCase of the names here; `docs/protocol.md` §2
lists the EIP-712 types. Hashes are lower-case `0x` hex strings and addresses checksummed strings,
so that one value reads the same in a log, a page and a contract call. Decoding checks every
pattern and bound, so a decoded value is well-formed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Annotated, Final

import msgspec

Hash32 = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")]
Signature = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{130}\Z")]
#: In place of an order's signature: its requester has registered it on chain itself.
REGISTERED: Final = "0x" + "00" * 65
#: A signature, or words of each request, 205 bytes each (`receipts.receipt_by_words`).
ReceiptSignature = Annotated[
    str, msgspec.Meta(pattern=r"^0x(?:[0-9a-f]{130}|(?:[0-9a-f]{410})+)\Z")
]
U8 = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U16 = Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
#: What msgpack, SQLite and JSON readers all keep exactly.
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
MAX_MATCHER_FEE_BPS = 500  # TaskRegistry refuses more
MatcherFeeBps = Annotated[int, msgspec.Meta(ge=0, le=MAX_MATCHER_FEE_BPS)]
Operators = Annotated[tuple[Address, ...], msgspec.Meta(max_length=256)]
#: Base units of the token. 2^63 of them are nine trillion usd.
Units = U63

MICRO = 10**6
MAX_LOGPROBS, MAX_LOGIT_BIASES, MAX_STOPS, MAX_STOP_BYTES = 20, 1024, 16, 256
MAX_GRAMMAR_BYTES = 2**16
BiasMicro = Annotated[int, msgspec.Meta(ge=-100 * MICRO, le=100 * MICRO)]
StopBytes = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_STOP_BYTES)]
_SAMPLING_FIELDS = (
    "temperature_micro",
    "top_k",
    "min_p_micro",
    "max_new_tokens",
    "seed",
    "top_p_micro",
    "key_index",
    "first_step",
    "repetition_penalty_micro",
    "frequency_penalty_micro",
    "presence_penalty_micro",
    "min_new_tokens",
    "ignore_eos",
    "n_logprobs",
)
#: Version, `_SAMPLING_FIELDS`, number of biases, number of stop strings.
_SAMPLING_HEAD = struct.Struct(">BIIIIQIIIIiiIBBHB")
_SAMPLING_VERSION, _NONE_U8, _NONE_U32 = 2, 2**8 - 1, 2**32 - 1
#: With a grammar, which is behind all else, after the byte of the rules that read it.
_WITH_GRAMMAR, _GRAMMAR_RULES = 3, 1
_BIAS = struct.Struct(">Ii")

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

    def spans(self, every: int) -> list[LayerRange]:
        """Its parts of `every` layers, the last one maybe of fewer; itself for 0.

        A stage signs the boundaries between them (`docs/protocol.md` §3).
        """
        starts = range(self.start, self.end, every or len(self))
        return [LayerRange(start, min(start + (every or len(self)), self.end)) for start in starts]


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
    opening_fee: U63  # base units to the matcher, whatever comes of the job
    min_stake: Units
    deadline: U63  # chain time, seconds
    window: U32  # seconds
    auditor: Address
    arbitrator: Address
    numerics_profile: Hash32
    terms_hash: Hash32  # struct hash of its `Terms`; zero: none
    nonce: U63

    @property
    def is_open(self) -> bool:
        """Whether it fixes no prompts: a signature opens each request, and Acks are cumulative."""
        return self.input_root == ZERO_HASH and self.sampling_root == ZERO_HASH


class Terms(Value, frozen=True):
    """What a requester demands that no contract has to know: `Order.termsHash` binds to it.

    Operators are strictly ascending by their digits, so that equal terms have one hash. Raises
    ValueError (ValidationError when decoded) for others.
    """

    in_flight: Annotated[int, msgspec.Meta(ge=1, le=2**16 - 1)]  # requests of an open order at once
    trusted: Operators = ()  # may serve; none: all
    avoided: Operators = ()  # may not serve
    audit_bps: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0  # share of requests to be audited

    def __post_init__(self) -> None:
        for operators in (self.trusted, self.avoided):
            if any(a.lower() >= b.lower() for a, b in pairwise(operators)):
                raise ValueError("the operators in the terms are not strictly ascending")

    @classmethod
    def of(
        cls,
        in_flight: int,
        trusted: Iterable[str] = (),
        avoided: Iterable[str] = (),
        audit_bps: int = 0,
    ) -> Terms:
        """The terms with these operators in their order, each once."""
        return cls(in_flight, _in_order(trusted), _in_order(avoided), audit_bps)

    def allows(self, operator: str) -> bool:
        """Whether this operator may serve."""
        who, trusted = operator.lower(), [other.lower() for other in self.trusted]
        is_avoided = who in (other.lower() for other in self.avoided)
        return not is_avoided and (not trusted or who in trusted)


def _in_order(operators: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({o.lower(): o for o in operators}.values(), key=str.lower))


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
    """A leaf under `StageReceipt.requests_root`: one request as one stage saw it.

    `inner_root` is over the boundaries inside the stage (`commit.inner_root`); zero without any.
    """

    request_index: U32
    in_root: Hash32
    out_root: Hash32
    tokens_in: U32
    tokens_out: U32
    inner_root: Hash32 = ZERO_HASH

    def span(self, inner: Sequence[str], number: int) -> RequestLeaf:
        """The same request as span `number` saw it, of a stage with these roots inside it."""
        roots = [self.in_root, *inner, self.out_root]
        in_root, out_root = roots[number], roots[number + 1]
        return RequestLeaf(self.request_index, in_root, out_root, self.tokens_in, self.tokens_out)


class RequestWord(Value, frozen=True):
    """A stage's word to the next one about a request that it finished: its leaf, as it is on disk.

    A first stage's names the answer that it received, the last one's `out_root`; else that is zero.
    Words of several requests are worth a receipt over these (`receipts.receipt_by_words`).
    """

    order_hash: Hash32
    plan_hash: Hash32
    stage: U16
    request_index: U32
    in_root: Hash32
    out_root: Hash32
    tokens_in: U32
    tokens_out: U32
    answer_root: Hash32 = ZERO_HASH
    inner_root: Hash32 = ZERO_HASH

    @property
    def leaf(self) -> RequestLeaf:
        return RequestLeaf(
            self.request_index,
            self.in_root,
            self.out_root,
            self.tokens_in,
            self.tokens_out,
            self.inner_root,
        )


class RequestOpening(Value, frozen=True):
    """One request of an open order, signed for the requester: what a batch fixes by its two roots.

    The leaves are `commit.leaf_hash` of `commit.prompt_leaf` and `commit.sampling_leaf`.
    """

    order_hash: Hash32
    request_index: U32
    prompt_leaf: Hash32
    sampling_leaf: Hash32


class Ack(Value, frozen=True):
    """The requester is content: pay now; of an open order all due so far, over every request."""

    order_hash: Hash32
    plan_hash: Hash32
    result_root: Hash32
    tokens_in: U32
    tokens_out: U32


class AuditorDelegation(Value, frozen=True):
    """The requester lets another account dispute this order."""

    order_hash: Hash32
    auditor: Address
    expiry: U63


class SamplingParams(Value, frozen=True):
    """How tokens of one request are drawn; the order commits to it (`docs/protocol.md` §5).

    Millionths instead of floats, so that the requester, the miner and a verifier mean the same
    number. `logit_bias` and `stop` are strictly ascending, so that equal parameters have equal
    bytes. Raises ValueError (ValidationError when decoded) for others, and for stop strings that
    are not UTF-8. Where a grammar decides what may come, an answer ends where it does, so ends are
    neither ignored nor put off.
    """

    temperature_micro: U32 = 0  # 0: greedy
    top_k: U32 = 0  # 0: off
    min_p_micro: Annotated[int, msgspec.Meta(ge=0, le=MICRO)] = 0
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 128
    seed: U63 = 0
    top_p_micro: Annotated[int, msgspec.Meta(ge=1, le=MICRO)] = MICRO  # 10^6: off
    #: Whose noise is drawn: the request's index in its first order. None: the index in this one.
    key_index: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 2)] | None = None
    #: Tokens of the answer that were produced before, elsewhere: the last tokens of this prompt.
    first_step: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = 0
    repetition_penalty_micro: Annotated[int, msgspec.Meta(ge=MICRO // 10, le=10 * MICRO)] = MICRO
    frequency_penalty_micro: Annotated[int, msgspec.Meta(ge=-2 * MICRO, le=2 * MICRO)] = 0
    presence_penalty_micro: Annotated[int, msgspec.Meta(ge=-2 * MICRO, le=2 * MICRO)] = 0
    min_new_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = 0
    ignore_eos: bool = False
    #: How many likeliest tokens are told beside each token. None: not even its own logprob.
    n_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    logit_bias: Annotated[
        tuple[tuple[U32, BiasMicro], ...], msgspec.Meta(max_length=MAX_LOGIT_BIASES)
    ] = ()
    stop: Annotated[tuple[StopBytes, ...], msgspec.Meta(max_length=MAX_STOPS)] = ()
    #: What the whole answer must be, in Lark's notation (`core/engine/sampling/grammar.py`).
    grammar: str = ""

    def __post_init__(self) -> None:
        ids = [token for token, _ in self.logit_bias]
        if any(a >= b for a, b in pairwise(ids)):
            raise ValueError("the biased token ids are not strictly ascending")
        if any(a >= b for a, b in pairwise(self.stop)):
            raise ValueError("the stop strings are not strictly ascending")
        for text in self.stop:
            text.decode()  # UnicodeDecodeError is a ValueError
        if len(self.grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise ValueError(f"the grammar is longer than {MAX_GRAMMAR_BYTES} bytes")
        if self.grammar and (self.ignore_eos or self.min_new_tokens):
            raise ValueError("a grammar decides where an answer ends, and so does another field")

    def canonical(self) -> bytes:
        """The bytes that `Order.samplingRoot` commits to. Twin of `read`."""
        fields = {name: getattr(self, name) for name in _SAMPLING_FIELDS}
        for name, absent in (("key_index", _NONE_U32), ("n_logprobs", _NONE_U8)):
            fields[name] = absent if fields[name] is None else fields[name]
        version = _WITH_GRAMMAR if self.grammar else _SAMPLING_VERSION
        head = _SAMPLING_HEAD.pack(version, *fields.values(), len(self.logit_bias), len(self.stop))
        biases = b"".join(_BIAS.pack(token, bias) for token, bias in self.logit_bias)
        stops = b"".join(len(text).to_bytes(2, "big") + text for text in self.stop)
        grammar = bytes([_GRAMMAR_RULES]) + self.grammar.encode() if self.grammar else b""
        return head + biases + stops + grammar

    @classmethod
    def read(cls, raw: bytes) -> SamplingParams:
        """The parameters with exactly these canonical bytes. Raises ValueError for any others."""
        if len(raw) < _SAMPLING_HEAD.size:
            raise ValueError(f"{len(raw)} bytes are too few for sampling parameters")
        version, *numbers, biases, stops = _SAMPLING_HEAD.unpack_from(raw)
        fields = dict(zip(_SAMPLING_FIELDS, numbers, strict=True))
        if version not in (_SAMPLING_VERSION, _WITH_GRAMMAR) or fields["ignore_eos"] > 1:
            raise ValueError(f"version {version} of sampling parameters")
        fields["ignore_eos"] = bool(fields["ignore_eos"])
        for name, absent in (("key_index", _NONE_U32), ("n_logprobs", _NONE_U8)):
            fields[name] = None if fields[name] == absent else fields[name]
        at, logit_bias, stop = _SAMPLING_HEAD.size, [], []
        for _ in range(biases):
            logit_bias.append(_BIAS.unpack(_taken(raw, at, _BIAS.size)))
            at += _BIAS.size
        for _ in range(stops):
            size = int.from_bytes(_taken(raw, at, 2), "big")
            stop.append(_taken(raw, at + 2, size))
            at += 2 + size
        grammar = raw[at:]
        if version == _WITH_GRAMMAR:
            if len(grammar) < 2 or grammar[0] != _GRAMMAR_RULES:
                raise ValueError("the sampling parameters have no grammar by rules known here")
            grammar = grammar[1:]
        elif grammar:
            raise ValueError(f"{len(grammar)} bytes follow the sampling parameters")
        params = cls(
            **fields,
            logit_bias=tuple(logit_bias),
            stop=tuple(stop),
            grammar=grammar.decode(),
        )
        try:
            return msgspec.convert(msgspec.to_builtins(params), cls)  # checks every bound
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None


def _taken(raw: bytes, at: int, size: int) -> bytes:
    if at + size > len(raw):
        raise ValueError("the sampling parameters are cut short")
    return raw[at : at + size]


class SignedOrder(Value, frozen=True):
    """An order as it travels, with the terms that `signing.binds_its_terms` checks."""

    order: Order
    signature: Signature
    terms: Terms | None = None

    @property
    def is_registered(self) -> bool:
        """Whether the chain has to show the order itself, waiting for a plan, instead of a key."""
        return self.signature == REGISTERED


class SignedOpening(Value, frozen=True):
    opening: RequestOpening
    signature: Signature


class SignedAcceptance(Value, frozen=True):
    acceptance: Acceptance
    signature: Signature


class SignedWord(Value, frozen=True):
    """A stage's word, as the next one keeps it."""

    word: RequestWord
    signature: Signature
    inner: list[Hash32] = []  # what its inner root is over


class SignedReceipt(Value, frozen=True):
    """A receipt with the leaves under its `requests_root`, so that one request can be opened.

    Of a last stage, `states` are the roots of each request's state rows: with the tokens they make
    its `out_root` (`commit.answer_root`). Of a first stage, `answers` are the last stage's
    `out_root` of each request, as the last stage told it: what its `input_root` is over. Zero: the
    last stage was lost before it said so. `inner` are each request's roots at the boundaries inside
    the stage, which its leaf's `inner_root` is over.
    """

    receipt: StageReceipt
    signature: ReceiptSignature
    leaves: list[RequestLeaf]
    states: list[Hash32] = []
    answers: list[Hash32] = []
    inner: list[list[Hash32]] = []


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
    """JSON of a Value, camelCase keys in the order of its fields: equal values, equal bytes."""
    return msgspec.json.encode(value)
