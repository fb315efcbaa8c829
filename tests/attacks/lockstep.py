"""The model and the contracts on a local chain, call by call, with equal answers and equal states.

python -m tests.attacks.lockstep --calls 50000 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from core.chain.artifacts import artifact, decode_revert
from core.chain.rpc import RpcChain
from core.keys.signer import Signer
from core.protocol import commit, signing
from core.protocol import types as t
from core.protocol.hashing import keccak
from core.protocol.ids import address
from core.protocol.network_file import USD, Parameters
from core.protocol.units import whole_units
from devnet.deploy import deploy
from tests.accounts import devnet_accounts
from tests.attacks.books import Network, Refused
from tests.attacks.calls import Call, Calls
from tests.attacks.model import Model
from tests.conftest import CHAIN_ID, start_anvil
from tests.town.orders import SPEC

CLOCKS = Parameters()
LAYERS = 66  # so that a plan may have one stage more than are allowed
#: Of keys: requesters, spenders, matchers, owners, operators and strangers, in this order.
PARTIES = {"requester": 3, "spender": 4, "matcher": 3, "owner": 5, "operator": 14, "stranger": 2}
FUNDS = 10**7 * USD
GAS = 16_000_000
#: Of the node: anybody may send, gas costs nothing, no old state is kept, the day is the same.
OPTIONS = (
    "--timestamp=1800000000",
    "--auto-impersonate",
    "--base-fee=0",
    "--gas-price=0",
    "--hardfork=prague",
    "--prune-history",
)
#: A node hashes its whole state for every block: more calls on one chain are ever slower ones.
CALLS_A_CHAIN = 1000
EVERYTHING_EVERY = 200  # calls: all accounts and jobs are compared, not those of the call alone
#: An ERC-1271 wallet: a hash is signed if the slot of that number holds a one.
WALLET, WALLET_CODE = address(b"\xca" * 20), "0x60043554631626ba7e60e01b025f5260205ff3"
BURN = address(bytes(18) + b"\xde\xad")
#: An arbitrator that takes any dispute, and has no rules of its own.
RULER_CODE = "0x60206000f3"
#: What a read should answer: contract, function, and the model's words for its arguments.
READS: dict[str, tuple[str, str, Any]] = {
    "tokens": ("TestUSD", "balanceOf", lambda m, who: [m.wallet[who]]),
    "owed": ("TestUSD", "balanceOf", lambda m, who: [m.owed(who)]),
    "balance": ("Escrow", "balanceOf", lambda m, who: [whole_units(m.balance[who])]),
    "earned": ("Escrow", "earnedOf", lambda m, who: [whole_units(m.earned[who])]),
    "fees": ("Escrow", "feesOf", lambda m, who: [whole_units(n) for n in fees_of(m, who)]),
    "nano": (
        "Escrow",
        "nanoOf",
        lambda m, who: [m.balance[who], m.earned[who], *fees_of(m, who)],
    ),
    "thaw": ("Escrow", "thawOf", lambda m, who: m.thaw[who]),
    "spender": ("Escrow", "spenderOf", lambda m, who, key: vars(m.spender[who, key]).values()),
    "signer": ("Escrow", "jobSpenderOf", lambda m, job: [m.signed_by[job]]),
    "job": ("TaskRegistry", "jobOf", lambda m, *pair: vars(m.job[pair]).values()),
    "used": ("TaskRegistry", "isNonceUsed", lambda m, *pair: [pair in m.used]),
    "miner": ("MinerRegistry", "minerOf", lambda m, who: vars(m.miner[who]).values()),
    "credit": ("MinerRegistry", "creditOf", lambda m, who: [m.credit[who]]),
    "pool": ("MinerRegistry", "poolOf", lambda m, who: vars(m.pool[who]).values()),
    "dispute": (
        "MinerRegistry",
        "disputeOf",
        lambda m, *pair: vars(m.dispute_of[pair]).values(),
    ),
    "named": (
        "MinerRegistry",
        "operatorsOf",
        lambda m, who: [32, len(m.named[who]), *m.named[who]],
    ),
    "owner": ("MinerRegistry", "ownerOf", lambda m, key: [m.owner[key]]),
    "works": ("MinerRegistry", "canWork", lambda m, key, least: [m.can_work(key, least)]),
}


def fees_of(model: Model, matcher: str) -> list[int]:
    """A matcher's own fees and the protocol's of its jobs, in nano units."""
    return [model.matcher_fees[matcher], model.protocol_fees[matcher]]


class Difference(AssertionError):
    """The chain and the model disagree."""


class Node:
    """JSON-RPC over one connection that stays, and the contracts' ABI without web3."""

    def __init__(self, rpc_url: str, addresses: dict[str, str]) -> None:
        self._http = http.client.HTTPConnection(rpc_url.removeprefix("http://"))
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.addresses = addresses
        self._functions = {
            (name, entry["name"]): (_selector(entry), entry["inputs"])
            for name in ("TestUSD", "Escrow", "MinerRegistry", "TaskRegistry")
            for entry in artifact(name)["abi"]
            if entry["type"] == "function"
        }

    def close(self) -> None:
        self._http.close()

    def ask(self, *calls: tuple[str, list[Any]]) -> list[dict[str, Any]]:
        """The answers to these methods with their parameters, in order."""
        body = [
            {"jsonrpc": "2.0", "id": i, "method": method, "params": params}
            for i, (method, params) in enumerate(calls)
        ]
        self._http.request("POST", "/", json.dumps(body), {"Content-Type": "application/json"})
        answers = json.loads(self._http.getresponse().read())
        return sorted(answers, key=lambda answer: answer["id"])

    def call(self, contract: str, function: str, args: Sequence[Any], sender: str) -> Any:
        selector, inputs = self._functions[contract, function]
        data = "0x" + (selector + encoded(inputs, args)).hex()
        to = self.addresses[contract]
        return {"from": sender, "to": to, "data": data, "gas": hex(GAS), "gasPrice": "0x0"}

    def answer(self, call: Any, at: int) -> tuple[Any, ...] | None:
        """None if the call would pass at that time, else the error's name and arguments."""
        (found,) = self.ask(("eth_call", [call, "latest", {}, {"time": hex(at)}]))
        if "error" not in found:
            return None
        name, args = decode_revert(found["error"].get("data") or "0x")
        return (name, *args.values())

    def mine(self, call: Any, at: int) -> bool:
        """Whether it passed as the transaction of a block of that time."""
        clock, found = self.ask(
            ("evm_setNextBlockTimestamp", [at]), ("eth_sendTransactionSync", [call])
        )
        if "error" in clock or "error" in found:
            raise RuntimeError(f"{clock} {found}")
        mined = found["result"]
        if mined["blockTimestamp"] != at:
            raise RuntimeError(f"mined at {mined['blockTimestamp']}, not at {at}")
        return mined["status"] == "0x1"


def _canonical(entry: dict[str, Any]) -> str:
    if not entry["type"].startswith("tuple"):
        return str(entry["type"])
    return f"({','.join(map(_canonical, entry['components']))}){entry['type'][5:]}"


def _selector(entry: dict[str, Any]) -> bytes:
    return keccak(f"{entry['name']}({','.join(map(_canonical, entry['inputs']))})".encode())[:4]


def encoded(inputs: Sequence[dict[str, Any]], values: Sequence[Any]) -> bytes:
    """The ABI's bytes of these values."""
    parts = [
        (_is_dynamic(kind), _encoded(kind, value))
        for kind, value in zip(inputs, values, strict=True)
    ]
    head, tail = b"", b""
    size = sum(32 if dynamic else len(part) for dynamic, part in parts)
    for dynamic, part in parts:
        head += (size + len(tail)).to_bytes(32, "big") if dynamic else part
        tail += part if dynamic else b""
    return head + tail


def _is_dynamic(entry: dict[str, Any]) -> bool:
    kind = entry["type"]
    inner = kind == "tuple" and any(map(_is_dynamic, entry["components"]))
    return kind.endswith("[]") or kind == "bytes" or inner


def _encoded(entry: dict[str, Any], value: Any) -> bytes:
    kind = entry["type"]
    if kind.endswith("[]"):
        inner = [{**entry, "type": kind[:-2]}] * len(value)
        return len(value).to_bytes(32, "big") + encoded(inner, value)
    if kind == "tuple":
        return encoded(entry["components"], [getattr(value, f) for f in value.__struct_fields__])
    if kind == "bytes":
        return len(value).to_bytes(32, "big") + value + bytes(-len(value) % 32)
    return _word(value).to_bytes(32, "big")


def _word(value: Any) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


class Lockstep:
    """A chain with its contracts and parties, the model of it, and random calls to both."""

    def __init__(self, node: Node, model: Model, calls: Calls) -> None:
        self.node, self.model, self.calls = node, model, calls
        #: Function and outcome → how often.
        self.seen: Counter[tuple[str, str]] = Counter()
        #: Of the refused calls, those that broke more than one rule.
        self.several = 0

    def run(self, count: int) -> None:
        """Raises Difference at the first call after which chain and model are not equal."""
        for number in range(1, count + 1):
            call = self.calls.next()
            self.step(call, f"call {number}")
            if number % EVERYTHING_EVERY == 0 or number == count:
                self.compare(self.calls.everything(), f"everything after call {number}")

    def step(self, call: Call, label: str) -> None:
        """Make one call to both, and compare."""
        label = f"{label} at {call.at}: {call}"
        self.model.now = call.at
        expected: list[tuple[Any, ...]] = []
        try:
            call.predict()
        except Refused as refused:
            expected = refused.broken
        for digest in call.approvals:
            self.node.ask(("anvil_setStorageAt", [WALLET, digest, "0x" + "1".rjust(64, "0")]))
        sent = self.node.call(call.contract, call.function, call.args, call.sender)
        found = self.node.answer(sent, call.at)
        if self.node.mine(sent, call.at) != (found is None):
            raise RuntimeError(f"eth_call and transaction differ: {label}")
        is_equal = found in expected if found else not expected
        if not is_equal:
            raise Difference(f"{label}\nchain {found}\nmodel {expected or None}")
        self.seen[f"{call.contract}.{call.function}", found[0] if found else "accepted"] += 1
        self.several += len(expected) > 1
        call.done(found is None)
        self.compare(call.reads, label)

    def compare(self, reads: Sequence[tuple[Any, ...]], label: str) -> None:
        """Whether these getters answer what the model says."""
        reads = list(dict.fromkeys(reads))
        asked = []
        for name, *args in reads:
            contract, function, _ = READS[name]
            call = self.node.call(contract, function, args, t.ZERO_ADDRESS)
            asked.append(("eth_call", [{"to": call["to"], "data": call["data"]}, "latest"]))
        for (name, *args), answer in zip(reads, self.node.ask(*asked), strict=True):
            raw = bytes.fromhex(answer["result"][2:])
            found = [int.from_bytes(raw[i : i + 32], "big") for i in range(0, len(raw), 32)]
            expected = [_word(value) for value in READS[name][2](self.model, *args)]
            if found != expected:
                raise Difference(f"{label}\n{name} {args}\nchain {found}\nmodel {expected}")


def table(seen: Counter[tuple[str, str]]) -> str:
    """What was called how often, and how it ended."""
    lines = []
    for function in sorted({function for function, _ in seen}):
        ends = {end: n for (name, end), n in seen.items() if name == function}
        told = ", ".join(f"{end} {n}" for end, n in sorted(ends.items(), key=lambda e: -e[1]))
        lines.append(f"{function:27} {sum(ends.values()):6}  {told}")
    return "\n".join(lines)


async def _deployed(rpc_url: str) -> tuple[dict[str, str], t.ModelSpec, str, str]:
    """Addresses, the registered model, the fees' account, and the contract of evidence."""
    deployer, fee_account, *_ = devnet_accounts(2, chain_id=CHAIN_ID)
    roots = [keccak(bytes([i])) for i in range(LAYERS + 2)]
    root = commit.to_hex(commit.merkle_root(roots))
    spec = msgspec.structs.replace(SPEC, layers=LAYERS, head_units=3, weights_root=root)
    chain = RpcChain(rpc_url, CHAIN_ID, {})
    try:
        found = await deploy(chain, deployer, fee_account.address, CLOCKS)
        told = ["0x" + root.hex() for root in roots]
        await chain.transact(deployer, "ModelRegistry", "register", spec, told)
        evidence = await chain.read("TaskRegistry", "evidence")
    finally:
        await chain.close()
    return found, spec, fee_account.address, evidence


def prepared(rpc_url: str, seed: int) -> Lockstep:
    """Contracts on this node, parties with tokens, and a model that knows them."""
    addresses, spec, fee_account, evidence = asyncio.run(_deployed(rpc_url))
    domain = signing.Domain(CHAIN_ID, addresses["TaskRegistry"])
    network = Network(
        clocks=CLOCKS,
        fee_account=fee_account,
        model=spec,
        model_id=signing.model_id(spec),
        arbitrators=[addresses[n] for n in ("JuryArbitrator", "ToleranceGame")],
        evidence=evidence,
        burn=BURN,
        contracts=[WALLET, *addresses.values()],
        addresses=addresses,
        order_hash=signing.order_hash,
        plan_hash=lru_cache(signing.plan_hash),
        job_id=lru_cache(lambda order: signing.job_id(domain, order)),
        receipt_hash=signing.struct_hash,
    )
    node, model = Node(rpc_url, addresses), Model(network)
    codes = {WALLET: WALLET_CODE} | dict.fromkeys(network.arbitrators, RULER_CODE)
    node.ask(*(("anvil_setCode", [who, code]) for who, code in codes.items()))
    keys = {
        role: [Signer(keccak(f"{role} {i}".encode()), chain_id=CHAIN_ID) for i in range(count)]
        for role, count in PARTIES.items()
    }
    calls = Calls(model, keys, WALLET, domain, random.Random(seed))
    (latest,) = node.ask(("eth_getBlockByNumber", ["latest", False]))
    calls.last = int(latest["result"]["timestamp"], 16)
    run = Lockstep(node, model, calls)
    deployer = devnet_accounts(1, chain_id=CHAIN_ID)[0].address
    for call in calls.funding(deployer, FUNDS):
        run.step(call, "funding")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    seen: Counter[tuple[str, str]] = Counter()
    began, several = time.monotonic(), 0
    for seed, first in enumerate(range(0, asked.calls, CALLS_A_CHAIN), asked.seed):
        anvil = start_anvil(*OPTIONS)
        try:
            run = prepared(anvil.rpc_url, seed)
            run.seen = seen
            run.run(min(CALLS_A_CHAIN, asked.calls - first))
            several += run.several
            run.node.close()
        except Difference as difference:
            raise SystemExit(f"seed {seed}: {difference}") from None
        finally:
            anvil.stop()
    print(table(seen))
    passed = sum(n for (_, end), n in seen.items() if end == "accepted")
    print(f"{seen.total()} calls: {passed} accepted, {seen.total() - passed} refused")
    print(f"{several} of these broke several rules")
    print(f"{time.monotonic() - began:.0f} s, no difference")


if __name__ == "__main__":
    main()
