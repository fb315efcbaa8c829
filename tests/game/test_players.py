"""On real shards a true accusation wins wherever it is pointed at, a false one falls."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from eth_utils.crypto import keccak

from core.dispute.game.dispute import Verdict
from core.dispute.game.game_log import Seen
from core.dispute.play.held import ShardTrace
from core.dispute.play.loop import Move
from core.dispute.play.players import Accused, Accuser, with_trace
from core.dispute.play.prepare import traced
from core.dispute.play.selfcheck import faults, sampled
from core.dispute.play.values import TraceValues
from core.dispute.referee import LeafKind
from core.dispute.trace.answer import to_tokens
from core.dispute.trace.derive import How
from core.dispute.trace.judge import Case, Claim
from core.dispute.trace.layout import TABLES_PART, Place
from core.protocol import commit
from core.protocol.types import RequestLeaf, SamplingParams
from tests.core.dispute.play.models import FAMILIES, Tiny, with_value
from tests.game.referee_table import Table
from tests.twins.game.test_tokens import KINDS, Served, draw, logits_at, ordered

ROWS, TOKENS_IN = 24, 20
LAYERS = 3  # of the tiny models
FORGED = 10  # places a stage
Span = tuple[int, int]


@dataclass
class Scene:
    """One request through one stage, and what the stage signed."""

    tiny: Tiny
    span: Span
    inputs: bytes
    outputs: bytes
    leaf: RequestLeaf
    states: bytes = b""  # of a last stage

    @classmethod
    def make(cls, tiny: Tiny, span: Span, factor: float) -> Scene:
        """A stage whose rows are the true ones in float32, times `factor`."""
        shard = (*span, ROWS, True)
        inputs, blank = tiny.rows(shard)
        trace = tiny.trace(shard)[0]
        section = len(trace.layout.section_types) - 2
        true = trace.values.array(section, len(trace.layout.section(section).ops) - 1)[:, 0]
        outputs = (true * factor).astype("<f4").tobytes()
        assert len(outputs) == len(blank)
        width, states = 4 * tiny.hidden, b""
        out_root = commit.rows_root(outputs, width)
        if span[1] == LAYERS:  # signs a token and a row of each position that it drew at
            states = outputs[(TOKENS_IN - 1) * width :]
            outputs = commit.token_bytes(range(len(states) // width))
            out_root = commit.answer_root(
                commit.rows_root(outputs, 4), commit.rows_root(states, width)
            )
        leaf = RequestLeaf(
            0,
            commit.to_hex(commit.rows_root(inputs, 4 if span[0] == 0 else width)),
            commit.to_hex(out_root),
            TOKENS_IN,
            ROWS + 1 - TOKENS_IN,
        )
        return cls(tiny, span, inputs, outputs, leaf, states)

    @cached_property
    def case(self) -> Case:
        program = self.tiny.ours.program
        window = len(self.states) // (4 * self.tiny.hidden) if self.states else 16
        entry = next(
            i
            for i, t in enumerate(program.tolerances)
            if t.min_rows <= window and t.max_depth >= self.span[1] - self.span[0]
        )
        claim = Claim(self.leaf, *self.span, ROWS, ROWS - window, entry, bytes(32))
        model = self.tiny.ours.trace_model(self.tiny.folder)
        parts = range(-1, model.layers + 1)
        roots = tuple(self._roots(parts))
        return Case(program, roots, claim)

    def _roots(self, parts: range) -> list[bytes]:
        from core.engine.weights.weights import weight_roots

        roots = weight_roots(self.tiny.folder).parts
        assert len(roots) == len(parts) and TABLES_PART not in parts
        return roots

    def players(self) -> tuple[Accuser, Accused]:
        model = self.tiny.ours.trace_model(self.tiny.folder)
        trace, sources = traced(self.case, model, self.inputs, self.outputs, self.states)
        case = with_trace(self.case, trace)
        return Accuser(case, trace, sources), Accused(case, trace, sources)


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny.make(tmp_path_factory.mktemp("models"), request.param)


@pytest.mark.parametrize("span", [(0, 1), (1, 2), (1, 3)])
def test_a_true_accusation_wins_wherever_it_is_pointed_at(tiny: Tiny, span: Span) -> None:
    accuser, accused = Scene.make(tiny, span, 1.01).players()
    rng = random.Random(4)
    assert accuser.is_convicting()
    assert faults(accuser, 2, rng) == []
    assert accused.answer(Table(accuser, accused).seen) is None, "nothing to say against it"
    for place in [*sampled(accuser.case.layout, 1, rng), accuser.case.layout.verdicts[0]]:

        def point(seen: Seen, place: Place = place) -> Move:
            if seen.stated:
                return Move("pickPart", (rng.randrange(len(seen.stated) // 8),))
            return Move("point", (tuple(place),))

        assert Table(accuser, accused, point).play() == Verdict.FAULT, place


@pytest.mark.parametrize("span", [(0, 1), (1, 2), (1, 3)])
def test_a_false_accusation_falls_at_its_first_wrong_bit(tiny: Tiny, span: Span) -> None:
    honest, accused = Scene.make(tiny, span, 1.0).players()
    assert not honest.is_convicting()
    rng = random.Random(5)
    layout, deepest = honest.case.layout, 0
    for place in rng.sample(list(sampled(layout, 1, rng)), FORGED):
        value = honest.trace[place]
        if not np.isfinite(value):
            continue
        is_stabiliser = layout.op(place.section, place.op).kind == LeafKind.STABILISER
        other = value + 99.0 if is_stabiliser else float(np.nextafter(value, np.inf))
        forged = with_value(honest.trace, place, other)
        liar = Accuser(with_trace(honest.case, forged), forged, honest.sources)
        table = Table(liar, accused)
        assert table.play() == Verdict.NO_FAULT, place
        deepest = max(deepest, len(table.moves))
        assert "point" in table.moves
    assert deepest <= 18


def test_a_true_trace_of_an_honest_stage_falls_at_its_verdict(tiny: Tiny) -> None:
    honest, accused = Scene.make(tiny, (1, 2), 1.0).players()
    table = Table(honest, accused)
    assert table.play() == Verdict.NO_FAULT
    assert table.moves == ["accuse", "point", "prove"]


def test_a_list_of_tokens_beside_a_place_saves_nobody(tiny: Tiny) -> None:
    """The contract takes no proof without the list: the accuser brings it along."""
    accuser, accused = Scene.make(tiny, (1, 2), 1.01).players()
    rng = random.Random(6)
    lists = (b"\0\0\0\1", b"12345", b"\xff" * 4, b"\xff" * 12 + b"\0" * 4)
    for place in [*sampled(accuser.case.layout, 1, rng), accuser.case.layout.verdicts[0]]:
        tokens = rng.choice(lists)

        def point(seen: Seen, place: Place = place, tokens: bytes = tokens) -> Move:
            if seen.stated:
                return Move("pickPart", (0,))
            return Move("pointWith", (tuple(place), tokens))

        assert Table(accuser, accused, point).play() == Verdict.FAULT, (place, tokens)


@pytest.mark.parametrize("how", How)
@pytest.mark.parametrize("kind", KINDS)
def test_the_programs_end_a_tokens_game_as_the_best_players_do(kind: str, how: How) -> None:
    """A convicted stage points at the comparison all the same, at each token of a list."""
    for served in token_claims(KINDS[kind], how):
        expected, made = served.play(), served.accusation
        values = TraceValues(made.stage.layout)
        for key in values.keys:
            values.array(*key).reshape(-1)[:] = made.trace.line(*key)
        sources: Any = made.stage.sources(made.outputs)
        trace = ShardTrace(values)
        accuser = Accuser(made.case, trace, sources, served.tokens)
        accused = Accused(made.case, trace, sources, served.tokens)
        assert accuser.is_convicting() == (expected == Verdict.FAULT)
        verdict = made.stage.layout.verdicts[0]
        for item in range(served.choice.top_k or 1):
            tried = Move("point", (tuple(verdict._replace(item=item)),))

            def answer(seen: Seen, accused: Accused = accused, tried: Move = tried) -> Move:
                return accused.answer(seen) or tried

            assert Table(accuser, accused, answer).play() == expected


def token_claims(params: SamplingParams, how: How) -> Iterator[Served]:
    """Of an honest draw and of the least likely token, where this filter is on."""
    filters = {How.OUTSIDE_MIN_P: params.min_p_micro, How.OUTSIDE_TOP_K: params.top_k}
    if not filters.get(how, True):
        return
    for seed in (1, 2):
        logits = logits_at(seed)
        right, order = draw(logits, ordered(params, 0, 0)), np.argsort(logits)
        for preferred, served in ((right, int(order[0])), (int(order[0]), right)):
            ahead = [int(i) for i in order[::-1] if i != served][: params.top_k]
            tokens = to_tokens(sorted(ahead)) if how == How.OUTSIDE_TOP_K else b""
            choice = ordered(params, preferred, served, how)
            if tokens:
                choice = replace(choice, listed=keccak(tokens))
            yield Served(params, choice, seed, tokens)
