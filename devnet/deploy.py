"""Deploying the contracts, wired by addresses known in advance, and registering a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.chain.chain import CONTRACTS
from core.chain.rpc import RpcChain, predict_address
from core.models.publication import program_to_publish, publication_of, write_manifest
from core.models.registering import give_name, register
from core.protocol.signing import DigestSigner

if TYPE_CHECKING:
    from core.dispute.play.program import ModelProgram
    from core.dispute.registration.search import SearchEffort

USD = 10**6


@dataclass(frozen=True)
class Parameters:
    """Clocks in seconds, amounts in base units; for one machine and short demonstrations."""

    min_stake: int = 100 * USD
    unbond_s: int = 7200
    jail_s: int = 600
    arbitrator_delay_s: int = 30 * 86_400
    max_job_s: int = 1800
    max_window_s: int = 900
    max_dispute_s: int = 890
    withdraw_delay_s: int = 30
    close_delay_s: int = 60  # after a deadline, in which Acks and receipts of work done count
    protocol_fee_bps: int = 50
    min_juror_stake: int = 50 * USD
    bond: int = 20 * USD
    bond_bps: int = 50  # of the accused's stake, where that is more
    seat_fee: int = USD  # of a panel
    commit_s: int = 90
    reveal_s: int = 60
    appeal_s: int = 60
    payout_delay_s: int = 0
    bond_s: int = 18_000  # how long a bond pays for freezing, where nothing is ruled
    maturity_s: int = 2
    juror_unbond_s: int = 900
    draw_delay_blocks: int = 1
    slash_bps: int = 10_000
    panel: int = 3
    turn_s: int = 30  # of a tolerance game, which has at most twenty-nine

    @property
    def jury_fee(self) -> int:
        """What a challenger pays the first panel."""
        return self.seat_fee * self.panel


async def deploy(
    chain: RpcChain, deployer: DigestSigner, fee_recipient: str, p: Parameters
) -> dict[str, str]:
    """Create every contract from its committed artifact; returns their addresses.

    TaskRegistry comes last, checks in its constructor that all others point back at it, and makes
    Evidence.
    """
    nonce = await chain.nonce(deployer.address)
    at = {name: predict_address(deployer.address, nonce + i) for i, name in enumerate(CONTRACTS)}
    owner = deployer.address
    arguments: dict[str, list[object]] = {
        "TestUSD": [owner],
        "ModelRegistry": [],
        "MinerRegistry": [
            {
                "token": at["TestUSD"],
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
                "guardian": owner,
            }
        ],
        "Escrow": [at["TestUSD"], at["TaskRegistry"], p.withdraw_delay_s],
        "JuryArbitrator": [
            at["TestUSD"],
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
            at["TestUSD"],
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
            owner,
        ],
    }
    for name in CONTRACTS:
        address = await chain.deploy(deployer, name, *arguments[name])
        assert address == at[name], f"{name} landed at {address}, not at {at[name]}"
    chain.bind("Evidence", await chain.read("TaskRegistry", "evidence"))
    return dict(chain.addresses)


async def register_model(
    chain: RpcChain,
    signer: DigestSigner,
    model_dir: Path,
    program: ModelProgram | None = None,
    effort: SearchEffort | None = None,
    *,
    name: str = "",
    numerics: str = "float32",
) -> str:
    """Publish a folder as `client models publish` does, with this or its calibrated program.

    Returns the model's id. Raises ModelUnsupported where honest machines cannot keep the program's
    tolerances on these weights.
    """
    program = program or program_to_publish(model_dir, numerics)
    found = publication_of(model_dir, numerics=numerics, program=program)
    model_id = await register(chain, signer, found, effort)
    if name:
        write_manifest(found)
        await give_name(chain, signer, model_id, name, [model_dir.as_uri()])
    return model_id
