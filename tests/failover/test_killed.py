"""A machine dies at any moment of an answer: it goes on from where it stood, and everybody gets what is theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from client.orders import Prompt
from core.protocol import wire
from core.protocol.errors import NoCapacity
from tests.failover.books import check_money, check_receipts
from tests.failover.town import Mortal, Town, Watch, prompts

CUTS = ((0, 2), (2, 4), (4, 6))
TOKENS = 24


def check_answers(town: Town, watch: Watch, batch: list[Prompt]) -> None:
    for index, prompt in enumerate(batch):
        assert watch.tokens[prompt.custom_id] == town.expected(prompt, index)
    assert set(watch.ended) == {prompt.custom_id for prompt in batch}


def carried(town: Town) -> int:
    return sum(m.stage.counts["requests_carried_over"] for m in town.machines)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "seeded"])
@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_any_stage_is_killed_in_mid_answer(town: Town, stage: int, sampled: bool) -> None:
    await town.start(*CUTS, CUTS[stage])
    batch, watch = prompts(3, tokens=TOKENS, sampled=sampled), Watch()
    running = town.begin(batch, watch)
    await watch.until(lambda: all(watch.count(p.custom_id) >= 6 for p in batch))
    dead = town.matches[0].plan[stage].operator
    await town.machine(dead).kill()
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    one, two = town.matches
    assert [a == b for a, b in zip(one.plan, two.plan, strict=True)] == [
        s != stage for s in range(3)
    ], "whoever is left stays in its place"
    assert carried(town) == 3 * 2, "and recomputes nothing"
    assert not any(m.stage.counts["rows_replaced"] for m in town.machines)
    assert two.signed.order.max_tokens_out == 3 * TOKENS - town.acks[one.job_id].tokens_out
    check_money(town, result, watch)
    check_receipts(town, {dead})


Moment = Callable[[Town, Watch, Mortal], Awaitable[None]]


async def before_prefill(town: Town, watch: Watch, victim: Mortal) -> None:
    """Its order is open, no prompt has come."""
    await watch.until(lambda: bool(watch.opened))
    await victim.kill()


def on(message: type[wire.AnyMessage], count: int = 1) -> Moment:
    """When the machine has taken so many of these messages."""

    async def moment(town: Town, watch: Watch, victim: Mortal) -> None:
        handle, seen = victim.stage.handle, asyncio.Event()
        left = count

        async def spy(channel: object, frame: wire.Frame) -> object:
            nonlocal left
            answer = await handle(channel, frame)  # type: ignore[arg-type]
            if isinstance(frame.message, message):
                left -= 1
                if not left:
                    seen.set()
                    await asyncio.Event().wait()  # it says no more
            return answer

        victim.listener._handler = spy  # type: ignore[assignment]
        await seen.wait()
        await victim.kill()

    return moment


@pytest.mark.parametrize(
    ("stage", "moment"),
    [
        (0, before_prefill),
        (1, before_prefill),
        (2, before_prefill),
        (0, on(wire.Submit)),
        (2, on(wire.Submit)),
        (1, on(wire.Activations)),
        (2, on(wire.Activations, 2)),
        (0, on(wire.Token)),
        (1, on(wire.FinishRequest)),
        (2, on(wire.FinishRequest)),
    ],
    ids=[
        "first, before the prompt",
        "middle, before the prompt",
        "last, before the prompt",
        "first, as it takes the prompt",
        "last, as it takes the prompt",
        "middle, in the prompt",
        "last, in the prompt",
        "first, at the first token",
        "middle, at the last token",
        "last, at the last token",
    ],
)
async def test_a_stage_is_killed_at_every_phase(town: Town, stage: int, moment: Moment) -> None:
    machines = await town.start(*CUTS, CUTS[stage])
    batch, watch = prompts(2, tokens=6, prompt_tokens=200), Watch()
    killing = asyncio.create_task(moment(town, watch, machines[stage]))
    result = await town.begin(batch, watch)
    await killing
    assert not result.unfinished
    check_answers(town, watch, batch)
    check_money(town, result, watch)


async def test_two_stages_are_killed_at_once(town: Town) -> None:
    await town.start(*CUTS, CUTS[0], CUTS[2])
    batch, watch = prompts(3, tokens=TOKENS), Watch()
    running = town.begin(batch, watch)
    await watch.until(lambda: all(watch.count(p.custom_id) >= 5 for p in batch))
    dead = {town.matches[0].plan[stage].operator for stage in (0, 2)}
    await asyncio.gather(*(town.machine(one).kill() for one in dead))
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    assert carried(town) == 3, "the one in the middle recomputes nothing"
    check_money(town, result, watch)
    check_receipts(town, dead)


async def test_the_stand_in_dies_as_well_and_answers_go_on(town: Town) -> None:
    await town.start(*CUTS, (2, 4), (2, 4))
    batch, watch = prompts(2, tokens=TOKENS), Watch()
    running = town.begin(batch, watch)
    dead = set()
    for done in (5, 12):
        await watch.until(lambda done=done: all(watch.count(p.custom_id) >= done for p in batch))
        dead.add(town.matches[-1].plan[1].operator)
        await town.machine(town.matches[-1].plan[1].operator).kill()
    result = await running
    assert len(town.matches) == 3
    check_answers(town, watch, batch)
    assert carried(town) == 2 * 2 * 2
    check_money(town, result, watch)
    check_receipts(town, dead)


async def test_answers_that_went_on_twice_are_drawn_with_the_first_orders_noise(
    town: Town,
) -> None:
    """The second order holds fewer requests, so that its indices are others."""
    await town.start(*CUTS, CUTS[1])
    short, *long = prompts(3, tokens=TOKENS, sampled=True)
    short = prompts(1, tokens=3)[0]
    batch, watch = [short, *long], Watch()
    running = town.begin(batch, watch)
    await watch.until(lambda: "p0" in watch.ended and min(map(watch.count, ("p1", "p2"))) >= 4)
    await town.machine(town.matches[0].plan[1].operator).kill()
    result = await running
    check_answers(town, watch, batch)
    check_money(town, result, watch)
    assert town.matches[1].signed.order.requests == 2


async def test_without_a_stand_in_what_was_given_is_kept_and_paid(town: Town) -> None:
    await town.start(*CUTS)
    batch, watch = prompts(2, tokens=TOKENS), Watch()
    running = town.begin(batch, watch)
    await watch.until(lambda: all(watch.count(p.custom_id) >= 6 for p in batch))
    dead = town.matches[0].plan[1].operator
    await town.machine(dead).kill()
    result = await running
    assert all(isinstance(error, NoCapacity) for error in result.unfinished.values())
    assert set(result.unfinished) == {"p0", "p1"}
    check_money(town, result, watch)
    check_receipts(town, {dead})


async def test_a_single_stage_that_holds_the_whole_model_is_replaced(town: Town) -> None:
    await town.start((0, 6), (0, 6))
    batch, watch = prompts(2, tokens=TOKENS), Watch()
    running = town.begin(batch, watch)
    await watch.until(lambda: all(watch.count(p.custom_id) >= 6 for p in batch))
    await town.machine(town.matches[0].plan[0].operator).kill()
    result = await running
    check_answers(town, watch, batch)
    check_money(town, result, watch)


async def test_a_plan_with_other_cuts_recomputes_and_gives_the_same(town: Town) -> None:
    await town.start(*CUTS, (0, 3), (3, 6))
    batch, watch = prompts(2, tokens=TOKENS), Watch()
    running = town.begin(batch, watch)
    await watch.until(lambda: all(watch.count(p.custom_id) >= 6 for p in batch))
    await town.machine(town.matches[0].plan[1].operator).kill()
    result = await running
    check_answers(town, watch, batch)
    assert carried(town) == 0
    check_money(town, result, watch)
