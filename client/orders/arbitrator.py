"""Who settles an order's disputes: the game, the jury, or an arbitrator that is named?"""

from __future__ import annotations

from core.chain.chain import Chain
from core.dispute.game.dispute import JURY
from core.dispute.game.game_log import GAME
from core.dispute.trace.program import Program
from core.protocol import ids
from core.protocol.errors import UsageError

NAMED = ("", "game", "jury")


def check_named(named: str) -> str:
    """ "" (the network's default), game, jury, or a checked address. Raises IdInvalid."""
    return named if named in NAMED else ids.address(named)


async def is_playable(chain: Chain, numerics_profile: str) -> bool:
    """Whether the chain has the game, and the operator program of a model with this profile.

    Anyone may store any bytes under their hash, and a profile may be the hash of a name: bytes that
    are no program make no game that an accuser could win.
    """
    if GAME not in chain.addresses or "ProgramStore" not in chain.addresses:
        return False
    if not await chain.read("ProgramStore", "has", numerics_profile):
        return False
    try:
        data = await chain.read("ProgramStore", "load", numerics_profile)
        Program.from_bytes(bytes.fromhex(data[2:]))
    except ValueError:
        return False
    return True


async def arbitrator_of(chain: Chain, numerics_profile: str, named: str = "") -> str:
    """The address that an order for a model of this profile names.

    Raises UsageError for a game about a model whose operators the referee does not know.
    """
    if named == "jury":
        return chain.addresses[JURY]
    if named not in NAMED:
        return named
    if await is_playable(chain, numerics_profile):
        return chain.addresses[GAME]
    if named == "game":
        raise UsageError(
            "disputes about this model cannot be played",
            "no operator program is registered for it, so its disputes are the jury's",
            next_step="leave --arbitrator away, or name the jury",
        )
    return chain.addresses[JURY]
