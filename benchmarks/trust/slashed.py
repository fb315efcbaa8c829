"""Does every lie end in a slashed stake?

Each is served by three stages, delivered, accused and judged on a local chain of its own contracts.
The liar does not stay silent: it points at the comparison that convicts it, so that the referee has
to compute it. Needs the test tree and Anvil.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.table import Row
from benchmarks.trust import lies
from benchmarks.trust.disputes import MAX_GAS, MAX_MOVE_GAS, MAX_TRANSACTIONS
from benchmarks.trust.town import Town, columns, quick_columns, town
from core.protocol.types import SamplingParams
from tests.accounts import devnet_accounts
from tests.twins.dispute_gas import Way

MODEL, MOST_LIES = "gemma", 100
QUICK = {"MODEL": "tiny", "MOST_LIES": 1, "columns": quick_columns}
LIAR, LAST = 1, 2
PROMPT_TOKENS, NEW_TOKENS, WRONG_AT = 52, 8, 2
_LOOK_S, _LIMIT_S = 0.05, 300.0
SEEDED = SamplingParams(
    temperature_micro=800_000, max_new_tokens=NEW_TOKENS, seed=11, ignore_eos=True
)


@dataclass
class Lie:
    """How one stage lies, as `tests.game.world.World.work` takes it.

    `request` is the one that it is accused over.
    """

    name: str
    how: dict[str, Callable[..., Any]]
    stage: int = LIAR
    request: int = 0
    requests: int = 1


@dataclass
class Tried:
    """What became of it.

    `gas` and `transactions` are those of the whole dispute, but for `TaskRegistry.dispute`.
    """

    lie: Lie
    verdict: str
    gas: int = 0
    largest: int = 0
    transactions: int = 0
    others_kept_theirs: bool = True
    why: str = ""

    @property
    def is_slashed(self) -> bool:
        return self.verdict == "FAULT" and self.others_kept_theirs and not self.why


@dataclass
class _Recorded:
    """Activations of one request, given out again for another."""

    rows: list[Any] = field(default_factory=list)

    def bend(self, stage: int, request: int, first: int, x: Any) -> Any:
        if stage != LIAR:
            return x
        if request == 0:
            self.rows.append(x.clone())
            return x
        return torch.cat(self.rows)[first : first + len(x)]


def rows() -> list[Row]:
    """One row for each model that is installed here."""
    torch.set_num_threads(1)
    found = []
    for model, profile in columns():
        if profile == "fp32" and model == MODEL:
            with town(model, profile) as here:
                found.append(_row(here, asyncio.run(_tried(here))))
    return found


def _row(here: Town, tried: list[Tried]) -> Row:
    slashed = [t for t in tried if t.is_slashed]
    most, largest = max(t.gas for t in tried), max(t.largest for t in tried)
    transactions = max(t.transactions for t in tried)
    failed = [f"{t.lie.name}: {t.why or t.verdict}" for t in tried if not t.is_slashed]
    return Row(
        f"{here.name}, three stages on a local chain: {', '.join(t.lie.name for t in tried)}",
        "every liar's stake is slashed, no other",
        f"{len(slashed)} of {len(tried)} slashed; "
        f"at most {most:,} gas in {transactions} transactions, {largest:,} in one"
        + ("".join(f"; {text}" for text in failed)),
        "–",
        "every one",
        bool(tried)
        and len(slashed) == len(tried)
        and most <= MAX_GAS[Way.POINTED]
        and largest <= MAX_MOVE_GAS
        and transactions <= MAX_TRANSACTIONS,
    )


def _lies(here: Town) -> Iterator[Lie]:
    def spoiling(how: lies.Spoil, all_layers: bool) -> dict[str, Callable[..., Any]]:
        def spoil(stage: int, shard: Any) -> None:
            if stage == LIAR:
                lies.spoil(shard, how, len(shard.layers) if all_layers else 1)

        return {"spoil": spoil}

    def only(how: Callable[[Any], None]) -> dict[str, Callable[..., Any]]:
        return {"spoil": lambda stage, shard: how(shard) if stage == LIAR else None}

    for name, how in (
        ("int8", lies.int8),
        ("fp8", lies.fp8),
        ("int4", lies.int4),
        ("weights off by 10^-2", lies.perturbed),
    ):
        yield Lie(f"{name} in all layers", spoiling(how, True))
        yield Lie(f"{name} in one layer", spoiling(how, False))
    yield Lie("one layer skipped", only(lies.skip_layer))
    yield Lie("keys and values one step stale", only(lies.stale_keys))
    yield Lie(f"context cut to {lies.CUT_TO}", only(_cut))
    yield Lie("another request's activations", {"bend": _Recorded().bend}, request=1, requests=2)
    ends = {
        "spoil": lambda stage, shard: lies.spoil(shard, lies.int8, 1) if stage == LAST else None
    }
    yield Lie("int8 in one layer of the last stage", ends, stage=LAST)
    wrong = {"swap": lambda request, step, token: token + 1 if step == WRONG_AT else token}
    yield Lie("a token against the seed", wrong, stage=LAST)
    yield Lie("another model's tokens", {"swap": _tokens_of_another(here)}, stage=LAST)


def _cut(shard: Any) -> None:
    """The shard's own `forward`, with its context cut."""
    true = SimpleNamespace(new_cache=shard.new_cache, forward=shard.forward)
    works: dict[int, Any] = {}

    def forward(x: Any, cache: Any) -> Any:
        work = works.setdefault(id(cache), lies.truncated(true, 0))  # type: ignore[arg-type]
        return work(x)

    shard.forward = forward


def _tokens_of_another(here: Town) -> Callable[[int, int, int], int]:
    """Tokens of the pipeline with four-bit weights."""
    (prompt,) = here.prompts(1, PROMPT_TOKENS)
    tokens = here.serve(0, prompt, NEW_TOKENS, shards=here.cheap).tokens
    return lambda request, step, token: tokens[step]


async def _tried(here: Town) -> list[Tried]:
    from tests.conftest import CHAIN_ID, start_anvil

    signers = devnet_accounts(10, chain_id=CHAIN_ID)
    anvil = start_anvil("--block-time", "1", "--mixed-mining")
    try:
        return [
            await _try(here, lie, anvil.rpc_url, signers) for lie in islice(_lies(here), MOST_LIES)
        ]
    finally:
        anvil.stop()


async def _try(here: Town, lie: Lie, rpc_url: str, signers: Any) -> Tried:
    from client.orders.orders import Prompt
    from tests.game.world import World

    spans = [(span.start, span.end) for span in here.spans]
    prompts = [
        Prompt(f"p{i}", tuple(ids), SEEDED, bytes([i + 1]) * 32)
        for i, ids in enumerate(here.prompts(lie.requests, PROMPT_TOKENS))
    ]
    world = await World.make(rpc_url, signers, Path(here.folder))
    try:
        work = await world.work(spans, prompts, **lie.how)
        before = [await world.stake(stage) for stage in range(3)]
        async with asyncio.timeout(_LIMIT_S):
            tried = await _judged(lie, work)
        after = [await world.stake(stage) for stage in range(3)]
        expected = [0 if stage == lie.stage else units for stage, units in enumerate(before)]
        tried.others_kept_theirs = after == expected
        return tried
    except (AssertionError, TimeoutError, StopIteration) as error:
        return Tried(lie, "none", why=str(error) or type(error).__name__)
    finally:
        await world.chain.close()


async def _judged(lie: Lie, work: Any) -> Tried:
    """Accused by what an auditor finds.

    The accused points at the verdict, and the accuser proves it.
    """
    from client.disputes.prosecution import Prosecution
    from core.dispute.game.dispute import Phase
    from core.dispute.game.game_log import GAME, read_game
    from tests.clocks import Hasty
    from tests.game.test_dispute_of_a_real_model import accuse_deviation, accuse_token

    if "swap" in lie.how:
        accusation, opened = await accuse_token(work, lie.request, _first_wrong(work))
    else:
        accusation, opened = await accuse_deviation(work, lie.stage, lie.request)
    world, moves = work.world, []
    game = Prosecution(
        world.chain, world.requester, Hasty(_LOOK_S), opened, accusation, moves.append
    )
    playing = asyncio.create_task(game.play())
    sent = []
    try:
        while not playing.done():
            seen = await read_game(world.chain, opened)
            if seen.phase == Phase.PICKING and not sent:
                place = tuple(accusation.player.case.layout.verdicts[0])
                operator = world.operators[lie.stage]
                sent.append(
                    await world.chain.transact(operator, GAME, "point", opened.dispute, place)
                )
            await asyncio.sleep(_LOOK_S)
        verdict = await playing
    finally:
        playing.cancel()
    gas = [made.sent.gas_used for made in moves] + [one.gas_used for one in sent]
    return Tried(lie, verdict.name, sum(gas), max(gas), len(gas) + 1)


def _first_wrong(work: Any) -> int:
    """The first token that the true last stage would not have drawn."""
    from core.dispute.judging.numerics import reexecute
    from core.engine.sampling.sampling import Sampler, sample_batch
    from core.engine.weights.load_shard import load_shard

    place, prompt = work.job.plan[LAST], work.batch.prompts[0]
    hidden = work.width(LAST, "in") // 4
    given = np.frombuffer(work.rows[LAST, "in", 0], "<f4").reshape(-1, hidden).astype(np.float64)
    out = work.rows[LAST, "out", 0]
    served = [int.from_bytes(out[at : at + 4], "little") for at in range(0, len(out), 4)]
    shard = load_shard(work.world.model_dir, place.layers, dtype=torch.float64)
    first = len(prompt.ids) - 1
    logits = reexecute(shard, torch.from_numpy(given), logit_rows=range(first, first + len(served)))
    sampler = Sampler(prompt.sampling, 0, prompt.ids, frozenset())
    for step, token in enumerate(served):
        (choice,) = sample_batch(logits[step][None].float(), [sampler])
        if int(choice.token) != token:
            return step
        sampler.take(token)
    raise AssertionError("no token differs from the model's own")
