"""Which operator program is behind a model's numerics profile, and so what judges the model?"""

from __future__ import annotations

from dataclasses import dataclass

from eth_utils.crypto import keccak

from core.chain.chain import Chain
from core.dispute.trace.families import FP32_PROFILE, SPAN_LAYERS
from core.dispute.trace.program import Program, Tolerance
from core.protocol.errors import ContractRefused, ModelUnsupported
from core.protocol.signing import name_hash

GAME, SHADOW, JURY, UNREADABLE = "game", "shadow", "jury", "unreadable"


@dataclass(frozen=True)
class ModelJudge:
    """What judges a model's numbers.

    The tolerance game by an operator program; a program in shadow, which has no tolerance and
    accuses nobody of deviating; juries alone; or a program that this version cannot read.
    """

    by: str
    span_layers: int = 0  # between two boundaries that a stage signs; 0: all that it has
    tolerances: tuple[Tolerance, ...] = ()


async def judge_of(chain: Chain, profile: str) -> ModelJudge:
    """What judges a model of this profile. Raises ChainUnreachable."""
    stored = await _stored(chain, profile)
    if stored is None:
        return ModelJudge(JURY, SPAN_LAYERS if profile.lower() == name_hash(FP32_PROFILE) else 0)
    try:
        program = _read(stored)
    except ModelUnsupported:
        return ModelJudge(UNREADABLE)
    by = GAME if program.tolerances else SHADOW
    return ModelJudge(by, program.span_layers, program.tolerances)


async def registered_program(chain: Chain, profile: str) -> Program:
    """The program whose hash the profile is.

    Raises ModelUnsupported where the chain has none, or one that this program does not read.
    """
    stored = await _stored(chain, profile)
    if stored is not None:
        return _read(stored)
    raise ModelUnsupported(
        "the job's numerics profile is unknown here",
        f"{profile} is neither a stored operator program nor a profile that this program knows",
        next_step="update this program",
    )


async def span_layers_of(chain: Chain, profile: str) -> int:
    """How many layers lie between two boundaries that stages of a model sign; 0: all of a stage's.

    Raises ChainUnreachable, and ModelUnsupported for a program that cannot be read.
    """
    if profile.lower() == name_hash(FP32_PROFILE):
        return SPAN_LAYERS
    stored = await _stored(chain, profile)
    return 0 if stored is None else _read(stored).span_layers  # without any, nobody judges it


async def _stored(chain: Chain, profile: str) -> bytes | None:
    if "ProgramStore" not in chain.addresses:
        return None
    try:
        data = bytes.fromhex((await chain.read("ProgramStore", "load", profile))[2:])
    except ContractRefused:
        return None
    return data if "0x" + keccak(data).hex() == profile.lower() else None


def _read(data: bytes) -> Program:
    try:
        return Program.from_bytes(data)
    except ValueError as error:
        raise ModelUnsupported(
            "the model's operator program cannot be read here",
            str(error),
            next_step="publish the model anew, or use the version that it was published with",
        ) from error
