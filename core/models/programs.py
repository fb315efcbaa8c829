"""Which operator program is behind a model's numerics profile, as the chain has it?"""

from __future__ import annotations

from eth_utils.crypto import keccak

from core.chain.chain import Chain
from core.dispute.trace.families import FP32_PROFILE, SPAN_LAYERS
from core.dispute.trace.program import Program
from core.protocol.errors import ContractRefused, ModelUnsupported
from core.protocol.signing import name_hash


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


async def span_layers_of(chain: Chain, profile: str) -> int:
    """How many layers lie between two boundaries that stages of a model sign; 0: all of a stage's.

    Raises ChainUnreachable.
    """
    if profile.lower() == name_hash(FP32_PROFILE):
        return SPAN_LAYERS
    try:
        return (await registered_program(chain, profile)).span_layers
    except ModelUnsupported:  # it is judged by nobody
        return 0
