"""Which noise does a seed give a token, so that a chain can draw it again? (`docs/protocol.md` §5)

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", §3.3) and two
logarithms in fixed point. Twin: contracts/src/referee/Philox.sol.
"""

from __future__ import annotations

from core.dispute.referee.transcend import POINT, ln_fixed

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox_word(counter: tuple[int, int], key: tuple[int, int]) -> int:
    """First of the four words of Philox4x32-10 at (c0, c1, 0, 0), all of 32 bits."""
    c0, c1, c2, c3 = *counter, 0, 0
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0


def gumbel_of(word: int) -> int:
    """−ln(−ln u) with u = (word + ½) / 2^32, in Q120; off by less than 2^-78."""
    return -ln_fixed(-ln_fixed(2 * word + 1, -33), -POINT)


def gumbel(key: tuple[int, int], step: int, token: int) -> int:
    """The noise of `token` at `step`, in Q120."""
    return gumbel_of(philox_word((step, token), key))
