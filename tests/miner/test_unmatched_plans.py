"""A stage signs for a plan only when it found it matched on chain.

Its acceptance is not on chain, so this protects it: what a matcher opens is up to the matcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from core.keys.signer import Signer
from core.protocol import signing, wire
from core.protocol import types as t
from core.protocol.errors import CheckFailed
from core.protocol.types import JobState
from miner.chain import admission
from miner.chain.onchain import JobNews
from miner.daemon.claims import Claims
from miner.serving.job_table import JOB_OVER, NOT_MATCHED
from miner.serving.request_state import RequestPhase
from miner.serving.stage import WRONG_PLACE
from tests.core.protocol.test_wire import MESSAGES
from tests.miner.conftest import Start
from tests.miner.test_open_orders import Asker
from tests.town.chain import CLOSE_DELAY_S, ChainJob, FakeChain
from tests.town.machines import Machine, greedy
from tests.town.orders import key
from tests.town.requester import Requester

MATCHER, REQUESTER = key(40), key(50)
NOTHING_DONE = (
    wire.Failed,
    wire.Finished,
    wire.Receipts,
    wire.ProposalWithdrawn,
    type(None),
)


class Counted:
    """A key that counts what it signs."""

    def __init__(self, signer: Signer) -> None:
        self._signer, self.signed = signer, 0

    @property
    def address(self) -> str:
        return self._signer.address

    def sign_digest(self, digest: bytes) -> bytes:
        self.signed += 1
        return self._signer.sign_digest(digest)


class Said:
    """As much of a stream as a handler needs."""

    is_open = True

    def __init__(self, peer: str) -> None:
        self.peer = peer


def count(machine: Machine) -> Counted:
    machine.book.signer = counted = Counted(machine.signer)
    return counted


def batch(chain: FakeChain, machines: Sequence[Machine], **changes: Any) -> Requester:
    requester = Requester(REQUESTER, chain, machines)
    requester.order([([5, 6, 7], greedy(4)), ([65], greedy(4))], **changes)
    return requester


def session(chain: FakeChain, machines: Sequence[Machine]) -> Requester:
    asker = Asker(REQUESTER, chain, machines)
    asker.open_order()
    for index in range(2):
        asker.prompt(index)
    return asker


def forget_refusals(requester: Requester) -> None:
    """As if the second had gone by in which a stage does not ask the chain again."""
    for machine in requester.machines:
        for job in machine.table.jobs.values():
            job.refused_at = float("-inf")


def reasons(answers: Sequence[Any]) -> list[tuple[str, str]]:
    return [(a.code, a.reason) if isinstance(a, wire.Failed) else ("", "") for a in answers]


async def accept(requester: Requester) -> None:
    for answer in await requester.propose(MATCHER):
        assert isinstance(answer, wire.Accepted), answer


async def say_everything(requester: Requester) -> None:
    """All that client, matcher and stages can say about the job, to every stage."""
    about = [
        msgspec.structs.replace(m, order_hash=requester.order_hash)
        for m in MESSAGES
        if "order_hash" in m.__struct_fields__
    ]
    prompt, payload = requester.submission(0)
    for stage, machine in enumerate(requester.machines):
        said = [
            requester.opening(stage),
            prompt,
            *about,
            wire.CloseJob(requester.order_hash, [0]),
            wire.Cut(requester.order_hash, 0, 3, 4),
            wire.GoesOn(requester.order_hash, 0, requester.order_hash, 1),
            wire.Activations(requester.order_hash, request=0, start=0, rows=1),
            wire.FinishRequest(requester.order_hash, request=0, tokens_in=3, tokens_out=4),
            wire.Token(requester.order_hash, 0, 0, 5, ""),
        ]
        peers = {REQUESTER, MATCHER, *(m.signer for m in requester.machines)}
        for peer in peers:
            for message in said:
                forget_refusals(requester)
                body = memoryview(payload if isinstance(message, wire.Submit) else bytes(256))
                channel: Any = Said(peer.address)
                answer = await machine.stage.handle(channel, wire.Frame(message, body))
                assert isinstance(answer, NOTHING_DONE), (message, answer)
                assert not getattr(answer, "requests", []) and not getattr(answer, "signed", [])


@pytest.mark.parametrize("order", [batch, session], ids=["batch", "session"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("case", ["not opened", "another plan", "not read"])
async def test_whatever_is_said_nothing_is_signed_until_the_plan_is_on_chain(
    start: Start, chain: FakeChain, order: Any, is_restarted: bool, case: str
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = order(chain, machines)
    await accept(requester)
    counted = [count(machine) for machine in machines]
    if is_restarted:
        for machine in machines:
            machine.table.jobs.clear()
    if case == "another plan":
        other = tuple(requester.plan[:1])
        chain.match(requester.signed.order, other, requester.job_id)
    chain.is_down = case == "not read"

    await say_everything(requester)

    assert [one.signed for one in counted] == [0, 0]
    assert not any(machine.table.active_requests for machine in machines)
    assert not any(m.store.receipts(requester.order_hash, requester.plan_hash) for m in machines)
    assert not any(m.store.live_jobs() for m in machines)
    forget_refusals(requester)
    why = reasons(await requester.open())
    wanted = {
        "not opened": (NOT_MATCHED, "on chain the order was not opened"),
        "another plan": (
            NOT_MATCHED,
            "on chain the order's nonce is used, but not for a plan that was accepted here",
        ),
    }
    assert why == [wanted[case]] * 2 if case in wanted else [c for c, _ in why] == ["E-NET-01"] * 2
    await requester.close()

    chain.is_down = False
    requester.match()
    for machine in machines:  # Cancel was among what was said
        machine.table.jobs.clear()
    assert all(isinstance(a, wire.JobOpened) for a in await requester.open())
    await requester.submit(0)
    await requester.finished([0])
    assert all(one.signed for one in counted)
    await requester.close()


async def test_the_plan_that_is_on_chain_is_worked_for_whichever_was_accepted_last(
    start: Start, chain: FakeChain
) -> None:
    first, one, other = await start((0, 2), (2, 4), (2, 4))
    matched, later = batch(chain, [first, one]), batch(chain, [first, other])
    assert matched.order_hash == later.order_hash
    await accept(matched)
    await accept(later)
    matched.match()
    (wrong_plan, not_its) = await later.open()
    assert isinstance(wrong_plan, wire.Failed) and wrong_plan.code == WRONG_PLACE
    assert isinstance(not_its, wire.Failed) and not_its.code == NOT_MATCHED
    await later.close()

    assert all(isinstance(a, wire.JobOpened) for a in await matched.open())
    await matched.submit(0)
    await matched.finished([0])
    found = [matched.receipts[0][stage].receipt.plan_hash for stage in (0, 1)]
    assert found == [matched.plan_hash] * 2
    assert first.store.receipts(later.order_hash, later.plan_hash) == []
    assert [job.plan_hash for job in first.store.live_jobs()] == [matched.plan_hash]
    assert not other.store.live_jobs()
    await matched.close()


async def test_after_a_restart_the_plan_is_found_among_all_that_were_accepted(
    start: Start, chain: FakeChain
) -> None:
    first, one, other = await start((0, 2), (2, 4), (2, 4))
    matched, later = batch(chain, [first, one]), batch(chain, [first, other])
    await accept(matched)
    await accept(later)
    await first.stop()
    await first.start(t.LayerRange(0, 2))
    matched.match()
    assert all(isinstance(a, wire.JobOpened) for a in await matched.open())
    assert first.table.jobs[matched.order_hash].stored.plan_hash == matched.plan_hash
    await matched.close()


async def test_a_late_read_lets_nothing_be_signed_for_a_second_plan(
    start: Start, chain: FakeChain
) -> None:
    """The node says that an order is not opened, when it is: with the plan that was worked for, or
    with one that was never accepted here.
    """
    first, one, other = await start((0, 2), (2, 4), (2, 4))
    done, later = batch(chain, [first, one]), batch(chain, [first, other])
    await done.run_all(MATCHER)
    chain.answers["TaskRegistry.isNonceUsed"] = False
    for machine in (first, one):
        machine.table.jobs.clear()
    (used, accepted) = await later.propose(MATCHER)
    assert isinstance(used, wire.Failed) and used.code == admission.USED
    assert isinstance(accepted, wire.Accepted), "this stage has no way of knowing"
    counted = count(other)
    forget_refusals(later)
    await later.connect()
    answer = (await later.channels[1].call(later.opening(1))).message
    assert isinstance(answer, wire.Failed) and answer.code == NOT_MATCHED
    assert not counted.signed
    await later.close()
    await done.close()


async def test_a_plan_that_is_seen_late_is_worked_for_once_it_is_seen(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = batch(chain, machines)
    await accept(requester)
    requester.match()
    chain.answers["TaskRegistry.jobOf"] = lambda *_: {"state": int(JobState.NONE)}
    assert [code for code, _ in reasons(await requester.open())] == [NOT_MATCHED] * 2
    await requester.close()
    del chain.answers["TaskRegistry.jobOf"]
    forget_refusals(requester)
    assert all(isinstance(a, wire.JobOpened) for a in await requester.open())
    await requester.close()


async def test_a_proposal_that_is_judged_while_the_job_is_found_on_chain_does_not_replace_it(
    start: Start, chain: FakeChain
) -> None:
    first, one, other = await start((0, 2), (2, 4), (2, 4))
    matched, later = batch(chain, [first, one]), batch(chain, [first, other])
    await accept(matched)
    view = first.chain.view

    async def late(*args: Any) -> Any:
        seen = await view(*args)
        matched.match()
        await first.table.prove(matched.order_hash)
        return seen

    first.chain.view = late  # type: ignore[method-assign, assignment]
    (used, _) = await later.propose(MATCHER)
    assert isinstance(used, wire.Failed) and used.code == admission.USED
    job = first.table.jobs[matched.order_hash]
    assert (job.is_verified, job.stored.plan_hash) == (True, matched.plan_hash)


@pytest.mark.parametrize("order", [batch, session], ids=["batch", "session"])
async def test_work_stops_when_a_reorganisation_takes_the_match_and_goes_on_with_it(
    start: Start, chain: FakeChain, order: Any
) -> None:
    machines = await start((0, 2), (2, 4))
    requester = order(chain, machines)
    await accept(requester)
    requester.match()
    await requester.open()
    await requester.submit(0)
    await requester.finished([0])
    chain.jobs.clear()
    for machine in machines:
        await machine.table.ask_again()
    counted = [count(machine) for machine in machines]
    refused = reasons(await requester.submit(1))
    assert [code for code, _ in refused] == [NOT_MATCHED] * 2
    for channel in requester.channels:
        for ask in (
            wire.CloseJob(requester.order_hash, [0]),
            wire.Cut(requester.order_hash, 0, 3, len(requester.tokens[0])),
        ):
            assert isinstance((await channel.call(ask)).message, wire.Failed)
    assert [one.signed for one in counted] == [0, 0]

    requester.match()
    forget_refusals(requester)
    assert all(isinstance(a, wire.Submitted) for a in await requester.submit(1))
    await requester.finished([1])
    assert all(one.signed for one in counted)
    await requester.close()


async def test_another_plan_after_a_reorganisation_takes_the_place_of_the_one_before(
    start: Start, chain: FakeChain
) -> None:
    first, one, other = await start((0, 2), (2, 4), (2, 4))
    gone, now = batch(chain, [first, one]), batch(chain, [first, other])
    await accept(gone)
    await accept(now)
    gone.match()
    await gone.open()
    await gone.submit(0)
    await gone.finished([0])
    await gone.channels[0].call(*gone.submission(1))  # and this one only waits
    before = first.table.jobs[gone.order_hash]

    now.match()
    for machine in (first, one, other):
        await machine.table.hear(JobNews(now.job_id, JobState.MATCHED, now.plan_hash))
    assert not before.runs and set(before.over) <= {1}
    assert before.over.get(1, RequestPhase.CANCELLED) is RequestPhase.CANCELLED
    counted = count(one)
    ask = wire.CloseJob(gone.order_hash, [0])
    assert isinstance((await gone.channels[1].call(ask)).message, wire.Failed)
    forget_refusals(gone)
    answer = (await gone.channels[1].call(gone.opening(1))).message
    assert isinstance(answer, wire.Failed) and answer.code == NOT_MATCHED
    assert not counted.signed
    await gone.close()

    assert all(isinstance(a, wire.JobOpened) for a in await now.open())
    assert first.table.jobs[now.order_hash].finished == set(), "the other plan's work is not its"
    await now.submit(0)
    await now.finished([0])
    assert {now.receipts[0][stage].receipt.plan_hash for stage in (0, 1)} == {now.plan_hash}
    await now.close()


async def test_a_job_that_is_over_with_the_accepted_plan_is_told_as_over(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 4))
    requester = batch(chain, machines)
    await accept(requester)
    requester.match(JobState.SETTLED)
    assert reasons(await requester.open()) == [
        (JOB_OVER, "on chain the job is settled, not matched")
    ]
    await requester.close()


async def test_the_keeper_of_the_key_refuses_a_plan_that_was_not_found(
    start: Start, chain: FakeChain
) -> None:
    (machine,) = await start((0, 4))
    requester = batch(chain, [machine])
    await accept(requester)
    counted, stored = count(machine), machine.table.jobs[requester.order_hash].stored
    leaf = t.RequestLeaf(0, t.ZERO_HASH, t.ZERO_HASH, 5, 4)
    with pytest.raises(CheckFailed, match="nothing is signed"):
        machine.book.word(stored, leaf, t.ZERO_HASH)
    with pytest.raises(CheckFailed, match="nothing is signed"):
        await machine.book.sign_over(stored, [0])
    assert not counted.signed


async def test_an_acknowledgement_is_brought_for_the_plan_on_chain_only(
    start: Start, chain: FakeChain
) -> None:
    machines = await start((0, 2), (2, 4))
    asker = Asker(REQUESTER, chain, machines)
    asker.open_order()
    chain.models[asker.signed.order.model_id] = machines[0].terms.spec
    chain.locked[asker.job_id] = 10**18
    await asker.begin()
    await asker.acknowledge(3, 4)
    machine = machines[0]
    async with asyncio.timeout(30):
        while machine.store.ack(asker.order_hash, asker.plan_hash) is None:
            await asyncio.sleep(0.01)
    of = machine.book, machine.peers, machine.table.is_running
    claims = Claims(chain, machine.signer, *of)
    due_s = asker.signed.order.deadline + CLOSE_DELAY_S // 2
    matched = chain.jobs[asker.job_id]
    chain.jobs[asker.job_id] = ChainJob(
        JobState.MATCHED, signing.plan_hash(asker.plan[:1]), matched.order, asker.plan[:1]
    )
    assert await claims.look(due_s) == 0
    assert "settleAck" not in chain.called
    chain.jobs[asker.job_id] = matched
    assert await claims.look(due_s) == 1
    assert (matched.tokens_in, matched.tokens_out) == (3, 4)
    await asker.close()
