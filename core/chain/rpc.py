"""How does a node answer for the chain? Reads, transactions in nonce order; the file with web3."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
from eth_abi.abi import decode as abi_decode
from eth_abi.exceptions import DecodingError
from eth_utils.abi import event_abi_to_log_topic, function_abi_to_4byte_selector
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from hexbytes import HexBytes

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
from core.chain.fees import MOST_GAS, MOST_RAISE, Bid, first_bid, gas_limit, higher_bid
from core.chain.outbox import TransactionOutbox
from core.protocol.errors import (
    ChainUnreachable,
    ConfigError,
    ContractRefused,
    GasShort,
    HeadraceError,
)
from core.protocol.signing import DigestSigner, Domain
from core.protocol.types import Value
from core.protocol.units import format_eth

if TYPE_CHECKING:
    from web3.contract import AsyncContract

#: Nodes refuse ranges of more blocks than 1,000 to 10,000, or answers of some size.
_LOG_BLOCKS = 5_000
#: How long a transaction is waited for; how often it is looked whether it bids enough.
_CONFIRM_TIMEOUT_S, _OUTBID_EVERY_S = 180.0, 5.0
_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
#: Contract → the function by which TaskRegistry tells which one it works with.
_REGISTERED = {
    "Escrow": "escrow",
    "MinerRegistry": "minerRegistry",
    "ModelRegistry": "modelRegistry",
    "Evidence": "evidence",
}
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


def _plain(value: Any) -> Any:
    """What ABI decoding gives, as strings, ints, lists and dicts."""
    if isinstance(value, bytes | bytearray):
        return "0x" + bytes(value).hex()
    if hasattr(value, "_asdict"):
        return {k: _plain(v) for k, v in value._asdict().items()}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _unpacked(args: dict[str, Any]) -> dict[str, Any]:
    """Shares of a `Paid`, each an operator above 96 bits of nano units, as two lists."""
    if "shares" not in args:
        return args
    shares = args["shares"]
    operators = [to_checksum_address((share >> 96).to_bytes(20, "big")) for share in shares]
    pays = [share & (2**96 - 1) for share in shares]
    rest = {name: value for name, value in args.items() if name != "shares"}
    return {**rest, "operators": operators, "payNano": pays}


def _argument(value: Any) -> Any:
    """What we pass, as web3 wants it: addresses checksummed, structs as tuples of their fields."""
    if isinstance(value, Value):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return tuple(_argument(v) for v in value.values())
    if isinstance(value, list | tuple):
        return [_argument(v) for v in value]
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
        field or str(i): _argument(_plain(v)) if "address" in kind else _plain(v)
        for i, ((field, kind), v) in enumerate(zip(fields, values, strict=True))
    }


class RpcChain(Chain):
    """A node's RPC and the contracts deployed behind it."""

    def __init__(
        self,
        rpc_url: str,
        chain_id: int,
        addresses: Mapping[str, str],
        *,
        journal: Callable[[dict[str, Any]], None] | None = None,
        outbox: TransactionOutbox | None = None,
    ) -> None:
        """No traffic yet. `addresses` maps contract names to where they are.

        `rpc_url` may be several with commas between them: what most of these nodes say counts.
        `journal` is told of every transaction when it is sent and when its fate is known; `outbox`
        keeps each until then.
        """
        from web3 import AsyncWeb3

        from core.chain.provider import provider_of

        self.rpc_url, self.chain_id = rpc_url, chain_id
        self.addresses = {name: to_checksum_address(a) for name, a in addresses.items()}
        self._web3: AsyncWeb3[Any] = AsyncWeb3(provider_of(rpc_url))
        self._eth: Any = self._web3.eth
        self.journal, self._outbox = journal, outbox
        self._contracts: dict[str, AsyncContract] = {}
        #: By account, whose transactions are signed and sent one after the other.
        self._sending: dict[str, asyncio.Lock] = {}
        #: By account, the newest versions of transactions that were not waited for any longer.
        self._given_up: dict[str, list[PreparedTransaction]] = {}
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
        contract = self._eth.contract(
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
        found = await self._guard(self._eth.chain_id)
        if found != self.chain_id:
            raise ConfigError(
                f"{self.rpc_url} is chain {found}",
                f"the network file is for chain {self.chain_id}",
                next_step="choose the right --network or --rpc-url",
            )
        for name, address in self.addresses.items():
            if not await self._guard(self._eth.get_code(to_checksum_address(address))):
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
        await self._web3.provider.disconnect()
        if self._outbox is not None:
            self._outbox.close()

    # --- reading ---

    async def read(self, contract: str, function: str, *args: Any, block: int | None = None) -> Any:
        call = self._contracts[contract].functions[function](*map(_argument, args))
        asked = call.call(block_identifier="latest" if block is None else block)
        found = _plain(await self._guard(asked, f"{contract}.{function}"))
        if isinstance(found, dict):
            # web3 calls a field by its number where its name is a word of Python's, such as class.
            returned = call.abi["outputs"]
            fields = returned if len(returned) > 1 else returned[0]["components"]
            return dict(zip((field["name"] for field in fields), found.values(), strict=True))
        return found

    async def balance_wei(self, address: str) -> int:
        return int(await self._guard(self._eth.get_balance(to_checksum_address(address))))

    async def block_number(self) -> int:
        return int(await self._guard(self._eth.get_block_number()))

    async def block_hash(self, number: int) -> str | None:
        from web3.exceptions import BlockNotFound

        try:
            block = await self._guard(self._eth.get_block(number), allow=(BlockNotFound,))
        except BlockNotFound:
            return None
        return "0x" + bytes(block["hash"]).hex()

    async def now(self) -> int:
        block = await self._guard(self._eth.get_block("latest"))
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
                asked = self._eth.get_logs(wanted)
                logs = await self._guard(asked, allow=(Web3Exception, ValueError))
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
        return self._decode_call(await self._guard(self._eth.get_transaction(tx_hash)))

    async def mined(self, number: int) -> list[Mined]:
        block = await self._guard(self._eth.get_block(number, full_transactions=True))
        found = []
        for tx in block["transactions"]:
            receipt = await self._guard(self._eth.get_transaction_receipt(tx["hash"]))
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
            args=_unpacked(_plain(data["args"])),
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
        return ChainCall(name, function, _plain(args), tx["from"])

    # --- sending ---

    async def simulate(self, sender: str, contract: str, function: str, *args: Any) -> int:
        call = self._contracts[contract].functions[function](*map(_argument, args))
        estimate = call.estimate_gas({"from": to_checksum_address(sender)})
        return int(await self._guard(estimate, f"{contract}.{function}"))

    async def transact(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> Sent:
        return await self._send(signer, *await self._call(signer, contract, function, *args))

    async def prepare(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> PreparedTransaction:
        """A signed call: stored before `push`, it is sent once for good. Raises as `transact`."""
        to, data, gas, label = await self._call(signer, contract, function, *args)
        fields = await self._priced(signer, to, data, gas, label)
        return await self._signed(signer, fields, label)

    async def push(self, prepared: PreparedTransaction) -> None:
        """Hand a prepared transaction to the node, which may know it. Raises ChainUnreachable."""
        try:
            await self._push(prepared)
        except ChainUnreachable:
            if await self._known(self._eth.get_transaction(prepared.tx_hash)) is None:
                raise

    async def mined_as(self, prepared: PreparedTransaction) -> Sent:
        """Wait until it is mined. Raises ContractRefused if it reverted, ChainUnreachable."""
        return await self._until_mined([prepared], None)

    async def outcome_of(self, prepared: PreparedTransaction, depth_blocks: int) -> TransactionFate:
        """What became of it; final is what lies at least `depth_blocks` below the newest block.

        Raises ChainUnreachable.
        """
        buried = max(0, await self.block_number() - depth_blocks)
        # Asked before the receipt: without one later, another transaction spent this nonce.
        sender = to_checksum_address(prepared.sender)
        spent = await self._guard(self._eth.get_transaction_count(sender, buried))
        receipt = await self._known(self._eth.get_transaction_receipt(prepared.tx_hash))
        if receipt is None:
            is_void = int(spent) > prepared.nonce
            return TransactionFate(Fate.VOID if is_void else Fate.PENDING, is_void)
        number = int(receipt["blockNumber"])
        fate = Fate.DONE if receipt["status"] == 1 else Fate.REVERTED
        return TransactionFate(fate, number <= buried, number)

    async def deploy(self, signer: DigestSigner, name: str, *args: Any) -> str:
        """Create a contract from its committed artifact and bind it by its name. → its address"""
        data, label = self.creation_code(name, *args), f"deploy {name}"
        gas = await self.simulate_creation(signer.address, name, *args)
        sent = await self._send(signer, None, data, gas, label)
        receipt = await self._guard(self._eth.get_transaction_receipt(sent.tx_hash))
        address = str(receipt["contractAddress"])
        self.bind(name, address)
        return address

    async def prepare_creation(
        self, signer: DigestSigner, name: str, *args: Any
    ) -> PreparedTransaction:
        """A signed creation, for `push` and `mined_as`. Raises as `transact`."""
        data, label = self.creation_code(name, *args), f"deploy {name}"
        gas = await self.simulate_creation(signer.address, name, *args)
        fields = await self._priced(signer, None, data, gas, label)
        return await self._signed(signer, fields, label)

    def creation_code(self, name: str, *args: Any) -> str:
        """What a transaction carries that creates a contract: 0x hex of its code and arguments."""
        found = artifact(name)
        factory = self._eth.contract(abi=found["abi"], bytecode=found["bytecode"])
        code: str = factory.constructor(*map(_argument, args)).data_in_transaction
        return code

    async def simulate_creation(self, sender: str, name: str, *args: Any) -> int:
        """Gas that the creation of a contract would use now. Raises ContractRefused."""
        asked = {"from": to_checksum_address(sender), "data": self.creation_code(name, *args)}
        return int(await self._guard(self._eth.estimate_gas(asked), f"deploy {name}"))

    async def send_eth(self, signer: DigestSigner, to: str, wei: int) -> Sent:
        """Plain transfer, for gas money."""
        return await self._send(signer, to_checksum_address(to), "0x", 21_000, "transfer", wei)

    async def nonce(self, address: str) -> int:
        """Next nonce of an account, counting pending transactions."""
        asked = self._eth.get_transaction_count(to_checksum_address(address), "pending")
        return int(await self._guard(asked))

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
        answer = await self._guard(self._web3.provider.make_request(method, list(params)))
        if "error" in answer:
            raise ContractRefused(method, error=str(answer["error"].get("message", "refused")))
        return answer.get("result")

    def call_data(self, contract: str, function: str, *args: Any) -> str:
        """What a transaction carries that calls a contract: 0x hex of selector and arguments."""
        call = self._contracts[contract].functions[function](*map(_argument, args))
        data: str = call._encode_transaction_data()
        return data

    async def _call(
        self, signer: DigestSigner, contract: str, function: str, *args: Any
    ) -> tuple[str, str, int, str]:
        """(to, data, gas, label) of a call that would succeed now."""
        gas = await self.simulate(signer.address, contract, function, *args)
        data = self.call_data(contract, function, *args)
        return self.addresses[contract], data, gas, f"{contract}.{function}"

    async def _send(
        self,
        signer: DigestSigner,
        to: str | None,
        data: str,
        gas: int,
        label: str,
        value_wei: int = 0,
    ) -> Sent:
        fields = await self._priced(signer, to, data, gas, label, value_wei)
        async with self._sending.setdefault(signer.address, asyncio.Lock()):
            await self._finish_left(signer)
            await self._raise_given_up(signer)
            versions = [await self._signed(signer, fields, label)]
            await self._hand_over(versions[0])
        entry = {"what": label, "from": signer.address, "to": to, "nonce": versions[0].nonce}
        entry["hash"] = versions[0].tx_hash
        self._record(entry, "sent")
        try:
            mined = await self._until_mined(versions, signer)
        except HeadraceError as error:
            self._record(entry, error.what)
            if isinstance(error, ChainUnreachable):
                self._given_up.setdefault(signer.address, []).append(versions[-1])
            raise
        self._record(entry, f"mined in block {mined.block_number}, gas {mined.gas_used}")
        return mined

    async def _finish_left(self, signer: DigestSigner) -> None:
        """See to what a program of this account left when it ended.

        Raises ChainUnreachable where some of it was mined: what is sent next may be the same once
        more, so its sender is to look first.
        """
        left: dict[int, list[PreparedTransaction]] = {}
        for prepared in self._outbox.left(signer.address) if self._outbox is not None else ():
            left.setdefault(prepared.nonce, []).append(prepared)
        finished = []
        for versions in left.values():
            known = [await self._known(self._eth.get_transaction(v.tx_hash)) for v in versions]
            if any(known):
                try:
                    sent = await self._until_mined(versions, signer)
                    finished.append(f"{versions[0].label} was mined in block {sent.block_number}")
                except ContractRefused as error:
                    finished.append(error.what)
            # Else no node has it, and the next transaction takes its nonce: one of the two at most.
            self._forget(versions[0])
        if finished:
            raise ChainUnreachable(
                "this was not sent: an earlier program of this account ended before it was done",
                "; ".join(finished),
                state="nothing else was sent",
                next_step="look at what that changed, then repeat this if it is still wanted",
            )

    async def _raise_given_up(self, signer: DigestSigner) -> None:
        """Bid more for what was not waited for any longer: what is sent next waits behind it."""
        waiting = self._given_up.pop(signer.address, [])
        if not waiting:
            return
        count = self._eth.get_transaction_count(to_checksum_address(signer.address), "latest")
        spent = int(await self._guard(count))
        for version in waiting:
            if version.nonce < spent:
                self._forget(version)
                continue
            versions = [version]
            await self._outbid(versions, signer)
            self._given_up.setdefault(signer.address, []).append(versions[-1])

    async def _until_mined(
        self, versions: list[PreparedTransaction], signer: DigestSigner | None
    ) -> Sent:
        """Wait until one of the versions of a transaction is mined.

        With its `signer` more is bid where blocks have become dearer. Raises ContractRefused if it
        reverted, or where another transaction has its nonce; ChainUnreachable.
        """
        first, clock = versions[0], asyncio.get_running_loop().time
        began_s = looked_s = clock()
        while (now_s := clock()) < began_s + _CONFIRM_TIMEOUT_S:
            for version in versions:
                receipt = await self._known(self._eth.get_transaction_receipt(version.tx_hash))
                if receipt is not None:
                    self._forget(first)
                    return _sent(version, receipt)
            if now_s - looked_s >= _OUTBID_EVERY_S:
                looked_s = now_s
                await self._refuse_replaced(versions)
                if signer is not None:
                    await self._outbid(versions, signer)
            await asyncio.sleep(min(_LONGEST_POLL_S, _POLL_S + (now_s - began_s) / 20))
        raise ChainUnreachable(
            f"{first.label} was sent but not mined in {_CONFIRM_TIMEOUT_S:g} s",
            f"gas may cost more than {MOST_RAISE} times what it did" if len(versions) > 1 else "",
            state=f"transaction {versions[-1].tx_hash} may still be mined",
            next_step="look it up before you repeat it",
        )

    async def _refuse_replaced(self, versions: Sequence[PreparedTransaction]) -> None:
        first = versions[0]
        sender = to_checksum_address(first.sender)
        spent = int(await self._guard(self._eth.get_transaction_count(sender, "latest")))
        if spent <= first.nonce:
            return
        for version in versions:  # mined since the last look
            if await self._known(self._eth.get_transaction_receipt(version.tx_hash)) is not None:
                return
        self._forget(first)
        raise ContractRefused(
            f"{first.label} will not be mined",
            error="replaced",
            state=f"another transaction of {first.sender} had its nonce {first.nonce}",
            next_step="look at what that one changed, then repeat this if it is still wanted",
        )

    async def _outbid(self, versions: list[PreparedTransaction], signer: DigestSigner) -> None:
        """Put another version in the place of the last one if blocks ask for more than it bids.

        Else hand the last one over again if the node has dropped it.
        """
        block = await self._guard(self._eth.get_block("latest"))
        fields, label = _fields_of(versions[-1]), versions[0].label
        first = _bid_in(_fields_of(versions[0]))
        higher = higher_bid(_bid_in(fields), first, int(block["baseFeePerGas"]))
        version = versions[-1]
        if higher is not None:
            need = fields["gas"] * higher.fee + fields["value"]
            if await self.balance_wei(signer.address) >= need:
                version = _prepared(signer, {**fields, **higher.fields}, label)
        is_new = version is not versions[-1]
        if not is_new and await self._known(self._eth.get_transaction(version.tx_hash)) is not None:
            return
        entry = {"what": label, "from": signer.address, "nonce": version.nonce}
        entry["hash"] = version.tx_hash
        try:
            await self._hand_over(version)
        except HeadraceError as error:  # the one before it waits on
            self._record(entry, f"not taken: {error}")
            return
        if is_new:
            versions.append(version)
        self._record(entry, f"sent again, for at most {_bid_in(_fields_of(version)).fee} wei a gas")

    async def _priced(
        self,
        signer: DigestSigner,
        to: str | None,
        data: str,
        gas: int,
        label: str,
        value_wei: int = 0,
    ) -> dict[str, Any]:
        """The transaction but for its nonce. Raises GasShort."""
        if gas > MOST_GAS:
            raise ContractRefused(
                f"{label} is too much for one transaction",
                error="gas",
                args={"needed": gas, "most": MOST_GAS},
                next_step="do less at once",
            )
        block = await self._guard(self._eth.get_block("latest"))
        bid = first_bid(int(block["baseFeePerGas"]))
        limit = gas_limit(gas, is_plain=data == "0x")
        need = limit * bid.fee + value_wei
        have = await self.balance_wei(signer.address)
        if have < need:
            raise GasShort(
                f"{label} cannot be sent",
                have=have,
                need=need,
                address=signer.address,
                fix=f"send ETH to {signer.address}",
                show=format_eth,
                chain_id=self.chain_id,
            )
        return {
            "type": 2,
            "chainId": self.chain_id,
            "to": to or b"",
            "value": value_wei,
            "data": data,
            "gas": limit,
            **bid.fields,
        }

    async def _signed(
        self, signer: DigestSigner, fields: dict[str, Any], label: str
    ) -> PreparedTransaction:
        nonce = await self.nonce(signer.address)
        return _prepared(signer, {**fields, "nonce": nonce}, label)

    async def _hand_over(self, prepared: PreparedTransaction) -> None:
        """Write it down, then send it."""
        if self._outbox is not None:
            self._outbox.put(prepared)
        await self._push(prepared)

    def _forget(self, prepared: PreparedTransaction) -> None:
        if self._outbox is not None:
            self._outbox.forget(prepared.sender, prepared.nonce)

    async def _push(self, prepared: PreparedTransaction) -> None:
        raw = bytes.fromhex(prepared.raw[2:])
        await self._guard(self._eth.send_raw_transaction(raw), prepared.label)

    async def _known(self, asked: Any) -> Any | None:
        """What the node knows of a transaction; None where it knows none."""
        from web3.exceptions import TransactionNotFound

        try:
            return await self._guard(asked, allow=(TransactionNotFound,))
        except TransactionNotFound:
            return None

    def _record(self, entry: dict[str, Any], outcome: str) -> None:
        if self.journal is not None:
            self.journal({**entry, "outcome": outcome})

    async def _guard(
        self, awaitable: Any, label: str = "", allow: tuple[type[Exception], ...] = ()
    ) -> Any:
        """Await a web3 call, turning its many exceptions into our two."""
        import aiohttp
        from web3.exceptions import ContractLogicError, Web3Exception

        try:
            return await awaitable
        except allow:
            raise
        except ContractLogicError as error:
            data = error.data if isinstance(error.data, str) else ""
            if len(data) >= 10:
                name, args = decode_revert(data)
            else:
                name, args = (error.message or "reverted without a reason"), {}
            what = f"{label or 'the call'} was refused"
            raise ContractRefused(what, error=name, args=args) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ChainUnreachable(f"no answer from {self.rpc_url}", why) from None
        except (Web3Exception, ValueError) as error:  # ValueError: no JSON, no numbers
            what = f"{label or 'a request'} failed at the node"
            raise ChainUnreachable(what, str(error)[:300]) from None


def _sent(prepared: PreparedTransaction, receipt: Any) -> Sent:
    """Raises ContractRefused for one that reverted."""
    if receipt["status"] != 1:
        raise ContractRefused(
            f"{prepared.label} failed in block {receipt['blockNumber']}",
            error="reverted",
            state="the gas was paid, nothing else changed",
            next_step="the state moved between simulation and block: look again and retry",
        )
    return Sent(prepared.tx_hash, int(receipt["blockNumber"]), int(receipt["gasUsed"]))


def _prepared(signer: DigestSigner, fields: dict[str, Any], label: str) -> PreparedTransaction:
    raw = _sign_transaction(signer, fields)
    tx_hash = "0x" + keccak(raw).hex()
    return PreparedTransaction(label, signer.address, fields["nonce"], tx_hash, "0x" + raw.hex())


def _fields_of(prepared: PreparedTransaction) -> dict[str, Any]:
    """What was signed."""
    from eth_account.typed_transactions.typed_transaction import TypedTransaction

    found = TypedTransaction.from_bytes(HexBytes(prepared.raw)).as_dict()
    return {name: value for name, value in found.items() if name not in ("v", "r", "s")}


def _bid_in(fields: Mapping[str, Any]) -> Bid:
    return Bid(int(fields["maxFeePerGas"]), int(fields["maxPriorityFeePerGas"]))


def _sign_transaction(signer: DigestSigner, fields: dict[str, Any]) -> bytes:
    from eth_account.typed_transactions.typed_transaction import TypedTransaction

    signature = signer.sign_digest(bytes(TypedTransaction.from_dict(dict(fields)).hash()))
    signed = {
        **fields,
        "v": signature[64] - 27,
        "r": int.from_bytes(signature[:32], "big"),
        "s": int.from_bytes(signature[32:64], "big"),
    }
    return bytes(TypedTransaction.from_dict(signed).encode())
