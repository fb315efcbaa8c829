"""Rows chosen so that an honest last stage looks like a liar convict it of no token, and hide none.

A requester and the miner before the victim choose a row that the victim's first layer cancels, so
that its next one turns rounding into logits: run again, the layers favour another token by nats.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.trust import cheats
from benchmarks.trust.town import town
from core.dispute.game.dispute import Verdict
from core.dispute.judging.numerics import TokenMargins, profile_of, reexecute
from core.dispute.play.claims import token_claim
from core.dispute.play.players import Accused, Accuser, with_trace
from core.dispute.play.prepare import traced
from core.dispute.trace.judge import Case
from core.dispute.trace.sources import answer_rows, cut_rows
from core.engine.batch.whole import head_logits, run_whole
from core.engine.model.blocks import ModelShard
from core.engine.weights.load_shard import load_shard
from core.protocol import commit
from core.protocol.types import LayerRange, RequestLeaf, SamplingParams
from tests.attacks.test_crafted_rows import CRAFTED, REPEATS
from tests.core.dispute.play.models import Tiny
from tests.game.referee_table import Table

SPAN = LayerRange(1, 3)
GREEDY = SamplingParams()


@dataclass(frozen=True)
class Answer:
    """What a last stage signed of a request whose first row alone was the prompt's."""

    tiny: Tiny
    rows: torch.Tensor
    tokens: list[int]
    states: torch.Tensor

    @classmethod
    def of(cls, tiny: Tiny, rows: np.ndarray, shard: ModelShard) -> Answer:
        x = torch.from_numpy(rows)
        made: Any = run_whole(shard, x, states=True)
        return cls(tiny, x, [int(row.argmax()) for row in made.logits], made.rows)

    def margins(self, exact: ModelShard, served: torch.Tensor | None) -> TokenMargins:
        """By norm and head of these state rows, or of those that the layers make again."""
        found = TokenMargins(self.tokens, GREEDY, 0, prompt=[0])
        wanted = range(len(self.tokens))
        reexecute(exact, self.rows.double(), logit_rows=wanted, draw=found, served=served)
        return found

    def charged(self, token: int, due: int) -> tuple[Accuser, Accused]:
        """Both sides of the dispute which says that `due` should have come."""
        tiny, width = self.tiny, 4 * self.tiny.hidden
        inputs, states = (t.numpy().astype("<f4").tobytes() for t in (self.rows, self.states))
        outputs = np.array(self.tokens, "<u4").tobytes()
        ids, left = answer_rows(cut_rows(outputs, 4), cut_rows(states, width))
        entered = [commit.row_hash(i, row) for i, row in enumerate(cut_rows(inputs, width))]
        roots = commit.root_of_hashes(entered), commit.answer_root(ids.root, left.root)
        leaf = RequestLeaf(0, *map(commit.to_hex, roots), 1, len(self.tokens))
        layers = SPAN.start, SPAN.end
        claim = token_claim(tiny.ours.program, leaf, layers, GREEDY, self.tokens, token, due)
        case = Case(tiny.ours.program, (), claim)
        case.check_claim()
        model = tiny.ours.trace_model(tiny.folder)
        trace, sources = traced(case, model, inputs, outputs, states)
        return Accuser(with_trace(case, trace), trace, sources), Accused(case, trace, sources)


@pytest.fixture(scope="module", params=["gemma2", "gemma3"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tiny(family: str, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny.make(tmp_path_factory.mktemp("models"), family)


@pytest.fixture(scope="module")
def rows(family: str) -> np.ndarray:
    """[16, D], the same row again and again."""
    row = np.frombuffer(bytes.fromhex(json.loads(Path(CRAFTED).read_text())[family]), "<f4")
    return np.tile(row, (REPEATS, 1))


@pytest.fixture(scope="module")
def exact(tiny: Tiny) -> ModelShard:
    return load_shard(tiny.folder, SPAN, dtype=torch.float64)


def test_an_honest_token_is_judged_by_what_the_stage_signed(
    tiny: Tiny, rows: np.ndarray, exact: ModelShard
) -> None:
    answer = Answer.of(tiny, rows, load_shard(tiny.folder, SPAN, dtype=torch.float32))
    profile = profile_of(tiny.ours.program)
    again = answer.margins(exact, None).verdict(profile)
    assert again.at_fault and again.ratio > 5 * profile.token_margin, "these rows accuse nobody"
    own = answer.margins(exact, answer.states)
    assert own.are_all_finite and not own.verdict(profile).at_fault
    logits = reexecute(exact, answer.rows.double(), logit_rows=[again.worst_row])
    accuser, accused = answer.charged(again.worst_row, int(logits[0].argmax()))
    assert not accuser.is_convicting()
    assert Table(accuser, accused).play() == Verdict.NO_FAULT


@pytest.mark.parametrize("lie", ["another token", "another head"])
def test_a_lie_about_such_a_token_convicts(
    lie: str, tiny: Tiny, rows: np.ndarray, exact: ModelShard
) -> None:
    shard = load_shard(tiny.folder, SPAN, dtype=torch.float32)
    if lie == "another head":
        head = shard.model.get_output_embeddings()
        noise = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(1))
        head.weight = torch.nn.Parameter(head.weight * (1 + noise / 4), requires_grad=False)
    answer = Answer.of(tiny, rows, shard)
    if lie == "another token":
        answer.tokens[3] = (answer.tokens[3] + 7) % 250
    own = answer.margins(exact, answer.states).verdict(profile_of(tiny.ours.program))
    assert own.at_fault
    due = head_logits(exact, answer.states[own.worst_row, None].double()).argmax()
    accuser, accused = answer.charged(own.worst_row, int(due))
    assert accuser.is_convicting()
    assert Table(accuser, accused).play() == Verdict.FAULT


def test_all_lies_about_tokens_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another token, seed, rule or model, by a stage whose rows are right: the benchmark's lies.

    Long answers, since a random model's layers say little beside its embedding.
    """
    monkeypatch.setattr(cheats, "TOKEN_STEPS", 160)
    with town("tiny", "fp32") as here:
        row = cheats.tokens(here, "fp32")
    assert row.reached, row
