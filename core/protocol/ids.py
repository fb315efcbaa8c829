"""What is an id, and how is it printed, shortened and found again?

On chain a job, dispute, model or receipt is named by 32 bytes and a person by an address. People
see ``job_7QK3W0A8``: a prefix that says the kind, then Crockford base32 of the first bytes (no I,
L, O, U). Any unique prefix of the full form is accepted, and so is the whole 0x form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NewType, TypeVar

from core.protocol.errors import IdInvalid

Address = NewType("Address", str)
"""Checksummed 0x address (EIP-55)."""

SHORT_BYTES: Final = 5
"""Bytes shown, as 8 characters: among 10⁴ ids two are alike in fewer than 5·10⁻⁵ of cases."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READ_AS: Final = {"I": "1", "L": "1", "O": "0"}
_HEX = re.compile(r"0x[0-9a-fA-F]+")

T = TypeVar("T")


class Kind(Enum):
    """What a printed id names; the value is its prefix."""

    JOB = "job"
    DISPUTE = "disp"
    MODEL = "model"
    RECEIPT = "rcpt"
    MINER = "mnr"


def raw_id(data: bytes | str) -> bytes:
    """32 bytes, from bytes or a 0x string of exactly 64 digits. Raises IdInvalid."""
    if isinstance(data, str):
        if not _HEX.fullmatch(data) or len(data) != 66:
            raise IdInvalid(f"'{data}' is not an id", why="an id is 0x and 64 hexadecimal digits")
        data = _id_bytes(data)
    if len(data) != 32:
        raise IdInvalid("an id of the wrong length", why=f"{len(data)} bytes instead of 32")
    return bytes(data)


def address(text: str | bytes) -> Address:
    """The EIP-55 form of an address (20 bytes, or 0x and 40 digits).

    A mixed-case address must carry the right checksum; all-lower and all-upper digits carry none.
    Raises IdInvalid.
    """
    if isinstance(text, bytes):
        if len(text) != 20:
            raise IdInvalid("an address is not 20 bytes long", why=f"it has {len(text)} bytes")
        return Address(_checksummed(text.hex()))
    digits = text[2:]
    if not _HEX.fullmatch(text) or len(digits) != 40:
        why = "an address is 0x and 40 hexadecimal digits"
        raise IdInvalid(f"'{text}' is not an address", why=why)
    right = _checksummed(digits.lower())
    if digits not in (digits.lower(), digits.upper()) and text != right:
        raise IdInvalid(
            f"'{text}' is mistyped",
            why="its capital letters, which are a checksum, do not fit its digits",
            next_step="copy the address again; do not correct it by hand",
        )
    return Address(right)


def full(kind: Kind, data: bytes | str) -> str:
    """The whole printed form, of which every prefix is accepted: ``job_`` and 52 characters."""
    return f"{kind.value}_{_base32(_id_bytes(data))}"


def short(kind: Kind, data: bytes | str, *, chars: int = SHORT_BYTES * 8 // 5) -> str:
    """The form people see: ``job_7QK3W0A8``. ``data`` is 32 bytes, 20 bytes or a 0x string."""
    first = _id_bytes(data)[: -(-chars * 5 // 8)]
    return f"{kind.value}_{_base32(first)[:chars]}"


def abridged(hexed: str) -> str:
    """A hash or a transaction as a line has room for it: ``0x1f203c4d…fE0a``."""
    return f"{hexed[:10]}…{hexed[-4:]}"


def find(kind: Kind, typed: str, known: Iterable[T], of: Callable[[T], bytes | str]) -> T:
    """The one known thing whose id is ``typed`` or starts with it.

    Accepts ``job_7QK3``, ``7QK3`` (any case; I and L read as 1, O as 0) and the 0x form or a prefix
    of it. Raises IdInvalid when nothing or more than one thing fits, naming the candidates.
    """
    wanted, known = typed.strip(), list(known)
    prefix, _, rest = wanted.rpartition("_")
    if prefix and prefix.lower() != kind.value:
        raise IdInvalid(
            f"'{typed}' does not name a {kind.name.lower()}",
            why=f"ids of this kind start with {kind.value}_",
        )
    canonical = "".join(_READ_AS.get(c, c) for c in rest.upper())
    # "0X" begins an id of ours now and then; with a kind in front of it, it is not hexadecimal.
    digits = rest[2:].lower() if not prefix and rest.lower().startswith("0x") else ""
    fits = [
        item
        for item in known
        if (canonical and _base32(_id_bytes(of(item))).startswith(canonical))
        or (digits and _id_bytes(of(item)).hex().startswith(digits))
    ]
    distinct = {_id_bytes(of(item)) for item in fits}
    if len(distinct) == 1:
        return fits[0]
    if not distinct:
        why = f"none of {len(known)} known ids starts with it"
        raise IdInvalid(f"no {kind.name.lower()} '{typed}'", why=why)
    names = ", ".join(sorted(short(kind, data, chars=12) for data in distinct)[:5])
    raise IdInvalid(
        f"'{typed}' is ambiguous",
        why=f"{len(distinct)} ids start with it: {names}",
        next_step="type more of it",
        matches=sorted(full(kind, data) for data in distinct),
    )


def _id_bytes(data: bytes | str) -> bytes:
    if isinstance(data, str):
        if not _HEX.fullmatch(data) or len(data) % 2:
            raise IdInvalid(f"'{data}' is not an id", why="it is not 0x and hexadecimal digits")
        return bytes.fromhex(data[2:])
    return bytes(data)


def _base32(data: bytes) -> str:
    bits = len(data) * 8
    padded = int.from_bytes(data, "big") << (-bits % 5)
    count = -(-bits // 5)
    return "".join(_ALPHABET[padded >> (5 * i) & 31] for i in range(count - 1, -1, -1))


def _checksummed(lower_digits: str) -> str:
    from eth_hash.auto import keccak  # picks its backend at import, so not at ours

    digest = keccak(lower_digits.encode()).hex()
    return "0x" + "".join(
        char.upper() if int(nibble, 16) >= 8 else char
        for char, nibble in zip(lower_digits, digest, strict=False)
    )
