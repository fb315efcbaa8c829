"""What must never be written down, and how is it taken out of logs and debug files?"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "********"

_SECRET_NAME = re.compile(
    r"passw|secret|private|mnemonic|phrase|credential|authori[sz]ation|api_?key|bearer|cookie"
    r"|keyfile"
    r"|(^|_)(key|pin|seed_words|salt)$",
    re.IGNORECASE,
)
_NAMES_A_FILE = re.compile(r"(_file|_dir|_path)$", re.IGNORECASE)
_HEX_64 = re.compile(r"(?<![0-9a-fA-F])(0[xX])?([0-9a-fA-F]{64})(?![0-9a-fA-F])")
_URL_PASSWORD = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)")
_URL_TOKEN = re.compile(
    r"(?P<head>\b(?:https?|wss?)://[^\s/]+(?:/[^\s/]+)*/)[A-Za-z0-9_-]{24,}(?=$|[\s/?#])"
)
_URL_QUERY = re.compile(r"(?P<head>[?&](?:key|api_?key|token|auth|secret)=)[^&\s]+", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Shorten what could be a key and blank passwords and tokens of URLs.

    A hash and a private key look alike (64 hexadecimal digits), so both are cut to ``0x1234…cdef``:
    enough to find a transaction, useless as a key.
    """
    if len(text) >= 64:
        text = _HEX_64.sub(lambda match: f"{match[1] or ''}{match[2][:4]}…{match[2][-4:]}", text)
    if "://" in text:
        text = _URL_PASSWORD.sub(lambda match: match["head"] + HIDDEN, text)
        text = _URL_TOKEN.sub(lambda match: match["head"] + HIDDEN, text)
    if "=" in text:
        text = _URL_QUERY.sub(lambda match: match["head"] + HIDDEN, text)
    return text


@functools.lru_cache(maxsize=1024)  # the names of a program's log lines are few
def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NAMES_A_FILE.search(name)


def redact(value: Any, name: str = "") -> Any:
    """A copy of a JSON-like value without secrets; ``name`` is the key it is stored under.

    Anything under a secret-sounding name is blanked; texts go through ``redact_text``; other
    objects become their ``repr`` and do too.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if _is_secret(name):
        return HIDDEN
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return redact_text("0x" + bytes(value).hex())
    if isinstance(value, Mapping):
        return {str(key): redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item, name) for item in value]
    return redact_text(repr(value))
