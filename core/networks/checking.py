"""Does a chain agree with what a network file says, in every point that costs a reader money?

Code at an address proves what a contract does from now on. What its constructor stored, such as a
hidden arbitrator, is proved by the transaction that created it: its input is our code and the
file's arguments, to the last byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from eth_abi.abi import encode

from core.chain.chain import BLOCKS_PER_CALL, CONTRACTS
from core.chain.rpc import RpcChain
from core.keys.signer import DEVNET_CHAIN_IDS
from core.networks.code import code_at, code_faults, creation_fault, immutables
from core.networks.plan import made_by_registry
from core.networks.token import call_contract, read_token, selector
from core.protocol.errors import (
    ChainUnreachable,
    CheckFailed,
    ContractRefused,
    HeadraceError,
)
from core.protocol.hashing import keccak
from core.protocol.ids import address
from core.protocol.network_file import TOKEN, NetworkFile
from core.protocol.types import ZERO_ADDRESS
from core.runtime.commands.results import Result
from core.runtime.network.targets import is_public

_IS_VALID = selector("isValidSignature(bytes32,bytes)")
_HAS_ROLE = selector("hasRole(bytes32,address)")
_PROPOSER = keccak(b"PROPOSER_ROLE")
_ADDED, _REMOVED, _PROPOSED, _OWNED = (
    "0x" + keccak(event).hex()
    for event in (
        b"ArbitratorAdded(address)",
        b"ArbitratorRemoved(address)",
        b"ArbitratorProposed(address,uint256)",
        b"OwnershipTransferred(address,address)",
    )
)
#: What has an owner and a guardian.
OWNED = ("MinerRegistry", "TaskRegistry")
NAMES = (*CONTRACTS, "Evidence")
COMPILED, SINCE_CREATION = "as compiled", "at or before the creation"


class NetworkRow(Result, frozen=True):
    """One point of a network file: what the chain says, and what the file."""

    point: str
    ok: bool
    chain: str
    file: str


def row(point: str, chain: object, file: object) -> NetworkRow:
    """A point on which both must say the same."""
    return NetworkRow(point, str(chain) == str(file), str(chain), str(file))


def contradictions(rows: Iterable[NetworkRow]) -> list[str]:
    """What to tell of the points in which the chain says something else."""
    wrong = [one for one in rows if not one.ok]
    return [f"{one.point}: the chain says {one.chain}, the file {one.file}" for one in wrong]


async def check_network(
    chain: RpcChain, file: NetworkFile, *, is_signed: bool = True
) -> list[NetworkRow]:
    """Every point of the file, held to the chain; but for the signature of one not signed yet.

    Raises ChainUnreachable. `chain` needs no addresses. What cannot be read is a contradiction.
    """
    found = int.from_bytes(await chain.raw("eth_chainId"))
    rows = [row("chain", found, file.chain_id)]
    rows.append(
        row("names of contracts", ", ".join(sorted(NAMES)), ", ".join(sorted(file.contracts)))
    )
    if contradictions(rows):
        return rows
    rows += [_matcher_row(file), NetworkRow("digest", True, "", "0x" + file.digest.hex())]
    codes = await _code_rows(chain, file)
    rows += [*codes, *await _creation_rows(chain, file), *await _token_rows(chain, file)]
    if all(one.ok for one in codes):  # else what they answer means nothing
        for name, where in file.contracts.items():
            chain.bind(name, where)
        rows += [*await _role_rows(chain, file), *await _arbitrator_rows(chain, file)]
        rows += await _signature_rows(chain, file) if is_signed else []
    return rows


async def require_true(
    chain: RpcChain, file: NetworkFile, *, is_signed: bool = True
) -> list[NetworkRow]:
    """The rows of a file that the chain agrees with. Raises CheckFailed naming each other point."""
    rows = await check_network(chain, file, is_signed=is_signed)
    if wrong := contradictions(rows):
        raise CheckFailed(
            f"chain {file.chain_id} contradicts the file of '{file.name}'",
            why="; ".join(wrong),
            next_step="trust neither file nor node before their owners explain it",
            points=[one.point for one in rows if not one.ok],
        )
    return rows


async def speaks_for(chain: RpcChain, owner: str, signer: str) -> bool:
    """Whether a signature of `signer` is the owner's word: itself, or a timelock's proposer."""
    if signer.lower() == owner.lower():
        return True
    if not await code_at(chain, owner):
        return False
    asked = _HAS_ROLE + encode(["bytes32", "address"], [_PROPOSER, signer])
    try:
        return int.from_bytes((await call_contract(chain, owner, asked))[:32]) == 1
    except ContractRefused:
        return False


async def _code_rows(chain: RpcChain, file: NetworkFile) -> list[NetworkRow]:
    rows = []
    at = {**file.contracts, **made_by_registry(file.contracts["TaskRegistry"])}
    for name, words in immutables(file.contracts, file.parameters).items():
        wrong = code_faults(name, await code_at(chain, at[name]), words)
        rows.append(row(f"code of {name}", "; ".join(wrong) or COMPILED, COMPILED))
    evidence = file.contracts["Evidence"].lower()
    return [*rows, row("Evidence", at["Evidence"].lower(), evidence)]


async def _creation_rows(chain: RpcChain, file: NetworkFile) -> list[NetworkRow]:
    names = [name for name in CONTRACTS if name != TOKEN]
    return [row(f"creation of {one}", await _creation(chain, file, one), COMPILED) for one in names]


async def _creation(chain: RpcChain, file: NetworkFile, name: str) -> str:
    if name not in file.creations:
        return "the file names no transaction"
    try:
        sent: Any = await chain.rpc("eth_getTransactionByHash", file.creations[name])
        receipt: Any = await chain.rpc("eth_getTransactionReceipt", file.creations[name])
        if not sent or not receipt:
            return "the node has no such transaction"
        made = str(receipt["contractAddress"]).lower()
        if sent["to"] or made != file.contracts[name].lower():
            return "the transaction created something else"
        data = str(sent["input"])
    except (ContractRefused, KeyError, TypeError):
        return "the node's answer cannot be read"
    return creation_fault(chain, name, data, file.contracts, file.parameters) or COMPILED


async def _token_rows(chain: RpcChain, file: NetworkFile) -> list[NetworkRow]:
    at = row("token", file.contracts[TOKEN].lower(), file.token.address.lower())
    try:
        found = await read_token(chain, file.token.address)
    except HeadraceError as error:
        return [at, NetworkRow("token's own words", False, error.why, file.token.symbol)]
    return [
        at,
        row("token's symbol", found.symbol, file.token.symbol),
        row("token's decimals", found.decimals, file.token.decimals),
    ]


async def _role_rows(chain: RpcChain, file: NetworkFile) -> list[NetworkRow]:
    rows = []
    for name in OWNED:
        for role in ("owner", "guardian"):
            found = await chain.read(name, role)
            rows.append(row(f"{role} of {name}", found, address(getattr(file, role))))
    params = await chain.read("TaskRegistry", "params")
    fee = file.parameters.protocol_fee_bps
    return [
        *rows,
        row("protocol fee", f"{params['protocolFeeBps']} bps", f"{fee} bps"),
        row("fee recipient", params["feeRecipient"], address(file.fee_recipient)),
    ]


async def _signature_rows(chain: RpcChain, file: NetworkFile) -> list[NetworkRow]:
    if not file.signer or not file.signature:
        return [NetworkRow("signature", False, "none", "by the owner")]
    signer = address(file.signer)
    is_signed = file.recovered == signer or await _approves(chain, signer, file)
    owner = await chain.read("TaskRegistry", "owner")
    may = await speaks_for(chain, owner, signer)
    return [
        row("signature", f"by {signer}" if is_signed else "not by its signer", f"by {signer}"),
        row("signer", "the owner" if may else f"a stranger; the owner is {owner}", "the owner"),
    ]


async def _approves(chain: RpcChain, signer: str, file: NetworkFile) -> bool:
    """Whether an account that is a contract says that the signature is its own (EIP-1271)."""
    if not await code_at(chain, signer):
        return False
    values = [file.digest, bytes.fromhex(file.signature[2:])]
    try:
        asked = _IS_VALID + encode(["bytes32", "bytes"], values)
        answer = await call_contract(chain, signer, asked)
    except ContractRefused:
        return False
    return answer == _IS_VALID.ljust(32, b"\0")


async def _arbitrator_rows(chain: RpcChain, file: NetworkFile) -> list[NetworkRow]:
    """Whom orders may name, and who waits for that, by the events since the creation."""
    added, proposed, is_whole = set[str](), set[str](), False
    for event, account in await _logs(chain, file, file.deploy_block, await chain.block_number()):
        if event == _PROPOSED:
            proposed.add(account)
        elif event == _ADDED:
            added.add(account)
            proposed.discard(account)
        elif event == _REMOVED:
            added.discard(account)
            proposed.discard(account)
        else:
            is_whole |= account == ZERO_ADDRESS  # the first owner follows nobody
    named = ", ".join(sorted(map(address, file.arbitrators)))
    waiting = ", ".join(sorted(proposed)) or "none"
    return [
        row("first block", SINCE_CREATION if is_whole else "after it", SINCE_CREATION),
        row("arbitrators", ", ".join(sorted(added)), named),
        NetworkRow("proposed arbitrators", True, waiting, ""),
    ]


async def _logs(chain: RpcChain, file: NetworkFile, first: int, last: int) -> list[tuple[str, str]]:
    """Events of these blocks in order, each with the account that it names first.

    They are asked for at once, and in halves where the node refuses so many blocks.
    """
    asked = {
        "address": file.contracts["MinerRegistry"],
        "topics": [[_ADDED, _REMOVED, _PROPOSED, _OWNED]],
        "fromBlock": hex(first),
        "toBlock": hex(max(first, last)),
    }
    found = list[tuple[str, str]]()
    try:
        for entry in await chain.rpc("eth_getLogs", asked):
            event, account = entry["topics"][:2]
            found.append((event, address("0x" + account[-40:])))
    except (ContractRefused, ChainUnreachable):
        if last - first < BLOCKS_PER_CALL:
            raise
        middle = (first + last) // 2
        for start, end in ((first, middle), (middle + 1, last)):
            found += await _logs(chain, file, start, end)
    except (KeyError, TypeError, ValueError, HeadraceError) as error:
        raise ChainUnreachable("eth_getLogs failed at the node", str(error)[:100]) from None
    return found


def _matcher_row(file: NetworkFile) -> NetworkRow:
    """A file sends its readers' orders to these URLs, so not into the readers' own network."""
    inside = [one.url for one in file.matchers if not _is_public_url(one.url)]
    is_local = file.chain_id in DEVNET_CHAIN_IDS
    told = "public" if is_local or not inside else ", ".join(inside)
    return row("matchers' URLs", told, "public")


def _is_public_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme != "https" or not host:
            return False
        if host.replace(".", "").isdigit() or ":" in host:
            return is_public(host)
    except ValueError:
        return False
    return "." in host.strip(".")
