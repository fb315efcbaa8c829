"""Which requests does an audit fall on? (`docs/trust.md` §9)

No party knows before the receipts are signed: the draw takes the hash of the block in which the job
was delivered or paid, and a secret. The drawing party cannot choose either: it published the
secret's hash before, and can show the secret afterwards.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

FULL_BPS = 10_000
_DOMAIN = b"headrace/audit/1"


def commitment(secret: bytes) -> str:
    """What is published of a secret before anything is drawn with it."""
    return "0x" + sha256(_DOMAIN + b"/secret" + secret).hexdigest()


def is_drawn(secret: bytes, beacon: str, job_id: str, request: int, rate_bps: int) -> bool:
    """Whether a request is audited: with probability `rate_bps` / 10 000 over secrets.

    `beacon` is the hash of the block whose event showed that the job's receipts were signed; both
    ids are 0x-hex of 32 bytes.
    """
    ids = bytes.fromhex(beacon[2:]) + bytes.fromhex(job_id[2:])
    said = _DOMAIN + ids + request.to_bytes(4, "big")
    ticket = int.from_bytes(hmac.digest(secret, said, "sha256")[:8], "big")
    return ticket * FULL_BPS < rate_bps << 64
