"""How does a node answer for the chain? Calls, events, transactions, in the contracts' words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eth_abi.exceptions import DecodingError
from eth_utils.abi import event_abi_to_log_topic, function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address

from core.chain.artifacts import argument, artifact, plain
from core.chain.chain import (
    Chain,
    ChainCall,
    ChainEvent,
    Fate,
    Mined,
    PreparedTransaction,
    Sent,
    TransactionFate,
)
from core.chain.node import Node
from core.chain.outbox import TransactionOutbox
from core.chain.sending import Journal, Sender, TransactionDraft
from core.protocol.errors import (
    ChainUnreachable,
    ConfigError,
    ContractRefused,
)
from core.protocol.signing import DigestSigner, Domain

if TYPE_CHECKING:
    from web3.contract import AsyncContract

#: Nodes refuse ranges of more blocks than 1,000 to 10,000, or answers of some size.
_LOG_BLOCKS = 5_000
#: Contract → the function by which TaskRegistry tells which one it works with.
_REGISTERED = {
    "Escrow": "escrow",
    "MinerRegistry": "minerRegistry",
    "ModelRegistry": "modelRegistry",
    "Evidence": "evidence",
}


def _unpacked(args: dict[str, Any]) -> dict[str, Any]:
    """Shares of a `Paid`, each an operator above 96 bits of nano units, as two lists."""
    if "shares" not in args:
        return args
    shares = args["shares"]
    operators = [to_checksum_address((share >> 96).to_bytes(20, "big")) for share in shares]
    pays = [share & (2**96 - 1) for share in shares]
    rest = {name: value for name, value in args.items() if name != "shares"}
    return {**rest, "operators": operators, "payNano": pays}


class RpcChain(Chain):
    """A node's RPC and the contracts deployed behind it."""

    def __init__(
        self,
        rpc_url: str,
        chain_id: int,
        addresses: Mapping[str, str],
        *,
        journal: Journal | None = None,
        state: Path | None = None,
    ) -> None:
        """No traffic yet. `addresses` maps contract names to where they are.

        `rpc_url` may be several with commas between them: what most of these nodes say counts.
        `journal` is told of every transaction when it is sent and when its fate is known. In the
        folder `state` each is written down until then.
        """
        self.rpc_url, self.chain_id = rpc_url, chain_id
        self.addresses = {name: to_checksum_address(a) for name, a in addresses.items()}
        self._node = Node(rpc_url)
        outbox = TransactionOutbox(state / f"outbox-{chain_id}.sqlite") if state else None
        self._sender = Sender(self._node, chain_id, journal, outbox)
        self._contracts: dict[str, AsyncContract] = {}
        #: Blocks whose events are asked for at once: fewer where the node refuses more.
        self._log_blocks = _LOG_BLOCKS
        self._topics: dict[tuple[str, bytes], tuple[str, Any]] = {}
        self._selectors: dict[tuple[str, bytes], tuple[str, str]] = {}
        for name, address in self.addresses.items():
            self._bind(name, address)

    @property
    def domain(self) -> Domain:
        return Domain(self.chain_id, self.addresses["TaskRegistry"])

    def bind(self, name: str, address: str) -> None:
        """Know a contract that another one made."""
        self.addresses[name] = to_checksum_address(address)
        self._bind(name, address)

    def _bind(self, name: str, address: str) -> None:
        abi = artifact(name)["abi"]
        contract = self._node.eth.contract(
            address=to_checksum_address(address), abi=abi, decode_tuples=True
        )
        self._contracts[name] = contract
        for entry in abi:
            if entry["type"] == "event":
                topic = event_abi_to_log_topic(entry)
                self._topics[(address.lower(), topic)] = (name, contract.events[entry["name"]]())
            elif entry["type"] == "function":
                selector = function_abi_to_4byte_selector(entry)
                self._selectors[(address.lower(), selector)] = (name, entry["name"])

    async def check(self) -> None:
        """Raise ConfigError unless the node is on our chain id, every contract has code, and the
        TaskRegistry that signatures are for works with the others that the network file names.
        """
        found = await self._node.guard(self._node.eth.chain_id)
        if found != self.chain_id:
            raise ConfigError(
                f"{self.rpc_url} is chain {found}",
                f"the network file is for chain {self.chain_id}",
                next_step="choose the right --network or --rpc-url",
            )
        for name, address in self.addresses.items():
            if not await self._node.guard(self._node.eth.get_code(to_checksum_address(address))):
                raise ConfigError(
                    f"no {name} at {address}",
                    f"chain {self.chain_id} has no code there: a new chain, or an old network file",
                    next_step="on one machine: `devnet down` and `devnet up`",
                )
        if "TaskRegistry" not in self.addresses:
            return
        for name, getter in _REGISTERED.items():
            if name in self.addresses:
                found = await self.read("TaskRegistry", getter)
                if found != self.addresses[name]:
                    raise ConfigError(
                        f"the network file is wrong about {name}",
                        f"it says {self.addresses[name]}, and TaskRegistry works with {found}",
                        next_step="`network check FILE` says what else differs; join again",
                    )

    async def close(self) -> None:
        await self._node.close()
        self._sender.close()

    # --- reading ---

    async def read(self, contract: str, function: str, *args: Any, block: int | None = None) -> Any:
        call = self._contracts[contract].functions[function](*map(argument, args))
        asked = call.call(block_identifier="latest" if block is None else block)
        found = plain(await self._node.guard(asked, f"{contract}.{function}"))
        if isinstance(found, dict):
            # web3 calls a field by its number where its name is a word of Python's, such as class.
            returned = call.abi["outputs"]
            fields = returned if len(returned) > 1 else returned[0]["components"]
            return dict(zip((field["name"] for field in fields), found.values(), strict=True))
        return found

    async def balance_wei(self, address: str) -> int:
        return await self._node.balance_wei(address)

    async def block_number(self) -> int:
        return int(await self._node.guard(self._node.eth.get_block_number()))

    async def block_hash(self, number: int) -> str | None:
        from web3.exceptions import BlockNotFound

        try:
            block = await self._node.guard(self._node.eth.get_block(number), allow=(BlockNotFound,))
        except BlockNotFound:
            return None
        return "0x" + bytes(block["hash"]).hex()

    async def now(self) -> int:
        block = await self._node.guard(self._node.eth.get_block("latest"))
        return int(block["timestamp"])

    async def events(
        self, first_block: int, last_block: int, *, contract: str | None = None
    ) -> list[ChainEvent]:
        from web3.exceptions import Web3Exception

        addresses = [self.addresses[contract]] if contract else list(self.addresses.values())
        found: list[ChainEvent] = []
        while first_block <= last_block:
            end = min(last_block, first_block + self._log_blocks - 1)
            wanted = {"fromBlock": first_block, "toBlock": end, "address": addresses}
            try:
                asked = self._node.eth.get_logs(wanted)
                logs = await self._node.guard(asked, allow=(Web3Exception, ValueError))
            except (Web3Exception, ValueError) as error:  # too many blocks, or events, for it
                if end == first_block:
                    why = str(error)[:300]
                    raise ChainUnreachable("a block's events cannot be read", why) from None
                self._log_blocks = (end - first_block + 1) // 2
                continue
            found += [event for event in map(self._decode_log, logs) if event is not None]
            first_block = end + 1
        return sorted(found, key=lambda e: (e.block_number, e.log_index))

    async def call_of(self, tx_hash: str) -> ChainCall | None:
        return self._decode_call(await self._node.guard(self._node.eth.get_transaction(tx_hash)))

    async def mined(self, number: int) -> list[Mined]:
        block = await self._node.guard(self._node.eth.get_block(number, full_transactions=True))
        found = []
        for tx in block["transactions"]:
            receipt = await self._node.guard(self._node.eth.get_transaction_receipt(tx["hash"]))
            found.append(
                Mined(
                    tx_hash="0x" + bytes(tx["hash"]).hex(),
                    block_number=number,
                    sender=str(tx["from"]),
                    call=self._decode_call(tx),
                    gas_used=int(receipt["gasUsed"]),
                    calldata_bytes=len(bytes(tx["input"])),
                )
            )
        return found

    def _decode_log(self, entry: Any) -> ChainEvent | None:
        from web3.exceptions import LogTopicError, MismatchedABI

        topic = bytes(entry["topics"][0]) if entry["topics"] else b""
        known = self._topics.get((entry["address"].lower(), topic))
        if known is None:
            return None
        name, event = known
        try:
            data = event.process_log(entry)
        except (MismatchedABI, LogTopicError, DecodingError):
            return None
        return ChainEvent(
            contract=name,
            name=data["event"],
            args=_unpacked(plain(data["args"])),
            block_number=int(entry["blockNumber"]),
            block_hash="0x" + bytes(entry["blockHash"]).hex(),
            tx_hash="0x" + bytes(entry["transactionHash"]).hex(),
            log_index=int(entry["logIndex"]),
        )

    def _decode_call(self, tx: Any) -> ChainCall | None:
        if tx.get("to") is None:
            return None
        known = self._selectors.get((tx["to"].lower(), bytes(tx["input"])[:4]))
        if known is None:
            return None
        name, function = known
        try:
            _, args = self._contracts[name].decode_function_input(tx["input"])
        except (DecodingError, UnicodeDecodeError, ValueError, TypeError):
            return None  # a known selector may come with nonsense behind it
        return ChainCall(name, function, plain(args), tx["from"])

    # --- sending ---

    async def simulate(self, sender: str, contract: str, function: str, *args: Any) -> int:
        call = self._contracts[contract].functions[function](*map(argument, args))
        estimate = call.estimate_gas({"from": to_checksum_address(sender)})
        return int(await self._node.guard(estimate, f"{contract}.{function}"))

    async def transact(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> Sent:
        draft = await self._call(signer, contract, function, *args)
        return await self._sender.send(signer, draft)

    async def prepare(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> PreparedTransaction:
        """A signed call: stored before `push`, it is sent once for good. Raises as `transact`."""
        draft = await self._call(signer, contract, function, *args)
        return await self._sender.prepare(signer, draft)

    async def push(self, prepared: PreparedTransaction) -> None:
        """Hand a prepared transaction to the node, which may know it. Raises ChainUnreachable."""
        await self._sender.push(prepared)

    async def mined_as(self, prepared: PreparedTransaction) -> Sent:
        """Wait until it is mined. Raises ContractRefused if it reverted, ChainUnreachable."""
        return await self._sender.until_mined([prepared], None)

    async def outcome_of(self, prepared: PreparedTransaction, depth_blocks: int) -> TransactionFate:
        """What became of it; final is what lies at least `depth_blocks` below the newest block.

        Raises ChainUnreachable.
        """
        buried = max(0, await self.block_number() - depth_blocks)
        # Asked before the receipt: without one later, another transaction spent this nonce.
        spent = await self._node.nonces(prepared.sender, buried)
        receipt = await self._node.receipt(prepared.tx_hash)
        if receipt is None:
            is_void = spent > prepared.nonce
            return TransactionFate(Fate.VOID if is_void else Fate.PENDING, is_void)
        number = int(receipt["blockNumber"])
        fate = Fate.DONE if receipt["status"] == 1 else Fate.REVERTED
        return TransactionFate(fate, number <= buried, number)

    async def deploy(self, signer: DigestSigner, name: str, *args: Any) -> str:
        """Create a contract from its committed artifact and bind it by its name. → its address"""
        sent = await self._sender.send(signer, await self._creation(signer, name, *args))
        receipt = await self._node.guard(self._node.eth.get_transaction_receipt(sent.tx_hash))
        address = str(receipt["contractAddress"])
        self.bind(name, address)
        return address

    async def prepare_creation(
        self, signer: DigestSigner, name: str, *args: Any
    ) -> PreparedTransaction:
        """A signed creation, for `push` and `mined_as`. Raises as `transact`."""
        draft = await self._creation(signer, name, *args)
        return await self._sender.prepare(signer, draft)

    def creation_code(self, name: str, *args: Any) -> str:
        """What a transaction carries that creates a contract: 0x hex of its code and arguments."""
        found = artifact(name)
        factory = self._node.eth.contract(abi=found["abi"], bytecode=found["bytecode"])
        code: str = factory.constructor(*map(argument, args)).data_in_transaction
        return code

    async def simulate_creation(self, sender: str, name: str, *args: Any) -> int:
        """Gas that the creation of a contract would use now. Raises ContractRefused."""
        asked = {"from": to_checksum_address(sender), "data": self.creation_code(name, *args)}
        return int(await self._node.guard(self._node.eth.estimate_gas(asked), f"deploy {name}"))

    async def send_eth(self, signer: DigestSigner, to: str, wei: int) -> Sent:
        """Plain transfer, for gas money."""
        place = to_checksum_address(to)
        return await self._sender.send(
            signer, TransactionDraft(place, "0x", 21_000, "transfer", wei)
        )

    async def nonce(self, address: str, block: str = "pending") -> int:
        """Next nonce of an account, counting pending transactions unless it is of a block."""
        return await self._node.nonces(address, block)

    async def raw(self, method: str, *params: Any) -> bytes:
        """The bytes that a node answers. Raises ContractRefused, ChainUnreachable."""
        answer = await self.rpc(method, *params)
        try:
            digits = str(answer).removeprefix("0x")
            return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
        except ValueError:
            raise ChainUnreachable(
                f"{method} failed at the node", f"it answered {str(answer)[:40]!r}"
            ) from None

    async def rpc(self, method: str, *params: Any) -> Any:
        """A raw request, for what `Chain` has no word for."""
        answer = await self._node.guard(self._node.web3.provider.make_request(method, list(params)))
        if "error" in answer:
            raise ContractRefused(method, error=str(answer["error"].get("message", "refused")))
        return answer.get("result")

    def call_data(self, contract: str, function: str, *args: Any) -> str:
        """What a transaction carries that calls a contract: 0x hex of selector and arguments."""
        call = self._contracts[contract].functions[function](*map(argument, args))
        data: str = call._encode_transaction_data()
        return data

    async def _call(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> TransactionDraft:
        """A call that would succeed now."""
        gas = await self.simulate(signer.address, contract, function, *args)
        data = self.call_data(contract, function, *args)
        return TransactionDraft(self.addresses[contract], data, gas, f"{contract}.{function}")

    async def _creation(self, signer: DigestSigner, name: str, *args: Any) -> TransactionDraft:
        """A creation that would succeed now."""
        gas = await self.simulate_creation(signer.address, name, *args)
        return TransactionDraft(None, self.creation_code(name, *args), gas, f"deploy {name}")
