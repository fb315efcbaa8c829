"""What is the longest request that this machine can defend its work on?

An accused that has not built its trace by the end of its turn loses its stake. Nothing but the
order says how long a request may be, so a machine should take none whose trace it could not build
in time, or has no disk for.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from core.chain.chain import Chain
from core.dispute.game.game_log import GAME
from core.dispute.kernels.speed import speed
from core.dispute.trace.length import TraceWork, judged_parts, longest_request
from core.models.programs import registered_program
from core.protocol.errors import ModelUnsupported
from core.protocol.types import LayerRange, ModelSpec
from core.runtime.settings import Settings

#: On the disk, of a plea's trace: half as much again is the trace before the plea. Nodes are 1.
_BYTES_PER_CHUNK = 98


async def undefended(chain: Chain, settings: Settings, spec: ModelSpec) -> int | None:
    """Tokens of the longest request that can be defended here, where longer ones are taken.

    None where all can be, and for a model that no program judges. Raises ChainUnreachable.
    """
    if GAME not in chain.addresses:
        return None
    try:
        program = await registered_program(chain, spec.numerics_profile)
    except ModelUnsupported:
        return None
    turn_s, free = int(await chain.read(GAME, "turnSeconds")), _free_bytes(settings.folders.state)
    layers = LayerRange(*(settings.miner.layers or (0, spec.layers)))
    here = speed()

    def fits(work: TraceWork) -> bool:
        in_time = here.seconds(work.chunks, work.products) <= turn_s
        return in_time and work.chunks * _BYTES_PER_CHUNK <= free

    longest = max(1, longest_request(program, judged_parts(program, layers), fits))
    taken = min(spec.context, settings.miner.max_context or spec.context)
    return longest if longest < taken else None


def _free_bytes(folder: Path) -> int:
    """On the disk of a folder, which need not exist."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
