"""Where do keys live, and who may open them?

Keys live in version 3 keystore files, in Foundry's folder by default, so that ``cast`` sees the
same wallets. Foundry writes its (encrypted) files world-readable, so readable keystores are
accepted; files that another user may *write* are refused, because a swapped file would receive the
next deposit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from core.keys.passwords import refuse_shared, write_secret_file
from core.keys.signer import Signer, random_secret, refuse_dev_key, secret_from_phrase
from core.protocol.errors import (
    KeystoreInvalid,
    UsageError,
    WalletError,
    WalletExists,
    WalletMissing,
    WrongPassword,
)
from core.protocol.foreign import read_json_file
from core.protocol.ids import Address, address

DEFAULT_FOLDER: Final = Path("~/.foundry/keystores")
LIGHT_SCRYPT_N: Final = 8_192
STRONG_SCRYPT_N: Final = 262_144
#: The most that opening a file may take: scrypt holds 128·n·r bytes and works on n·r·p blocks.
MAX_SCRYPT_BYTES: Final = 512 * 2**20
MAX_SCRYPT_BLOCKS: Final = 2**23
MAX_PBKDF2_ROUNDS: Final = 10_000_000
MAX_FILE_BYTES: Final = 64 * 1024

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Salt = Annotated[str, msgspec.Meta(pattern=r"^(0x)?([0-9a-fA-F]{2}){0,64}\Z")]
_Hex16 = Annotated[str, msgspec.Meta(pattern=r"^(0x)?[0-9a-fA-F]{32}\Z")]
_Hex32 = Annotated[str, msgspec.Meta(pattern=r"^(0x)?[0-9a-fA-F]{64}\Z")]


class _Scrypt(msgspec.Struct):
    n: _Count
    r: _Count
    p: _Count
    dklen: Literal[32]
    salt: _Salt


class _Pbkdf2(msgspec.Struct):
    c: _Count
    dklen: Literal[32]
    prf: Literal["hmac-sha256"]
    salt: _Salt


class _CipherParams(msgspec.Struct):
    iv: _Hex16


class _Crypto(msgspec.Struct):
    cipher: Literal["aes-128-ctr"]
    cipherparams: _CipherParams
    ciphertext: _Hex32
    kdf: Literal["scrypt", "pbkdf2"]
    kdfparams: dict[str, Any]
    mac: _Hex32


@dataclass(frozen=True)
class WalletInfo:
    """A keystore file as seen without its password; Foundry's files carry no address."""

    name: str
    path: Path
    address: Address | None


class Keystore:
    """A folder of version 3 keystore files, shared with Foundry.

    ``light`` writes scrypt with n = 8192 as Foundry does (0.03 s to open); otherwise n = 262144
    (about two seconds). Both are read whatever ``light`` says.
    """

    def __init__(self, folder: Path | str = DEFAULT_FOLDER, *, light: bool = False) -> None:
        self.folder = Path(folder).expanduser()
        self._scrypt_n = LIGHT_SCRYPT_N if light else STRONG_SCRYPT_N

    def ls(self) -> list[WalletInfo]:
        """Every version 3 keystore of the folder, by name; other files are passed over."""
        found = []
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path.name.startswith(".") or not path.is_file():
                continue
            try:
                content = _read_keystore(path)
            except WalletError:
                continue
            found.append(WalletInfo(path.name, path, _stored_address(content)))
        return found

    def path(self, name: str) -> Path:
        """The file of a wallet, found by file name, name without ``.json`` or stored address.

        Raises WalletMissing with the names that exist.
        """
        if _NAME.fullmatch(name):
            for candidate in (self.folder / name, self.folder / f"{name}.json"):
                if candidate.is_file():
                    return candidate
        infos = self.ls()
        for info in infos:
            if info.address is not None and info.address.lower() == name.lower():
                return info.path
        names = [info.name for info in infos]
        raise WalletMissing(
            f"no wallet '{name}'",
            why=f"{self.folder} holds " + (", ".join(names) if names else "no wallet"),
            next_step=f"client wallet new {name}" if _NAME.fullmatch(name) else "",
            name=name,
            wallets=names,
        )

    def create(self, name: str, password: str, *, chain_id: int) -> Signer:
        """A new random key under ``name``. Raises WalletExists, UsageError for a bad name."""
        return self._write(name, password, random_secret(), chain_id)

    def create_with_phrase(self, name: str, password: str, *, chain_id: int) -> tuple[Signer, str]:
        """A new key from a new 12-word phrase; the phrase is returned once and stored nowhere."""
        from eth_account.hdaccount import generate_mnemonic
        from eth_account.types import Language

        phrase = generate_mnemonic(12, Language.ENGLISH)
        return self.import_phrase(name, phrase, password, chain_id=chain_id), phrase

    def import_key(self, name: str, key: str, password: str, *, chain_id: int) -> Signer:
        """Store a raw key typed at a prompt or piped in. Raises UsageError if it is no key."""
        digits = key.strip().removeprefix("0x")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", digits):
            raise UsageError("that is not a private key", why="a key has 64 hexadecimal digits")
        return self._write(name, password, bytes.fromhex(digits), chain_id)

    def import_phrase(
        self, name: str, phrase: str, password: str, *, chain_id: int, index: int = 0
    ) -> Signer:
        """Store the key at m/44'/60'/0'/0/index of a BIP-39 phrase. Raises UsageError."""
        return self._write(name, password, secret_from_phrase(phrase, index), chain_id)

    def import_file(
        self, name: str, source: Path, source_password: str, password: str, *, chain_id: int
    ) -> Signer:
        """Copy a keystore file, encrypted anew. Raises WrongPassword, KeystoreInvalid."""
        return self._write(name, password, _decrypt(source, source_password), chain_id)

    def unlock(self, name: str, password: str, *, chain_id: int) -> Signer:
        """Open a wallet for one chain.

        Raises WalletMissing, WrongPassword, KeystoreInvalid, SecretFileTooOpen, DevKeyOffDevnet.
        """
        path = self.path(name)
        stored = _stored_address(_read_keystore(path))
        if stored is not None:
            refuse_dev_key(stored, chain_id)
        signer = Signer(_decrypt(path, password), chain_id=chain_id)
        if stored is not None and stored != signer.address:
            raise KeystoreInvalid(
                f"{path} is inconsistent",
                why=f"it says {stored}, but its key belongs to {signer.address}",
                next_step="do not use this file; restore it from a backup",
            )
        return signer

    def _write(self, name: str, password: str, secret: bytes, chain_id: int) -> Signer:
        from eth_keyfile.keyfile import create_keyfile_json

        if not _NAME.fullmatch(name):
            raise UsageError(
                f"'{name}' cannot be a wallet's name",
                why="a name has 1 to 64 letters, digits, dots, dashes and underscores",
                next_step="choose another name",
            )
        target = self.folder / name
        if target.exists() or (self.folder / f"{name}.json").exists():
            raise WalletExists(f"wallet '{name}' exists", why=f"{target} is never overwritten")
        signer = Signer(secret, chain_id=chain_id)
        content = create_keyfile_json(
            secret, password.encode(), version=3, kdf="scrypt", iterations=self._scrypt_n
        )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            write_secret_file(target, json.dumps(content).encode())
        except FileExistsError as error:
            why = f"{target} is never overwritten"
            raise WalletExists(f"wallet '{name}' exists", why=why) from error
        return signer


def _read_keystore(path: Path) -> dict[str, Any]:
    try:
        refuse_shared(path, path.stat(), f"keystore {path}")
        content = read_json_file(path, most_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise WalletError(f"cannot read {path}", why=error.strerror or str(error)) from error
    except ValueError as error:
        why = f"it is not JSON: {error}"
        raise KeystoreInvalid(f"{path} is not a keystore", why=why) from None
    crypto = content.get("crypto", content.get("Crypto")) if isinstance(content, dict) else None
    if not isinstance(crypto, dict) or content.get("version") != 3:
        raise KeystoreInvalid(f"{path} is not a keystore", why="it is not a version 3 keystore")
    try:
        checked = _checked(crypto)
    except ValueError as error:  # msgspec's are ValueErrors
        raise KeystoreInvalid(
            f"{path} is not opened", why=str(error), next_step="restore it from a backup"
        ) from None
    return {"version": 3, "address": content.get("address"), "crypto": checked}


def _checked(crypto: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of a file's `crypto`, and nothing else: the decoder ignores the case of names.

    Raises ValueError for wrong types, and for a key that takes too much memory or time to derive.
    """
    found = msgspec.convert(crypto, _Crypto)
    kind: type[_Scrypt] | type[_Pbkdf2] = _Scrypt if found.kdf == "scrypt" else _Pbkdf2
    cost = msgspec.convert(found.kdfparams, kind)
    _refuse_dear(cost)
    found.kdfparams = msgspec.to_builtins(cost)
    return dict(msgspec.to_builtins(found))


def _refuse_dear(cost: _Scrypt | _Pbkdf2) -> None:
    if isinstance(cost, _Pbkdf2):
        if cost.c > MAX_PBKDF2_ROUNDS:
            raise ValueError(f"its {cost.c} rounds are above the limit {MAX_PBKDF2_ROUNDS}")
        return
    if cost.n < 2 or cost.n & (cost.n - 1):
        raise ValueError(f"its scrypt cost {cost.n} is not a power of two")
    if 128 * cost.n * cost.r > MAX_SCRYPT_BYTES or cost.n * cost.r * cost.p > MAX_SCRYPT_BLOCKS:
        asked = f"n = {cost.n}, r = {cost.r}, p = {cost.p}"
        most = f"{MAX_SCRYPT_BYTES} bytes of memory and n·r·p = {MAX_SCRYPT_BLOCKS}"
        raise ValueError(f"its scrypt cost {asked} is above the limit of {most}")


def _stored_address(content: Mapping[str, Any]) -> Address | None:
    text = content.get("address")
    if not isinstance(text, str) or not re.fullmatch(r"(0x)?[0-9a-fA-F]{40}", text):
        return None
    return address("0x" + text.lower().removeprefix("0x"))


def _decrypt(path: Path, password: str) -> bytes:
    from eth_keyfile.exceptions import EthKeyfileValueError
    from eth_keyfile.keyfile import decode_keyfile_json

    if not path.is_file():
        raise WalletMissing(f"no keystore file {path}", why="there is no such file")
    content = _read_keystore(path)
    try:
        return decode_keyfile_json(content, password.encode())
    except EthKeyfileValueError as error:
        if "MAC" not in str(error):
            raise KeystoreInvalid(f"{path} cannot be decrypted", why=str(error)) from error
        why = "the password does not fit"
        raise WrongPassword(f"wallet '{path.name}' stays locked", why=why) from None
