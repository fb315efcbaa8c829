"""A machine dies at any moment of an answer: it goes on from where it stood, and everybody gets
what is theirs.
"""

from __future__ import annotations

import asyncio

import pytest

from client.orders.orders import Prompt
from core.protocol import wire
from core.protocol.errors import NoCapacity
from core.runtime.network.channel import Channel
from tests.clocks import Hasty
from tests.failover.books import check_money, check_receipts
from tests.town.machines import Machine
from tests.town.town import Town, Watch, prompts

CUTS = ((0, 2), (2, 4), (4, 6))
TOKENS = 64


def check_answers(town: Town, watch: Watch, batch: list[Prompt]) -> None:
    for index, prompt in enumerate(batch):
        assert watch.tokens[prompt.custom_id] == town.expected(prompt, index)
    assert set(watch.ended) == {prompt.custom_id for prompt in batch}


def carried(town: Town) -> int:
    return sum(m.stage.counts["requests_carried_over"] for m in town.machines)


@pytest.mark.parametrize(
    ("stage", "sampled"), [(0, False), (1, True), (2, False)], ids=["first", "middle", "last"]
)
async def test_any_stage_is_killed_in_mid_answer(town: Town, stage: int, sampled: bool) -> None:
    await town.start(*CUTS, CUTS[stage])
    batch, watch = prompts(3, tokens=TOKENS, sampled=sampled), Watch()
    running = await town.under_way(batch, watch)
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


async def test_two_stages_are_killed_at_once(town: Town) -> None:
    await town.start(*CUTS, CUTS[0], CUTS[2])
    batch, watch = prompts(3, tokens=TOKENS), Watch()
    running = await town.under_way(batch, watch, done=5)
    dead = {town.matches[0].plan[stage].operator for stage in (0, 2)}
    await asyncio.gather(*(town.machine(one).kill() for one in dead))
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    assert carried(town) == 3, "the one in the middle recomputes nothing"
    check_money(town, result, watch)
    check_receipts(town, dead)


async def test_another_machine_dies_as_it_is_asked_to_sign_for_its_part(town: Town) -> None:
    """The broken job is settled while its answers go on with that machine, which breaks them once
    more.
    """
    machines = await town.start(*CUTS, CUTS[1], CUTS[2])
    batch, watch = prompts(2, tokens=TOKENS), Watch()
    second, asked = machines[2], asyncio.Event()
    handle = second.stage.handle

    async def listen(channel: Channel, frame: wire.Frame) -> object:
        if isinstance(frame.message, wire.Cut) and not asked.is_set():
            asked.set()
            await second.kill()
        return await handle(channel, frame)

    second.listener._handler = listen  # type: ignore[assignment]
    running = await town.under_way(batch, watch)
    dead = {second.signer.address, town.matches[0].plan[1].operator}
    await machines[1].kill()
    result = await running
    assert asked.is_set()
    assert not result.unfinished
    check_answers(town, watch, batch)
    check_money(town, result, watch)
    check_receipts(town, dead)


async def test_every_frame_comes_twice_and_nothing_is_done_or_paid_twice(town: Town) -> None:
    """Each push of every stage, and all over again what a stage was told before a machine died."""
    machines = await town.start(*CUTS, CUTS[1])
    for machine in machines:
        echo(machine)
    batch, watch = prompts(2, tokens=TOKENS, prompt_tokens=200), Watch()
    running = await town.under_way(batch, watch)
    dead = town.matches[0].plan[1].operator
    await town.machine(dead).kill()
    result = await running
    assert not result.unfinished
    check_answers(town, watch, batch)
    check_money(town, result, watch)
    check_receipts(town, {dead})
    repeated = sum(m.stage.counts["rows_repeated"] for m in machines)
    assert repeated > TOKENS, "the echo was heard"
    assert not any(m.stage.counts["request_failed_E-CHECK-01"] for m in machines)


def echo(machine: Machine) -> None:
    """From now on this machine takes every push twice, and at the third the first ones again."""
    handle = machine.stage.handle
    told: list[tuple[Channel, wire.Frame]] = []

    async def twice(channel: Channel, frame: wire.Frame) -> object:
        answer = await handle(channel, frame)
        if isinstance(frame.message, wire.Activations | wire.Token | wire.FinishRequest):
            told.append((channel, frame))
            for one in [told[-1]] if len(told) % 3 else [*told[:2], told[-1]]:
                await handle(*one)
        return answer

    machine.listener._handler = twice  # type: ignore[assignment]


async def test_the_stand_in_dies_as_well_and_answers_go_on(town: Town) -> None:
    await town.start(*CUTS, (2, 4), (2, 4))
    batch, watch = prompts(2, tokens=3 * TOKENS), Watch()
    dead = set()
    with town.held(2 * TOKENS):
        running = town.begin(batch, watch)
        for done in (5, 12):
            await watch.until(
                lambda done=done: all(watch.count(p.custom_id) >= done for p in batch)
            )
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
    with town.held(TOKENS // 2):
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
    running = await town.under_way(batch, watch, clock=Hasty())
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
    running = await town.under_way(batch, watch)
    await town.machine(town.matches[0].plan[0].operator).kill()
    result = await running
    check_answers(town, watch, batch)
    check_money(town, result, watch)


async def test_a_plan_with_other_cuts_recomputes_and_gives_the_same(town: Town) -> None:
    await town.start(*CUTS, (0, 3), (3, 6))
    batch, watch = prompts(2, tokens=TOKENS), Watch()
    running = await town.under_way(batch, watch)
    await town.machine(town.matches[0].plan[1].operator).kill()
    result = await running
    check_answers(town, watch, batch)
    assert carried(town) == 0
    check_money(town, result, watch)
