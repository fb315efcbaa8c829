"""A file becomes prompts, an offer within the caps, and results with a line for every request."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from client.commands.ask import submit
from client.context import Model
from client.jobs import wishes as submission
from client.jobs.batch import BatchResult, FinishedAnswer
from client.jobs.replicas import AllowedMiners
from client.jobs.wishes import (
    Choices,
    Prepared,
    Wishes,
    check_caps,
    check_writable,
    describe,
    describe_auditor,
    maximum,
    prepare,
    read_file,
    terms_for,
    wishes_of,
    write_results,
)
from client.orders.matcher_api import Quote
from client.pipeline.pipeline import Logprobs, RequestState
from core.engine.weights.tokenizer import Tokenizer
from core.money import pricing
from core.money.paid_audits import AuditOffer
from core.protocol import ids, units, wire
from core.protocol.errors import (
    AmountInvalid,
    AmountUnitMissing,
    ConfigError,
    HeadraceError,
    IdInvalid,
    NoCapacity,
    UsageError,
)
from core.protocol.types import ZERO_ADDRESS, SamplingParams
from core.runtime.commands.console import GlobalOptions, Run
from core.runtime.commands.results import plain
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from devnet.models.tiny_models import write_tiny_tokenizer
from tests.town.chain import FakeChain
from tests.town.orders import ARBITRATOR, MODEL_ID, NOW_S, SPEC, key

MODEL = Model("tiny", MODEL_ID, SPEC)


def settings_of(tmp_path: Path, **flags: Any) -> Settings:
    return load(flags=flags, environ={}, folders=Folders.at(tmp_path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer(folder)


def quote(price_in: int = 1000, price_out: int = 4000) -> Quote:
    return msgspec.convert(
        {
            "priceIn": price_in,
            "priceOut": price_out,
            "matcher": key(40).address,
            "feeBps": 30,
            "openingFee": 9,
            "route": [{"operator": key(100).address, "layerFrom": 0, "layerTo": 6}],
        },
        Quote,
    )


@pytest.mark.parametrize(
    ("choices", "refusal"),
    [
        (Choices(), None),
        (Choices(max_cost="5usd", price_cap="900usd/Mtok", deadline="1h"), None),
        (Choices(max_cost="0.000001usd"), NoCapacity),
        (Choices(price_cap="0.000001usd/Mtok"), NoCapacity),
        (Choices(deadline="9h"), UsageError),
        (Choices(window="9h"), UsageError),
    ],
)
async def test_a_quote_is_shown_and_refused_for_what_a_submission_would_be(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    choices: Choices,
    refusal: type[HeadraceError] | None,
) -> None:
    offer = quote(10**9, 4 * 10**9)
    prepared = prepare(
        *read_file(write(tmp_path, b'{"prompt": "x"}'), SamplingParams(max_new_tokens=5)),
        tokenizer,
        SPEC.context,
    )

    async def quoted(*_: Any) -> submit.FileQuote:
        return submit.FileQuote(MODEL, tokenizer, prepared, AllowedMiners(1), [offer])

    async def arbitrator_of(*_: Any) -> str:
        return ARBITRATOR

    @asynccontextmanager
    async def open_context(settings: Settings) -> AsyncIterator[Any]:
        yield SimpleNamespace(chain=FakeChain(longest_s=(7200, 7200)), settings=settings)

    monkeypatch.setattr(submit, "_quote_file", quoted)
    monkeypatch.setattr(submit, "open_context", open_context)
    monkeypatch.setattr(submission, "arbitrator_of", arbitrator_of)
    run = Run("client", "quote", GlobalOptions(json=True), folders=Folders.at(tmp_path))
    asked = submit.quote_file(run, tmp_path / "prompts.jsonl", None, choices)
    if refusal is None:
        await asked
    else:
        with pytest.raises(refusal):
            await asked
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["result"]["requests"] == "1 (0 lines rejected)", "shown in any case"


# --- the file ---


def write(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    return file


def test_lines_end_only_where_jsonl_says(tmp_path: Path) -> None:
    text = '{"prompt": "a\u2028b\x85c"}\r\n\n{"prompt": "two"}'
    good, bad = read_file(
        write(tmp_path, b"\xef\xbb\xbf" + text.encode()), SamplingParams(max_new_tokens=5)
    )
    assert not bad
    assert [r.messages[0].content for r in good] == ["a\u2028b\x85c", "two"]
    assert [r.line_number for r in good] == [1, 3]
    assert good[0].sampling.max_new_tokens == 5


def test_line_that_is_not_text_fails_alone(tmp_path: Path) -> None:
    good, bad = read_file(
        write(tmp_path, b'{"prompt": "x"}\n\xff\xfe\n{"prompt": "y"}\n'),
        SamplingParams(max_new_tokens=5),
    )
    assert len(good) == 2
    assert bad[0].details["line_number"] == 2


@pytest.mark.parametrize("content", [b"", b"\n\n", b"nonsense\n{}\n"])
def test_file_without_a_request_is_an_error_that_says_why(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UsageError, match="holds no request") as caught:
        read_file(write(tmp_path, content), SamplingParams(max_new_tokens=5))
    assert ("line 1: not JSON" in caught.value.why) == (b"nonsense" in content)


def test_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="cannot read"):
            read_file(path, SamplingParams(max_new_tokens=5))


def test_more_requests_than_one_job_takes_are_refused_with_a_way_out(tmp_path: Path) -> None:
    file = write(tmp_path, b'{"prompt": "x"}\n' * (wire.MAX_REQUESTS + 1))
    with pytest.raises(UsageError) as caught:
        read_file(file, SamplingParams(max_new_tokens=5))
    assert "split" in caught.value.next_step


def test_requests_that_do_not_fit_are_rejected_and_the_others_prepared(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    lines = [
        {"custom_id": "ok", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
        {"custom_id": "long", "prompt": "x" * 600},
        {"custom_id": "plain", "url": "/v1/completions", "body": {"prompt": "Once"}},
        {"custom_id": "ok", "prompt": "again"},
    ]
    file = write(tmp_path, "\n".join(map(json.dumps, lines)).encode())
    prepared = prepare(*read_file(file, SamplingParams(max_new_tokens=16)), tokenizer, SPEC.context)
    assert [p.custom_id for p in prepared.prompts] == ["ok", "plain"]
    chat, plain = prepared.prompts
    assert chat.ids == tuple(tokenizer.encode_chat([{"role": "user", "content": "hi"}]))
    assert plain.ids == tuple(tokenizer.encode("Once"))
    assert len({p.salt for p in prepared.prompts}) == 2
    assert [(name, e.code) for name, e in prepared.rejected] == [
        ("ok", "E-LINE-01"),
        ("long", "E-CONTEXT-01"),
    ]
    assert prepared.tokens_in == len(chat.ids) + 4
    assert prepared.max_tokens_out == 8 + 16


def test_file_of_which_nothing_fits_is_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = write(tmp_path, json.dumps({"prompt": "x" * 600}).encode())
    with pytest.raises(UsageError, match="no request can be run") as caught:
        prepare(*read_file(file, SamplingParams(max_new_tokens=16)), tokenizer, SPEC.context)
    assert "does not fit" in caught.value.why


# --- wishes and caps ---


def test_flags_win_over_settings(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        **{
            "client.max_cost_per_job": "1usd",
            "client.price_cap_in": "2usd/Mtok",
            "client.deadline": "1h",
            "client.auditor": key(60).address,
        },
    )
    from_settings = wishes_of(settings, Choices())
    assert from_settings == Wishes(
        10**6, 50_000, 2 * 10**6, None, 3600, settings.client.window_s, key(60).address, True
    )
    flags = Choices(
        max_cost="3usd",
        price_cap="4usd/Mtok",
        deadline="30m",
        window="8s",
        ack="later",
        auditor=key(61).address.lower(),
    )
    assert wishes_of(settings, flags) == Wishes(
        3 * 10**6, 50_000, 4 * 10**6, 4 * 10**6, 1800, 8, key(61).address, False
    )
    assert wishes_of(settings_of(tmp_path), Choices()).auditor == ZERO_ADDRESS


@pytest.mark.parametrize(
    ("choices", "kind"),
    [
        (Choices(ack="maybe"), UsageError),
        (Choices(max_cost="3"), AmountUnitMissing),
        (Choices(max_cost="3eur"), AmountInvalid),
        (Choices(price_cap="3usd"), AmountInvalid),
        (Choices(deadline="soon"), AmountInvalid),
        (Choices(window="8"), AmountUnitMissing),
        (Choices(auditor="0x12"), IdInvalid),
        (Choices(arbitrator="judge"), IdInvalid),
    ],
)
def test_flags_that_cannot_be_read_are_refused_at_once(
    tmp_path: Path, choices: Choices, kind: type[HeadraceError]
) -> None:
    with pytest.raises(kind) as caught:
        wishes_of(settings_of(tmp_path), choices)
    assert caught.value.exit_code == 2


def wishes(**changes: Any) -> Wishes:
    values = {
        "max_cost": 10**9,
        "max_opening_fee": 9,
        "cap_in": None,
        "cap_out": None,
        "deadline_s": 60,
        "window_s": 8,
        "auditor": ZERO_ADDRESS,
        "acknowledge": True,
    }
    return Wishes(**(values | changes))


def test_price_at_the_cap_passes_and_above_it_names_the_offer(tmp_path: Path) -> None:
    settings, layer_units = settings_of(tmp_path), SPEC.layer_units
    cap = 400_000
    at_cap = units.nano_price(units.PricePerMtok(cap), layer_units)
    check_caps(settings, wishes(cap_in=cap, cap_out=cap), layer_units, quote(at_cap, at_cap), 1)
    for offer, what in ((quote(at_cap + 1, 1), "prompt"), (quote(1, at_cap + 1), "answer")):
        with pytest.raises(NoCapacity, match=what) as caught:
            check_caps(settings, wishes(cap_in=cap, cap_out=cap), layer_units, offer, 1)
        assert "the cap is 0.4usd/Mtok" in caught.value.why
        assert "nearest offer" in caught.value.why
        assert caught.value.exit_code == 7
    check_caps(settings, wishes(cap_out=cap), layer_units, quote(10**6, 1), 1)


def test_an_opening_fee_above_the_limit_is_refused_with_both_amounts(tmp_path: Path) -> None:
    settings, small = settings_of(tmp_path), wishes(max_opening_fee=8)
    with pytest.raises(NoCapacity, match="too much for opening") as caught:
        check_caps(settings, small, 8, quote(), 1)
    assert "0.000009usd" in caught.value.why and "0.000008usd" in caught.value.why


def test_lock_above_the_limit_is_refused_with_both_amounts(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    check_caps(settings, wishes(max_cost=500_000), 8, quote(), 500_000)
    with pytest.raises(NoCapacity, match="more than --max-cost") as caught:
        check_caps(settings, wishes(max_cost=500_000), 8, quote(), 500_001)
    assert caught.value.why == "it locks 0.500001usd, the limit is 0.5usd"


def test_terms_are_the_offer_and_the_wishes_at_the_chains_time() -> None:
    made = terms_for(wishes(auditor=key(60).address, arbitrator=ARBITRATOR), quote(), NOW_S)
    assert (made.price_in, made.price_out, made.matcher_fee_bps) == (1000, 4000, 30)
    assert made.matcher == key(40).address
    assert (made.deadline, made.window) == (NOW_S + 60, 8)
    assert (made.auditor, made.arbitrator) == (key(60).address, ARBITRATOR)


async def test_terms_elsewhere_are_another_matchers_offer_within_the_same_limits(
    tmp_path: Path,
) -> None:
    settings, asked = settings_of(tmp_path), list[Any]()

    class Others:
        async def quote(self, *of: Any, but_not: frozenset[str]) -> Quote:
            asked.append((*of, but_not))
            return msgspec.structs.replace(quote(), matcher=key(41).address)

    prepared = submission.Prepared([], [])
    work = Model("toy", MODEL_ID, SPEC), prepared
    around: Any = (settings, Others(), work)
    failed = frozenset({key(40).address})
    found = await submission.terms_elsewhere(*around, wishes(), lambda: None)(failed)
    made = found(NOW_S)
    assert (made.matcher, made.deadline, made.demands) == (key(41).address, NOW_S + 60, None)
    assert asked == [(MODEL_ID, 0, 0, None, failed)]
    with pytest.raises(NoCapacity, match="too much for opening"):
        tight = wishes(max_opening_fee=8)
        await submission.terms_elsewhere(*around, tight, lambda: None)(failed)


@pytest.mark.parametrize(
    ("wanted", "offers"),
    [
        (AllowedMiners(4, trusted=frozenset({key(100).address})), 1),
        (AllowedMiners(4, audit_bps=500), 1),
        (AllowedMiners(4), 2),
    ],
)
def test_an_order_on_chain_has_no_terms(wanted: AllowedMiners, offers: int) -> None:
    parts: Any = (Model("toy", MODEL_ID, SPEC), None, None)
    asked = submit.FileQuote(*parts, wanted, [quote()] * offers)
    submit._check_terms(asked, Choices())
    with pytest.raises(UsageError, match="has no terms"):
        submit._check_terms(asked, Choices(on_chain=True))
    plain_one = submit.FileQuote(*parts, AllowedMiners(4), [quote()])
    submit._check_terms(plain_one, Choices(on_chain=True))


OFFER = AuditOffer(key(70).address, 300, 10_000, "0x" + "5e" * 32)


def test_auditor_that_the_matcher_pays_is_named_only_where_the_requester_says_so(
    tmp_path: Path,
) -> None:
    settings, offering = settings_of(tmp_path), msgspec.structs.replace(quote(), audits=OFFER)
    silent = wishes_of(settings, Choices())
    assert terms_for(silent, offering, NOW_S).auditor == ZERO_ADDRESS
    assert describe_auditor(settings, silent, offering) == (
        f"nobody; with --auditor matcher {OFFER.auditor} may see every prompt; the matcher pays "
        f"it 0.01usd"
        " for each of 3 % of the requests"
    )
    assert describe_auditor(settings, silent, quote()) == ""
    asked = wishes_of(settings, Choices(auditor="matcher"))
    assert terms_for(asked, offering, NOW_S).auditor == OFFER.auditor
    assert describe_auditor(settings, asked, offering) == (
        f"{OFFER.auditor} may see every prompt and dispute; the matcher pays it 0.01usd for each "
        f"of 3 % of the requests"
    )
    own = wishes_of(settings, Choices(auditor=key(60).address))
    assert terms_for(own, offering, NOW_S).auditor == key(60).address
    assert describe_auditor(settings, own, offering) == (
        f"{key(60).address} may see every prompt and dispute"
    )


def test_setting_for_the_matchers_auditor_can_be_overruled_for_one_file(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, **{"client.auditor": "matcher"})
    offering = msgspec.structs.replace(quote(), audits=OFFER)
    assert terms_for(wishes_of(settings, Choices()), offering, NOW_S).auditor == OFFER.auditor
    none = wishes_of(settings, Choices(auditor="none"))
    assert terms_for(none, offering, NOW_S).auditor == ZERO_ADDRESS


def test_where_the_matcher_pays_nobody_no_order_is_made_without_the_auditor_that_was_wished_for(
    tmp_path: Path,
) -> None:
    asked = wishes_of(settings_of(tmp_path), Choices(auditor="matcher"))
    with pytest.raises(NoCapacity, match="pays no auditor") as caught:
        terms_for(asked, quote(), NOW_S)
    assert "--auditor" in caught.value.next_step


@pytest.mark.parametrize("named", ["0x12", "nobody", "the matcher"])
def test_setting_names_an_address_or_the_matchers_auditor_or_nobody(
    tmp_path: Path, named: str
) -> None:
    with pytest.raises(ConfigError):
        settings_of(tmp_path, **{"client.auditor": named})


def test_offer_is_described_with_the_contracts_arithmetic(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    file = write(tmp_path, b'{"prompt": "hello"}\nbad\n')
    prepared = prepare(*read_file(file, SamplingParams(max_new_tokens=16)), tokenizer, SPEC.context)
    offer = quote(10**9, 4 * 10**9)
    shown = plain(describe(settings_of(tmp_path), MODEL, offer, prepared))
    tokens = prepared.tokens_in
    assert maximum(MODEL, offer, prepared) == 8 * (tokens + 16 * 4) + 9
    assert "0.000009usd for opening" in shown["price"]
    assert shown["requests"] == "1 (1 line rejected)"
    assert shown["tokens"] == f"{tokens} in, at most 16 out"
    low, high = (pricing.cost(8, tokens, out, 10**9, 4 * 10**9) + 9 for out in (0, 16))
    assert shown["cost"] == f"{units.format_token(low)} to {units.format_token(high)}"


# --- results ---


def finished(tokens: list[int], job: str, index: int) -> FinishedAnswer:
    state = RequestState((1,), 9, tokens, finish="stop")
    return FinishedAnswer(job, index, state)


def test_every_request_has_a_line_in_one_of_two_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = write(tmp_path, b'{"prompt": "a", "custom_id": "x"}\n{"prompt": "b"}\nbad\n')
    prepared = prepare(*read_file(file, SamplingParams(max_new_tokens=16)), tokenizer, SPEC.context)
    job = "0x" + "5a" * 32
    text = tokenizer.encode("héllo 😀")
    result = BatchResult(
        {"x": finished([*text, 258], job, 3)}, {"line-2": NoCapacity("no pipeline", "…")}, ()
    )
    write_results(tmp_path / "new" / "out", result, prepared, tokenizer, "tiny")
    (answer,) = map(json.loads, (tmp_path / "new" / "out" / "output.jsonl").open(encoding="utf-8"))
    assert answer["custom_id"] == "x"
    body = answer["response"]["body"]
    assert body["choices"][0]["message"]["content"] == "héllo 😀"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["id"] == f"{ids.full(ids.Kind.JOB, job)}-3"
    prompt_tokens = len(prepared.prompts[0].ids)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(text) + 1,
        "total_tokens": prompt_tokens + len(text) + 1,
    }
    errors = [json.loads(x) for x in (tmp_path / "new" / "out" / "errors.jsonl").open()]
    assert [(e["custom_id"], e["error"]["code"]) for e in errors] == [
        ("line-3", "E-LINE-01"),
        ("line-2", "E-MATCH-01"),
    ]


def test_text_is_cut_at_stop_strings_and_logprobs_stand_beside_every_token(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    line = (
        b'{"prompt": "a", "custom_id": "x", "stop": ["END"], "logprobs": true, "top_logprobs": 1}'
    )
    prepared = prepare(*read_file(write(tmp_path, line), SamplingParams()), tokenizer, SPEC.context)
    tokens = tokenizer.encode("hé END!")
    done = finished(tokens, "0x" + "5a" * 32, 0)
    done.state.logprobs = [Logprobs(-0.5, ((tokens[0], -0.25),)), None]
    done.state.logprobs += [Logprobs(-0.5, ())] * (len(tokens) - 2)
    write_results(tmp_path, BatchResult({"x": done}, {}, ()), prepared, tokenizer, "tiny")
    (answer,) = map(json.loads, (tmp_path / "output.jsonl").open(encoding="utf-8"))
    (choice,) = answer["response"]["body"]["choices"]
    assert choice["message"]["content"] == "hé "
    shown = choice["logprobs"]["content"]
    h = {"id": tokens[0], "token": "h", "bytes": [104]}
    assert shown[0] == {**h, "logprob": -0.5, "top_logprobs": [{**h, "logprob": -0.25}]}
    assert shown[1] is None
    assert shown[2]["bytes"] is None  # half of é
    assert len(shown) == len(tokens)


def test_no_errors_file_when_nothing_failed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_results(tmp_path, BatchResult({}, {}, ()), Prepared([], []), tokenizer, "tiny")
    assert [f.name for f in tmp_path.iterdir()] == ["output.jsonl"]


def test_folder_that_cannot_hold_results_is_refused_before_anything_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make"):
        check_writable(tmp_path / "file" / "b")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="cannot write into"):
        check_writable(tmp_path)
