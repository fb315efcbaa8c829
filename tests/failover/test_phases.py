"""A machine of every place is lost at every moment of an order: the answers are the same and every
token is paid once.

The scenes share a town. Whoever died in one is replaced, whoever froze is thawed and serves in the
next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from core.protocol import signing, wire
from core.runtime.network.channel import Channel
from tests.failover.books import check_money
from tests.failover.test_killed import CUTS, check_answers
from tests.town.machines import Machine
from tests.town.town import Town, Watch, prompts

Hurt = Callable[[Machine], Awaitable[None]]
Set = Callable[[Town, int, Hurt], Awaitable[None]]
"""Arrange that the machine in a place is hurt at some moment of the next order."""

FIRST, MIDDLE, LAST = 0, 1, 2
#: Three chunks of a prompt.
PROMPT_TOKENS, TOKENS = 300, 6


def matching(*, done: bool) -> Set:
    """Between the acceptances and the transaction, or when that is `done` and nobody has come
    yet.
    """

    async def arrange(town: Town, stage: int, hurt: Hurt) -> None:
        async def moment(plan: Sequence[Machine]) -> None:
            await hurt(plan[stage])

        if done:
            town.when_matched = moment
        else:
            town.while_matching = moment

    return arrange


def taken(
    message: type[wire.AnyMessage],
    count: int = 1,
    *,
    by: int | None = None,
    is_it: Callable[[wire.AnyMessage], bool] = lambda message: True,
) -> Set:
    """When the machine itself, or the one in place `by`, has taken so many of these messages."""

    async def arrange(town: Town, stage: int, hurt: Hurt) -> None:
        victim = town.next_plan()[stage]
        ear = victim if by is None else town.next_plan()[by]
        handle, left = ear.stage.handle, count

        async def listen(channel: Channel, frame: wire.Frame) -> object:
            nonlocal left
            answer = await handle(channel, frame)
            if isinstance(frame.message, message) and is_it(frame.message) and is_of(town, frame):
                left -= 1
                if left == 0:
                    ear.listener._handler = handle
                    await hurt(victim)
            return answer

        ear.listener._handler = listen  # type: ignore[assignment]
        for channel in ear.listener.channels:  # streams between stages outlive a scene
            channel._handler = listen  # type: ignore[assignment]

    return arrange


def is_of(town: Town, frame: wire.Frame) -> bool:
    """Whether a message is about this scene's order: a thawed machine may have something to say
    about the last one's.
    """
    said = frame.message
    if isinstance(said, wire.OpenJob):
        about = signing.order_hash(said.signed.order)
    elif isinstance(said, wire.Acknowledge):
        about = said.ack.order_hash
    else:
        about = said.order_hash  # type: ignore[union-attr]
    return about in {match.order_hash for match in town.matches}


def ends(message: wire.AnyMessage) -> bool:
    return isinstance(message, wire.Token) and bool(message.finish)


@dataclass(frozen=True)
class Scene:
    name: str
    stage: int
    moment: Set
    goes_on: bool | None = True  # the answers do in another job; None: some are all here already


SCENES = [
    *(Scene("between proposals and the transaction", i, matching(done=False)) for i in range(3)),
    *(Scene("matched, nobody has come", i, matching(done=True)) for i in range(3)),
    *(Scene("the job is open", i, taken(wire.OpenJob)) for i in range(3)),
    Scene("takes the prompt", FIRST, taken(wire.Submit)),
    Scene("takes the prompt", LAST, taken(wire.Submit)),
    Scene("in the prompt", FIRST, taken(wire.Activations, 1, by=MIDDLE)),
    Scene("in the prompt", MIDDLE, taken(wire.Activations, 2)),
    Scene("in the prompt", LAST, taken(wire.Activations, 4)),
    Scene("at the first token", FIRST, taken(wire.Token)),
    Scene("at the first token", MIDDLE, taken(wire.Token, by=FIRST)),
    Scene("at the first token", LAST, taken(wire.Token, by=FIRST)),
    Scene("in mid-answer", FIRST, taken(wire.Token, 5)),
    Scene("in mid-answer", MIDDLE, taken(wire.Token, 5, by=FIRST)),
    Scene("in mid-answer", LAST, taken(wire.Token, 5, by=FIRST)),
    Scene("at the last token", FIRST, taken(wire.Token, is_it=ends), None),
    Scene("at the last token", MIDDLE, taken(wire.Token, is_it=ends, by=FIRST), None),
    Scene("at the last token", LAST, taken(wire.Token, is_it=ends, by=FIRST), None),
    Scene("before it signs", MIDDLE, taken(wire.FinishRequest), None),
    Scene("before it signs", LAST, taken(wire.FinishRequest), None),
    *(Scene("over the whole job", i, taken(wire.CloseJob), False) for i in range(3)),
]


@asynccontextmanager
async def stage_set(town: Town, scene: Scene, hurt: str) -> AsyncIterator[list[Machine]]:
    """Somebody is hurt at the scene's moment; afterwards all are well again."""
    victims: list[Machine] = []

    async def hurting(victim: Machine) -> None:
        victims.append(victim)
        await (victim.kill() if hurt == "killed" else victim.freeze())

    await scene.moment(town, scene.stage, hurting)
    try:
        yield victims
    except BaseException as error:
        error.add_note(f"stage {scene.stage} {hurt}: {scene.name}")
        raise
    for victim in victims:
        if hurt == "killed":
            await town.replace(victim)
        else:
            victim.thaw()


async def play(town: Town, scene: Scene, hurt: str) -> None:
    town.forget()
    batch, watch = prompts(2, tokens=TOKENS, prompt_tokens=PROMPT_TOKENS), Watch()
    async with stage_set(town, scene, hurt) as victims:
        result = await town.begin(batch, watch)
        assert victims, "nobody was hurt"
        assert not result.unfinished
        check_answers(town, watch, batch)
        check_money(town, result, watch)
        assert scene.goes_on in (None, len(town.matches) > 1)
        for match in town.matches[1:]:
            assert victims[0].signer.address not in {stage.operator for stage in match.plan}


@pytest.mark.timeout(600)
async def test_a_machine_dies_at_every_moment_of_an_order(town: Town) -> None:
    await town.start(*CUTS, *CUTS)
    town.tend()
    for scene in SCENES:
        await play(town, scene, "killed")


#: A frozen machine differs from a dead one in what is noticed when, and in that it comes back.
FREEZING = [
    s
    for s in SCENES
    if s.name
    in (
        "between proposals and the transaction",
        "in the prompt",
        "in mid-answer",
        "before it signs",
    )
]


@pytest.mark.timeout(600)
async def test_a_machine_freezes_at_every_moment_of_an_order_and_serves_the_next(
    town: Town,
) -> None:
    """What a thawed machine still believes, it is told by those that it tells.

    Its slots are free when its client has left.
    """
    await town.start(*CUTS, *CUTS)
    town.tend()
    for scene in FREEZING:
        await play(town, scene, "frozen")
    accused = sum(m.stage.counts["request_failed_E-CHECK-01"] for m in town.machines)
    assert accused == 0, "late frames accuse nobody"
