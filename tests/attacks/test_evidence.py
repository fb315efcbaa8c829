"""Stages that serve what was not ordered, or sign what they did not do, are convicted by their own
words in one transaction; stages that follow the protocol never are.

Real shards, the operators' own keys, the contracts on a local chain.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from client.audit.contradictions import Contradiction, find
from client.audit.evidence import (
    EvidenceCollector,
    PromptOpening,
    ShownRows,
    Testimony,
    delivered_receipts,
)
from client.commands.judge import convict
from client.context import Context
from client.orders.orders import Prompt
from core.keys.signer import Signer
from core.protocol import commit, signing, wire
from core.protocol import types as t
from core.protocol.errors import ContractRefused, RowsWithheld, UsageError
from core.protocol.receipts import word_of
from core.protocol.types import RequestLeaf, SamplingParams, SignedReceipt
from core.runtime.commands.console import GlobalOptions, Run
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from devnet.models.tiny_models import write_tiny_model
from tests.conftest import start_anvil
from tests.game.world import STAKE, Work, World

pytestmark = [pytest.mark.chain, pytest.mark.timeout(600)]

SPANS = ((0, 1), (1, 3), (3, 4))
LAST = len(SPANS) - 1
GREEDY = SamplingParams(max_new_tokens=4, ignore_eos=True)
SEEDED = SamplingParams(temperature_micro=800_000, max_new_tokens=3, seed=11, ignore_eos=True)
OUTSIDER = 8
OTHER = "0x" + "77" * 32


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    anvil = start_anvil("--block-time", "1", "--mixed-mining")
    yield anvil.rpc_url
    anvil.stop()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", "llama", layers=4)


@pytest.fixture
async def world(node: str, signers: list[Signer], model_dir: Path) -> AsyncIterator[World]:
    made = await World.make(node, signers, model_dir)
    yield made
    await made.chain.close()


def prompts(seed: int = 0, count: int = 3) -> list[Prompt]:
    rng = random.Random(seed)
    return [
        Prompt(
            f"p{i}",
            tuple(rng.randrange(97, 123) for _ in range(rng.randrange(3, 9))),
            rng.choice((GREEDY, SEEDED)),
            rng.randbytes(32),
        )
        for i in range(count)
    ]


class Parties(EvidenceCollector):
    """What the stages of a job show: all that they signed and hold, unless one is `silent`."""

    def __init__(self, work: Work, silent: Sequence[int] = ()) -> None:
        super().__init__(work.job, work.world.chain.domain, None, {})  # type: ignore[arg-type]
        self.work, self.silent = work, silent
        self.receipts_of = {stage: [signed] for stage, signed in enumerate(work.receipts)}
        self.rows_of = dict(work.rows)
        self.words_of: dict[int, list[t.SignedWord]] = {
            stage: [word(work, stage, leaf) for leaf in signed.leaves]
            for stage, signed in enumerate(work.receipts)
        }

    async def told(self, stage: int) -> Testimony:
        if stage in self.silent:
            raise RowsWithheld("it does not answer")
        before = (stage - 1) % len(SPANS)
        return Testimony(
            [s for s in self.receipts_of[stage] if self.is_told_by(stage, s)],
            self.words_of[before],
        )

    async def shown_rows(
        self, stage: int, side: wire.Side, leaf: RequestLeaf, row_bytes: int, *, root: str = ""
    ) -> ShownRows:
        data = self.rows_of[stage, side, leaf.request_index]
        is_answer = stage == LAST and side == "out"
        beside = self.work.states_root(LAST, leaf.request_index) if is_answer else None
        shown = ShownRows(data, row_bytes, beside and commit.to_hex(beside))
        if not self._is_signed(stage, side, leaf, shown, root):
            raise RowsWithheld("its rows do not match what it signed", stage=stage)
        return shown

    async def opening(self, request: int) -> PromptOpening:
        prompt, opened = self.work.batch.prompts[request], self.work.batch.opening(request)
        salt = commit.to_hex(prompt.salt)
        shown = wire.Opening(salt, opened.prompt_proof, prompt.sampling, opened.sampling_proof)
        return PromptOpening(prompt.ids, prompt.sampling, shown)

    # --- what a liar signs instead ---

    def resign(
        self, stage: int, leaves: Sequence[RequestLeaf] | None = None, **changes: Any
    ) -> None:
        """The stage's receipt again, over other leaves or with other fields; its words agree."""
        old = self.work.receipts[stage]
        again = signed_again(self.work, stage, old, leaves, **changes)
        self.receipts_of[stage] = [again]
        self.words_of[stage] = [word(self.work, stage, leaf) for leaf in again.leaves]

    def with_leaf(self, stage: int, request: int, **changes: Any) -> list[RequestLeaf]:
        leaves = list(self.work.receipts[stage].leaves)
        leaves[request] = msgspec.structs.replace(leaves[request], **changes)
        return leaves


def signed_again(
    work: Work,
    stage: int,
    old: SignedReceipt,
    leaves: Sequence[RequestLeaf] | None = None,
    **changes: Any,
) -> SignedReceipt:
    leaves = list(old.leaves if leaves is None else leaves)
    answers = (old.answers + old.answers)[: len(leaves)] if stage == 0 else None
    sent = [leaf.in_root for leaf in leaves] if answers is None else answers
    trees = {
        "input_root": commit.root_of_hashes(commit.boundary_hashes(leaves, sent)),
        "output_root": commit.root_of_hashes(
            commit.boundary_hashes(leaves, [leaf.out_root for leaf in leaves])
        ),
        "requests_root": commit.root_of_hashes(commit.request_hashes(leaves)),
    }
    fields: dict[str, Any] = {name: commit.to_hex(root) for name, root in trees.items()}
    fields |= {
        "requests": len(leaves),
        "tokens_in": sum(leaf.tokens_in for leaf in leaves),
        "tokens_out": sum(leaf.tokens_out for leaf in leaves),
    }
    receipt = msgspec.structs.replace(old.receipt, **(fields | changes))
    signature = signing.sign(work.world.operators[stage], work.world.chain.domain, receipt)
    return t.SignedReceipt(receipt, signature, leaves, old.states, answers or [])


def word(
    work: Work, stage: int, leaf: RequestLeaf, signer: Signer | None = None, **changes: Any
) -> t.SignedWord:
    place = work.job.order_hash, work.job.plan_hash, stage
    answers = {one.request_index: one.out_root for one in work.receipts[LAST].leaves}
    answer = t.ZERO_HASH if stage else answers.get(leaf.request_index, t.ZERO_HASH)
    said = word_of(*place, leaf, answer)
    said = msgspec.structs.replace(said, **changes)
    signer = signer or work.world.operators[stage]
    return t.SignedWord(said, signing.sign(signer, work.world.chain.domain, said))


async def send(work: Work, one: Contradiction, *, really: bool = True) -> None:
    """As anybody may: an account that has nothing to do with the job."""
    world = work.world
    who, order, plan = world.signers[OUTSIDER], work.job.order, list(work.job.plan)
    call = ("Evidence", one.call, order, plan, *one.arguments)
    if really:
        await world.chain.transact(who, *call)
    else:
        await world.chain.simulate(who.address, *call)


async def assert_only_liar(work: Work, stage: int) -> None:
    job = await work.world.chain.read("TaskRegistry", "jobOf", work.job.job_id, work.job.plan_hash)
    assert job["faultMask"] == 1 << stage
    stakes = [await work.world.stake(i) for i in range(len(SPANS))]
    assert stakes == [0 if i == stage else STAKE for i in range(len(SPANS))]


# --- the attacks ---


async def test_a_cached_prompt_served_by_three_is_convicted_in_one_transaction(
    world: World,
) -> None:
    """It was delivered and is paid for: receipts in a ring, all counts right."""
    ordered = prompts()
    cached = min(ordered, key=lambda prompt: len(prompt.ids))
    served = [replace(cached, sampling=prompt.sampling) for prompt in ordered]
    work = await world.work(SPANS, ordered, served=served)
    found, gaps = await find(Parties(work))
    assert not gaps
    assert [(one.call, one.stage) for one in found] == [("prompt", 0)]
    await send(work, found[0])
    await assert_only_liar(work, 0)


async def test_another_prompt_of_the_same_length_is_convicted_by_the_first_id_that_differs(
    world: World,
) -> None:
    ordered = prompts()
    ids = list(ordered[1].ids)
    ids[-1] ^= 1
    served = [ordered[0], replace(ordered[1], ids=tuple(ids)), ordered[2]]
    work = await world.work(SPANS, ordered, served=served)
    (one,), _ = await find(Parties(work))
    assert (one.call, one.stage, one.request) == ("prompt", 0, 1)
    await send(work, one)
    await assert_only_liar(work, 0)


def inflate(parties: Parties) -> int:
    parties.resign(1, tokens_out=parties.work.receipts[1].receipt.tokens_out + 500)
    return 1


def count_twice(parties: Parties) -> int:
    leaves = parties.work.receipts[1].leaves
    parties.resign(1, [leaves[0], leaves[0], *leaves[1:]])
    return 1


def count_unordered(parties: Parties) -> int:
    parties.resign(LAST, parties.with_leaf(LAST, 2, request_index=99))
    return LAST


def feed_another(parties: Parties) -> int:
    """Token 0 of the answer was drawn; the first stage was fed another, and its rows say so."""
    work = parties.work
    at = 4 * len(work.batch.prompts[1].ids)
    rows = bytearray(work.rows[0, "in", 1])
    rows[at] ^= 1
    parties.rows_of[0, "in", 1] = bytes(rows)
    root = commit.to_hex(commit.rows_root(bytes(rows), 4))
    parties.resign(0, parties.with_leaf(0, 1, in_root=root))
    return 0


def spoil_the_hop(parties: Parties) -> int:
    """It sent other rows than it signs for: the next stage holds its word of them."""
    leaf = parties.work.receipts[1].leaves[1]
    parties.words_of[1][1] = word(parties.work, 1, leaf, out_root=OTHER)
    return 1


def answer_otherwise(parties: Parties) -> int:
    """It told the first stage another answer than it signs: the ring of roots is closed."""
    leaf = parties.work.receipts[LAST].leaves[1]
    parties.words_of[LAST][1] = word(parties.work, LAST, leaf, out_root=OTHER)
    return LAST


def sign_two(parties: Parties) -> int:
    work = parties.work
    leaves = parties.with_leaf(1, 0, out_root=OTHER)
    other = signed_again(work, 1, work.receipts[1], leaves)
    parties.receipts_of[1].append(other)
    return 1


def close_the_chain_on_paper(parties: Parties) -> int:
    """Its leaf is over other rows than came, its receipt's input root is the neighbour's."""
    work = parties.work
    leaves = parties.with_leaf(1, 1, in_root=OTHER)
    parties.resign(1, leaves, input_root=work.receipts[1].receipt.input_root)
    return 1


def sign_too_few_rows(parties: Parties) -> int:
    rows = parties.work.rows[0, "in", 1][:-4]
    parties.rows_of[0, "in", 1] = rows
    root = commit.to_hex(commit.rows_root(rows, 4))
    parties.resign(0, parties.with_leaf(0, 1, in_root=root))
    return 0


def sign_too_many_tokens(parties: Parties) -> int:
    work = parties.work
    rows = work.rows[LAST, "out", 1] + bytes(4)
    parties.rows_of[LAST, "out", 1] = rows
    root = commit.answer_root(commit.rows_root(rows, 4), work.states_root(LAST, 1))
    parties.resign(LAST, parties.with_leaf(LAST, 1, out_root=commit.to_hex(root)))
    return LAST


LIES: dict[str, tuple[Callable[[Parties], int], ...]] = {
    "counts": (inflate, count_twice, count_unordered),
    "fed": (feed_another,),
    "equivocation": (spoil_the_hop, answer_otherwise, sign_two),
    "roots": (close_the_chain_on_paper,),
    "rows": (sign_too_few_rows, sign_too_many_tokens),
}


@pytest.mark.parametrize(
    ("call", "lie"), [(call, lie) for call, lies in LIES.items() for lie in lies]
)
async def test_each_lie_convicts_the_liar_and_nobody_else(
    world: World, call: str, lie: Callable[[Parties], int]
) -> None:
    work = await world.work(SPANS, prompts(1))
    parties = Parties(work)
    assert await find(parties) == ([], [])
    liar = lie(parties)
    found, _ = await find(parties)
    assert [(one.call, one.stage) for one in found] == [(call, liar)], found
    await send(work, found[0])
    await assert_only_liar(work, liar)
    with pytest.raises(ContractRefused, match="StageAlreadyAtFault"):
        await send(work, found[0], really=False)


async def test_a_silent_liar_is_convicted_by_what_its_neighbour_and_the_requester_hold(
    world: World,
) -> None:
    """It shows nothing; its receipt is with the requester, its word with the next stage."""
    work = await world.work(SPANS, prompts(2))
    parties = Parties(work, silent=[1])
    spoil_the_hop(parties)
    found, gaps = await find(parties, work.receipts)
    assert [(one.call, one.stage) for one in found] == [("equivocation", 1)]
    assert gaps == ["stage 1: it does not answer"]
    await send(work, found[0])
    await assert_only_liar(work, 1)


async def test_receipts_that_stages_show_to_nobody_are_read_from_their_delivery(
    world: World,
) -> None:
    work = await world.work(SPANS, prompts(3))
    found = await delivered_receipts(world.chain, work.job.job_id, 0)
    assert [(one.receipt, one.signature) for one in found] == [
        (one.receipt, one.signature) for one in work.receipts
    ]


async def test_anybody_convicts_by_a_file_of_receipts_that_contradict_each_other(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outsider holds them: no stage is asked, and what a stranger forged convicts nobody."""
    work = await world.work(SPANS, prompts(4))
    parties = Parties(work)
    liar = sign_two(parties)
    forged = signed_again(work, 0, work.receipts[0], parties.with_leaf(0, 1, out_root=OTHER))
    stranger = signing.sign(world.signers[OUTSIDER], world.chain.domain, forged.receipt)
    held = [*work.receipts, *parties.receipts_of[liar]]
    held.append(msgspec.structs.replace(forged, signature=stranger))
    file = tmp_path / "receipts.jsonl"
    file.write_bytes(b"\n".join(map(msgspec.json.encode, held)))

    @asynccontextmanager
    async def open_context(settings: Settings) -> AsyncIterator[Context]:
        yield Context(settings, world.chain)

    monkeypatch.setattr(convict, "open_context", open_context)
    emitted: list[Any] = []
    settings = load(environ={}, folders=Folders.at(tmp_path))
    run = Run("auditor", "convict", GlobalOptions(yes=True, quiet=True), folders=settings.folders)
    run._settings = settings
    run.unlock = lambda *_, **__: world.signers[OUTSIDER]  # type: ignore[method-assign, assignment]
    run.emit = lambda found, **_: emitted.extend(found)  # type: ignore[method-assign]
    await convict.convict_by_file(run, file)
    assert [(one.evidence, one.stage) for one in emitted] == [("equivocation", liar)]
    await assert_only_liar(work, liar)
    with pytest.raises(UsageError, match="convicted already"):
        await convict.convict_by_file(run, file)
    honest = tmp_path / "honest.jsonl"
    honest.write_bytes(b"\n".join(map(msgspec.json.encode, work.receipts)))
    with pytest.raises(UsageError, match="nothing to convict by"):
        await convict.convict_by_file(run, honest)


# --- honest stages ---


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_the_others_sign_convicts_no_honest_stage(world: World, seed: int) -> None:
    """Each stage in turn is honest, the others and the requester sign what they like.

    Everything that convicts a liar is turned on the honest one, with its own receipt in the place
    of the liar's; and the search finds nothing against it, whoever lies.
    """
    rng = random.Random(seed)
    work = await world.work(SPANS, prompts(10 + seed, rng.randrange(3, 5)))
    tried = 0
    for lies in LIES.values():
        for lie in lies:
            parties = Parties(work)
            liar = lie(parties)
            found, _ = await find(parties)
            assert [one.stage for one in found] == [liar]
            for honest in set(range(len(SPANS))) - {liar}:
                for position in range(len(work.receipts[honest].leaves)):
                    turned = turned_on(work, honest, position, found[0])
                    with pytest.raises(ContractRefused, match=r"NotProven|BadSignature"):
                        await send(work, turned, really=False)
                    tried += 1
    assert tried >= 60
    for honest in range(len(SPANS)):
        parties = Parties(work)
        for forger in set(range(len(SPANS))) - {honest}:
            leaf = rng.choice(work.receipts[honest].leaves)
            signer = work.world.operators[forger]
            parties.words_of[honest].append(word(work, honest, leaf, signer, out_root=OTHER))
        assert await find(parties) == ([], [])


def turned_on(work: Work, honest: int, position: int, one: Contradiction) -> Contradiction:
    """The same call with an honest stage's own receipt and leaf, and what else was brought."""
    signed = work.receipts[honest]
    leaf, proof = signed.leaves[position], commit.request_proof(signed.leaves, position)
    told = signed.receipt, signed.signature, leaf, position, proof
    rest = list(one.arguments[1:])
    if one.call == "equivocation":
        rest[0] = told  # and with the liar's other leaf it is of another stage
        return replace(one, arguments=(one.arguments[1], *rest))
    return replace(one, arguments=(told, *rest))
