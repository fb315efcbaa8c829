"""Python and Solidity judge an accused token alike."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import msgspec
import pytest
from eth_utils.crypto import keccak

from core.dispute.game.dispute import Verdict
from core.dispute.trace import answer
from core.dispute.trace.derive import How
from core.dispute.trace.layout import Place
from core.dispute.trace.operands import evidence_for
from core.dispute.trace.sources import CommittedRows
from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol.types import ZERO_HASH, Order, RequestOpening, SamplingParams
from tests.conftest import CHAIN_ID
from tests.twins.dispute_chain import Bench, TwinGame
from tests.twins.game.draw import Drawn
from tests.twins.game.game import GameError
from tests.twins.game.players import Accusation, logits_of
from tests.twins.game.test_tokens import INDEX, KINDS, Served, draw, logits_at, ordered
from tests.twins.game.tokens import point_of_token

pytestmark = pytest.mark.chain


def order_of(bench: Bench, drawn: Drawn) -> Order:
    zero = "0x" + "00" * 20
    return Order(
        requester=bench.requester,
        model_id=ZERO_HASH,
        input_root=ZERO_HASH,
        sampling_root=commit.to_hex(drawn.sampling_root),
        requests=drawn.requests,
        max_tokens_in=1,
        max_tokens_out=1,
        price_in=1,
        price_out=1,
        matcher=zero,
        matcher_fee_bps=0,
        opening_fee=0,
        min_stake=0,
        deadline=1,
        window=1,
        auditor=zero,
        arbitrator=bench.at["ToleranceGame"],
        numerics_profile=ZERO_HASH,
        terms_hash=ZERO_HASH,
        nonce=7,
    )


class Play:
    """One accusation of a token on both twins."""

    def __init__(
        self,
        bench: Bench,
        served: Served,
        drawn: Drawn | None = None,
        accusation: Accusation | None = None,
    ) -> None:
        self.bench, self.served = bench, served
        self.accusation: Accusation = accusation or served.accusation
        self.case = self.accusation.case
        self.drawn = drawn or served.drawn(self.accusation)
        self.order = order_of(bench, self.drawn)
        self.leaves = commit.request_hashes([self.case.claim.leaf])
        model = bench.register(self.case, 50)
        order_hash = signing.struct_hash(self.order)
        self.game = TwinGame.open(bench, self.case, self.leaves, model, order_hash)

    def accuse(self, drawn: Drawn | None = None, signature: bytes = b"") -> None:
        tree = self.accusation.trace.tree
        self.game.accuse_token(
            self.case,
            0,
            commit.merkle_proof(self.leaves, 0),
            tree.below(tree.height, 0),
            drawn or self.drawn,
            self.order,
            signature,
        )

    def point(self, place: Place) -> Verdict:
        """The accused points at a value, and the accuser opens it."""
        a = self.accusation
        derivation, sources = a.stage.derivation, a.stage.sources(a.outputs)
        self.game.point(place)
        if derivation.trial(place).parts:
            raise ValueError(f"{place} is of partial sums")
        self.game.prove(evidence_for(a.trace, derivation, sources, place))
        return self.game.game.verdict

    def finish(self, tokens: bytes | None = None) -> Verdict:
        """The best that both can do, or with a list that the accused makes up."""
        a, choice = self.accusation, self.served.choice
        place, best = point_of_token(a.stage.layout, choice, logits_of(a.trace), self.served.tokens)
        self.game.point(place, tokens=best if tokens is None else tokens)
        sources = a.stage.sources(a.outputs)
        listed = a.listed(self.game.game)
        found = evidence_for(a.trace, a.stage.derivation, sources, place, None, *listed)
        self.game.prove(found)
        return self.game.game.verdict


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_judged_alike(bench: Bench, kind: str) -> None:
    params = KINDS[kind]
    logits = logits_at(1)
    right = draw(logits, ordered(params, 0, 0))
    lowest = min(range(19), key=logits.__getitem__)
    for preferred, served in ((right, lowest), (lowest, right)):
        play = Play(bench, Served(params, ordered(params, preferred, served), 1))
        play.accuse()
        assert play.finish() == (Verdict.FAULT if served == lowest else Verdict.NO_FAULT)


def test_a_token_is_judged_by_the_state_row_that_was_signed_alike(bench: Bench) -> None:
    """Every kind of value in its trace, right ones and one that is another row's."""
    params = KINDS["greedy"]
    served = Served(params, ordered(params, 3, 4), 1)
    honest = served.accusation
    places = [Place(0, 0, 0, 0, 5), Place(1, 0), Place(1, 1), Place(1, 2, 0, 0, 7), Place(1, 3)]
    for place in places:
        for trace, due in (
            (honest.trace, Verdict.FAULT),
            (honest.trace.replaced(place, honest.trace[place] + 0.5), Verdict.NO_FAULT),
        ):
            play = Play(bench, served, accusation=replace(honest, trace=trace))
            play.accuse()
            assert play.point(place) == due, place
    states = honest.stage.states
    assert states is not None
    first = struct.unpack("<8f", states.rows[0])  # the signed row of another token
    trace = honest.trace
    for channel, value in enumerate(first):
        trace = trace.replaced(Place(0, 0, 0, 0, channel), value)
    play = Play(bench, served, accusation=replace(honest, trace=trace))
    play.accuse()
    assert play.point(Place(0, 0, 0, 0, 2)) == Verdict.NO_FAULT


def test_a_state_row_that_is_no_number_is_the_accuseds_fault_alike(bench: Bench) -> None:
    params = KINDS["greedy"]
    served = Served(params, ordered(params, 3, 4), 1)
    honest = served.accusation
    states = honest.stage.states
    assert states is not None
    broken = [states.rows[0], struct.pack("<f", math.nan) + states.rows[1][4:]]
    stage = replace(honest.stage, states=CommittedRows(broken))
    accusation = replace(honest, stage=stage, outputs=stage.ids(1, 4))
    play = Play(bench, served, accusation=accusation)
    play.accuse()
    assert play.point(Place(0, 0)) == Verdict.FAULT


def test_a_token_has_no_plea_alike(bench: Bench) -> None:
    params = KINDS["greedy"]
    play = Play(bench, Served(params, ordered(params, 3, 4), 1))
    play.accuse()
    with pytest.raises(GameError, match="NoPlea"):
        play.game.plead(7)


def test_tokens_outside_filters_are_judged_alike(bench: Bench) -> None:
    params = KINDS["both"]
    logits = logits_at(2)
    ids = sorted(range(19), key=lambda i: -logits[i])
    tokens = answer.to_tokens(sorted(ids[: params.top_k]))
    for served, fault in ((ids[-1], True), (ids[params.top_k], False)):
        choice = replace(ordered(params, ids[0], served, How.OUTSIDE_TOP_K), listed=keccak(tokens))
        play = Play(bench, Served(params, choice, 2, tokens))
        with pytest.raises(GameError, match="DrawMismatch"):
            play.accuse(replace(play.drawn, tokens=b"1234"))
        play.accuse()
        is_ahead = logits[ids[params.top_k - 1]] - logits[served] > 0.0125 * 0.8
        assert play.finish() == (Verdict.FAULT if is_ahead else Verdict.NO_FAULT)
        assert is_ahead or not fault
    for served in (ids[-1], ids[0]):
        choice = ordered(params, ids[0], served, How.OUTSIDE_MIN_P)
        play = Play(bench, Served(params, choice, 2))
        play.accuse()
        play.finish()


def test_lists_that_prove_nothing_lose_alike(bench: Bench) -> None:
    params = KINDS["top-k"]
    right = draw(logits_at(1), ordered(params, 0, 0))
    other = next(i for i in range(19) if i != right)
    for ids in ((1, 2), (2, 1, 3), (1, 2, 19), (1, 2, 3, 4)):
        play = Play(bench, Served(params, ordered(params, right, other), 1))
        play.accuse()
        assert play.finish(answer.to_tokens(ids)) == Verdict.FAULT
    outside = ordered(params, right, other, How.OUTSIDE_TOP_K)
    tokens = answer.to_tokens((3, 2, 1))
    play = Play(bench, Served(params, replace(outside, listed=keccak(tokens)), 1, tokens))
    play.accuse()
    assert play.finish() == Verdict.NO_FAULT


def test_what_was_not_ordered_or_not_served_is_refused_alike(bench: Bench) -> None:
    params = KINDS["sampled"]
    play = Play(bench, Served(params, ordered(params, 3, 4), 1))
    right = play.drawn
    other = msgspec.structs.replace(params, seed=6).canonical()
    for drawn, name in (
        (replace(right, sampling=other), "SamplingUnproven"),
        (replace(right, proof=[]), "SamplingUnproven"),
        (replace(right, served=play.accusation.outputs.open(0, 0)), "EvidenceWrong"),
    ):
        with pytest.raises(GameError, match=name):
            play.accuse(drawn)
    for changed in (
        {"top_p_micro": 900_000},
        {"repetition_penalty_micro": 1_100_000},
        {"frequency_penalty_micro": -1},
        {"presence_penalty_micro": 5},
        {"logit_bias": ((3, 100),)},
        {"min_new_tokens": 2},
        {"grammar": 'start: "a"'},
    ):
        unjudged = msgspec.structs.replace(params, **changed)
        with pytest.raises(GameError, match="SamplingUnjudged"):
            Play(bench, Served(unjudged, play.served.choice, 1)).accuse()
    for wrong in (
        replace(play.served.choice, key=(1, 2)),
        replace(play.served.choice, step=0),
        replace(play.served.choice, temperature_micro=5),
        replace(play.served.choice, top_k=1),
    ):
        with pytest.raises(GameError, match="DrawMismatch"):
            Play(bench, Served(params, wrong, 1)).accuse()
    play.accuse()


def test_an_open_orders_token_is_bound_to_its_one_opening(
    bench: Bench, signers: list[Signer]
) -> None:
    params = KINDS["sampled"]
    served = Served(params, ordered(params, 3, 4), 1)
    blank = replace(served.drawn(served.accusation), sampling_root=bytes(32), proof=[])
    play = Play(bench, served, blank)
    domain = signing.Domain(CHAIN_ID, bench.at["TaskRegistry"])
    assert signers[4].address == bench.requester

    def opening_of(params: SamplingParams) -> RequestOpening:
        leaf = commit.to_hex(commit.leaf_hash(commit.sampling_leaf(INDEX, params)))
        return RequestOpening(signing.struct_hash(play.order), INDEX, ZERO_HASH, leaf)

    def signed(opening: RequestOpening, signer: Signer) -> bytes:
        return bytes.fromhex(signing.sign(signer, domain, opening)[2:])

    opening = opening_of(params)
    right = replace(blank, opening=opening, is_signed=True)
    with pytest.raises(GameError, match="SamplingUnproven"):
        play.accuse(blank)
    with pytest.raises(GameError, match="OpeningUnsigned"):
        play.accuse(replace(right, is_signed=False), signed(opening, signers[5]))
    play.accuse(right, signed(opening, signers[4]))
    second = opening_of(msgspec.structs.replace(params, seed=6))
    with pytest.raises(GameError, match="OpeningUnrelated"):
        play.game.show_opening(play.order, opening, opening, signed(opening, signers[4]), True)
    with pytest.raises(GameError, match="OpeningUnsigned"):
        play.game.show_opening(play.order, opening, second, signed(second, signers[2]), False)
    play.game.show_opening(play.order, opening, second, signed(second, signers[4]), True)
    assert play.game.game.verdict == Verdict.NO_FAULT
    play.game.execute()
