"""Every shipped tolerance rests on a measurement that it covers at least twice."""

from __future__ import annotations

import pytest

from core.dispute.registration import calibrated as calibration
from core.dispute.trace.families import BF16_TOLERANCES, FAMILIES, FP32_TOLERANCES
from devnet.models.calibrate import NUMERICS, promised
from tests.core.dispute.trace.shadow import Measured, in_shadow_because


def in_shadow(
    architecture: str, numerics: str = calibration.FLOAT32
) -> dict[tuple[int, int], list[str]]:
    """(max_depth, min_rows) → what would keep that tolerance in shadow where money is real."""
    profile = calibration.measured()["profiles"][numerics]
    return {
        (entry["max_depth"], entry["min_rows"]): in_shadow_because(
            Measured(entry["windows"], entry["largest"], tuple(profile["machines"])),
            entry["parts_per_trillion"],
        )
        for entry in profile["families"][architecture]
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_published_tolerances(family: str) -> None:
    assert calibration.calibrated(family) == FP32_TOLERANCES
    for entry in calibration.measured()["profiles"]["float32"]["families"][family]:
        assert entry["windows"] >= 90
        assert 0 < entry["largest"] * calibration.LEAST_ROOM * 10**12 <= entry["parts_per_trillion"]


def test_bfloat16_has_the_published_tolerances_or_wider_ones_where_honest_machines_need_them() -> (
    None
):
    families = calibration.measured()["profiles"]["bfloat16"]["families"]
    assert set(families) == set(FAMILIES)
    for family, entries in families.items():
        promised = calibration.calibrated(family, "bfloat16")
        for ours, published, entry in zip(promised, BF16_TOLERANCES, entries, strict=True):
            assert (ours.max_depth, ours.min_rows) == (published.max_depth, published.min_rows)
            assert ours.parts_per_trillion >= published.parts_per_trillion
            is_wider = ours.parts_per_trillion > published.parts_per_trillion
            needs_room = calibration.LEAST_ROOM * entry["largest"] * 10**12
            assert is_wider == (needs_room > published.parts_per_trillion)
        assert all(in_shadow(family, "bfloat16").values())


def test_what_was_not_measured_is_in_shadow() -> None:
    assert calibration.calibrated("mixtral") == ()
    assert calibration.calibrated("llama", "float16") == ()


def test_a_tolerance_with_too_little_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"max_depth": 1, "min_rows": 64, "largest": 6e-6, "parts_per_trillion": 10**7}
    monkeypatch.setattr(
        calibration, "measured", lambda: {"profiles": {"float32": {"families": {"llama": [entry]}}}}
    )
    with pytest.raises(ValueError, match="too small"):
        calibration.calibrated("llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_one_kind_of_machine_is_not_enough_for_real_money(family: str) -> None:
    reasons = in_shadow(family)
    assert reasons.keys() == {(t.max_depth, t.min_rows) for t in FP32_TOLERANCES}
    for why in reasons.values():
        assert any("kinds of machines" in reason for reason in why)
        assert not any("half of T" in reason for reason in why), (
            "what is missing is evidence, not room"
        )


@pytest.mark.parametrize("numerics", NUMERICS)
def test_what_is_promised_covers_every_machine_that_measured(numerics: str) -> None:
    profile = calibration.measured()["profiles"][numerics]
    assert profile["families"] == promised(profile["machines"], NUMERICS[numerics].tolerances), (
        "made by devnet.models.calibrate alone"
    )
    assert len(profile["machines"]) >= 2, "a processor and a graphics processor"
