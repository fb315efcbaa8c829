"""What will a deployment create, where, and with which arguments?

Every address is known before the first transaction: it follows from the deployer's account and
nonce. So contracts name each other in their constructors, and a deployment that was interrupted
goes on at the same addresses.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from core.chain.artifacts import predict_address
from core.chain.chain import CONTRACTS
from core.keys.signer import DEVNET_CHAIN_IDS
from core.networks.parameters import AMOUNTS, faults, preset
from core.protocol import types as t
from core.protocol import units
from core.protocol.errors import AmountInvalid, ConfigError
from core.protocol.foreign import read_file, read_json
from core.protocol.network_file import (
    FORMAT,
    TOKEN,
    KnownMatcher,
    NetworkFile,
    NetworkName,
    Parameters,
    TokenFacts,
)

MAX_FILE_BYTES: Final = 2**18
#: What each order carries has 63 bits, and a price has six digits after the point.
LEAST_DECIMALS, MOST_DECIMALS = 6, 12


class WantedNetwork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters file of `network deploy`. `unit` is how people write the token's amounts."""

    name: NetworkName
    chain_id: t.U63
    preset: Literal["devnet", "testnet", "production"]
    owner: t.Address
    guardian: t.Address
    fee_recipient: t.Address
    unit: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]{1,12}\Z")] = units.TOKEN_SYMBOL
    parameters: dict[str, int | str] = {}
    bootstrap_peers: tuple[str, ...] = ()
    matchers: tuple[KnownMatcher, ...] = ()
    models: dict[str, t.Hash32] = {}


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that decides the addresses and the code. Written down before anything is sent."""

    chain_id: int
    deployer: t.Address
    first_nonce: int
    first_block: int
    token: t.Address | None  # None: a TestUSD of its own, which its owner mints
    owner: t.Address
    guardian: t.Address
    fee_recipient: t.Address
    parameters: Parameters

    @property
    def created(self) -> tuple[str, ...]:
        """The contracts in the order of their creation, each by one transaction."""
        return CONTRACTS if self.token is None else CONTRACTS[1:]

    @property
    def at(self) -> dict[str, str]:
        """Contract → address, with those that TaskRegistry makes."""
        names = enumerate(self.created, self.first_nonce)
        found = {name: predict_address(self.deployer, nonce) for nonce, name in names}
        if self.token is not None:
            found[TOKEN] = self.token
        return found | made_by_registry(found["TaskRegistry"])

    @property
    def arguments(self) -> dict[str, list[Any]]:
        """Contract → arguments of its constructor."""
        roles = self.owner, self.guardian, self.fee_recipient
        return constructor_arguments(self.at, self.parameters, *roles)

    def is_same_but_for_its_place(self, other: Deployment) -> bool:
        """Whether the other one wants the same network, wherever it begins."""
        here = msgspec.structs.replace(
            self, first_nonce=other.first_nonce, first_block=other.first_block
        )
        return here == other


def constructor_arguments(
    at: Mapping[str, str], p: Parameters, owner: str, guardian: str, fee_recipient: str
) -> dict[str, list[Any]]:
    """Contract → arguments of its constructor, in a network whose contracts are at `at`."""
    return {
        "TestUSD": [owner],
        "ModelRegistry": [],
        "MinerRegistry": [
            {
                "token": at[TOKEN],
                "taskRegistry": at["TaskRegistry"],
                "arbitrators": [at["JuryArbitrator"], at["ToleranceGame"]],
                "minStake": p.min_stake,
                "unbondSeconds": p.unbond_s,
                "jailSeconds": p.jail_s,
                "arbitratorDelaySeconds": p.arbitrator_delay_s,
                "maxJobSeconds": p.max_job_s,
                "maxWindowSeconds": p.max_window_s,
                "maxDisputeSeconds": p.max_dispute_s,
                "owner": owner,
                "guardian": guardian,
            }
        ],
        "Escrow": [at[TOKEN], at["TaskRegistry"], p.withdraw_delay_s],
        "JuryArbitrator": [
            at[TOKEN],
            at["TaskRegistry"],
            at["MinerRegistry"],
            {
                "minJurorStake": p.min_juror_stake,
                "bond": p.bond,
                "bondBps": p.bond_bps,
                "seatFee": p.seat_fee,
                "commitSeconds": p.commit_s,
                "revealSeconds": p.reveal_s,
                "appealSeconds": p.appeal_s,
                "payoutDelaySeconds": p.payout_delay_s,
                "bondSeconds": p.bond_s,
                "maturitySeconds": p.maturity_s,
                "jurorUnbondSeconds": p.juror_unbond_s,
                "drawDelayBlocks": p.draw_delay_blocks,
                "slashBps": p.slash_bps,
                "panelSize": p.panel,
            },
        ],
        "Referee": [],
        "ProgramStore": [],
        "TraceJudge": [at["ModelRegistry"], at["ProgramStore"], at["Referee"]],
        "RowJudge": [at["ModelRegistry"], at["ProgramStore"], at["TaskRegistry"], at["Escrow"]],
        "ToleranceGame": [
            at[TOKEN],
            at["TaskRegistry"],
            at["MinerRegistry"],
            at["TraceJudge"],
            at["RowJudge"],
            {
                "bond": p.bond,
                "bondBps": p.bond_bps,
                "turnSeconds": p.turn_s,
                "payoutDelaySeconds": p.payout_delay_s,
                "slashBps": p.slash_bps,
            },
        ],
        "TaskRegistry": [
            at["Escrow"],
            at["MinerRegistry"],
            at["ModelRegistry"],
            {
                "protocolFeeBps": p.protocol_fee_bps,
                "feeRecipient": fee_recipient,
                "maxJobSeconds": p.max_job_s,
                "maxWindowSeconds": p.max_window_s,
                "closeDelaySeconds": p.close_delay_s,
            },
            owner,
            guardian,
        ],
    }


def made_by_registry(task_registry: str) -> dict[str, str]:
    """The contracts that TaskRegistry makes in its constructor, by their names."""
    return {
        "Proofs": predict_address(task_registry, 1),
        "Evidence": predict_address(task_registry, 2),
    }


def network_of(
    wanted: WantedNetwork, made: Deployment, creations: dict[str, str], token: TokenFacts
) -> NetworkFile:
    """The first revision of the file of a network that was deployed; not signed yet."""
    contracts = {name: where for name, where in made.at.items() if name != "Proofs"}
    return NetworkFile(
        format=FORMAT,
        name=wanted.name,
        revision=1,
        chain_id=made.chain_id,
        contracts=contracts,
        creations=creations,
        deploy_block=made.first_block,
        token=token,
        token_symbol=wanted.unit,
        owner=made.owner,
        guardian=made.guardian,
        fee_recipient=made.fee_recipient,
        arbitrators=(contracts["JuryArbitrator"], contracts["ToleranceGame"]),
        parameters=made.parameters,
        bootstrap_peers=wanted.bootstrap_peers,
        matchers=wanted.matchers,
        models=wanted.models,
    )


def read_wanted(path: Path) -> WantedNetwork:
    """A parameters file, TOML or JSON. Raises ConfigError."""
    try:
        raw = read_file(path, most_bytes=MAX_FILE_BYTES)
        content = read_json(raw) if path.suffix == ".json" else tomllib.loads(raw.decode())
        return msgspec.convert(content, WantedNetwork)
    except OSError as error:
        raise ConfigError(f"cannot read {path}", why=error.strerror or str(error)) from None
    except (ValueError, RecursionError) as error:  # a ValidationError is a ValueError
        raise ConfigError(f"{path} is no parameters file", why=str(error)) from None


def parameters_of(wanted: WantedNetwork, decimals: int) -> Parameters:
    """The preset with the file's own values over it, for a token with so many decimals.

    Raises ConfigError for what a constructor would refuse, with both numbers.
    """
    if not LEAST_DECIMALS <= decimals <= MOST_DECIMALS:
        raise ConfigError(
            f"a token with {decimals} decimals cannot be used",
            why=f"orders carry amounts in 63 bits and prices with six digits: it needs "
            f"{LEAST_DECIMALS} to {MOST_DECIMALS} decimals",
            next_step="name another token, or one that wraps it",
        )
    known = msgspec.structs.asdict(preset(wanted.preset, decimals))
    if unknown := sorted(set(wanted.parameters) - set(known)):
        raise ConfigError(
            f"there is no parameter {unknown[0][:60]!r}", why=f"there are {', '.join(known)}"
        )
    own = {key: _number(key, value, wanted, decimals) for key, value in wanted.parameters.items()}
    try:
        found = msgspec.convert(known | own, Parameters)
    except msgspec.ValidationError as error:
        raise ConfigError("a parameter cannot be used", why=str(error)) from None
    require_sound(found)
    return found


def require_sound(p: Parameters) -> None:
    """Raises ConfigError, with both numbers, where a constructor would revert."""
    if wrong := faults(p):
        raise ConfigError(
            "the contracts would refuse these parameters",
            why="; ".join(wrong),
            state="nothing was sent",
            next_step="correct them in the parameters file",
        )


def require_apart(deployer: str, wanted: WantedNetwork) -> None:
    """Raises ConfigError where one key would hold two powers on a chain that is not local."""
    zero = [role for role in ("owner", "fee_recipient") if int(getattr(wanted, role), 16) == 0]
    if zero:
        raise ConfigError(f"{zero[0]} is the zero address", why="nobody holds its key")
    if wanted.chain_id in DEVNET_CHAIN_IDS:
        return
    holders = {"owner": wanted.owner, "guardian": wanted.guardian, "deployer": deployer}
    for first, second in (("owner", "guardian"), ("owner", "deployer"), ("guardian", "deployer")):
        if holders[first].lower() == holders[second].lower():
            raise ConfigError(
                f"{first} and {second} are one account",
                why=f"{holders[first]} would hold two powers, and one stolen key both",
                state="nothing was sent",
                next_step="name another account in the parameters file, or deploy from another",
            )


def _number(key: str, value: int | str, wanted: WantedNetwork, decimals: int) -> int:
    if isinstance(value, int):
        return value
    try:
        if key in AMOUNTS:
            return units.parse_token(value, symbol=wanted.unit, decimals=decimals)
        if key.endswith("_s"):
            return units.parse_duration(value)
    except AmountInvalid as error:
        raise ConfigError(f"{key} cannot be used", why=f"{error.what}; {error.why}") from None
    raise ConfigError(f"{key} cannot be {value!r}", why="it is a whole number")
