"""How does the receiver of an alert know that it is ours? As `ops/README.md` says."""

import hashlib
import hmac
import re


def is_signed(secret: bytes, body: bytes, header: str, now_s: float) -> bool:
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    if not re.fullmatch(r"[0-9]{1,14}", parts.get("t", "")):
        return False
    signed = parts["t"].encode() + b"." + body
    expected = hmac.new(secret, signed, hashlib.sha256).hexdigest()
    is_ours = hmac.compare_digest(expected.encode(), parts.get("v1", "").encode())
    return is_ours and abs(now_s - int(parts["t"])) <= 300
