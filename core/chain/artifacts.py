"""What do the committed artifacts of the contracts say, and how are values written for them?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from eth_abi.abi import decode as abi_decode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from core.protocol.types import Value

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")


@cache
def artifact(name: str) -> dict[str, Any]:
    """The committed artifact of a contract: abi, bytecode, compiler."""
    text = resources.files("core.protocol").joinpath(f"abi/{name}.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def predict_address(deployer: str, nonce: int) -> str:
    """Where a plain CREATE of this account with this nonce will land."""
    body = b"\x94" + bytes.fromhex(deployer.removeprefix("0x"))
    if nonce == 0:
        body += b"\x80"
    elif nonce < 0x80:
        body += bytes([nonce])
    else:
        raw = nonce.to_bytes((nonce.bit_length() + 7) // 8, "big")
        body += bytes([0x80 + len(raw)]) + raw
    return to_checksum_address(keccak(bytes([0xC0 + len(body)]) + body)[12:])


def plain(value: Any) -> Any:
    """What ABI decoding gives, as strings, ints, lists and dicts."""
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if hasattr(value, "_asdict"):
        return {k: plain(v) for k, v in value._asdict().items()}
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def argument(value: Any) -> Any:
    """What we pass, as web3 wants it: addresses checksummed, structs as tuples of their fields."""
    if isinstance(value, Value):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return tuple(argument(v) for v in value.values())
    if isinstance(value, list | tuple):
        return [argument(v) for v in value]
    if isinstance(value, str) and _ADDRESS.fullmatch(value):
        return to_checksum_address(value)
    return value


_BUILT_IN_ERRORS = {
    keccak(text="Error(string)")[:4]: ("Error", [("reason", "string")]),
    keccak(text="Panic(uint256)")[:4]: ("Panic", [("code", "uint256")]),
}


@cache
def _errors() -> dict[bytes, tuple[str, list[tuple[str, str]]]]:
    """Custom errors of all contracts (and OpenZeppelin's inside them) by selector."""
    found: dict[bytes, tuple[str, list[tuple[str, str]]]] = {}
    for file in resources.files("core.protocol").joinpath("abi").iterdir():
        for entry in artifact(file.name.removesuffix(".json"))["abi"]:
            if entry["type"] == "error":
                fields = [(i["name"], canonical(i)) for i in entry["inputs"]]
                signature = f"{entry['name']}({','.join(kind for _, kind in fields)})"
                found[keccak(text=signature)[:4]] = (entry["name"], fields)
    return found


def canonical(entry: Mapping[str, Any]) -> str:
    """A parameter's type as signatures spell it: of a struct, its fields' in brackets."""
    kind = str(entry["type"])
    if not kind.startswith("tuple"):
        return kind
    inner = ",".join(canonical(c) for c in entry["components"])
    return f"({inner}){kind[len('tuple') :]}"


def decode_revert(data: str) -> tuple[str, dict[str, Any]]:
    """(error name, arguments) of revert data; unknown data is named by its selector."""
    raw = bytes.fromhex(data.removeprefix("0x"))
    known = _BUILT_IN_ERRORS.get(raw[:4]) or _errors().get(raw[:4])
    if known is None:
        return f"unknown error 0x{raw[:4].hex()}", {}
    name, fields = known
    try:
        values = abi_decode([kind for _, kind in fields], raw[4:])
    except (DecodingError, UnicodeDecodeError):
        return name, {}
    return name, {
        field or str(i): argument(plain(v)) if "address" in kind else plain(v)
        for i, ((field, kind), v) in enumerate(zip(fields, values, strict=True))
    }
