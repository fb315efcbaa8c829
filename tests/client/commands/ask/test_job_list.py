"""What was submitted is shown and checked again from our own records and the chain."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.commands.ask import job_list
from client.context import Context, open_store
from client.orders.orders import PromptBatch
from client.pipeline.pipeline import Match
from client.pipeline.verify import RegisteredShards, RequestAnswer
from core.money import pricing
from core.protocol import ids, signing
from core.protocol import types as t
from core.protocol.errors import CheckFailed, IdInvalid
from core.protocol.units import covering_units, whole_units
from core.runtime.commands.results import plain
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from tests.town.chain import ChainJob, FakeChain
from tests.town.orders import DOMAIN, NOW_S, REQUESTER, SPEC, key, prompts
from tests.town.stages import Stages

ROOT = Path(__file__).resolve().parents[4]


def test_job_states_are_the_contracts_in_its_order() -> None:
    source = (ROOT / "contracts/src/interfaces/ITaskRegistry.sol").read_text()
    body = re.search(r"enum State \{([^}]*)\}", source)
    assert body is not None
    names = [name.strip().upper() for name in body[1].split(",")]
    assert names == [state.name for state in t.JobState]
    assert [int(state) for state in t.JobState] == list(range(len(names)))


class Desk:
    """Settings, a store with one finished job, and a chain that knows it."""

    def __init__(self, folder: Path) -> None:
        self.settings: Settings = load(environ={}, folders=Folders.at(folder))
        self.chain, self.stages = FakeChain(), Stages()
        self.batch = PromptBatch.of(prompts(2))
        found = self.stages.match(self.batch)
        self.job = Match(found.job_id, found.signed, found.plan, ("a:1", "b:2", "c:3"), "0xab")
        self.answers = {i: self.stages.answer(i) for i in range(2)}
        self.on_chain = ChainJob(
            t.JobState.SETTLED,
            self.job.plan_hash,
            self.job.signed.order,
            self.job.plan,
            tokens_in=sum(len(a.prompt_ids) for a in self.answers.values()),
            tokens_out=sum(len(a.tokens) for a in self.answers.values()),
        )
        self.chain.jobs[self.job.job_id] = self.on_chain
        order = self.job.signed.order
        self.chain.locked[self.job.job_id] = self.locked_nano = pricing.max_nano(order, SPEC)
        self.chain.used_nonces.add((order.requester, order.nonce))
        self.typed = ids.short(ids.Kind.JOB, self.job.job_id)

    def keep(self, *, whole: bool = True, answers: dict[int, RequestAnswer] | None = None) -> None:
        store = open_store(self.settings)
        store.add_job("sub", self.job, self.batch, NOW_S)
        for index, answer in (answers or self.answers).items():
            store.finish_request(self.job.job_id, index, answer.tokens, "length")
        sets = [{i: a} for i, a in self.answers.items()] + ([self.answers] if whole else [])
        for covered in sets:
            store.add_receipts(self.job.job_id, [self.stages.receipt(s, covered) for s in range(3)])
        store.close()

    def open_for(self, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> None:
        """Commands of these modules meet this chain."""

        @asynccontextmanager
        async def open_context(settings: Settings) -> AsyncIterator[Context]:
            yield Context(settings, self.chain)

        for module in modules:
            monkeypatch.setattr(module, "open_context", open_context)

    def change(self, edit: Callable[[Any], None]) -> None:
        store = open_store(self.settings)
        edit(store)
        store.close()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk(tmp_path)
    desk.open_for(monkeypatch, job_list)
    return desk


async def test_jobs_and_receipts_are_listed(desk: Desk) -> None:
    assert job_list.list_jobs(desk.settings) == []
    desk.keep()
    (line,) = plain(job_list.list_jobs(desk.settings))
    assert line == {
        "job": desk.typed,
        "name": "",
        "state": "open",
        "running": False,
        "requests": 2,
        "finished": 2,
        "tokens": 8,
        "stages": 3,
    }
    shown = plain(await job_list.show_job(desk.settings, desk.typed))
    assert shown["on_chain"] == "settled"
    assert shown["locked"] == "0usd", "it is settled"
    assert len(shown["plan"]) == 3
    receipts = plain(job_list.list_receipts(desk.settings, desk.typed))
    assert [r["covers"] for r in receipts] == ["whole job"] * 3 + ["request 0"] * 3 + [
        "request 1"
    ] * 3
    assert plain(job_list.list_receipts(desk.settings, None)) == receipts
    with pytest.raises(IdInvalid):
        await job_list.show_job(desk.settings, "job_ZZZZZ")


@pytest.mark.parametrize("counts", [(0, 0), (7, 8)])
async def test_what_a_job_locks_follows_from_its_order_whatever_was_counted(
    desk: Desk, counts: tuple[int, int]
) -> None:
    desk.keep()
    desk.on_chain.state = t.JobState.MATCHED
    desk.on_chain.tokens_in, desk.on_chain.tokens_out = counts
    shown = plain(await job_list.show_job(desk.settings, desk.typed))
    assert shown["locked"] == desk.settings.show_token(covering_units(desk.locked_nano))


async def test_job_that_was_matched_with_another_plan_is_shown_as_it_is(desk: Desk) -> None:
    desk.keep()
    order, others = desk.job.signed.order, desk.job.plan[::-1]
    desk.chain.match(order, others, desk.job.job_id)
    shown = plain(await job_list.show_job(desk.settings, desk.typed))
    assert (shown["on_chain"], shown["tokens_in"]) == ("matched", 0)
    assert shown["locked"] == desk.settings.show_token(covering_units(desk.locked_nano))


async def test_job_whose_order_nobody_opened_is_not_on_chain(desk: Desk) -> None:
    desk.keep()
    desk.chain.jobs.clear()
    desk.chain.used_nonces.clear()
    shown = plain(await job_list.show_job(desk.settings, desk.typed))
    assert (shown["on_chain"], shown["locked"]) == ("none", "0usd")
    assert desk.chain.spans == [], "events are not looked through for it"


@pytest.mark.parametrize("whole", [True, False])
async def test_job_that_holds_is_verified(desk: Desk, whole: bool) -> None:
    desk.keep(whole=whole)
    found = plain(await job_list.verify_job(desk.settings, desk.typed))
    assert found["signatures"].startswith(f"{9 if whole else 6} receipts")
    assert found["on_chain"] == "settled"
    gross = sum(pricing.split(desk.job.signed.order, desk.job.plan, SPEC, 7, 8).gross)
    assert found["price"].startswith(desk.settings.show_token(whole_units(gross)))


async def refused(desk: Desk) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        await job_list.verify_job(desk.settings, desk.typed)
    assert caught.value.exit_code == 9
    return caught.value


async def test_answer_that_differs_from_the_receipts_is_refused(desk: Desk) -> None:
    answer = desk.answers[1]
    desk.keep(
        answers={0: desk.answers[0], 1: RequestAnswer(answer.prompt_ids, (9, *answer.tokens[1:]))}
    )
    assert (await refused(desk)).details["field"] == "in_root"


async def test_answer_without_receipts_is_refused(desk: Desk) -> None:
    store = open_store(desk.settings)
    store.add_job("sub", desk.job, desk.batch, NOW_S)
    for index, answer in desk.answers.items():
        store.finish_request(desk.job.job_id, index, answer.tokens, "length")
    store.add_receipts(
        desk.job.job_id, [desk.stages.receipt(s, {0: desk.answers[0]}) for s in range(3)]
    )
    store.close()
    assert "answers to [0, 1], receipts of every stage for [0]" in (await refused(desk)).why


async def test_job_without_answers_is_refused(desk: Desk) -> None:
    store = open_store(desk.settings)
    store.add_job("sub", desk.job, desk.batch, NOW_S)
    store.close()
    await refused(desk)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"state": t.JobState.NONE}, "another one"),
        ({"plan_hash": "0x" + "ee" * 32}, "another one"),
        ({"tokens_out": 9}, "counts other tokens"),
        ({"tokens_in": 8, "state": t.JobState.DELIVERED}, "counts other tokens"),
    ],
)
async def test_chain_that_says_otherwise_is_refused(
    desk: Desk, changes: dict[str, Any], what: str
) -> None:
    desk.keep()
    desk.chain.jobs[desk.job.job_id] = replace(desk.on_chain, **changes)
    assert what in (await refused(desk)).what


async def test_job_that_is_not_paid_yet_has_no_counts_to_compare(desk: Desk) -> None:
    desk.keep()
    desk.chain.match(desk.job.signed.order, desk.job.plan)
    assert (await job_list.verify_job(desk.settings, desk.typed)).on_chain == "matched"


async def test_price_arithmetic_that_differs_from_the_contracts_is_refused(desk: Desk) -> None:
    desk.keep()
    split = pricing.split(desk.job.signed.order, desk.job.plan, SPEC, 7, 8)
    gross = [split.gross[0] + 1, *split.gross[1:]]
    desk.chain.answers["TaskRegistry.split"] = {"gross": gross, "pay": list(split.pays)}
    assert "split differs" in (await refused(desk)).what


async def test_shard_that_the_registry_does_not_know_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.keep()

    async def other(*_: Any) -> RegisteredShards:
        return RegisteredShards(lambda start, end: "0x" + "ee" * 32)

    monkeypatch.setattr(job_list, "registered_shards", other)
    assert (await refused(desk)).details["field"] == "shard_root"


async def test_delegation_is_signed_and_read_back(desk: Desk, tmp_path: Path) -> None:
    from client.audit.investigation import read_delegation

    class Terminal:
        settings = desk.settings

        def unlock(self) -> Any:
            return REQUESTER

        def confirm(self, question: str, summary: dict[str, str]) -> None:
            assert desk.typed == summary["job"] and summary["until"] == "in 1d"

    desk.keep()
    auditor = key(60).address
    made = plain(await job_list.delegate(Terminal(), desk.typed, auditor, "24h"))
    file = tmp_path / "delegation.json"
    for document in (made, {"ok": True, "result": made}):
        file.write_text(json.dumps(document))
        read = read_delegation(file)
        assert read is not None
        assert read.delegation == t.AuditorDelegation(desk.job.order_hash, auditor, NOW_S + 86400)
        assert signing.is_signed_by(DOMAIN, read.delegation, read.signature, REQUESTER.address)
