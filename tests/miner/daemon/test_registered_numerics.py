"""A machine computes a model as it was registered, or does not serve it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from core.protocol import signing
from core.protocol.errors import ModelUnsupported, UsageError
from core.runtime.folders import Folders
from core.runtime.settings import load
from miner.compute.numerics import refuse_other_numerics
from tests.town.orders import SPEC


def settings_of(tmp_path: Path, dtype: str) -> Any:
    return load(flags={"engine.dtype": dtype}, environ={}, folders=Folders.at(tmp_path))


@pytest.mark.parametrize("registered", ["float32", "bfloat16", "int8-weight-only"])
def test_auto_is_whatever_was_registered(registered: str, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, dtype=signing.name_hash(registered))
    refuse_other_numerics(settings_of(tmp_path, "auto"), "tiny", spec)


def test_a_setting_that_contradicts_the_model_is_an_error_and_no_slash(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, dtype=signing.name_hash("bfloat16"))
    refuse_other_numerics(settings_of(tmp_path, "bfloat16"), "tiny", spec)
    with pytest.raises(UsageError, match="is computed in bfloat16") as caught:
        refuse_other_numerics(settings_of(tmp_path, "float32"), "tiny", spec)
    assert "engine.dtype auto" in caught.value.next_step


def test_numerics_that_this_program_does_not_know_are_not_guessed(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, dtype=signing.name_hash("float3"))
    with pytest.raises(ModelUnsupported, match="does not know"):
        refuse_other_numerics(settings_of(tmp_path, "auto"), "tiny", spec)
