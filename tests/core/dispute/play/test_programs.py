"""A model's program and tables are the same bytes wherever they are made."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from core.dispute.play import tables
from core.dispute.play.program import (
    PROGRAM_FILE,
    has_program,
    model_program,
    program_like,
)
from core.dispute.trace.families import FP32_TOLERANCES, LEAST_DELTA_MICRO, SIGMA
from core.dispute.trace.program import Program
from core.protocol.errors import ModelUnsupported
from devnet.models.tiny_models import write_tiny_model
from tests.core.dispute.play.models import FAMILIES, Tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_a_program_is_made_once_and_read_back(tmp_path: Path, family: str) -> None:
    tiny = Tiny.make(tmp_path, family)
    kept = (tiny.folder / PROGRAM_FILE).read_bytes()
    again = model_program(tiny.folder, FP32_TOLERANCES)
    assert again.numerics_profile == tiny.ours.numerics_profile
    assert (tiny.folder / PROGRAM_FILE).read_bytes() == kept
    (tiny.folder / PROGRAM_FILE).write_bytes(b"torn")
    assert model_program(tiny.folder, FP32_TOLERANCES).program == again.program
    assert Program.from_bytes(again.program.to_bytes()) == again.program


def test_tolerances_are_part_of_the_profile(tmp_path: Path) -> None:
    tiny = Tiny.make(tmp_path, "llama")
    in_shadow = model_program(tiny.folder)
    assert in_shadow.program.tolerances == ()
    assert in_shadow.numerics_profile != tiny.ours.numerics_profile
    assert in_shadow.program.tables_root == tiny.ours.program.tables_root


def test_a_tokens_room_follows_from_the_head_and_less_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny", "gemma3", layers=1, hidden=64)
    least = model_program(folder).program.delta_micro
    assert least == LEAST_DELTA_MICRO
    with pytest.raises(ModelUnsupported, match="head needs"):
        model_program(folder, delta_micro=least - 1)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][7] = 2e4
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    largest = float(tensors["model.embed_tokens.weight"][:, 7].abs().max()) * (1 + 2e4)
    ours = model_program(folder).program
    assert ours.delta_micro == math.ceil(64**1.5 * largest * 2.0**-25 * 1e6) > 2 * least
    assert model_program(folder, delta_micro=10**6).program.delta_micro == 10**6
    with pytest.raises(ModelUnsupported, match="head needs"):
        model_program(folder, delta_micro=ours.delta_micro - 1)
    registered = replace(ours, delta_micro=least)
    assert program_like(folder, registered).program == registered, "a game about it is played"


def test_other_weights_have_other_scales(tmp_path: Path) -> None:
    tiny, other = Tiny.make(tmp_path / "a", "llama"), Tiny.make(tmp_path / "b", "llama", seed=1)
    assert tiny.ours.program.tables_root != other.ours.program.tables_root
    sigma = tiny.ours.tables[SIGMA]
    assert sigma.shape == (4, tiny.hidden)
    assert (sigma > 0).all()
    mantissa, _ = np.frexp(sigma)
    assert (mantissa * 256 == np.round(mantissa * 256)).all(), "eight significant bits"


def test_a_model_without_a_program_says_why(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "gpt2", "gpt2")
    assert not has_program(folder)
    with pytest.raises(ModelUnsupported, match="tolerance game"):
        model_program(folder)


def test_rotary_tables_are_correctly_rounded() -> None:
    inverse = (1.0 / 10_000.0 ** (np.arange(0, 16, 2) / 16)).astype(np.float32)
    table = tables.rotary_table(inverse, 1.0, 4096)
    rng = np.random.default_rng(0)
    for position in rng.integers(0, 4096, 60):
        for i, frequency in enumerate(inverse):
            angle = float(np.float32(position) * frequency)
            for column, exact in ((2 * i, tables._cosine), (2 * i + 1, tables._sine)):
                value = exact(angle)
                assert abs(float(value) - (math.cos, math.sin)[column % 2](angle)) < 1e-12
                around = [np.nextafter(table[position, column], np.float32(t)) for t in (-4, 4)]
                error = abs(Decimal(float(table[position, column])) - value)
                assert all(error <= abs(Decimal(float(a)) - value) for a in around)


def test_what_float64_cannot_settle_is_settled_with_more_digits() -> None:
    angles = np.array([[0.5, 2.0]])
    low, high = np.float32(0.25), np.nextafter(np.float32(0.25), np.float32(1))
    between = (float(low) + float(high)) / 2
    asked: list[float] = []

    def exact(angle: float) -> Decimal:
        asked.append(angle)
        return Decimal(between) + (Decimal(10) ** -30 if angle == 0.5 else -(Decimal(10) ** -30))

    found = tables._rounded(np.full((1, 2), between), angles, 1.0, exact)
    assert list(found[0]) == [high, low]
    assert asked == [0.5, 2.0]


def test_rotations_that_depend_on_the_length_are_refused() -> None:
    with pytest.raises(ModelUnsupported, match="dynamic"):
        tables._check_fixed("dynamic")
