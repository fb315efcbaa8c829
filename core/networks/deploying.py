"""How are the contracts created, each once, whatever interrupts it?

The deployment is written down before the first transaction. Of each contract the chain itself tells
whether it is there, so a run that was killed at any point goes on: a contract's address follows
from the deployer and a nonce, and whatever is at that nonce lands at that address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.chain.rpc import RpcChain
from core.networks.code import code_at, code_faults, immutables
from core.networks.plan import Deployment
from core.protocol.errors import ChainUnreachable, CheckFailed, ConfigError
from core.protocol.foreign import read_file
from core.protocol.signing import DigestSigner
from core.protocol.whole_file import write_whole
from core.runtime.folders import make_private

MAX_JOURNAL_BYTES = 2**18
_POLL_S, _PENDING_WITHIN_S = 0.2, 60.0
#: Behind one URL may be several nodes, some of them a few blocks late.
_LAG_WITHIN_S = 15.0


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was begun, and every transaction that was signed for it: contract → hashes."""

    deployment: Deployment
    signed: dict[str, tuple[str, ...]] = {}

    def with_signed(self, name: str, tx_hash: str) -> Journal:
        """The same, with one more transaction."""
        hashes = (*self.signed.get(name, ()), tx_hash)
        return msgspec.structs.replace(self, signed={**self.signed, name: hashes})


def begun(path: Path, wanted: Deployment) -> Journal:
    """The deployment that goes on: an earlier one in this file, else `wanted`, now in it.

    Raises ConfigError where the file is of a deployment of something else.
    """
    if not path.exists():
        make_private(path.parent)
        journal = Journal(wanted)
        write_journal(path, journal)
        return journal
    try:
        journal = msgspec.json.decode(read_file(path, most_bytes=MAX_JOURNAL_BYTES), type=Journal)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from None
    earlier = journal.deployment
    if not wanted.is_same_but_for_its_place(earlier):
        raise ConfigError(
            "another deployment of that name was begun",
            why=f"{path} has other parameters, roles, token, chain or deployer",
            state=f"it began at nonce {earlier.first_nonce} of {earlier.deployer}",
            next_step="use the file that it was begun with, or choose another name",
        )
    return journal


def write_journal(path: Path, journal: Journal) -> None:
    """Replace the journal as a whole."""
    content = msgspec.json.format(msgspec.json.encode(journal), indent=1)
    write_whole(path, content, synced=True)


async def create(
    chain: RpcChain,
    deployer: DigestSigner,
    deployment: Deployment,
    on_signed: Callable[[str, str], None] = lambda name, tx_hash: None,
    on_created: Callable[[str], None] = lambda name: None,
) -> None:
    """Create what is missing, prove the code of each contract, and bind all of them by name.

    `on_signed` is told of each transaction before it is sent. Raises ContractRefused, GasShort,
    ChainUnreachable; ConfigError where the deployer's nonce was spent on something else,
    CheckFailed where an address has other code.
    """
    at, arguments = deployment.at, deployment.arguments
    expected = immutables(at, deployment.parameters)
    for nonce, name in enumerate(deployment.created, deployment.first_nonce):
        code = await code_at(chain, at[name]) or await _wait_for_turn(
            chain, deployment, nonce, name
        )
        while not code:
            prepared = await chain.prepare_creation(deployer, name, *arguments[name])
            if prepared.nonce != nonce:  # of a node that is late, or no longer ours
                code = await _wait_for_turn(chain, deployment, nonce, name)
                continue
            on_signed(name, prepared.tx_hash)
            await chain.push(prepared)
            await chain.mined_as(prepared)
            code = await _code_once_seen(chain, at[name])
            break
        if name in expected and (wrong := code_faults(name, code, expected[name])):
            raise CheckFailed(
                f"{name} is not what was compiled",
                why="; ".join(wrong),
                state=f"at {at[name]}; nothing that anyone uses refers to it",
                next_step="ask another node for this chain; else start anew under another name",
            )
        chain.bind(name, at[name])
        on_created(name)
    for name in ("TestUSD", "Evidence"):
        chain.bind(name, at[name])


async def creations(chain: RpcChain, journal: Journal) -> dict[str, str]:
    """Contract → the transaction that created it, of those that were signed for it.

    Raises ConfigError where the node knows none of them.
    """
    found = {}
    for name in journal.deployment.created:
        for tx_hash in journal.signed.get(name, ()):
            receipt = await chain.rpc("eth_getTransactionReceipt", tx_hash)
            if receipt and int(receipt["status"], 16) == 1:
                found[name] = tx_hash
        if name not in found:
            raise ConfigError(
                f"the transaction that created {name} is not known",
                why=f"the node has none of {len(journal.signed.get(name, ()))} that were signed",
                next_step="ask another node: --rpc-url",
            )
    return found


async def _wait_for_turn(chain: RpcChain, deployment: Deployment, nonce: int, name: str) -> bytes:
    """Until this nonce is the account's next, or the code that an earlier run created is there.

    Returns that code, or nothing where it is our turn.
    """
    clock = asyncio.get_running_loop().time
    began_s = clock()
    while True:
        pending = await chain.nonce(deployment.deployer)
        if pending == nonce:
            return b""
        if code := await code_at(chain, deployment.at[name]):
            return code
        is_waiting = await chain.nonce(deployment.deployer, "latest") <= nonce < pending
        if clock() - began_s > (_PENDING_WITHIN_S if is_waiting else _LAG_WITHIN_S):
            if not is_waiting:
                raise _astray(deployment, nonce, name)
            raise ChainUnreachable(
                f"the transaction that creates {name} waits in the node",
                why=f"it was sent earlier with nonce {nonce}, and no block has it",
                state="it may still be mined",
                next_step="repeat the command later; it goes on from here",
            )
        await asyncio.sleep(_POLL_S)


async def _code_once_seen(chain: RpcChain, address: str) -> bytes:
    """Code that was just created, once the node that answers knows of it; else empty."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    while not (code := await code_at(chain, address)) and clock() - began_s < _LAG_WITHIN_S:
        await asyncio.sleep(_POLL_S)
    return code


def _astray(deployment: Deployment, nonce: int, name: str) -> ConfigError:
    return ConfigError(
        f"{name} can no longer be created at {deployment.at[name]}",
        why=f"nonce {nonce} of {deployment.deployer} was spent on another transaction, or the "
        "chain is another one",
        state="what was created is not in use and can stay",
        next_step="move its journal away (deployments/ in the state folder) and deploy anew; send "
        "nothing else from the deployer meanwhile",
    )
