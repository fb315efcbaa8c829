"""What is a network, in the words that its owner signs?

A network file has the keys of `[network]` in the settings, and what a stranger holds to the chain:
parameters, token, owner. Its owner signs a `Record` of it in the network's own domain; a later
revision replaces an earlier one. `rpc_url`, `signer` and `signature` are not signed.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Final, Literal

import msgspec

from core.protocol import types as t
from core.protocol.errors import ConfigError
from core.protocol.foreign import MOST_NAME_CHARACTERS, refuse_deep
from core.protocol.signing import (
    DigestSigner,
    Domain,
    Record,
    digest,
    name_hash,
    recover,
    sign,
)

FORMAT: Final = "headrace.network/1"
MAX_NETWORK_BYTES: Final = 2**18
USD: Final = 10**6
#: The product calls the network's one ERC-20 so, whatever its own name is.
TOKEN: Final = "TestUSD"

NetworkName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}\Z")]
_Text = Annotated[str, msgspec.Meta(max_length=500)]
_Listed = Annotated[tuple[_Text, ...], msgspec.Meta(max_length=64)]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clocks in seconds, amounts in base units; for one machine and short demonstrations.

    No clock has more than 32 bits: contracts keep moments in 40, beyond which they would wrap.
    """

    min_stake: t.Units = 100 * USD
    unbond_s: t.U32 = 7200
    jail_s: t.U32 = 600
    arbitrator_delay_s: t.U32 = 30 * 86_400
    max_job_s: t.U32 = 1800
    max_window_s: t.U32 = 900
    max_dispute_s: t.U32 = 890
    withdraw_delay_s: t.U32 = 30
    close_delay_s: t.U32 = 60  # after a deadline, in which Acks and receipts of work done count
    protocol_fee_bps: t.U16 = 50
    min_juror_stake: t.Units = 50 * USD
    bond: t.Units = 20 * USD
    bond_bps: t.U16 = 50  # of the accused's stake, where that is more
    seat_fee: t.Units = USD  # of a panel
    commit_s: t.U32 = 90
    reveal_s: t.U32 = 60
    appeal_s: t.U32 = 60
    payout_delay_s: t.U32 = 0
    bond_s: t.U32 = 18_000  # how long a bond pays for freezing, where nothing is ruled
    maturity_s: t.U32 = 2
    juror_unbond_s: t.U32 = 900
    draw_delay_blocks: t.U32 = 1
    slash_bps: t.U16 = 10_000
    panel: t.U8 = 3
    turn_s: t.U32 = 30  # of a tolerance game, which has at most twenty-nine

    @property
    def jury_fee(self) -> int:
        """What a challenger pays the first panel, in base units."""
        return self.seat_fee * self.panel


class TokenFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The ERC-20 as it describes itself."""

    address: t.Address
    symbol: Annotated[str, msgspec.Meta(max_length=40)]
    decimals: t.U8


class KnownMatcher(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A matcher that takes orders: its account, and where its API is."""

    address: t.Address
    url: _Text


class NetworkFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One network. Addresses may be written in any case; every list keeps its order."""

    format: Literal["headrace.network/1"]
    name: NetworkName
    revision: t.U63
    chain_id: t.U63
    contracts: Annotated[dict[str, t.Address], msgspec.Meta(max_length=32)]
    #: The transaction that created each of our contracts: what its constructor stored is proved so.
    creations: Annotated[dict[str, t.Hash32], msgspec.Meta(max_length=32)]
    deploy_block: t.U63
    token: TokenFacts
    token_symbol: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]{1,12}\Z")]
    owner: t.Address
    guardian: t.Address
    fee_recipient: t.Address
    arbitrators: Annotated[tuple[t.Address, ...], msgspec.Meta(max_length=16)]
    parameters: Parameters
    bootstrap_peers: _Listed = ()
    matchers: Annotated[tuple[KnownMatcher, ...], msgspec.Meta(max_length=64)] = ()
    models: Annotated[dict[_Text, t.Hash32], msgspec.Meta(max_length=256)] = {}
    rpc_url: _Text = ""  # the reader's own
    signer: Annotated[str, msgspec.Meta(pattern=r"^(0x[0-9a-fA-F]{40})?\Z")] = ""
    signature: Annotated[str, msgspec.Meta(pattern=r"^(0x([0-9a-f]{2}){1,1024})?\Z")] = ""

    @property
    def domain(self) -> Domain:
        """The EIP-712 domain of the network."""
        return Domain(self.chain_id, self.contracts["TaskRegistry"])

    @property
    def record(self) -> Record:
        """What its owner signs: SHA-256 of its JSON with all keys in order."""
        bare = msgspec.structs.replace(self, rpc_url="", signer="", signature="")
        content = sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()
        return Record(name_hash("NetworkFile"), "0x" + content, self.revision)

    @property
    def digest(self) -> bytes:
        """The 32 bytes that are signed; people compare them before they join."""
        return digest(self.domain, self.record)

    @property
    def recovered(self) -> str | None:
        """Whose plain key signed it; None if none did."""
        return recover(self.domain, self.record, self.signature)

    def signed_with(self, signer: DigestSigner) -> NetworkFile:
        """The same, signed by this key."""
        signature = sign(signer, self.domain, self.record)
        return msgspec.structs.replace(self, signer=signer.address, signature=signature)

    def as_json(self) -> bytes:
        """For a file that people read."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def as_settings(self) -> dict[str, Any]:
        """The keys of `[network]` in the settings; of its matchers the first one."""
        found: dict[str, Any] = {
            "name": self.name,
            "chain_id": self.chain_id,
            "contracts": self.contracts,
            "models": self.models,
            "bootstrap_peers": list(self.bootstrap_peers),
            "token_symbol": self.token_symbol,
            "token_decimals": self.token.decimals,
            "deploy_block": self.deploy_block,
        }
        if self.rpc_url:
            found["rpc_url"] = self.rpc_url
        if self.matchers:
            found |= {"matcher_url": self.matchers[0].url, "matcher": self.matchers[0].address}
        return found


def read_network(raw: bytes) -> NetworkFile:
    """A network file from anywhere. Raises ConfigError for what is none."""
    try:
        if len(raw) > MAX_NETWORK_BYTES:
            raise ValueError(f"it has {len(raw)} bytes, and may have {MAX_NETWORK_BYTES}")
        refuse_deep(raw)
        found = msgspec.json.decode(raw, type=NetworkFile)
        if "TaskRegistry" not in found.contracts:
            raise ValueError("it has no address of TaskRegistry")
    except (msgspec.DecodeError, ValueError) as error:  # a ValidationError is a DecodeError
        raise ConfigError(
            "this is no network file",
            why=str(error)[: 4 * MOST_NAME_CHARACTERS],
            next_step="ask its publisher for the file that `matcher network deploy` wrote",
        ) from None
    return found
