"""What does honesty cost a machine while it decodes: hashing rows, trees, signatures?"""

from __future__ import annotations

import asyncio

from benchmarks.engine.models import NAMES, model_folder
from benchmarks.engine.rig.rig import Rig
from benchmarks.engine.serving import CUTS
from benchmarks.engine.upkeep import KV_BYTES, commitments_row
from benchmarks.table import Row


def rows() -> list[Row]:
    """Of the engine's own benchmark: two real stages and sixteen clients."""
    return asyncio.run(_rows())


async def _rows() -> list[Row]:
    name = "llama"
    async with Rig(model_folder(name), [CUTS[name]], peer=False, kv_bytes=KV_BYTES) as rig:
        return [await commitments_row(rig, NAMES[name])]
