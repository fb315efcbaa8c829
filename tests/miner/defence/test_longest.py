"""Whether a machine takes longer requests than it can defend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from core.dispute.kernels.speed import Speed
from core.dispute.trace.length import judged_parts, longest_request
from core.protocol.signing import name_hash
from core.protocol.types import LayerRange
from core.runtime.folders import Folders
from core.runtime.settings import Settings, load
from miner.defence import longest
from miner.defence.longest import undefended
from tests.core.models.test_programs import Stored, of
from tests.town.orders import SPEC
from tests.twins.game import toy

PROGRAM = replace(toy.Toy.make(toy.LLAMA).program, context=8192, span_layers=2)
DATA = PROGRAM.to_bytes()


class Game(Stored):
    """A chain whose turns are so long."""

    addresses = {"ProgramStore": "0x", "ToleranceGame": "0x"}
    turn_s = 0

    async def read(self, contract: str, function: str, *args: Any) -> Any:
        if (contract, function) == ("ToleranceGame", "turnSeconds"):
            return self.turn_s
        return await super().read(contract, function, *args)


def settings(folder: Path, **miner: str) -> Settings:
    flags = {f"miner.{name}": value for name, value in miner.items()}
    return load(flags=flags, environ={}, folders=Folders.at(folder))


LAYERS = len(PROGRAM.layer_types)
SLOW = Speed(1e-5, 1e-8)
JUDGED = msgspec.structs.replace(SPEC, layers=LAYERS, context=8192, numerics_profile=of(DATA))


def built_in(turn_s: int, layers: LayerRange = LayerRange(0, LAYERS)) -> int:
    """Positions of the longest request that can be defended in turns of so many seconds."""
    return longest_request(
        PROGRAM,
        judged_parts(PROGRAM, layers),
        lambda work: SLOW.seconds(work.chunks, work.products) <= turn_s,
    )


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longest, "speed", lambda: SLOW)


async def test_a_short_turn_bounds_what_can_be_defended(tmp_path: Path) -> None:
    chain: Any = Game(DATA)
    chain.turn_s = 3
    least = built_in(3)
    assert 100 < least < 8192
    assert await undefended(chain, settings(tmp_path), JUDGED) == least
    assert await undefended(chain, settings(tmp_path, max_context=str(least)), JUDGED) is None
    more = settings(tmp_path, max_context=str(least + 1))
    assert await undefended(chain, more, JUDGED) == least
    short = msgspec.structs.replace(JUDGED, context=least)
    assert await undefended(chain, settings(tmp_path), short) is None, "the model takes no more"
    one = await undefended(chain, settings(tmp_path, layers="0:1"), JUDGED)
    assert one == built_in(3, LayerRange(0, 1)) > least
    chain.turn_s = 4 * 3600
    assert await undefended(chain, settings(tmp_path), JUDGED) is None


async def test_a_full_disk_bounds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain: Any = Game(DATA)
    chain.turn_s = 4 * 3600
    monkeypatch.setattr(longest.shutil, "disk_usage", lambda _: SimpleNamespace(free=30 << 20))
    found = await undefended(chain, settings(tmp_path / "not" / "here"), JUDGED)
    assert found is not None and found < 8192
    monkeypatch.setattr(longest.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert await undefended(chain, settings(tmp_path), JUDGED) == 1


async def test_nothing_is_said_where_no_game_judges(tmp_path: Path) -> None:
    chain: Any = Game(DATA)
    other = msgspec.structs.replace(JUDGED, numerics_profile=name_hash("fp32"))
    assert await undefended(chain, settings(tmp_path), other) is None
    bare: Any = Stored(DATA)
    assert await undefended(bare, settings(tmp_path), JUDGED) is None
