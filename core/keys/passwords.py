"""How do secrets enter the program: which files, which questions, and never the command line?"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from core.protocol.errors import KeyOnCommandLine, PasswordMissing, SecretFileTooOpen, WalletError

_RAW_KEY = re.compile(r"(?<![0-9A-Za-z_/-])(0[xX])?[0-9a-fA-F]{64}(?![0-9A-Za-z_/-]|\.\w)")
_PHRASE_LENGTHS: Final = (12, 15, 18, 21, 24)


def read_password(
    name: str,
    *,
    file: Path | str | None = None,
    prompt: Callable[[str], str] | None = None,
) -> str:
    """The password of wallet ``name``, from ``file`` or asked.

    ``prompt`` gets the question and must not echo; without a terminal pass None. Raises
    PasswordMissing, SecretFileTooOpen, WalletError if the file cannot be read.
    """
    if file:
        return read_secret_file(Path(file).expanduser()).rstrip("\r\n")
    if prompt is None:
        why = "there is no password file and no terminal to ask"
        raise PasswordMissing(f"wallet '{name}' needs a password", why=why)
    return prompt(f"Password of wallet '{name}'")


def read_secret_file(path: Path) -> str:
    """The text of a file that only its owner may read or write.

    Raises SecretFileTooOpen with the fix, WalletError if it cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as handle:
            refuse_shared(path, os.fstat(handle.fileno()), str(path))
            return handle.read()
    except (OSError, UnicodeDecodeError) as error:
        raise WalletError(
            f"cannot read the secret file {path}",
            why=getattr(error, "strerror", None) or "it is not UTF-8 text",
            next_step="check --password-file or HEADRACE_PASSWORD_FILE",
        ) from error


def refuse_shared(path: Path, about: os.stat_result, what: str) -> None:
    """Raise SecretFileTooOpen, with the fix, for a file that others may read or write."""
    mode = stat.S_IMODE(about.st_mode)
    if os.name == "posix" and mode & 0o077:
        raise SecretFileTooOpen(
            f"{what} is not used",
            why=f"its rights are {mode:04o}: others on this machine may read or change it",
            next_step=f"chmod 600 {path}",
        )


def write_secret_file(path: Path, content: bytes) -> None:
    """Write a new file with owner-only rights, whole or not at all. Raises FileExistsError."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.link(draft, path)  # unlike rename, refuses to replace
    finally:
        draft.unlink()


def refuse_raw_keys(arguments: Sequence[str]) -> None:
    """Raises KeyOnCommandLine if an argument looks like a private key or recovery phrase.

    A key is 64 hexadecimal digits, with or without 0x, standing free or after ``=``, a comma or a
    space; digits inside a path or a longer word are none. Whole 32-byte ids look the same, so ids
    are typed in their printed form. The value itself is never repeated in the message.
    """
    for position, argument in enumerate(arguments, start=1):
        if _RAW_KEY.search(argument):
            kind = "a raw private key"
        elif _is_phrase(argument):
            kind = "a recovery phrase"
        else:
            continue
        raise KeyOnCommandLine(
            "the command is refused",
            why=f"argument {position} looks like {kind}, and command lines are visible to others",
            position=position,
        )


def _is_phrase(argument: str) -> bool:
    words = argument.split()
    return (
        len(words) in _PHRASE_LENGTHS
        and all(word.isascii() and word.isalpha() and word.islower() for word in words)
        and all(word in _phrase_words() for word in words)
    )


@lru_cache(maxsize=1)
def _phrase_words() -> frozenset[str]:
    from importlib.util import find_spec

    spec = find_spec("eth_account")  # finds the folder without the 0.8 s import
    assert spec is not None
    assert spec.origin is not None
    wordlist = Path(spec.origin).parent / "hdaccount" / "wordlist" / "english.txt"
    return frozenset(wordlist.read_text(encoding="utf-8").split())
