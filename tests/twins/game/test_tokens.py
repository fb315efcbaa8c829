"""An honest draw cannot be convicted, and another token cannot be defended."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
import pytest
from eth_utils.crypto import keccak

from core.dispute.game.dispute import Phase, Verdict
from core.dispute.referee.noise import gumbel
from core.dispute.trace import answer
from core.dispute.trace.derive import Choice, How, delta_of
from core.dispute.trace.draw import DrawError, prescribed
from core.dispute.trace.sources import CommittedRows
from core.protocol import commit
from core.protocol.types import RequestOpening, SamplingParams
from tests.twins.game import toy as toys
from tests.twins.game.draw import Drawn
from tests.twins.game.game import Game, GameError
from tests.twins.game.players import (
    ACCUSER,
    OPERATOR,
    Accusation,
    ended,
    logits_of,
    request_leaf,
)
from tests.twins.game.tokens import point_of_token
from tests.twins.game.traces import HeldTrace

ORDER_HASH = "0x" + "77" * 32
INDEX = 0
REQUESTS = 3
PLAIN = SamplingParams(temperature_micro=800_000, seed=5)
KINDS = {
    "greedy": SamplingParams(),
    "sampled": PLAIN,
    "cold": msgspec.structs.replace(PLAIN, temperature_micro=50_000),
    "hot": msgspec.structs.replace(PLAIN, temperature_micro=3_000_000),
    "min-p": msgspec.structs.replace(PLAIN, min_p_micro=200_000),
    "top-k": msgspec.structs.replace(PLAIN, top_k=3),
    "both": msgspec.structs.replace(PLAIN, top_k=4, min_p_micro=100_000),
    "continued": msgspec.structs.replace(PLAIN, key_index=9, first_step=6),
}
POSITIONS = 3


@lru_cache
def toy() -> toys.Toy:
    return toys.Toy.make(toys.LLAMA)


@lru_cache
def trace_at(seed: int) -> HeldTrace:
    """Up to the verdict it is the same whatever was served and is preferred."""
    stage = toy().last_stage(2, POSITIONS, Choice(0, 1, 0, 0, (0, 0)), seed)
    return stage.evaluate(stage.ids(0, 0))


@lru_cache
def logits_at(seed: int) -> tuple[float, ...]:
    return tuple(logits_of(trace_at(seed)))


def draw(logits: tuple[float, ...], choice: Choice) -> int:
    """What an honest last stage serves (`docs/protocol.md` §5.2)."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if choice.temperature_micro == 0:
        return ids[0]
    tau = choice.temperature_micro / 1e6
    if choice.top_k:
        ids = ids[: choice.top_k]
    if choice.min_p_micro:
        import math

        least = logits[ids[0]] / tau + math.log(choice.min_p_micro / 1e6)
        ids = [i for i in ids if logits[i] / tau >= least]
    scores = {i: logits[i] / tau + gumbel(choice.key, choice.step, i) / 2**120 for i in ids}
    return max(ids, key=lambda i: (scores[i], -i))


def ordered(params: SamplingParams, preferred: int, served: int, how: How = How.AHEAD) -> Choice:
    produced = POSITIONS - 2
    return prescribed(
        params.canonical(), INDEX, produced, Choice(preferred, served, 0, 0, (0, 0), how)
    )


@dataclass(frozen=True)
class Served:
    """A request that was served with one token, and what its accuser makes of it."""

    params: SamplingParams
    choice: Choice
    seed: int
    tokens: bytes = b""

    @property
    def accusation(self) -> Accusation:
        stage = toy().last_stage(2, POSITIONS, self.choice, self.seed)
        outputs = stage.ids(1, self.choice.served)
        return Accusation(stage, outputs, trace_at(self.seed), self.tokens)

    def drawn(self, accusation: Accusation) -> Drawn:
        leaves = [commit.sampling_leaf(i, self.params) for i in range(REQUESTS)]
        hashes = [commit.leaf_hash(leaf) for leaf in leaves]
        return Drawn(
            self.params.canonical(),
            commit.root_of_hashes(hashes),
            REQUESTS,
            commit.merkle_proof(hashes, INDEX),
            accusation.outputs.open(POSITIONS - 2, 0),
            tokens=self.tokens,
        )

    def open(self, accusation: Accusation, drawn: Drawn | None = None) -> Game:
        tree = accusation.trace.tree
        game = replace(accusation.open(), order_hash=ORDER_HASH)
        return game.accuse_token(
            0,
            ACCUSER,
            accusation.case,
            0,
            accusation.proof,
            tree.below(tree.height, 0),
            drawn or self.drawn(accusation),
        )

    def play(self) -> Verdict:
        """The best that both can do."""
        accusation = self.accusation
        game = self.open(accusation)
        logits = logits_of(accusation.trace)
        place, tokens = point_of_token(accusation.stage.layout, self.choice, logits, self.tokens)
        if tokens:
            game = game.point_with(0, OPERATOR, place, tokens)
        else:
            game = game.point(0, OPERATOR, place)
        return ended(accusation.answer(game, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_draw_is_never_convicted(kind: str) -> None:
    params = KINDS[kind]
    rng = random.Random(kind)
    for seed in range(1, 5):
        for _ in range(3):
            own = msgspec.structs.replace(params, seed=rng.randrange(2**40))
            served = draw(logits_at(seed), ordered(own, 0, 0))
            for preferred in rng.sample(range(toy().traits.vocab), 5):
                for how in How:
                    choice = ordered(own, preferred, served, how)
                    tokens = answer.to_tokens(
                        sorted(rng.sample([i for i in range(19) if i != served], own.top_k))
                    )
                    choice = replace(choice, listed=keccak(tokens))
                    try:
                        verdict = Served(own, choice, seed, tokens).play()
                    except GameError as error:
                        assert error.name == "ClaimInvalid" and how != How.AHEAD
                        continue
                    assert verdict == Verdict.NO_FAULT


@pytest.mark.parametrize("kind", KINDS)
def test_another_token_is_convicted_when_it_is_behind_by_the_margin(kind: str) -> None:
    params = KINDS[kind]
    rng = random.Random(kind)
    convicted = 0
    for seed in range(1, 7):
        own = msgspec.structs.replace(params, seed=rng.randrange(2**40))
        logits = logits_at(seed)
        right = draw(logits, ordered(own, 0, 0))
        for served in rng.sample([i for i in range(19) if i != right], 4):
            ways = [Served(own, ordered(own, right, served), seed)]
            top = max(range(19), key=logits.__getitem__)
            if own.min_p_micro:
                ways.append(Served(own, ordered(own, top, served, How.OUTSIDE_MIN_P), seed))
            if own.top_k:
                ids = sorted((i for i in range(19) if i != served), key=lambda i: -logits[i])
                tokens = answer.to_tokens(sorted(ids[: own.top_k]))
                choice = ordered(own, right, served, How.OUTSIDE_TOP_K)
                ways.append(Served(own, replace(choice, listed=keccak(tokens)), seed, tokens))
            verdicts = [way.play() for way in ways]
            convicted += Verdict.FAULT in verdicts
    assert convicted >= 20  # of 24: the rest are near ties


def test_a_token_that_the_filters_leave_out_is_convicted_whatever_its_noise() -> None:
    """The cheat of ignoring top-k: no allowed token is ahead of the served one."""
    found = 0
    for seed in range(1, 5):
        for number in range(60):
            own = SamplingParams(temperature_micro=2_000_000, seed=number, top_k=2)
            logits = logits_at(seed)
            unfiltered = draw(logits, replace(ordered(own, 0, 0), top_k=0))
            if unfiltered == draw(logits, ordered(own, 0, 0)):
                continue
            ids = sorted((i for i in range(19) if i != unfiltered), key=lambda i: -logits[i])[:2]
            gap = min(logits[i] for i in ids) - logits[unfiltered]
            if gap / 2 < 0.011:
                continue
            tokens = answer.to_tokens(sorted(ids))
            choice = ordered(own, ids[0], unfiltered, How.OUTSIDE_TOP_K)
            assert (
                Served(own, replace(choice, listed=keccak(tokens)), seed, tokens).play()
                == Verdict.FAULT
            )
            found += 1
            break
    assert found == 4


def test_lists_that_prove_nothing_lose() -> None:
    own = KINDS["top-k"]
    logits = logits_at(1)
    right = draw(logits, ordered(own, 0, 0))
    other = next(i for i in range(19) if i != right)
    served = Served(own, ordered(own, right, other), 1)
    accusation = served.accusation
    verdict = accusation.stage.layout.verdicts[0]
    for ids in ((1, 2), (2, 1, 3), (1, 1, 2), (1, 2, 19), (right, 18, 17), (1, 2, 3, 4)):
        tokens = answer.to_tokens(ids)
        game = served.open(accusation).point_with(0, OPERATOR, verdict, tokens)
        assert ended(accusation.answer(game, 0)) == Verdict.FAULT, ids
    for length in (0, 1025):
        with pytest.raises(GameError, match="ListInvalid"):
            served.open(accusation).point_with(0, OPERATOR, verdict, bytes(length))
    outside = ordered(own, right, other, How.OUTSIDE_TOP_K)
    for ids in ((1, 2), (3, 2, 1), (other, 17, 18) if other < 17 else (16, 17, other)):
        tokens = answer.to_tokens(ids)
        listed = Served(own, replace(outside, listed=keccak(tokens)), 1, tokens)
        made = listed.accusation
        game = listed.open(made).point(0, OPERATOR, verdict)
        assert ended(made.answer(game, 0)) == Verdict.NO_FAULT, ids


def test_the_draw_comes_from_signed_bytes() -> None:
    own = KINDS["sampled"]
    served = Served(own, ordered(own, 3, 4), 1)
    accusation = served.accusation
    right = served.drawn(accusation)
    other = msgspec.structs.replace(own, seed=6).canonical()
    for drawn, name in (
        (replace(right, sampling=other), "SamplingUnproven"),
        (replace(right, proof=right.proof[:-1]), "SamplingUnproven"),
        (replace(right, requests=REQUESTS + 1), "SamplingUnproven"),
        (replace(right, served=accusation.outputs.open(0, 0)), "EvidenceWrong"),
    ):
        with pytest.raises(GameError, match=name):
            served.open(accusation, drawn)
    for wrong in (
        replace(served.choice, key=(1, 2)),
        replace(served.choice, step=0),
        replace(served.choice, temperature_micro=5),
        replace(served.choice, top_k=1),
        replace(served.choice, min_p_micro=1),
    ):
        forged = Served(own, wrong, 1)
        with pytest.raises(GameError, match="DrawMismatch"):
            forged.open(forged.accusation)
    assert served.open(accusation).phase == Phase.PICKING


def test_what_the_referee_does_not_judge_is_refused() -> None:
    for changed in (
        {"top_p_micro": 900_000},
        {"repetition_penalty_micro": 1_100_000},
        {"frequency_penalty_micro": -1},
        {"presence_penalty_micro": 5},
        {"logit_bias": ((3, 100),)},
        {"min_new_tokens": 2},
        {"grammar": 'start: "a"'},
    ):
        with pytest.raises(DrawError, match="SamplingUnjudged"):
            ordered(msgspec.structs.replace(PLAIN, **changed), 0, 1)
    ordered(msgspec.structs.replace(PLAIN, min_new_tokens=1, stop=(b"x",), ignore_eos=True), 0, 1)
    with pytest.raises(DrawError, match="SamplingUnjudged"):
        prescribed(b"\1" + PLAIN.canonical()[1:], 0, 0, Choice(0, 1, 0, 0, (0, 0)))


def test_a_margin_grows_as_it_gets_colder() -> None:
    assert [delta_of(10_000, t) for t in (0, 10**6, 2 * 10**6, 500_000, 3)] == [
        10_000,
        10_000,
        10_000,
        20_000,
        3_333_333_334,
    ]


def test_an_open_orders_request_is_bound_by_its_opening_and_to_one() -> None:
    own = KINDS["sampled"]
    served = Served(own, ordered(own, 3, 4), 1)
    accusation = served.accusation
    leaf = commit.to_hex(commit.leaf_hash(commit.sampling_leaf(INDEX, own)))
    opening = RequestOpening(ORDER_HASH, INDEX, "0x" + "11" * 32, leaf)
    right = replace(
        served.drawn(accusation), sampling_root=bytes(32), proof=[], opening=opening, is_signed=True
    )
    for drawn, name in (
        (replace(right, opening=None), "SamplingUnproven"),
        (replace(right, is_signed=False), "OpeningUnsigned"),
        (
            replace(right, opening=msgspec.structs.replace(opening, request_index=1)),
            "SamplingUnproven",
        ),
        (
            replace(right, opening=msgspec.structs.replace(opening, order_hash=leaf)),
            "SamplingUnproven",
        ),
        (
            replace(right, opening=msgspec.structs.replace(opening, sampling_leaf=ORDER_HASH)),
            "SamplingUnproven",
        ),
    ):
        with pytest.raises(GameError, match=name):
            served.open(accusation, drawn)
    game = served.open(accusation, right)
    second = msgspec.structs.replace(opening, sampling_leaf=ORDER_HASH)
    for shown, signed, name in (
        (opening, True, "OpeningUnrelated"),
        (msgspec.structs.replace(second, request_index=1), True, "OpeningUnrelated"),
        (second, False, "OpeningUnsigned"),
    ):
        with pytest.raises(GameError, match=name):
            game.show_opening(0, OPERATOR, shown, signed)
    assert ended(game.show_opening(0, OPERATOR, second, True)) == Verdict.NO_FAULT
    with pytest.raises(GameError, match="OpeningUnrelated"):
        served.open(accusation).show_opening(0, OPERATOR, second, True)


def test_the_leaf_of_a_token_is_the_requests_own() -> None:
    """Positions, not counts of tokens, say which token it is."""
    leaf = request_leaf(toy().inputs(2, POSITIONS), CommittedRows([b"\0\0\0\0"] * 2))
    assert (leaf.tokens_in, leaf.tokens_out) == (2, 2)
