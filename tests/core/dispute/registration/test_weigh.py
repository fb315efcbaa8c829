"""No program is registered whose T honest machines do not keep on the model's own weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.dispute.play.program import ModelProgram, model_program
from core.dispute.registration import weigh as weighing
from core.dispute.registration.search import HALF, SearchEffort
from core.dispute.registration.weigh import WEIGHED_FILE, check_weights, spans, weigh
from core.dispute.trace.families import (
    BF16_PLEA,
    BF16_TOLERANCES,
    FP32_PLEA,
    FP32_TOLERANCES,
)
from core.dispute.trace.program import Plea, Tolerance
from core.protocol.errors import ModelUnsupported
from devnet.models.tiny_models import write_tiny_model
from tests.core.dispute.registration.crafted import LAYER, write_crafted_model

EFFORT = SearchEffort(steps=4, ground=1, most_rows=16, floor=HALF, seed=1)


@pytest.fixture(scope="module")
def crafted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_crafted_model(tmp_path_factory.mktemp("models") / "crafted")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama", layers=2)


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_models_as_they_are_made_keep_the_published_tolerances(family: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / family, family, layers=2)
    found = weigh(path, model_program(path, FP32_TOLERANCES), EFFORT)
    assert {work.rows_kind for work in found} == {"natural"}
    assert 0 < found[0].share <= 0.1


def test_bfloat16_is_weighed_by_machines_of_bfloat16(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "bf16", "llama", layers=2, dtype="bfloat16")
    found = weigh(path, model_program(path, BF16_TOLERANCES, plea=BF16_PLEA), EFFORT)
    assert max(work.ratio for work in found) > 1e-4
    assert found[0].share <= HALF


def test_weights_by_which_sums_cancel_are_refused(crafted: Path) -> None:
    with pytest.raises(ModelUnsupported) as refused:
        check_weights(crafted, model_program(crafted, FP32_TOLERANCES), EFFORT)
    assert not (crafted / WEIGHED_FILE).exists()
    error = refused.value
    assert error.what.startswith("honest work on natural rows comes to ")
    assert f"layers {LAYER}-{LAYER}, 64 rows" in error.why
    assert "T is 1e-05 for up to 1 layers and 64 rows or more" in error.why
    assert error.details["layers"] == [LAYER, LAYER + 1]
    assert error.details["share"] > 10
    assert error.details["least_t"] >= 2e-5 * error.details["share"] * 0.99
    assert f"a T of {error.details['least_t']:g} there, or more" in error.next_step


def test_the_least_tolerance_that_is_named_would_do(crafted: Path) -> None:
    one = (Tolerance(2, 64, FP32_TOLERANCES[0].parts_per_trillion),)
    with pytest.raises(ModelUnsupported) as refused:
        weigh(crafted, model_program(crafted, one), EFFORT)
    enough = round(refused.value.details["least_t"] * 10**12)
    found = weigh(
        crafted, model_program(crafted, (replace(one[0], parts_per_trillion=enough),)), EFFORT
    )
    assert 0.25 < found[0].share <= HALF


def test_adversarial_rows_are_refused_where_no_plea_is_left(llama: Path) -> None:
    """The same model, once with a plea and once with one that lifts nothing."""
    single, longer = FP32_TOLERANCES[5:6], replace(EFFORT, steps=40)
    assert weigh(llama, model_program(llama, single, plea=FP32_PLEA), longer)
    bare = model_program(llama, single, plea=Plea(0, FP32_PLEA.own_bits))
    with pytest.raises(ModelUnsupported) as refused:
        weigh(llama, bare, longer)
    assert "adversarial rows" in refused.value.what
    assert "cancelled, " in refused.value.why
    assert refused.value.details["rows"] == "adversarial"


def test_nothing_is_weighed_for_a_program_in_shadow(crafted: Path) -> None:
    assert weigh(crafted, model_program(crafted), EFFORT) == []


def test_a_model_is_weighed_once_for_a_program(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed: list[ModelProgram] = []
    monkeypatch.setattr(weighing, "weigh", lambda folder, ours, effort: weighed.append(ours))
    ours, other = model_program(llama, FP32_TOLERANCES), model_program(llama, FP32_TOLERANCES[:3])
    for program, effort in (
        (ours, EFFORT),
        (ours, EFFORT),
        (other, EFFORT),
        (other, replace(EFFORT, seed=2)),
    ):
        check_weights(llama, program, effort)
    assert weighed == [ours, other, other]
    (llama / WEIGHED_FILE).unlink()
    check_weights(llama, other, EFFORT)
    assert len(weighed) == 4


def test_stages_of_every_depth_that_has_a_tolerance_are_searched(llama: Path) -> None:
    program = model_program(llama, FP32_TOLERANCES).program
    eight = replace(program, layer_types=bytes(8))
    assert [(span.start, span.end) for span in spans(program)] == [(0, 1), (1, 2), (0, 2)]
    assert [(span.start, span.end) for span in spans(eight)] == [
        *((i, i + 1) for i in range(8)),
        *((0, 6), (1, 7), (2, 8)),
        *((0, 8), (1, 8)),
    ]
