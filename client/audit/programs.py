"""Which operator program is behind a model's numerics profile, on chain and by our own files?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eth_utils.crypto import keccak

from core.chain.chain import Chain
from core.dispute.trace.program import Program
from core.protocol import signing
from core.protocol.errors import CheckFailed, ContractRefused, ModelUnsupported

if TYPE_CHECKING:
    from core.dispute.judging.numerics import NumericsProfile
    from core.dispute.play.program import ModelProgram


async def registered_program(chain: Chain, profile: str) -> Program:
    """The program whose hash the profile is. Raises ModelUnsupported where the chain has none."""
    data = b""
    if "ProgramStore" in chain.addresses:
        try:
            data = bytes.fromhex((await chain.read("ProgramStore", "load", profile))[2:])
        except ContractRefused:
            data = b""
    if "0x" + keccak(data).hex() != profile.lower():
        raise ModelUnsupported(
            "the job's numerics profile is unknown here",
            f"{profile} is neither a stored operator program nor a profile that this program knows",
            next_step="update this program",
        )
    return Program.from_bytes(data)


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
