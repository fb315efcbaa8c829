"""A matcher that fails at any point costs no line, no stage its pay, and no line is paid twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from client.jobs.batch import Policy, Requester, Unwatched, nothing_new, take_up
from client.orders.matchers import Matchers
from client.orders.orders import PromptBatch, make_order
from client.records.store import ClientStore
from client.sessions.answering import Said
from core.money import pricing
from core.protocol import signing
from core.protocol.errors import ContractRefused, HeadraceError, UsageError
from core.protocol.units import NANO
from tests.failover.clerks import (
    CUTS,
    FROZEN,
    FULL,
    GARBAGE,
    KILLED,
    POINTS,
    Clerk,
    Hasty,
    dues,
    matchers_of,
    policy_of,
    time_passes,
    tokens_paid,
)
from tests.town.chain import PREPAID
from tests.town.orders import DOMAIN, REQUESTER, key
from tests.town.town import Town, Watch, offer, prompts
from tests.town.village import Village, ask, hear

LINES, TOKENS = 3, 12


def check_answers(town: Town, watch: Watch) -> None:
    """No line is lost, and each is what one undisturbed job would have said."""
    for index, prompt in enumerate(prompts(LINES, tokens=TOKENS)):
        assert watch.tokens[prompt.custom_id] == town.expected(prompt, index)


def check_paid(town: Town, watch: Watch) -> None:
    """Each token is paid once, to every stage that served it; the requester has the rest."""
    given = sum(len(tokens) for tokens in watch.tokens.values())
    assert sum(tokens_paid(town).values()) == given
    expected, spent = dues(town)
    assert town.chain.earned == expected
    has = town.prepaid + town.chain.usd[REQUESTER.address] * NANO
    assert has == PREPAID * NANO - spent - sum(town.chain.locked.values())


@pytest.mark.parametrize(("point", "how"), POINTS, ids=[" ".join(one) for one in POINTS])
async def test_a_batch_goes_on_with_the_second_wherever_the_first_one_fails(
    town: Town, point: str, how: str
) -> None:
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    first.fails, watch = (point, how), Watch()
    matchers = matchers_of(first, second)
    result = await town.begin(prompts(LINES, tokens=TOKENS), watch, **policy_of(matchers))
    assert not result.unfinished
    check_answers(town, watch)
    served = [match.signed.order.matcher for match in watch.opened]
    assert served == ([first.address] if point in ("ack", "quote") else [second.address])
    first.wake()
    await time_passes(town)
    check_paid(town, watch)
    for signed in first.orders:  # it opens nothing any more
        assert (REQUESTER.address, signed.order.nonce) in town.chain.used_nonces
    called = [function for _, function, *_ in town.chain.sent]
    assert "revokeNonce" not in called, "the order that followed has its nonce"


@pytest.mark.parametrize("how", [KILLED, FROZEN])
async def test_a_pipeline_that_breaks_after_its_matcher_goes_on_with_the_other_one(
    town: Town, how: str
) -> None:
    await town.start(*CUTS)
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    watch, matchers = Watch(), matchers_of(first, second)
    asked = prompts(LINES, tokens=TOKENS)
    running = await town.under_way(asked, watch, done=3, **policy_of(matchers))
    first.fails, first.is_gone = ("order", how), how
    lost = town.machine(town.matches[0].plan[1].operator)
    await lost.kill()
    town.machines.remove(lost)
    result = await running
    town.machines.append(lost)
    assert not result.unfinished
    check_answers(town, watch)
    assert [m.signed.order.matcher for m in watch.opened] == [first.address, second.address]
    await time_passes(town)
    check_paid(town, watch)


async def test_a_matcher_that_wakes_up_opens_nothing_of_what_went_on_elsewhere(town: Town) -> None:
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    first.fails, watch = ("order", FROZEN), Watch()
    policy = policy_of(matchers_of(first, second))
    result = await town.begin(prompts(LINES, tokens=TOKENS), watch, **policy)
    assert not result.unfinished
    first.wake()
    (signed,) = first.orders
    with pytest.raises(UsageError, match="used already"):
        await first.open_job(signed, DOMAIN)
    with pytest.raises(ContractRefused, match="NonceUsedAlready"):
        await town._send("openMatched", signed.order, signed.signature, town.matches[0].plan)
    check_paid(town, watch)
    assert not town.store.orders(), "nothing is left to look for"


async def test_one_that_opens_jobs_with_machines_that_do_nothing_gets_one_of_them(
    town: Town,
) -> None:
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    dead, watch = list(town.machines), Watch()
    asked = prompts(LINES, tokens=TOKENS)

    async def swap(plan: object) -> None:
        for machine in dead:
            await machine.kill()
        town.machines.clear()
        await town.start(*CUTS)

    town.when_matched = swap
    result = await town.begin(asked, watch, **policy_of(matchers_of(first, second)))
    assert not result.unfinished
    assert len(first.orders) == 1, "what gave nothing is not ordered there again"
    assert len(second.orders) == 1
    town.machines += dead
    check_answers(town, watch)


async def test_all_that_fail_are_told_by_the_first_ones_reason_and_nothing_is_left(
    town: Town,
) -> None:
    await town.start(*CUTS)
    clerks = [Clerk(town, number) for number in range(3)]
    for clerk in clerks:
        clerk.fails = ("order", KILLED)
    with pytest.raises(HeadraceError, match="no answer from the matcher"):
        await town.begin(prompts(1), Watch(), **policy_of(matchers_of(*clerks)))
    orders = [signed.order for clerk in clerks for signed in clerk.orders]
    assert len(orders) == 3 and len({order.nonce for order in orders}) == 1
    assert town.chain.used_nonces == {(REQUESTER.address, orders[0].nonce)}
    assert [function for _, function, *_ in town.chain.sent] == ["revokeNonce"]
    assert town.prepaid == PREPAID * NANO
    assert not town.store.orders()
    job_ids = {signing.job_id(DOMAIN, order) for order in orders}
    assert not job_ids & town.chain.jobs.keys()


async def test_of_two_orders_for_the_same_lines_one_can_be_opened_so_one_lock_is_enough(
    town: Town,
) -> None:
    """Without gas and with money for one order alone: they have one nonce."""
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    first.fails, watch = ("order", KILLED), Watch()
    town.chain.refusals["revokeNonce"] = ContractRefused("no gas", error="out of gas")
    asked = prompts(LINES, tokens=TOKENS)
    batch = PromptBatch.of(asked)
    model = signing.model_id(town.spec), town.spec
    order = make_order(batch, *model, offer(0), REQUESTER.address, 1)
    town.chain.prepaid[REQUESTER.address] = pricing.max_amount(order, town.spec)
    policy = policy_of(matchers_of(first, second)) | {"deposit_missing": False}
    assert not (await town.begin(asked, watch, **policy)).unfinished
    check_answers(town, watch)
    assert not town.store.orders()


async def test_a_matcher_that_wakes_up_first_opens_the_one_order_and_gets_nothing_for_it(
    town: Town,
) -> None:
    """It opens while the second one is asked: the requester goes on with a nonce of its own."""
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    first.fails, watch = ("opened", KILLED), Watch()
    result = await town.begin(
        prompts(LINES, tokens=TOKENS), watch, **policy_of(matchers_of(first, second))
    )
    assert not result.unfinished
    nonces = [signed.order.nonce for clerk in (first, second) for signed in clerk.orders]
    assert nonces[0] == nonces[1] != nonces[2], "the second is asked anew, and is not to blame"
    (left,) = town.store.orders()
    assert left.submission == "", "nobody takes up the lines that another order answered"
    first.wake()
    await time_passes(town)
    assert tokens_paid(town)[left.job_id] == 0
    check_paid(town, watch)


SESSION_POINTS = [("quote", KILLED), ("order", KILLED), ("order", FROZEN), ("order", FULL)]
SESSION_POINTS += [("order", GARBAGE), ("opened", KILLED), ("ack", KILLED)]


def two_clerks(village: Village, monkeypatch: pytest.MonkeyPatch) -> tuple[Clerk, Clerk]:
    """The requester's programs ask these two, in this order."""
    first, second = Clerk(village, 0), Clerk(village, 1)
    monkeypatch.setattr(village, "matchers", lambda: matchers_of(first, second))
    return first, second


@pytest.mark.parametrize(
    ("point", "how"), SESSION_POINTS, ids=[" ".join(one) for one in SESSION_POINTS]
)
async def test_a_session_is_opened_by_the_second_wherever_the_first_one_fails(
    village: Village, monkeypatch: pytest.MonkeyPatch, point: str, how: str
) -> None:
    first, _ = two_clerks(village, monkeypatch)
    first.fails = (point, how)
    await village.start(*CUTS)
    sessions = village.sessions(clock=Hasty())
    (prompt,) = prompts(1, tokens=TOKENS)
    heard = await hear(sessions.answer(ask(village, prompt)))
    assert heard.tokens == village.expected(prompt, 0)
    await sessions.close()
    village.running.clear()
    first.wake()
    await time_passes(village)
    check_counted(village, TOKENS)
    for signed in first.orders:
        assert (REQUESTER.address, signed.order.nonce) in village.chain.used_nonces
    kept = ClientStore(village.folder / "client.sqlite")
    assert len(kept.orders()) == (point == "opened"), "what the first one opened gave nothing"
    kept.close()


async def test_an_answer_goes_on_with_the_other_matcher_in_its_middle(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_clerks(village, monkeypatch)
    await village.start(*CUTS)
    await village.start(*CUTS)
    sessions = village.sessions(clock=Hasty())
    (prompt,) = prompts(1, tokens=TOKENS)
    said: list[int] = []
    with village.held(TOKENS // 2):
        answer = sessions.answer(ask(village, prompt))
        async for item in answer:
            assert isinstance(item, Said)
            said.append(item.token)
            if len(said) == TOKENS // 2 - 2:
                break
        first.fails, first.is_gone = ("order", KILLED), KILLED
        await village.machine(village.matches[0].plan[1].operator).kill()
    said += [item.token async for item in answer if isinstance(item, Said)]
    assert said == village.expected(prompt, 0)
    served = [match.signed.order.matcher for match in village.matches]
    assert served == [first.address, second.address]
    await sessions.close()
    village.running.clear()
    await time_passes(village)
    check_counted(village, TOKENS)


async def test_a_session_holds_back_what_an_order_that_is_not_revoked_would_lock(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None opens it, and none follows: so it may be opened until its deadline."""
    clerks = two_clerks(village, monkeypatch)
    for clerk in clerks:
        clerk.fails = ("order", KILLED)
    village.chain.refusals["revokeNonce"] = ContractRefused("no gas", error="out of gas")
    await village.start(*CUTS)
    sessions = village.sessions(clock=Hasty())
    (prompt,) = prompts(1, tokens=TOKENS)
    with pytest.raises(HeadraceError, match="no answer from the matcher"):
        await hear(sessions.answer(ask(village, prompt)))
    orders = [signed.order for clerk in clerks for signed in clerk.orders]
    lock = pricing.max_amount(orders[0], village.spec)
    assert len({order.nonce for order in orders}) == 1
    assert sessions._held_units() == lock
    await village.chain.clock.advance(orders[0].deadline)
    sessions._chain_ahead_s = await village.chain.now() - time.monotonic()
    assert sessions._held_units() == 0, "after its deadline nobody opens it"


def check_counted(town: Town, tokens_out: int) -> None:
    """The chain counts each token of the answers once."""
    assert sum(tokens_paid(town).values()) == tokens_out


async def test_a_program_that_died_after_it_ordered_takes_up_nothing_that_nobody_answers(
    town: Town,
) -> None:
    """Its matcher is gone: the order is revoked, and its lines can be ordered anew, once."""
    await town.start(*CUTS)
    first, second = Clerk(town, 0), Clerk(town, 1)
    first.fails = ("order", FROZEN)
    matchers = Matchers([(first, None)])  # type: ignore[list-item]
    running = town.begin(prompts(LINES, tokens=TOKENS), Watch(), **policy_of(matchers))
    async with asyncio.timeout(30):
        while not first.orders:
            await asyncio.sleep(0.01)
    running.cancel()  # as a killed program: the order is written down, nothing else is known
    await asyncio.gather(running, return_exceptions=True)
    (left,) = town.store.orders()
    assert left.submission == "sub"
    first.fails = ("order", KILLED)
    first.is_gone = KILLED
    requester = Requester(
        town.chain,
        matchers_of(first, second),
        REQUESTER,
        town.store,
        Hasty(),
        signing.model_id(town.spec),
        town.spec,
    )
    await take_up(requester, Policy(terms_of=nothing_new), Unwatched(), "sub")
    assert not town.store.orders()
    order = first.orders[0].order
    assert (order.requester, order.nonce) in town.chain.used_nonces
    assert town.prepaid == PREPAID * NANO


async def test_quotes_of_one_that_rests_are_not_waited_for(town: Town) -> None:
    first, second = Clerk(town, 0), Clerk(town, 1)
    first.fails = ("quote", KILLED)
    matchers = matchers_of(first, second)
    found = await asyncio.gather(*(matchers.quote("", 1, 1) for _ in range(3)))
    assert {quote.matcher for quote in found} == {second.address}
    await matchers.quote("", 1, 1)
    assert first.quotes == 3, "it rests"


async def test_two_matchers_that_promise_the_same_slots_lose_no_line_and_pay_none_twice(
    town: Town,
) -> None:
    """Each sees one free slot at each machine, and neither sees the other's orders."""
    await town.start(*CUTS, max_requests=1)
    other = key(52)
    town.chain.prepaid[other.address] = PREPAID
    parties = [(Clerk(town, 0), REQUESTER), (Clerk(town, 1), other)]
    asked, watches = prompts(LINES, tokens=TOKENS), [Watch() for _ in parties]
    running = [
        town.begin(asked, watch, in_flight=2, signer=signer, **policy_of(matchers_of(clerk)))
        for (clerk, signer), watch in zip(parties, watches, strict=True)
    ]
    results = await asyncio.gather(*running)
    assert not any(result.unfinished for result in results)
    for watch in watches:
        check_answers(town, watch)
    given = sum(len(tokens) for watch in watches for tokens in watch.tokens.values())
    assert sum(tokens_paid(town).values()) == given
    assert len(town.matches) == 2, "nobody had to order again"
