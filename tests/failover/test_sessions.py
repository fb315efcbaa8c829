"""A machine of a session is lost at any moment of an answer: readers see a pause, and every token
is paid once.
"""

from __future__ import annotations

import asyncio

import pytest

from core.protocol import wire
from core.protocol.units import NANO
from tests.failover.test_killed import CUTS
from tests.failover.test_phases import FIRST, LAST, MIDDLE, Scene, ends, matching, stage_set, taken
from tests.town.chain import PREPAID
from tests.town.town import prompts
from tests.town.village import Village, ask, hear

#: Two chunks of a prompt.
PROMPT_TOKENS, TOKENS = 200, 8
KILLED, FROZEN = "killed", "frozen"
IN_ANSWER = [
    Scene("in mid-answer", FIRST, taken(wire.Token, 6)),
    Scene("in mid-answer", MIDDLE, taken(wire.Token, 6, by=FIRST)),
    Scene("in mid-answer", LAST, taken(wire.Token, 6, by=FIRST)),
]
SCENES = [
    (KILLED, Scene("between proposals and the transaction", MIDDLE, matching(done=False))),
    (KILLED, Scene("takes the prompt", FIRST, taken(wire.Submit))),
    (KILLED, Scene("in the prompt", MIDDLE, taken(wire.Activations, 2))),
    (KILLED, Scene("in the prompt", LAST, taken(wire.Activations, 2))),
    *((KILLED, scene) for scene in IN_ANSWER),
    (KILLED, Scene("at the last token", LAST, taken(wire.Token, is_it=ends, by=FIRST))),
    (KILLED, Scene("before it signs", MIDDLE, taken(wire.FinishRequest))),
    *((KILLED, Scene("as it is paid", stage, taken(wire.Acknowledge))) for stage in range(3)),
    *((FROZEN, scene) for scene in IN_ANSWER),
]


@pytest.mark.timeout(600)
async def test_a_machine_is_lost_at_every_moment_of_a_session(village: Village) -> None:
    await village.start(*CUTS, *CUTS)
    village.tend()
    sessions, given = village.sessions(), 0
    for number, (hurt, scene) in enumerate(SCENES):
        batch = prompts(2, tokens=TOKENS, prompt_tokens=PROMPT_TOKENS, sampled=bool(number % 2))
        async with stage_set(village, scene, hurt) as victims:
            heard = await asyncio.gather(
                *(hear(sessions.answer(ask(village, p, p.custom_id))) for p in batch)
            )
            async with asyncio.timeout(30.0):
                while not victims:
                    await asyncio.sleep(0.01)
            for prompt, one in zip(batch, heard, strict=True):
                assert one.tokens == village.expected(prompt, 0)
                assert one.answered is not None and not one.answered.is_partial
                given += len(one.tokens)
    await sessions.close()
    village.running.clear()
    assert sum(ack.tokens_out for ack in village.acks.values()) == given
    accused = sum(m.stage.counts["request_failed_E-CHECK-01"] for m in village.machines)
    assert accused == 0
    assert village.prepaid + sum(village.chain.locked.values()) == (
        PREPAID * NANO - village.paid_nano
    )
