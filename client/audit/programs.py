"""Which operator program is behind a model's numerics profile, on chain and by our own files?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.chain.chain import Chain
from core.dispute.trace.program import Program
from core.models.programs import registered_program
from core.protocol import signing
from core.protocol.errors import CheckFailed

if TYPE_CHECKING:
    from core.dispute.judging.numerics import NumericsProfile
    from core.dispute.play.program import ModelProgram


async def profile_named(chain: Chain, profile: str) -> tuple[NumericsProfile, Program | None]:
    """What a model's machines promise, and its operator program if any. Raises ModelUnsupported."""
    from core.dispute.judging.numerics import PROFILES, profile_of

    for known in PROFILES.values():
        if signing.name_hash(known.name) == profile:
            return known, None
    program = await registered_program(chain, profile)
    return profile_of(program), program


def local_program(model_dir: Path, registered: Program) -> ModelProgram:
    """The registered program with its tables, made from the files here.

    Raises CheckFailed when these files, or the library here, make another program of them.
    """
    from core.dispute.play.program import program_like

    found = program_like(model_dir, registered)
    if found.program != registered:
        raise CheckFailed(
            "this machine makes another operator program of the model",
            f"its tables have the root 0x{found.program.tables_root.hex()}, "
            f"registered is 0x{registered.tables_root.hex()}",
            next_step="use the registered model's files and the library version that made its "
            "tables",
        )
    return found
