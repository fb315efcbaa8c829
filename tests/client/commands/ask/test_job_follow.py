"""Jobs followed to their end, fetched again, run again where they failed; receipts and bundles that
strangers can check.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.commands.ask import job_follow, receipts
from client.commands.judge import bundle
from client.commands.wallet import allow
from core.protocol.errors import CheckFailed, DeadlinePassed, UsageError
from core.protocol.types import ZERO_HASH, JobState
from core.protocol.units import NANO, whole_units
from core.runtime.commands.console import DryRunEnds, GlobalOptions, Run
from core.runtime.commands.results import plain
from tests.client.commands.ask.test_job_list import Desk
from tests.clocks import ManualClock
from tests.town.chain import CLOSE_DELAY_S
from tests.town.orders import NOW_S, REQUESTER, key, prompts

USD = 10**6 * NANO


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(tmp_path)
    desk.open_for(monkeypatch, job_follow, receipts, bundle, allow)
    return desk


def run_of(desk: Desk, **options: Any) -> Run:
    run = Run(
        "client",
        "jobs",
        GlobalOptions(yes=True, quiet=True, **options),
        folders=desk.settings.folders,
    )
    run._settings = desk.settings
    run.unlock = lambda *_, **__: REQUESTER  # type: ignore[method-assign, assignment]
    return run


def happened(desk: Desk, name: str, **args: Any) -> None:
    desk.chain.emit("TaskRegistry", name, job=desk.job.job_id, **args)


async def test_a_log_has_the_requests_and_then_the_events_in_their_order(desk: Desk) -> None:
    desk.keep()
    happened(desk, "JobMatched")
    shares = {"payNano": [2 * USD, USD // 2], "matcherNano": USD // 2, "protocolNano": 0}
    desk.chain.emit("Escrow", "Paid", job=desk.job.job_id, **shares, refundNano=2 * USD)
    happened(
        desk,
        "JobSettled",
        paidNano=3_000_000 * NANO,
        refundedNano=2_000_000 * NANO,
        withheldNano=0,
    )
    lines = plain(await job_follow.job_log(desk.settings, desk.typed))
    assert [(line["what"], line["name"]) for line in lines] == [
        ("request", "p0"),
        ("request", "p1"),
        ("event", "JobMatched"),
        ("event", "Paid"),
        ("event", "JobSettled"),
    ]
    assert lines[0]["state"] == "length"
    assert lines[-2]["state"] == "pay 2.5usd, matcher 0.5usd, protocol 0usd, refund 2usd"
    assert lines[-1]["state"] == "paid 3usd, refunded 2usd, withheld 0usd"
    assert lines[-1]["transaction"] == desk.chain.log[-1].tx_hash


async def test_waiting_ends_with_what_was_paid_and_what_came_back(desk: Desk) -> None:
    desk.keep()
    happened(desk, "JobSettled", paidNano=3_000_000 * NANO, refundedNano=2_000_000 * NANO)
    found = plain(await job_follow.wait_for_job(run_of(desk), desk.typed))
    assert (found["on_chain"], found["paid"], found["refunded"]) == ("settled", "3usd", "2usd")


@pytest.mark.parametrize(
    ("state", "disputes", "now", "says"),
    [
        (JobState.MATCHED, 0, 100, "matched"),
        (JobState.DELIVERED, 0, 100, "delivered, may be disputed for 1m more"),
        (JobState.DELIVERED, 0, 161, "delivered, its window is over: anybody may settle it"),
        (JobState.DELIVERED, 2, 161, "delivered, 2 of its stages disputed"),
    ],
)
def test_waiting_says_what_it_waits_for(
    state: JobState, disputes: int, now: int, says: str
) -> None:
    job = {"openDisputes": disputes, "finalAt": 160}
    assert job_follow._waits_for(state, job, now) == says


async def test_waiting_for_a_job_that_missed_its_deadline_is_exit_8_with_theway_out(
    desk: Desk,
) -> None:
    desk.keep()
    desk.on_chain.state = JobState.MATCHED
    desk.chain.clock = ManualClock(desk.job.signed.order.deadline + CLOSE_DELAY_S + 1)
    with pytest.raises(DeadlinePassed) as caught:
        await job_follow.wait_for_job(run_of(desk), desk.typed)
    assert caught.value.exit_code == 8
    assert "client jobs cancel job_" in caught.value.next_step


@pytest.mark.parametrize(
    ("state", "late", "function"),
    [
        (JobState.OPEN, False, "cancel"),
        (JobState.MATCHED, True, "expire"),
        (JobState.MATCHED, False, None),
        (JobState.SETTLED, True, None),
    ],
)
async def test_money_comes_back_where_the_contract_allows_it_and_nothing_is_sent_elsewhere(
    desk: Desk, state: JobState, late: bool, function: str | None
) -> None:
    desk.keep()
    desk.on_chain.state = state
    if state is JobState.OPEN:
        desk.on_chain.plan_hash = ZERO_HASH
    desk.on_chain.tokens_in = desk.on_chain.tokens_out = 0
    if late:
        desk.chain.clock = ManualClock(desk.job.signed.order.deadline + CLOSE_DELAY_S + 1)
    if function is None:
        with pytest.raises(UsageError):
            await job_follow.cancel_job(run_of(desk), desk.typed)
        assert desk.chain.sent == []
        return
    with pytest.raises(DryRunEnds):
        await job_follow.cancel_job(run_of(desk, dry_run=True), desk.typed)
    assert desk.chain.simulated == [function], "a dry run simulates"
    assert desk.chain.sent == []
    found = plain(await job_follow.cancel_job(run_of(desk), desk.typed))
    plan = [list(desk.job.plan)] if function == "expire" else []
    assert desk.chain.sent == [("TaskRegistry", function, desk.job.signed.order, *plan)]
    assert found["refunded"] == desk.settings.show_token(whole_units(desk.locked_nano))


@pytest.mark.parametrize(
    ("after_s", "says"),
    [
        (0, "being worked on"),
        (1, "cannot be cancelled yet"),
        (CLOSE_DELAY_S, "cannot be cancelled yet"),
    ],
)
async def test_a_matched_job_is_not_cancelled_before_the_delay_after_its_deadline(
    desk: Desk, after_s: int, says: str
) -> None:
    desk.keep()
    desk.on_chain.state = JobState.MATCHED
    desk.chain.clock = ManualClock(desk.job.signed.order.deadline + after_s)
    with pytest.raises(UsageError, match=says):
        await job_follow.cancel_job(run_of(desk), desk.typed)
    assert desk.chain.sent == []


async def test_money_comes_back_from_a_job_that_was_matched_with_another_plan(desk: Desk) -> None:
    desk.keep()
    order, others = desk.job.signed.order, desk.job.plan[::-1]
    desk.chain.match(order, others, desk.job.job_id)
    desk.chain.clock = ManualClock(order.deadline + CLOSE_DELAY_S + 1)
    found = plain(await job_follow.cancel_job(run_of(desk), desk.typed))
    call = ("TaskRegistry", "expire", order, list(others))
    assert desk.chain.sent == [call] and found["on_chain"] == "expired"


async def test_an_order_that_nobody_opened_has_nothing_to_give_back(desk: Desk) -> None:
    desk.keep()
    desk.chain.jobs.clear()
    desk.chain.used_nonces.clear()
    with pytest.raises(UsageError, match="was not opened on chain"):
        await job_follow.cancel_job(run_of(desk), desk.typed)
    assert desk.chain.sent == []


async def test_what_a_session_paid_is_told_by_its_end(desk: Desk) -> None:
    desk.keep()
    happened(desk, "JobAcknowledged", tokensIn=3, tokensOut=1)
    happened(desk, "JobAcknowledged", tokensIn=3, tokensOut=2)
    happened(desk, "JobSettled", paidNano=4 * USD, refundedNano=3 * USD, withheldNano=2 * USD)
    found = plain(await job_follow.wait_for_job(run_of(desk), desk.typed))
    assert (found["on_chain"], found["paid"], found["refunded"]) == ("settled", "4usd", "3usd")


async def test_a_session_that_was_closed_early_ends_by_the_chains_deadline(desk: Desk) -> None:
    desk.keep()
    desk.on_chain.state = JobState.MATCHED
    closed_at = desk.job.signed.order.deadline - 500
    said = desk.chain.job_of(desk.job.job_id, desk.job.plan_hash) | {"deadline": closed_at}
    desk.chain.answers["TaskRegistry.jobOf"] = said
    desk.chain.clock = ManualClock(closed_at + CLOSE_DELAY_S + 1)
    with pytest.raises(DeadlinePassed):
        await job_follow.wait_for_job(run_of(desk), desk.typed)
    with pytest.raises(DryRunEnds):
        await job_follow.cancel_job(run_of(desk, dry_run=True), desk.typed)
    assert desk.chain.simulated == ["expire"]


class Words:
    """A tokenizer of one word a token."""

    def __init__(self, folder: Path) -> None: ...

    def answer_text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def test_answers_are_fetched_again_as_they_were_written_the_first_time(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.keep(answers={0: desk.answers[0]})
    monkeypatch.setattr("core.engine.weights.tokenizer.Tokenizer", Words)
    monkeypatch.setattr(job_follow, "model_folder", lambda name, settings: tmp_path)
    found = plain(job_follow.fetch_job(run_of(desk), desk.typed, tmp_path / "out"))
    assert (found["answers"], found["missing"]) == (1, ["p1"])
    (line,) = map(json.loads, (tmp_path / "out" / "output.jsonl").read_text().splitlines())
    assert line["custom_id"] == "p0"
    text = line["response"]["body"]["choices"][0]["message"]["content"]
    assert text == " ".join(map(str, desk.answers[0].tokens))
    assert line["response"]["body"]["usage"]["completion_tokens"] == len(desk.answers[0].tokens)
    assert len((tmp_path / "out" / "receipts.jsonl").read_text().splitlines()) == 9


def test_only_the_lines_without_an_answer_are_run_again_and_keep_their_names(
    desk: Desk, tmp_path: Path
) -> None:
    named = {0: "line-1", 1: "line-2"}
    batch = prompts(2)
    desk.batch = type(desk.batch).of([replace(p, custom_id=named[i]) for i, p in enumerate(batch)])
    desk.keep(answers={0: desk.answers[0]})
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    (line,) = job_follow.unanswered(desk.settings, desk.typed, file)
    assert json.loads(line) == {"custom_id": "line-2", "body": {"prompt": "two"}}
    file.write_text('{"custom_id": "other", "body": {"prompt": "x"}}\n')
    with pytest.raises(UsageError, match="not this job's file"):
        job_follow.unanswered(desk.settings, desk.typed, file)


def test_a_receipt_shows_who_signed_what(desk: Desk) -> None:
    desk.keep()
    from client.commands.ask import job_list

    first = job_list.list_receipts(desk.settings, desk.typed)[0].receipt
    found = plain(receipts.show_receipt(desk.settings, first))
    assert found["operator"] == desk.job.plan[found["stage"]].operator
    assert found["signature"].startswith("0x")


async def test_a_file_of_receipts_is_checked_against_the_chain_alone(
    desk: Desk, tmp_path: Path
) -> None:
    desk.keep()
    order, signature = desk.job.signed.order, desk.job.signed.signature
    desk.chain.match(order, desk.job.plan, requesterSig=signature)
    signed = [desk.stages.receipt(stage, desk.answers) for stage in range(3)]
    file = tmp_path / "receipts.jsonl"
    file.write_text("".join(json.dumps(msgspec.to_builtins(s)) + "\n" for s in signed))
    found = plain(await receipts.verify_file(desk.settings, file))
    assert (found["receipts"], found["jobs"]) == (3, [desk.typed])

    forged = msgspec.to_builtins(signed[1])
    forged["receipt"]["tokensOut"] += 1
    file.write_text(json.dumps(forged) + "\n")
    with pytest.raises(CheckFailed, match="line 1"):
        await receipts.verify_file(desk.settings, file)
    desk.chain.log.clear()
    with pytest.raises(CheckFailed, match="no job of this chain"):
        await receipts.verify_file(desk.settings, file)
    file.write_text("{}\n")
    with pytest.raises(UsageError, match="no receipt"):
        await receipts.verify_file(desk.settings, file)


async def test_a_bundle_holds_without_any_network_and_breaks_when_a_number_changes(
    desk: Desk, tmp_path: Path
) -> None:
    desk.keep()
    file = tmp_path / "job.bundle"
    made = plain(await bundle.write_bundle(desk.settings, desk.typed, file))
    assert (made["requests"], made["receipts"]) == (2, 9)
    assert file.stat().st_mode & 0o777 == 0o600, "it holds prompts"
    found = plain(bundle.verify_bundle(file))
    assert found["order"].startswith("signed by the requester")
    assert (found["tokens_in"], found["tokens_out"]) == (7, 8)
    with pytest.raises(UsageError, match="not written"):
        await bundle.write_bundle(desk.settings, desk.typed, file)

    whole = json.loads(file.read_text())
    changes: list[tuple[str, Any]] = [
        ("answers", [{**whole["answers"][0], "tokens": [1, 2, 3, 4]}, whole["answers"][1]]),
        ("answers", whole["answers"][:1]),
        ("job_id", "0x" + "00" * 32),
        ("shard_roots", ["0x" + "11" * 32] * 3),
        ("chain_id", 1),
        ("receipts", whole["receipts"][:2]),
    ]
    for name, value in changes:
        with pytest.raises(CheckFailed):
            bundle.check_bundle(msgspec.convert(whole | {name: value}, bundle.EvidenceBundle))
    file.write_text("{}")
    with pytest.raises(UsageError, match="no bundle"):
        bundle.verify_bundle(file)


async def test_a_spender_gets_a_limit_and_an_end_and_never_is_the_wallet_itself(desk: Desk) -> None:
    gateway = key(77).address
    found = plain(await allow.allow_spender(run_of(desk), gateway, "5usd", "1d"))
    call = desk.chain.sent[-1]
    assert call[:4] == ("Escrow", "setSpender", gateway, 5_000_000)
    assert call[4] == NOW_S + 86_400
    assert found["limit"] == "5usd"
    with pytest.raises(UsageError):
        await allow.allow_spender(run_of(desk), REQUESTER.address, "5usd", "1d")
    assert isinstance(found["expires_at"], int)
