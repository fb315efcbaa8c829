"""The Solidity referee on a local chain, asked for many leaves in one free call."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eth_abi.abi import decode, encode
from eth_utils.abi import function_abi_to_4byte_selector

from core.chain.artifacts import artifact
from core.dispute.referee import Leaf
from core.dispute.referee.real import Real

#: Of `anvil`, so that a free call may judge thousands of leaves.
ANVIL_OPTIONS = ("--gas-limit", "1000000000000", "--memory-limit", "1073741824")
CALL_GAS = 900_000_000_000
#: The lens answers this where the referee reverts.
REVERTS = 255
_TIMEOUT_S = 300.0
_LENS = Path(__file__).with_name("RefereeLens.json")
#: Longer requests are refused; a leaf costs a few hundred bytes of encoding besides its operands.
_BATCH_BYTES = 500_000
_LEAF_OVERHEAD_BYTES = 600


def params_bytes(leaf: Leaf) -> bytes:
    """A leaf's parameters as the contract takes them: one 32-byte word each."""
    return b"".join(word.to_bytes(32, "big") for word in leaf.params)


class ChainReferee:
    """A referee and `RefereeLens`, freshly deployed from the committed artifacts."""

    def __init__(self, rpc_url: str) -> None:
        self.url = rpc_url
        self._sender = self._rpc("eth_accounts", [])[0]
        referee = self._deploy(artifact("Referee")["bytecode"])
        lens = json.loads(_LENS.read_text())
        argument = encode(["address"], [referee]).hex()
        self._lens = self._deploy(lens["bytecode"] + argument)
        self._functions = {e["name"]: e for e in lens["abi"] if e["type"] == "function"}

    def rulings(self, leaves: Sequence[Leaf]) -> list[int]:
        """Each leaf's ruling, REVERTS where the contract refuses it."""
        found: list[int] = []
        for batch in _batches(leaves):
            cases = [(leaf.kind, params_bytes(leaf), leaf.operands, leaf.shake) for leaf in batch]
            found += self._call("rulings", ["(uint8,bytes,bytes,int256)[]"], [cases], ["bytes"])[0]
        return found

    def exps(self, x: Sequence[int]) -> list[Real]:
        found = self._call("exps", ["int256[]"], [list(x)], ["(int256,int256)[]"])[0]
        return [Real(*value) for value in found]

    def logs(self, x: Sequence[Real]) -> list[int]:
        arguments = [[tuple(value) for value in x]]
        return list(self._call("logs", ["(int256,int256)[]"], arguments, ["int256[]"])[0])

    def noises(
        self, key: tuple[int, int], step: int, tokens: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Philox words and Q120 noise of tokens at one step."""
        types = ["uint32", "uint32", "uint32", "uint32[]"]
        arguments = [*key, step, list(tokens)]
        words, noise = self._call("noises", types, arguments, ["uint32[]", "int256[]"])
        return list(words), list(noise)

    def decoded(self, raw: bytes, fmt: int) -> list[Real]:
        """Values of bytes; none if one of them is not finite."""
        found = self._call("decode", ["bytes", "uint256"], [raw, fmt], ["(int256,int256)[]"])[0]
        return [Real(*value) for value in found]

    def sums(self, fmt: int, n: int, operands: bytes) -> Real:
        """The sum of a LINEAR leaf's operands."""
        answer = "(int256,int256)"
        found = self._call("sums", ["uint256", "uint256", "bytes"], [fmt, n, operands], [answer])
        return Real(*found[0])

    def _call(self, name: str, types: list[str], arguments: list[Any], answer: list[str]) -> Any:
        data = function_abi_to_4byte_selector(self._functions[name]) + encode(types, arguments)
        call = {"to": self._lens, "data": "0x" + data.hex(), "gas": hex(CALL_GAS)}
        return decode(answer, bytes.fromhex(self._rpc("eth_call", [call, "latest"])[2:]))

    def _deploy(self, creation: str) -> str:
        transaction = {"from": self._sender, "data": creation, "gas": hex(15_000_000)}
        sent = self._rpc("eth_sendTransaction", [transaction])
        deadline = time.monotonic() + _TIMEOUT_S
        while (receipt := self._rpc("eth_getTransactionReceipt", [sent])) is None:
            if time.monotonic() > deadline:
                raise RuntimeError("the deployment was not mined")
            time.sleep(0.02)
        if receipt["status"] != "0x1":
            raise RuntimeError("the deployment reverted")
        return str(receipt["contractAddress"])

    def _rpc(self, method: str, params: list[Any]) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found = json.load(answer)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]


def _batches(leaves: Sequence[Leaf]) -> Iterator[list[Leaf]]:
    """The leaves in order, in runs short enough for one request."""
    batch: list[Leaf] = []
    size_bytes = 0
    for leaf in leaves:
        leaf_bytes = _LEAF_OVERHEAD_BYTES + len(leaf.operands)
        if batch and size_bytes + leaf_bytes > _BATCH_BYTES:
            yield batch
            batch, size_bytes = [], 0
        batch.append(leaf)
        size_bytes += leaf_bytes
    if batch:
        yield batch
