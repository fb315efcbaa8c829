"""How does a transaction come into a block, once, whatever gas costs and whoever is killed?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from hexbytes import HexBytes

from core.chain.chain import PreparedTransaction, Sent
from core.chain.fees import MOST_GAS, MOST_RAISE, Bid, first_bid, gas_limit, higher_bid
from core.chain.node import Node
from core.chain.outbox import TransactionOutbox
from core.protocol.errors import ChainUnreachable, ContractRefused, GasShort, HeadraceError
from core.protocol.signing import DigestSigner
from core.protocol.units import format_eth

#: How long a transaction is waited for; how often it is looked whether it bids enough.
CONFIRM_S, OUTBID_EVERY_S = 180.0, 5.0
_POLL_S, _LONGEST_POLL_S = 0.1, 1.0
Journal = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TransactionDraft:
    """What is to be sent: 0x hex to a place, or for none to create a contract.

    `gas` is what it was estimated to use, `label` what people read.
    """

    to: str | None
    data: str
    gas: int
    label: str
    value_wei: int = 0


class Sender:
    """Signs and sends for accounts, each one's transactions one after the other."""

    def __init__(
        self, node: Node, chain_id: int, journal: Journal | None, outbox: TransactionOutbox | None
    ) -> None:
        """`journal` is told of every transaction when it is sent and when its fate is known;
        `outbox` keeps each until then.
        """
        self._node, self._chain_id = node, chain_id
        self.journal, self._outbox = journal, outbox
        self._sending: dict[str, asyncio.Lock] = {}
        #: By account, the newest versions of transactions that were not waited for any longer.
        self._given_up: dict[str, list[PreparedTransaction]] = {}

    def close(self) -> None:
        if self._outbox is not None:
            self._outbox.close()

    async def send(self, signer: DigestSigner, draft: TransactionDraft) -> Sent:
        """Until it is in a block. Raises GasShort, ContractRefused, ChainUnreachable."""
        fields = await self._priced(signer, draft)
        async with self._sending.setdefault(signer.address, asyncio.Lock()):
            await self._finish_left(signer)
            await self._raise_given_up(signer)
            versions = [await self._signed(signer, fields, draft.label)]
            await self._hand_over(versions[0])
        self._record(versions[0], "sent")
        try:
            mined = await self.until_mined(versions, signer)
        except HeadraceError as error:
            self._record(versions[0], error.what)
            if isinstance(error, ChainUnreachable):
                self._given_up.setdefault(signer.address, []).append(versions[-1])
            raise
        self._record(versions[0], f"mined in block {mined.block_number}, gas {mined.gas_used}")
        return mined

    async def prepare(self, signer: DigestSigner, draft: TransactionDraft) -> PreparedTransaction:
        """Signed, with the account's next nonce, and not sent.

        Raises GasShort, ContractRefused, ChainUnreachable.
        """
        return await self._signed(signer, await self._priced(signer, draft), draft.label)

    async def push(self, prepared: PreparedTransaction) -> None:
        """Hand it to the node, which may know it. Raises ChainUnreachable where it does not."""
        raw = bytes.fromhex(prepared.raw[2:])
        try:
            await self._node.guard(self._node.eth.send_raw_transaction(raw), prepared.label)
        except ChainUnreachable:
            if await self._node.transaction(prepared.tx_hash) is None:
                raise

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
            known = [await self._node.transaction(v.tx_hash) for v in versions]
            if any(known):
                try:
                    sent = await self.until_mined(versions, signer)
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
        spent = await self._node.nonces(signer.address)
        for version in waiting:
            if version.nonce < spent:
                self._forget(version)
                continue
            versions = [version]
            await self._outbid(versions, signer)
            self._given_up.setdefault(signer.address, []).append(versions[-1])

    async def until_mined(
        self, versions: list[PreparedTransaction], signer: DigestSigner | None
    ) -> Sent:
        """Wait until one of the versions of a transaction is mined.

        With its `signer` more is bid where blocks have become dearer. Raises ContractRefused if it
        reverted, or where another transaction has its nonce; ChainUnreachable.
        """
        first, clock = versions[0], asyncio.get_running_loop().time
        began_s = looked_s = clock()
        while (now_s := clock()) < began_s + CONFIRM_S:
            for version in versions:
                receipt = await self._node.receipt(version.tx_hash)
                if receipt is not None:
                    self._forget(first)
                    return _sent(version, receipt)
            if now_s - looked_s >= OUTBID_EVERY_S:
                looked_s = now_s
                await self._refuse_replaced(versions)
                if signer is not None:
                    await self._outbid(versions, signer)
            await asyncio.sleep(min(_LONGEST_POLL_S, _POLL_S + (now_s - began_s) / 20))
        raise ChainUnreachable(
            f"{first.label} was sent but not mined in {CONFIRM_S:g} s",
            f"gas may cost more than {MOST_RAISE} times what it did" if len(versions) > 1 else "",
            state=f"transaction {versions[-1].tx_hash} may still be mined",
            next_step="look it up before you repeat it",
        )

    async def _refuse_replaced(self, versions: Sequence[PreparedTransaction]) -> None:
        first = versions[0]
        if await self._node.nonces(first.sender) <= first.nonce:
            return
        for version in versions:  # mined since the last look
            if await self._node.receipt(version.tx_hash) is not None:
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
        base_fee = await self._node.base_fee()
        fields, label = _fields_of(versions[-1]), versions[0].label
        first = _bid_in(_fields_of(versions[0]))
        higher = higher_bid(_bid_in(fields), first, base_fee)
        version = versions[-1]
        if higher is not None:
            need = fields["gas"] * higher.fee + fields["value"]
            if await self._node.balance_wei(signer.address) >= need:
                version = prepared_by(signer, {**fields, **higher.fields}, label)
        is_new = version is not versions[-1]
        if not is_new and await self._node.transaction(version.tx_hash) is not None:
            return
        if is_new:  # also one that a node took without a word is looked for
            versions.append(version)
        try:
            await self._hand_over(version)
        except HeadraceError as error:  # the one before it waits on
            self._record(version, f"not taken: {error}")
            return
        self._record(
            version, f"sent again, for at most {_bid_in(_fields_of(version)).fee} wei a gas"
        )

    async def _priced(self, signer: DigestSigner, draft: TransactionDraft) -> dict[str, Any]:
        """The transaction but for its nonce."""
        if draft.gas > MOST_GAS:
            raise ContractRefused(
                f"{draft.label} is too much for one transaction",
                error="gas",
                args={"needed": draft.gas, "most": MOST_GAS},
                next_step="do less at once",
            )
        bid = first_bid(await self._node.base_fee())
        limit = gas_limit(draft.gas, is_plain=draft.data == "0x")
        need = limit * bid.fee + draft.value_wei
        have = await self._node.balance_wei(signer.address)
        if have < need:
            raise GasShort(
                f"{draft.label} cannot be sent",
                have=have,
                need=need,
                address=signer.address,
                fix=f"send ETH to {signer.address}",
                show=format_eth,
                chain_id=self._chain_id,
            )
        return {
            "type": 2,
            "chainId": self._chain_id,
            "to": draft.to or b"",
            "value": draft.value_wei,
            "data": draft.data,
            "gas": limit,
            **bid.fields,
        }

    async def _signed(
        self, signer: DigestSigner, fields: dict[str, Any], label: str
    ) -> PreparedTransaction:
        nonce = await self._node.nonces(signer.address, "pending")
        return prepared_by(signer, {**fields, "nonce": nonce}, label)

    async def _hand_over(self, prepared: PreparedTransaction) -> None:
        """Write it down, then send it."""
        if self._outbox is not None:
            self._outbox.put(prepared)
        await self.push(prepared)

    def _forget(self, prepared: PreparedTransaction) -> None:
        if self._outbox is not None:
            self._outbox.forget(prepared.sender, prepared.nonce)

    def _record(self, prepared: PreparedTransaction, outcome: str) -> None:
        if self.journal is None:
            return
        to = _fields_of(prepared)["to"]
        self.journal(
            {
                "what": prepared.label,
                "from": prepared.sender,
                "to": to_checksum_address(to) if to else None,
                "nonce": prepared.nonce,
                "hash": prepared.tx_hash,
                "outcome": outcome,
            }
        )


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


def prepared_by(signer: DigestSigner, fields: dict[str, Any], label: str) -> PreparedTransaction:
    """What is signed of these fields (EIP-1559, by web3's names)."""
    raw = sign_transaction(signer, fields)
    tx_hash = "0x" + keccak(raw).hex()
    return PreparedTransaction(label, signer.address, fields["nonce"], tx_hash, "0x" + raw.hex())


def _fields_of(prepared: PreparedTransaction) -> dict[str, Any]:
    """What was signed."""
    from eth_account.typed_transactions.typed_transaction import TypedTransaction

    found = TypedTransaction.from_bytes(HexBytes(prepared.raw)).as_dict()
    return {name: value for name, value in found.items() if name not in ("v", "r", "s")}


def _bid_in(fields: Mapping[str, Any]) -> Bid:
    return Bid(int(fields["maxFeePerGas"]), int(fields["maxPriorityFeePerGas"]))


def sign_transaction(signer: DigestSigner, fields: dict[str, Any]) -> bytes:
    """The bytes that a node takes."""
    from eth_account.typed_transactions.typed_transaction import TypedTransaction

    signature = signer.sign_digest(bytes(TypedTransaction.from_dict(dict(fields)).hash()))
    signed = {
        **fields,
        "v": signature[64] - 27,
        "r": int.from_bytes(signature[:32], "big"),
        "s": int.from_bytes(signature[32:64], "big"),
    }
    return bytes(TypedTransaction.from_dict(signed).encode())
