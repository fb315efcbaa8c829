"""A watching auditor finds its jobs, draws, names the stage that lied, and outlives restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from client.audit.audit_rate import NEWCOMER_BPS, NEWCOMER_JOBS, rate_for
from client.audit.rerun import RequestFinding, StageFinding
from client.commands.judge.watch_service import WatchMetrics, _Work
from client.context import Context
from client.disputes.bonds import AtStake, BondLimits
from client.watch import watcher as watching
from client.watch.watch_book import StageVerdict, WatchBook
from client.watch.watcher import (
    MAX_TRIES,
    WEIGH_AGAIN_S,
    Callbacks,
    Looked,
    OwnWords,
    Watcher,
    request_verdict,
)
from core.chain.follower import EventFollower
from core.money.paid_audits import AuditEnd
from core.protocol import types as t
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    MatcherUnreachable,
    PeerUnreachable,
    UsageError,
)
from core.runtime.folders import Folders
from core.runtime.settings import load
from devnet.faults import corrupt_layer
from devnet.models.tiny_models import write_tiny_model
from tests.client.keepers import Keepers
from tests.client.pipeline_of_tiny_model import run_pipeline, shard_roots
from tests.clocks import InstantClock
from tests.town.chain import FakeChain
from tests.town.orders import MODEL_ID, REQUESTER, SPANS, key, prompts
from tests.town.stages import Stages

AUDITOR = key(77).address
JOB = "0x" + "0b" * 32
OTHER = "0x" + "0c" * 32
ALL = 10_000


def beacon(number: int) -> str:
    return f"0x{number:064x}"


# --- the rate ---


def test_newcomers_and_suspects_are_looked_at_more_often() -> None:
    assert rate_for(200, 0, is_suspected=False) == NEWCOMER_BPS
    assert rate_for(200, NEWCOMER_JOBS - 1, is_suspected=False) == NEWCOMER_BPS
    assert rate_for(200, NEWCOMER_JOBS, is_suspected=False) == 200
    assert rate_for(200, NEWCOMER_JOBS, is_suspected=True) == NEWCOMER_BPS
    assert rate_for(ALL, 0, is_suspected=True) == ALL


# --- the loop ---


class Jobs(FakeChain):
    """Jobs that are matched and signed, from block 100 on."""

    def __init__(self) -> None:
        super().__init__(blocks=101)
        self.stages = Stages()
        self.stages.match(_batch())

    def match_for(self, job: str = JOB, *, auditor: str = AUDITOR, requester: str = "") -> None:
        order = self.stages.signed.order
        requester = requester or order.requester
        order = msgspec.structs.replace(order, auditor=auditor, requester=requester)
        self.match(order, self.stages.plan, job)

    def tell(self, name: str, job: str) -> None:
        self.emit("TaskRegistry", name, job=job)

    def receipts(self, requests: int = 2) -> list[list[t.SignedReceipt]]:
        answers = {i: self.stages.answer(i) for i in range(requests)}
        return [[self.stages.receipt(stage, answers) for stage in range(len(SPANS))]]


def _batch() -> Any:
    from client.orders.orders import PromptBatch

    return PromptBatch.of(prompts(2))


def finding(stage: int, requests: Any, *, fault: bool = False, withheld: str = "") -> StageFinding:
    reasons, ratio = (("off",), 2.0) if fault else ((), 0.1)
    found = tuple(RequestFinding(r, fault, reasons, ratio, 1.0, None) for r in requests)
    return StageFinding(stage, key(100 + stage).address, SPANS[stage], found, withheld)


class World:
    """A watcher over that chain, whose callbacks do as they are told."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.chain, self.path, self.options = Jobs(), path, {"rate_bps": ALL} | options
        self.looks: list[frozenset[int]] = []
        self.accused: list[tuple[str, int]] = []
        self.fault: int | None = None
        self.withheld = ""
        self.shadow = False
        self.errors: list[Exception] = []
        self.told: list[list[str]] = []
        self.deaf: list[Exception] = []
        self.requests = 2
        self.lots: frozenset[int] | None = None  # of the matcher, if it pays us
        self.mute: list[Exception] = []  # what the matcher says instead of lots, and of findings
        self.unheard: list[Exception] = []
        self.handed: list[tuple[int, AuditEnd, int]] = []
        self.own_words: list[OwnWords] | None = None  # None: nobody is convicted by them
        self.stake = AtStake(20, 0)
        self.weighed = 0
        self.clock = InstantClock()
        self.start()

    def start(self) -> None:
        self.book = WatchBook(self.path)
        follower = EventFollower(self.chain, start_block=1, position=self.book.position())
        callbacks = Callbacks(self.receipts, self.look, self.accuse, self.tell)
        if self.lots is not None:
            callbacks = replace(callbacks, paid_lots=self.paid_lots, hand_in=self.hand_in)
        if "bonds" in self.options:
            callbacks = replace(callbacks, at_stake=self.at_stake)
        if self.own_words is not None:
            callbacks = replace(callbacks, convict=self.convict)
        around = (self.chain, self.book, self.clock, follower, callbacks)
        self.watcher = Watcher(*around, auditor=AUDITOR, **self.options)

    def restart(self) -> None:
        self.book.close()
        self.start()

    async def receipts(self, case: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.chain.receipts(self.requests)

    async def look(self, case: Any, pipelines: Any, drawn: frozenset[int]) -> Looked:
        self.looks.append(drawn)
        withheld = ["", "", self.withheld]
        findings = [
            finding(stage, sorted(drawn), fault=stage == self.fault, withheld=withheld[stage])
            for stage in range(3)
        ]
        return Looked(findings, [0, 1, 0], self.shadow)

    async def accuse(self, job: str, stage: int) -> str:
        self.accused.append((job, stage))
        return "fault"

    async def convict(self, case: Any) -> AsyncIterator[OwnWords]:
        while self.own_words:
            yield self.own_words.pop()

    async def at_stake(self, job: str, stage: int) -> AtStake:
        self.weighed += 1
        return self.stake

    async def tell(self, standings: Any) -> None:
        if self.deaf:
            raise self.deaf.pop(0)
        self.told.append([s.operator for s in standings if s.faults])

    async def paid_lots(self, case: Any, pipelines: Any) -> Any:
        if self.mute:
            raise self.mute.pop(0)
        return self.lots

    async def hand_in(self, case: Any, verdict: Any) -> None:
        if self.unheard:
            raise self.unheard.pop(0)
        self.handed.append((verdict.request, verdict.found, verdict.stage))

    def found(self) -> list[AuditEnd]:
        return [v.found for v in reversed(self.book.verdicts())]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "watch.sqlite")
    yield made
    made.book.close()


async def test_job_is_drawn_once_it_is_signed_and_not_before(world: World) -> None:
    world.chain.match_for()
    await world.watcher.step()
    assert world.looks == []
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()
    await world.watcher.step()
    assert world.looks == [frozenset({0, 1})]
    assert world.found() == [AuditEnd.CLEAN] * 3
    assert [v.in_float64 for v in reversed(world.book.verdicts())] == [0, 1, 0]
    assert world.book.counts()["done"] == 1


async def test_only_orders_of_ours_are_looked_into(world: World) -> None:
    stranger, served = key(90).address, key(91).address
    world.options["serves"] = [served]
    world.restart()
    world.chain.match_for(JOB, auditor=t.ZERO_ADDRESS, requester=stranger)
    world.chain.match_for(OTHER, auditor=stranger, requester=served.lower())
    for job in (JOB, OTHER):
        world.chain.tell("JobAcknowledged", job)
    await world.watcher.step()
    assert {v.job_id for v in world.book.verdicts()} == {OTHER}


async def test_a_stage_is_convicted_by_its_own_words_before_anything_is_run_again(
    world: World,
) -> None:
    """Also where no lot falls, and where the receipts do not hold, as a liar's may not."""
    words = OwnWords(1, 0, "equivocation: two results are signed", "convicted in 0x01")
    world.options |= {"rate_bps": 0, "disputes": True}
    world.own_words, world.errors = [words], [CheckFailed("receipts do not hold", "two results")]
    world.restart()
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()
    (verdict,) = world.book.verdicts()
    assert (verdict.stage, verdict.found, verdict.why) == (1, AuditEnd.FAULT, words.why)
    assert verdict.dispute == words.ended and world.accused == [], "it is not accused as well"
    assert world.told[-1] == [verdict.operator]


async def test_lots_of_nobody_are_no_work(world: World) -> None:
    world.options["rate_bps"] = 0
    for stage in range(3):  # known for long, so that no newcomer's rate applies
        operator = key(100 + stage).address
        for n in range(NEWCOMER_JOBS):
            known = StageVerdict(beacon(n), stage, operator, AuditEnd.CLEAN, 1, 0, 0.1, 1, "")
            world.book.keep([known], 1.0)
    world.restart()
    world.chain.match_for()
    world.chain.tell("JobSettled", JOB)
    await world.watcher.step()
    assert world.looks == []
    assert world.book.counts()["done"] == 1


async def test_first_stage_at_fault_is_accused_once_and_only_when_told(world: World) -> None:
    world.fault, world.withheld = 1, "gone"
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()
    assert world.found() == [AuditEnd.CLEAN, AuditEnd.FAULT, AuditEnd.WITHHELD]
    assert world.accused == []
    assert world.book.undisputed() == [(JOB, 1)]
    world.options["disputes"] = True
    world.restart()
    await world.watcher.step()
    await world.watcher.step()
    assert world.accused == [(JOB, 1)], "faults found before are accused, once"
    bad = [s.operator for s in world.book.standings() if s.is_suspected]
    assert bad == [key(101).address.lower(), key(102).address.lower()]


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the log warned of: the event, and why."""
    said: list[str] = []

    def warning(event: str, *, reason: str, **_: Any) -> None:
        said.append(f"{event}: {reason}")

    monkeypatch.setattr(watching, "log", SimpleNamespace(warning=warning))
    return said


async def faulty_job(world: World, bonds: BondLimits) -> None:
    """One job whose middle stage is at fault, before an accuser with these limits."""
    world.options |= {"disputes": True, "bonds": bonds}
    world.restart()
    world.fault = 1
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()


async def test_a_bond_above_the_limit_is_left_out_said_once_and_due_under_another_limit(
    world: World, warned: list[str]
) -> None:
    await faulty_job(world, BondLimits(each=19))
    for _ in range(3):
        await world.clock.sleep(WEIGH_AGAIN_S)
        await world.watcher.step()
    assert (world.accused, world.weighed) == ([], 1)
    assert warned == ["left out: the bond is above the limit: it takes 20, --max-bond is 19"]
    assert world.book.undisputed() == [(JOB, 1)], "another start may accuse it"
    world.options["bonds"] = BondLimits(each=20)
    world.restart()
    await world.watcher.step()
    assert world.accused == [(JOB, 1)]


async def test_an_accusation_waits_while_open_disputes_hold_what_they_may(
    world: World, warned: list[str]
) -> None:
    world.stake = AtStake(20, 21)
    await faulty_job(world, BondLimits(each=20, at_once=40))
    await world.watcher.step()
    assert (world.accused, world.weighed) == ([], 1), "the chain is not read at every step"
    assert warned == [
        "put off: open disputes hold what they may: it takes 20, open disputes hold 21, "
        "--max-locked is 40"
    ]
    world.stake = AtStake(20, 20)
    await world.clock.sleep(WEIGH_AGAIN_S)
    await world.watcher.step()
    assert world.accused == [(JOB, 1)]


async def test_a_game_that_has_begun_is_played_on_whatever_is_locked(world: World) -> None:
    world.stake = AtStake(0, 100)
    await faulty_job(world, BondLimits(each=10, at_once=50))
    assert world.accused == [(JOB, 1)]


async def test_in_shadow_deviations_are_measured_and_held_against_nobody(world: World) -> None:
    world.fault, world.shadow = 1, True
    world.options["disputes"] = True
    world.restart()
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()
    assert world.found() == [AuditEnd.SHADOW] * 3
    assert world.accused == []
    assert world.book.shadow() == (3, 2.0)
    assert not any(s.is_suspected for s in world.book.standings())


async def test_restart_keeps_the_lots_and_begins_unfinished_work_again(world: World) -> None:
    world.options["rate_bps"] = 5_000
    world.restart()
    world.errors = [PeerUnreachable("gone")]
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()
    assert (world.looks, world.book.counts()["due"]) == ([], 1)
    secret = world.book.secret()
    world.restart()
    assert world.book.secret() == secret
    await world.watcher.step()
    assert world.looks == [], "not before its time"
    await world.clock.sleep(60)
    await world.watcher.step()
    drawn = {r for r, fell in world.book.drawn(JOB).items() if fell}
    assert world.looks == ([frozenset(drawn)] if drawn else [])
    assert world.book.counts()["done"] == 1


async def test_stages_that_never_answer_are_given_up_with_the_reason(world: World) -> None:
    world.errors = [CheckFailed("no receipts", "silent")] * MAX_TRIES
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    for _ in range(MAX_TRIES):
        await world.watcher.step()
        await world.clock.sleep(10_000)
    assert world.book.counts()["given up"] == 1
    await world.watcher.step()
    assert world.looks == []


async def test_session_that_goes_on_is_looked_at_again_for_what_is_new(world: World) -> None:
    world.requests = 1
    world.chain.match_for()
    world.chain.tell("JobAcknowledged", JOB)
    await world.watcher.step()
    world.requests = 2
    world.chain.tell("JobAcknowledged", JOB)
    await world.watcher.step()
    assert world.looks == [frozenset({0}), frozenset({1})]


async def test_reorganised_jobs_are_forgotten(world: World) -> None:
    world.chain.match_for()
    await world.watcher.step()
    world.chain.cut(1)
    world.chain.grow()
    await world.watcher.step()
    assert sum(world.book.counts().values()) == 0


async def test_chain_that_is_down_is_waited_for(world: World) -> None:
    world.chain.down = 1
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    running = asyncio.create_task(world.watcher.run())
    async with asyncio.timeout(30):
        while not world.looks:
            await asyncio.sleep(0.01)
    running.cancel()
    assert world.clock.slept


async def test_matcher_is_told_once_of_each_verdict_even_if_it_was_deaf(world: World) -> None:
    world.fault = 1
    world.deaf = [MatcherUnreachable("down")]
    await world.watcher.step()
    world.chain.match_for()
    world.chain.tell("JobDelivered", JOB)
    await world.watcher.step()
    await world.watcher.step()
    assert world.told == [], "not at once again"
    world.restart()
    await world.watcher.step()
    await world.watcher.step()
    assert world.told == [[key(101).address.lower()]]
    world.restart()
    await world.watcher.step()
    assert len(world.told) == 1


def test_suspicious_work_is_no_fault_and_is_not_accused(world: World) -> None:
    kept = StageVerdict(JOB, 0, AUDITOR, AuditEnd.SUSPICIOUS, 1, 1, 0.8, 1.0, "stands out")
    world.book.keep([kept], 7.0)
    (standing,) = world.book.standings()
    assert (standing.faults, standing.suspicious, standing.last_fault_at) == (0, 1, 7)
    assert standing.is_suspected, "whom to avoid, and to look at more often"
    assert world.book.undisputed() == []


def test_times_of_faults_and_of_withheld_rows_are_kept_apart(world: World) -> None:
    for at, found in ((5.0, AuditEnd.FAULT), (9.0, AuditEnd.WITHHELD), (11.0, AuditEnd.CLEAN)):
        world.book.keep([StageVerdict(JOB, 0, AUDITOR, found, 1, 0, 1, 1, "")], at)
    (standing,) = world.book.standings()
    assert (standing.last_fault_at, standing.last_withheld_at) == (5, 9)


def test_metrics_count_verdicts(world: World) -> None:
    metrics = WatchMetrics()
    metrics.judged(StageVerdict(JOB, 0, AUDITOR, AuditEnd.FAULT, 2, 1, 2.0, 1.0, "off"))
    text = metrics.registry.render()[0].decode()
    assert 'headrace_audit_checks_total{result="fault"} 1.0' in text
    assert "headrace_audit_float64_requests_total 1.0" in text


# --- what the matcher pays for ---

GONE = MatcherUnreachable("no answer", "it is down")
REFUSED = UsageError("the finding comes too late", "it was due 9 s ago")


def known_for_long(world: World, **options: Any) -> None:
    """No operator is a newcomer and our own rate is nothing; the matcher pays us."""
    for stage in range(3):
        operator = key(100 + stage).address
        for n in range(NEWCOMER_JOBS):
            known = StageVerdict(beacon(n), stage, operator, AuditEnd.CLEAN, 1, 0, 0.1, 1, "")
            world.book.keep([known], 1.0)
    world.options |= {"rate_bps": 0} | options
    world.lots = frozenset({1})
    world.restart()


def sign_one(world: World, **changes: Any) -> None:
    world.chain.match_for(**changes)
    world.chain.tell("JobDelivered", JOB)


async def test_matchers_lot_is_looked_at_and_answered_once(world: World) -> None:
    known_for_long(world)
    sign_one(world)
    await world.watcher.step()
    assert world.looks == [frozenset({1})]
    assert world.handed == [(1, AuditEnd.CLEAN, 0)]
    world.restart()
    world.chain.tell("JobSettled", JOB)  # the job is looked at again, and nothing is new
    await world.watcher.step()
    assert (len(world.looks), len(world.handed)) == (1, 1)
    assert world.book.paid_lots() == (1, 1)
    assert world.book.counts()["done"] == 1


async def test_worst_that_was_found_of_a_request_is_what_is_said(world: World) -> None:
    known_for_long(world)
    world.fault, world.withheld = 1, "gone"
    sign_one(world)
    await world.watcher.step()
    assert world.handed == [(1, AuditEnd.FAULT, 1)]


async def test_our_own_lots_do_not_wait_for_the_matcher(world: World) -> None:
    known_for_long(world, rate_bps=ALL)
    world.lots, world.mute = frozenset({0}), [GONE]
    sign_one(world)
    await world.watcher.step()
    assert world.looks == [frozenset({0, 1})]
    assert world.handed == []
    assert world.book.counts()["due"] == 1
    world.clock.slept.append(1000)
    await world.watcher.step()
    assert world.looks == [frozenset({0, 1})], "what was found is not computed again"
    assert world.handed == [(0, AuditEnd.CLEAN, 0)]
    assert world.book.counts()["done"] == 1


async def test_finding_is_handed_in_until_the_matcher_answers_and_no_longer(world: World) -> None:
    known_for_long(world)
    world.unheard = [GONE, GONE, REFUSED]
    sign_one(world)
    for _ in range(4):
        await world.watcher.step()
        world.restart()
        world.clock.slept.append(1000)
    assert world.looks == [frozenset({1})]
    assert world.handed == []
    assert world.unheard == []
    assert world.book.paid_lots() == (1, 0), "refused, and not said again"
    assert world.book.counts()["done"] == 1


async def test_matcher_that_pays_us_nothing_keeps_nothing_from_being_done(world: World) -> None:
    known_for_long(world, rate_bps=ALL)
    world.mute = [UsageError("this matcher does not pay us", "")]
    sign_one(world)
    await world.watcher.step()
    assert world.looks == [frozenset({0, 1})]
    assert world.handed == []
    assert world.book.counts()["done"] == 1


async def test_matcher_that_speaks_of_the_chain_holds_up_no_other_job(world: World) -> None:
    known_for_long(world, rate_bps=ALL)
    lost = ChainUnreachable("no answer", "so the matcher says")
    world.mute, world.unheard = [lost, lost], [lost]
    for job in (JOB, OTHER):
        world.chain.match_for(job)
        world.chain.tell("JobDelivered", job)
    await world.watcher.step()
    assert len(world.looks) == 2
    world.clock.slept.append(1000)
    await world.watcher.step()
    assert [request for request, _, _ in world.handed] == [1], "one of them is still to be heard"
    assert world.book.counts() == {"running": 0, "due": 1, "done": 1, "given up": 0}


async def test_lots_of_requests_that_nobody_signed_are_not_believed(world: World) -> None:
    known_for_long(world)
    world.lots = frozenset({1, 7})
    sign_one(world)
    await world.watcher.step()
    assert world.looks == [frozenset({1})]
    assert world.book.paid_lots() == (1, 1)


async def test_matcher_is_not_asked_about_orders_that_name_somebody_else(world: World) -> None:
    known_for_long(world, serves=[key(91).address])
    world.mute = [GONE]
    sign_one(world, auditor=key(90).address, requester=key(91).address)
    await world.watcher.step()
    assert world.looks == []
    assert world.mute == [GONE], "nobody asked"
    assert world.book.counts()["done"] == 1


@pytest.mark.parametrize(
    ("stages", "found", "stage"),
    [
        ([finding(0, [4]), finding(1, [4])], AuditEnd.CLEAN, 0),
        ([finding(0, [4]), *(finding(s, [4], fault=True) for s in (1, 2))], AuditEnd.FAULT, 1),
        ([finding(0, [], withheld="gone"), finding(1, [4])], AuditEnd.WITHHELD, 0),
        ([finding(0, [], withheld="gone"), finding(1, [4], fault=True)], AuditEnd.FAULT, 1),
        ([finding(0, [4, 5], withheld="gone later"), finding(1, [4])], AuditEnd.CLEAN, 0),
    ],
)
def test_verdict_of_a_request_is_its_own(stages: Any, found: AuditEnd, stage: int) -> None:
    verdict = request_verdict(stages, 4, is_shadow=False)
    assert (verdict.found, verdict.stage) == (found, stage)
    assert request_verdict(stages, 4, is_shadow=True).found is AuditEnd.SHADOW


# --- with real stages ---


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=6)


@pytest.fixture
async def liars(model_dir: Path) -> AsyncIterator[Keepers]:
    def spoil(stage: int, shard: Any) -> None:
        if stage == 1:
            corrupt_layer(shard, 3)

    keepers = await asyncio.to_thread(run_pipeline, model_dir, spoil=spoil)
    await keepers.start()
    yield keepers
    await keepers.close()


async def test_liar_among_real_stages_is_named_and_float64_is_spent_on_nobody_else(
    liars: Keepers, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders.at(tmp_path)
    settings = load(flags={"network.models.tiny": MODEL_ID}, environ={}, folders=folders)
    (folders.cache / "models").mkdir(parents=True)
    (folders.cache / "models" / "tiny").symlink_to(model_dir)
    roots = dict(zip(SPANS, shard_roots(model_dir), strict=True))
    chain = FakeChain(shard_root_of=lambda *span: roots[span])
    chain.match(liars.case.order, liars.case.plan)
    chain.emit("TaskRegistry", "JobDelivered", job=liars.case.job_id)
    context = Context(settings, chain)

    class Miners:
        async def miners(self) -> list[dict[str, Any]]:
            known = liars.evidence()._endpoints
            return [{"operator": o, "endpoint": e} for o, e in known.items()]

        async def close(self) -> None: ...

    monkeypatch.setattr(Context, "matcher", lambda self: Miners())
    run: Any = SimpleNamespace(settings=settings)
    work = _Work(run, context, REQUESTER, {})
    book = WatchBook(tmp_path / "watch.sqlite")
    follower = EventFollower(chain, start_block=1)
    callbacks = Callbacks(work.receipts_of, work.look, work.accuse)
    around = (chain, book, InstantClock(), follower, callbacks)
    watcher = Watcher(*around, auditor=REQUESTER.address, rate_bps=ALL)
    await watcher.step()
    verdicts = list(reversed(book.verdicts()))
    assert [v.found for v in verdicts] == [AuditEnd.CLEAN, AuditEnd.FAULT, AuditEnd.CLEAN]
    assert [v.in_float64 for v in verdicts] == [0, 2, 0]
    assert verdicts[1].operator == liars.operators[1].address.lower()
    assert book.undisputed() == [(liars.case.job_id, 1)]
    book.close()
