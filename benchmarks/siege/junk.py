"""What do others notice of a stranger's proposals and stage messages, 120 at once?"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from benchmarks.siege import measuring
from benchmarks.siege.actor import Begin, Target
from benchmarks.siege.besieged import MINERS
from benchmarks.siege.measuring import Attack
from benchmarks.siege.ordering import prompts
from benchmarks.siege.strangers import again, call_all, throwaway
from benchmarks.table import Row
from client.orders.orders import PromptBatch, make_order
from core.keys.signer import Signer
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.runtime.network.channel import Channel
from tests.town.orders import MODEL_ID, SPEC, key, sign_order, terms

SECONDS = measuring.SECONDS
QUICK = {"SECONDS": 2.0}
ATTACK = Attack("junk", "a stranger's messages, 120 at once", MINERS)
AT_ONCE = 120


async def act(target: Target, done: Counter[str], begin: Begin) -> None:
    identity = throwaway(target)
    kinds = [_messages(target, miner) for miner in target.miners]
    await begin()

    def turn(asks: list[tuple[wire.AnyMessage, bytes]]):  # type: ignore[no-untyped-def]
        async def ask(channel: Channel) -> None:
            await call_all(channel, asks, done)

        return ask

    await asyncio.gather(
        *(
            again(target, miner, done, turn(asks), identity)
            for miner, asks in zip(target.miners, kinds, strict=True)
        )
    )


def _messages(target: Target, miner: tuple[str, str]) -> list[tuple[wire.AnyMessage, bytes]]:
    """As many as are asked at once, of every kind in turn."""
    batch = PromptBatch.of(prompts(1, 4))
    requester: Signer = key(50)
    offer = terms(matcher=t.ZERO_ADDRESS)
    plan, ends = [t.Stage(miner[0], 0, SPEC.layers)], [miner[1]]
    found: list[tuple[wire.AnyMessage, bytes]] = []
    for nonce in range(AT_ONCE):
        order = make_order(batch, MODEL_ID, SPEC, offer, requester.address, nonce)
        signed = sign_order(order, requester, target.domain)
        of_job = signing.order_hash(order)
        opening, prompt = batch.opening(0), batch.prompts[0]
        submit = wire.Submit(
            of_job,
            0,
            commit.to_hex(prompt.salt),
            opening.prompt_proof,
            prompt.sampling,
            opening.sampling_proof,
        )
        kinds: list[tuple[wire.AnyMessage, bytes]] = [
            (wire.Propose(signed, plan, ends, 0), b""),
            (wire.OpenJob(signed, plan, ends, 0), b""),
            (submit, commit.token_bytes(prompt.ids)),
            (wire.Activations(of_job, 0, 0, 1, most_rows=10), os.urandom(1024)),
            (wire.FetchRows(of_job, 0, "in", 0, 100), b""),
            (wire.CloseJob(of_job, [0]), b""),
        ]
        found.append(kinds[nonce % len(kinds)])
    return found


def rows() -> list[Row]:
    return measuring.rows(ATTACK, SECONDS)
