"""What do several nodes say of the chain, one of which may lie, lag or be silent?

What most of them say counts. They are asked about one block, that most of them have, because nodes
see new blocks at different times.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: The parameter of a request that says of which block.
_BLOCK_AT = {
    "eth_call": 1,
    "eth_estimateGas": 1,
    "eth_getBalance": 1,
    "eth_getCode": 1,
    "eth_getTransactionCount": 1,
    "eth_getStorageAt": 2,
    "eth_getBlockByNumber": 0,
}
#: What an answer says of the chain. Nodes differ in the fields that they add.
_LOG = ("address", "topics", "data", "blockNumber", "blockHash", "transactionHash", "logIndex")
_ESSENCE = {
    "eth_getTransactionReceipt": (
        *("transactionHash", "blockHash", "blockNumber", "status", "gasUsed", "contractAddress"),
        "logs",
    ),
    "eth_getTransactionByHash": (
        *("hash", "nonce", "from", "to", "value", "input", "blockHash", "blockNumber"),
    ),
    "eth_getBlockByNumber": (
        *("hash", "parentHash", "number", "timestamp", "baseFeePerGas", "transactions"),
    ),
    "eth_getLogs": _LOG,
}


def most(nodes: int) -> int:
    """How many of so many nodes must say the same."""
    return nodes // 2 + 1


def head_of(heads: Sequence[int], nodes: int) -> int | None:
    """The newest block that most of all nodes have, by what some of them say; None: too few do."""
    need = most(nodes)
    return sorted(heads, reverse=True)[need - 1] if len(heads) >= need else None


def at_block(method: str, params: Sequence[Any], block: int) -> list[Any]:
    """A request about the newest block as one about this block; others stay as they are."""
    found, at = list(params), _BLOCK_AT.get(method)
    if at is None:
        return found
    if len(found) == at:
        found.append("latest")
    if found[at] == "latest":
        found[at] = hex(block)
    return found


def is_of_newest(method: str, params: Sequence[Any]) -> bool:
    """Whether a request is about the newest block."""
    at = _BLOCK_AT.get(method)
    return at is not None and (len(params) == at or params[at] == "latest")


def is_middle(method: str, params: Sequence[Any]) -> bool:
    """Whether the middle of the numbers that nodes say counts, and not the one that most say:
    honest nodes differ in these, and the middle one is between theirs.
    """
    is_next_nonce = method == "eth_getTransactionCount" and params[-1] == "pending"
    return method == "eth_estimateGas" or is_next_nonce


def essence(method: str, answer: Mapping[str, Any]) -> str:
    """What must be the same in the answers of honest nodes, as text.

    An error is what it reverts with; nodes say in words of their own why they refuse.
    """
    if "error" in answer:
        error = answer["error"]
        data = error.get("data") if isinstance(error, Mapping) else None
        return f"error {data if isinstance(data, str) else ''}".lower()
    return json.dumps(_plain(_ESSENCE.get(method), answer.get("result"))).lower()


def middle(answers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of answers with a number, at least one, that of the middle number, the lower of two."""
    return sorted(answers, key=lambda answer: int(answer["result"], 16))[(len(answers) - 1) // 2]


def _plain(fields: Sequence[str] | None, value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(fields, one) for one in value]
    if fields is None or not isinstance(value, Mapping):
        return value
    found: list[Any] = []
    for name in fields:
        inner = value.get(name)
        if name == "logs":
            inner = _plain(_LOG, inner)
        elif name == "transactions" and isinstance(inner, list):
            inner = [one.get("hash") if isinstance(one, Mapping) else one for one in inner]
        found.append(inner)
    return found
