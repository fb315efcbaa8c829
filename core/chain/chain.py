"""What the roles ask of the chain, and what it answers.

Errors of the node are ChainUnreachable. A revert is ContractRefused with the decoded custom error
and its arguments; it is found by simulating before anything is sent, so it costs no gas.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from core.protocol.signing import DigestSigner, Domain

BLOCKS_PER_CALL = 2000
#: What a network consists of; all others exist before TaskRegistry, whose address they foretell.
CONTRACTS = (
    "TestUSD",
    "ModelRegistry",
    "MinerRegistry",
    "Escrow",
    "JuryArbitrator",
    "Referee",
    "ProgramStore",
    "TraceJudge",
    "RowJudge",
    "ToleranceGame",
    "TaskRegistry",
)


class ChainEvent(msgspec.Struct, frozen=True):
    """A decoded event. Hashes and addresses are 0x strings, structs are dicts."""

    contract: str
    name: str
    args: dict[str, Any]
    block_number: int
    block_hash: str
    tx_hash: str
    log_index: int


class ChainCall(msgspec.Struct, frozen=True):
    """A decoded transaction: which function of which contract, with which arguments."""

    contract: str
    function: str
    args: dict[str, Any]
    sender: str


class Mined(msgspec.Struct, frozen=True):
    """A transaction in a block. `call` is None where it went to no contract that we know."""

    tx_hash: str
    block_number: int
    sender: str
    call: ChainCall | None
    gas_used: int
    calldata_bytes: int


class Sent(msgspec.Struct, frozen=True):
    """A mined transaction."""

    tx_hash: str
    block_number: int
    gas_used: int


class PreparedTransaction(msgspec.Struct, frozen=True):
    """A signed transaction. It happens once at most, however often it is sent: it has a nonce."""

    label: str
    sender: str
    nonce: int
    tx_hash: str
    raw: str


class Fate(StrEnum):
    """What became of a prepared transaction. `VOID`: another one spent its nonce."""

    PENDING = "pending"
    DONE = "done"
    REVERTED = "reverted"
    VOID = "void"


class TransactionFate(msgspec.Struct, frozen=True):
    """Its fate by now, and whether a reorganisation of the depth asked for could change it."""

    fate: Fate
    is_final: bool
    block_number: int = 0


class Chain(Protocol):
    """The contracts of one network. Every call may raise ChainUnreachable."""

    rpc_url: str
    chain_id: int
    addresses: dict[str, str]

    @property
    def domain(self) -> Domain:
        """The EIP-712 domain of this network."""

    async def read(self, contract: str, function: str, *args: Any, block: int | None = None) -> Any:
        """Result of a view function: ints, strings, lists, dicts of named fields.

        Raises ContractRefused.
        """

    async def now(self) -> int:
        """Chain time: seconds of the newest block. Deadlines are judged by this clock."""

    async def balance_wei(self, address: str) -> int:
        """ETH of an account, for gas."""

    async def block_number(self) -> int: ...

    async def block_hash(self, number: int) -> str | None:
        """Hash of a block of the current chain, None when it has no such block."""

    async def events(
        self, first_block: int, last_block: int, *, contract: str | None = None
    ) -> list[ChainEvent]:
        """Every event of our contracts, or of one, in these blocks, inclusive, in chain order."""

    async def call_of(self, tx_hash: str) -> ChainCall | None:
        """What a transaction asked one of our contracts; None when it was sent to none directly."""

    async def mined(self, number: int) -> list[Mined]:
        """Every transaction in a block, in order."""

    async def simulate(self, sender: str, contract: str, function: str, *args: Any) -> int:
        """Gas that a call would use if `sender` sent it now. Raises ContractRefused."""

    async def transact(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> Sent:
        """Send a call and wait until it is mined.

        Raises ContractRefused (before sending, or when it reverted in its block), GasShort,
        ChainUnreachable. After ChainUnreachable the transaction may or may not be pending: read the
        contract's state before trying again.
        """


async def history(
    chain: Chain, first: int, last: int | None = None
) -> AsyncIterator[tuple[int, list[ChainEvent]]]:
    """Every event of our contracts in blocks [first, last] (None: the newest), in chain order.

    Yields the last block of each call to the node, and its events. Raises ChainUnreachable.
    """
    head = await chain.block_number() if last is None else last
    for start in range(first, head + 1, BLOCKS_PER_CALL):
        end = min(head, start + BLOCKS_PER_CALL - 1)
        yield end, await chain.events(start, end)
