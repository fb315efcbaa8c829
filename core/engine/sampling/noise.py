"""Which noise does a seed give each token? (`docs/protocol.md` §5)

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", §3.3) is a function of
a key and a counter, so the noise of any token at any step can be found without the noise before it,
on any machine. Exact twin: `core/dispute/referee/noise.py`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1, _MASK = 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF
_ROUNDS = 10
_HALF = np.uint64(32)
_LOW = np.uint64(_MASK)
#: Columns worked on at once: their few arrays stay in a core's own cache.
CHUNK = 16384
#: The largest noise that u = (w + ½)/2³² can give, −ln(−ln(1 − 2⁻³³)), rounded up.
MAX_NOISE = 22.9

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Words, ...]:
    """The four words of Philox4x32-10.

    Each word of counter and key is an int or an array of u32 values; arrays broadcast. Returns four
    arrays of u32 values held as uint64.
    """
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = (np.asarray(word, dtype=np.uint64) for word in key)
    for _ in range(_ROUNDS):
        p0, p1 = c0 * np.uint64(_M0), c2 * np.uint64(_M1)
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + np.uint64(_W0)) & _LOW, (k1 + np.uint64(_W1)) & _LOW
    return c0, c1, c2, c3


def request_key(seed: int, index: int) -> tuple[int, int]:
    """The Philox key of one request of a job."""
    digest = sha256(seed.to_bytes(8, "big") + index.to_bytes(4, "big")).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def words(tokens: npt.NDArray[Any], key: tuple[int, int], step: int) -> Words:
    """[n] words 0 at counter (step, token, 0, 0) for at most `CHUNK` token ids [n].

    What depends on no token is worked out once: three of the twenty products are left out, and half
    of the last round.
    """
    key_0 = [(key[0] + r * _W0) & _MASK for r in range(_ROUNDS)]
    key_1 = [(key[1] + r * _W1) & _MASK for r in range(_ROUNDS)]
    m0, m1 = np.uint64(_M0), np.uint64(_M1)
    # Rounds 0 to 2 mix constants into the token id; products keep their low half until it is
    # needed.
    product = step * _M0
    fixed = ((product >> 32) ^ key_1[0]) * _M1
    seven = ((fixed >> 32) ^ key_0[1]) * _M0
    c0 = tokens.astype(np.uint64) ^ np.uint64(key_0[0])
    p0 = c0 * m0
    c2 = p0 >> _HALF
    c2 ^= np.uint64((product & _MASK) ^ key_1[1])
    p1 = c2 * m1
    np.right_shift(p1, _HALF, out=c0)
    c0 ^= np.uint64((fixed & _MASK) ^ key_0[2])
    np.bitwise_xor(p0, np.uint64((seven >> 32) ^ key_1[2]), out=c2)
    c2 &= _LOW
    p0[...] = np.uint64(seven & _MASK)
    q0, q1 = np.empty_like(p0), np.empty_like(p1)
    for r in range(3, _ROUNDS):
        np.multiply(c2, m1, out=q1)
        if r < _ROUNDS - 1:
            np.multiply(c0, m0, out=q0)
            np.right_shift(q0, _HALF, out=c2)
            c2 ^= p0
            c2 ^= np.uint64(key_1[r])
            c2 &= _LOW
        np.right_shift(q1, _HALF, out=c0)
        c0 ^= p1
        c0 ^= np.uint64(key_0[r])
        c0 &= _LOW
        p0, q0, p1, q1 = q0, p0, q1, p1
    return c0


def gumbel(word: npt.NDArray[Any]) -> Floats:
    """−ln(−ln u) of each of [n] words, with u = (word + ½)/2³²."""
    uniform = (word.astype(np.float64) + 0.5) / 2.0**32
    return -np.log(-np.log(uniform))


def gumbel_noise(tokens: npt.NDArray[Any], key: tuple[int, int], step: int) -> Floats:
    """The noise [n] of each of token ids [n] at one step."""
    parts = [words(tokens[at : at + CHUNK], key, step) for at in range(0, len(tokens), CHUNK)]
    return gumbel(np.concatenate(parts)) if parts else np.empty(0)


def least_word(noise: float) -> np.uint64:
    """A word below which none gives more than `noise` (within a few of the largest such word)."""
    return np.uint64(max(0, int(np.exp(-np.exp(-noise)) * 2.0**32) - 4))
