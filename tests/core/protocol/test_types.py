"""What decoding lets in: well-formed values and nothing else."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.protocol import types as t

HASH = "0x" + "ab" * 32
ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"

ORDER = t.Order(
    requester=ADDRESS,
    model_id=HASH,
    input_root=HASH,
    sampling_root=HASH,
    requests=3,
    max_tokens_in=100,
    max_tokens_out=200,
    price_in=10,
    price_out=20,
    matcher=t.ZERO_ADDRESS,
    matcher_fee_bps=500,
    opening_fee=0,
    min_stake=2**63 - 1,
    deadline=1_800_000_000,
    window=3600,
    auditor=t.ZERO_ADDRESS,
    arbitrator=ADDRESS,
    numerics_profile=HASH,
    terms_hash=t.ZERO_HASH,
    nonce=0,
)


def decoded(value: Any, kind: Any) -> Any:
    """Through both formats that travel; they must agree."""
    by_json = msgspec.json.decode(msgspec.json.encode(value), type=kind)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind) == by_json
    return by_json


def refused(value: Any, kind: Any) -> None:
    for module in (msgspec.json, msgspec.msgpack):
        with pytest.raises(msgspec.ValidationError):
            module.decode(module.encode(value), type=kind)


def test_an_order_survives_both_formats() -> None:
    assert decoded(ORDER, t.Order) == ORDER
    assert t.to_json(ORDER).startswith(b'{"requester":"0xf39F')


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("modelId", HASH[:-1]),
        ("modelId", HASH + "0"),
        ("modelId", HASH + "\n"),
        ("modelId", HASH.upper()),
        ("modelId", "ab" * 32),
        ("modelId", HASH[:-1] + "g"),
        ("modelId", 5),
        ("requester", ADDRESS[:-1]),
        ("requester", ADDRESS + "\n"),
        ("requester", " " + ADDRESS),
        ("requester", None),
        ("requests", -1),
        ("requests", 2**32),
        ("requests", 1.0),
        ("requests", True),
        ("requests", "1"),
        ("priceIn", 2**63),
        ("minStake", 2**63),
        ("matcherFeeBps", 501),
        ("window", 2**32),
        ("nonce", -1),
    ],
)
def test_an_order_with_a_field_out_of_pattern_or_bound_is_refused(field: str, bad: object) -> None:
    refused({**msgspec.to_builtins(ORDER), field: bad}, t.Order)


def test_an_order_is_open_when_neither_root_fixes_anything() -> None:
    fixed = "0x" + "11" * 32
    for roots, expected in (
        ((t.ZERO_HASH, t.ZERO_HASH), True),
        ((fixed, t.ZERO_HASH), False),
        ((t.ZERO_HASH, fixed), False),
        ((fixed, fixed), False),
    ):
        order = msgspec.structs.replace(ORDER, input_root=roots[0], sampling_root=roots[1])
        assert order.is_open is expected


def test_terms_are_in_order_bounded_and_the_same_however_they_are_given() -> None:
    a, b, c = ("0x" + digit * 40 for digit in "aBc")
    terms = t.Terms.of(3, [c, a, b, a.upper().replace("X", "x")], [], 10)
    assert [o.lower() for o in terms.trusted] == [a.lower(), b.lower(), c.lower()]
    assert decoded(terms, t.Terms) == terms
    for bad in (
        {"inFlight": 0},
        {"inFlight": 2**16},
        {"auditBps": 10_001},
        {"trusted": [c, a]},
        {"trusted": [a, a]},
        {"avoided": [b, b.lower()]},
        {"avoided": [f"0x{i:040x}" for i in range(257)]},
        {"avoided": ["0x12"]},
    ):
        refused({**msgspec.to_builtins(terms), **bad}, t.Terms)


def test_terms_allow_whom_they_trust_and_nobody_they_avoid() -> None:
    a, b, c = ("0x" + digit * 40 for digit in "aBc")
    assert all(t.Terms(1).allows(o) for o in (a, b, c))
    assert t.Terms.of(1, [a, b]).allows(b.lower()) and not t.Terms.of(1, [a, b]).allows(c)
    assert not t.Terms.of(1, [], [b]).allows(b.lower()) and t.Terms.of(1, [], [b]).allows(a)
    assert not t.Terms.of(1, [a], [a]).allows(a)


def test_unknown_and_missing_fields_are_refused() -> None:
    fields = msgspec.to_builtins(ORDER)
    refused({**fields, "extra": 1}, t.Order)
    for name in fields:
        refused({k: v for k, v in fields.items() if k != name}, t.Order)


def test_a_signature_is_65_bytes_of_lower_case_hex() -> None:
    good = "0x" + "1f" * 65
    assert decoded(good, t.Signature) == good
    for bad in (good[:-2], good + "00", good.upper(), good[2:], good + "\n"):
        refused(bad, t.Signature)


@given(st.integers(-2, 70_000), st.integers(-2, 70_000))
def test_a_layer_range_decodes_only_when_it_holds_a_layer(start: int, end: int) -> None:
    if 0 <= start < end <= 65_535:
        layers = decoded([start, end], t.LayerRange)
        assert len(layers) == end - start
        assert start in layers
        assert end - 1 in layers
        assert end not in layers
        assert start - 1 not in layers
        assert str(layers) == f"{start}-{end - 1}"
    else:
        refused([start, end], t.LayerRange)


@pytest.mark.parametrize("bad", [[0, 5, 9], [0], [], ["0", "5"], {"start": 0, "end": 5}, None])
def test_what_is_not_two_numbers_is_no_layer_range(bad: object) -> None:
    refused(bad, t.LayerRange)


def test_a_layer_range_made_by_hand_is_checked_too() -> None:
    for start, end in ((3, 3), (4, 3), (-1, 3)):
        with pytest.raises(ValueError, match="layer range"):
            t.LayerRange(start, end)


ascending_bytes = st.sets(
    st.text(min_size=1, max_size=5).map(lambda text: text.encode("utf-8", "replace")), max_size=4
).map(lambda found: tuple(sorted(found)))
biases = st.dictionaries(st.integers(0, 2**32 - 1), st.integers(-(10**8), 10**8), max_size=5).map(
    lambda found: tuple(sorted(found.items()))
)
sampling = st.builds(
    t.SamplingParams,
    temperature_micro=st.integers(0, 2**32 - 1),
    top_k=st.integers(0, 2**32 - 1),
    min_p_micro=st.integers(0, 10**6),
    max_new_tokens=st.integers(1, 2**20),
    seed=st.integers(0, 2**63 - 1),
    top_p_micro=st.integers(1, 10**6),
    key_index=st.none() | st.integers(0, 2**32 - 2),
    first_step=st.integers(0, 2**20),
    repetition_penalty_micro=st.integers(10**5, 10**7),
    frequency_penalty_micro=st.integers(-2 * 10**6, 2 * 10**6),
    presence_penalty_micro=st.integers(-2 * 10**6, 2 * 10**6),
    min_new_tokens=st.integers(0, 2**20),
    ignore_eos=st.booleans(),
    n_logprobs=st.none() | st.integers(0, 20),
    logit_bias=biases,
    stop=ascending_bytes,
) | st.builds(t.SamplingParams, seed=st.integers(0, 2**63 - 1), grammar=st.text(max_size=99))


@given(sampling)
def test_canonical_sampling_bytes_can_be_read_back(params: t.SamplingParams) -> None:
    raw = params.canonical()
    assert raw[0] == (3 if params.grammar else 2)
    assert t.SamplingParams.read(raw) == params
    assert decoded(params, t.SamplingParams) == params


def test_canonical_sampling_bytes_stand_where_the_protocol_page_says() -> None:
    params = t.SamplingParams(
        temperature_micro=1,
        top_k=2,
        min_p_micro=3,
        max_new_tokens=4,
        seed=5,
        top_p_micro=6,
        key_index=7,
        first_step=8,
        repetition_penalty_micro=10**6,
        frequency_penalty_micro=-1,
        presence_penalty_micro=9,
        min_new_tokens=10,
        ignore_eos=True,
        n_logprobs=20,
        logit_bias=((11, -2), (12, 3)),
        stop=(b"a", "é".encode()),
    )
    assert params.canonical().hex(" ", 4) == bytes.fromhex(
        "02"
        "00000001"
        "00000002"
        "00000003"
        "00000004"
        "0000000000000005"
        "00000006"
        "00000007"
        "00000008"
        "000f4240"
        "ffffffff"
        "00000009"
        "0000000a"
        "01"
        "14"
        "0002"
        "02"
        "0000000b"
        "fffffffe"
        "0000000c"
        "00000003"
        "0001"
        "61"
        "0002"
        "c3a9"
    ).hex(" ", 4)
    unset = t.SamplingParams().canonical()
    with_grammar = t.SamplingParams(stop=(b"a",), grammar='start: "é"').canonical()
    assert with_grammar[:58] == b"\x03" + unset[1:57] + b"\x01"
    assert with_grammar[58:] == b"\x00\x01a" + b"\x01" + 'start: "é"'.encode()
    assert len(unset) == 58
    assert unset[29:33] == b"\xff" * 4
    assert unset[54] == 0xFF


@given(sampling, st.data())
def test_no_other_bytes_are_sampling_parameters(
    params: t.SamplingParams, data: st.DataObject
) -> None:
    raw = params.canonical()
    shorter = () if params.grammar else (raw[:-1], raw + b"\x00")
    for cut in (*shorter, b"", b"\x01" + raw[1:], bytes([5 - raw[0]]) + raw[1:]):
        with pytest.raises(ValueError, match=r"sampling|cut|ascending"):
            t.SamplingParams.read(cut)
    at, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
    twisted = bytearray(raw)
    twisted[at] ^= 1 << bit
    try:
        other = t.SamplingParams.read(bytes(twisted))
    except ValueError:
        return
    assert other != params
    assert other.canonical() == twisted


@given(st.binary(max_size=120))
def test_reading_strangers_sampling_bytes_raises_only_value_errors(raw: bytes) -> None:
    for candidate in (raw, b"\x02" + raw, b"\x03" + raw):
        try:
            assert t.SamplingParams.read(candidate).canonical() == candidate
        except ValueError:
            continue


@given(sampling, sampling)
def test_two_samplings_share_canonical_bytes_only_when_equal(
    one: t.SamplingParams, other: t.SamplingParams
) -> None:
    assert (one.canonical() == other.canonical()) == (one == other)


@pytest.mark.parametrize(
    "bad",
    [
        {"minPMicro": 1_000_001},
        {"maxNewTokens": 0},
        {"maxNewTokens": 2**20 + 1},
        {"seed": 2**63},
        {"topPMicro": 0},
        {"topPMicro": 1_000_001},
        {"keyIndex": 2**32 - 1},
        {"firstStep": 2**20 + 1},
        {"repetitionPenaltyMicro": 99_999},
        {"frequencyPenaltyMicro": -2_000_001},
        {"presencePenaltyMicro": 2_000_001},
        {"nLogprobs": 21},
        {"logitBias": [[1, 100_000_001]]},
        {"logitBias": [[2, 0], [1, 0]]},
        {"logitBias": [[1, 0], [1, 0]]},
        {"logitBias": [[i, 0] for i in range(1025)]},
        {"stop": ["Yg==", "YQ=="]},
        {"stop": ["YQ==", "YQ=="]},
        {"stop": [""]},
        {"stop": ["/w=="]},
        {"stop": [base64.b64encode(b"a" * 257).decode()]},
        {"stop": [base64.b64encode(b"a%02d" % i).decode() for i in range(17)]},
        {"grammar": "x" * (t.MAX_GRAMMAR_BYTES + 1)},
        {"grammar": "x", "ignoreEos": True},
        {"grammar": "x", "minNewTokens": 1},
    ],
)
def test_sampling_out_of_bounds_is_refused(bad: dict[str, Any]) -> None:
    refused(bad, t.SamplingParams)


def test_values_are_immutable_and_hashable() -> None:
    with pytest.raises(AttributeError):
        ORDER.nonce = 1  # type: ignore[misc]
    assert len({ORDER, msgspec.structs.replace(ORDER)}) == 1


def test_layer_units_count_the_embedding_and_the_head() -> None:
    spec = t.ModelSpec(HASH, 30, 576, 9, 3, 1536, 49152, 8192, 1, 8, HASH, HASH, HASH, HASH)
    assert spec.layer_units == 39
