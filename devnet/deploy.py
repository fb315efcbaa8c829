"""Deploying the contracts, wired by addresses known in advance, and registering a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.engine.shape import describe_model
from core.engine.weights import model_manifest
from core.protocol import signing
from core.protocol.chain import CONTRACTS, Chain, predict_address
from core.protocol.signing import DigestSigner
from core.protocol.types import ModelSpec

USD = 10**6


@dataclass(frozen=True)
class Parameters:
    """Clocks in seconds and amounts in base units; the defaults are for one machine and short demonstrations."""

    min_stake: int = 100 * USD
    unbond_s: int = 3600
    jail_s: int = 600
    arbitrator_delay_s: int = 604_800
    max_job_s: int = 1800
    max_window_s: int = 900
    max_dispute_s: int = 600
    withdraw_delay_s: int = 30
    session_close_delay_s: int = 60
    protocol_fee_bps: int = 50
    min_juror_stake: int = 50 * USD
    bond: int = 20 * USD
    jury_fee: int = 3 * USD
    commit_s: int = 90
    reveal_s: int = 60
    payout_delay_s: int = 0
    juror_unbond_s: int = 900
    draw_delay_blocks: int = 1
    slash_bps: int = 10_000
    panel: int = 3
    turn_s: int = 25  # of a tolerance game, which has at most twenty
    quorum: int = 2


async def deploy(
    chain: Chain, deployer: DigestSigner, fee_recipient: str, p: Parameters
) -> dict[str, str]:
    """Create every contract from its committed artifact; returns their addresses.

    TaskRegistry comes last and checks in its constructor that all others point back at it.
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
                "arbitrators": [at["JuryArbitrator"], at["TaskRegistry"], at["ToleranceGame"]],
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
        "Escrow": [
            at["TestUSD"],
            at["TaskRegistry"],
            at["MinerRegistry"],
            at["ModelRegistry"],
            p.withdraw_delay_s,
            p.session_close_delay_s,
            owner,
            owner,
        ],
        "JuryArbitrator": [
            at["TestUSD"],
            at["TaskRegistry"],
            at["MinerRegistry"],
            {
                "minJurorStake": p.min_juror_stake,
                "bond": p.bond,
                "fee": p.jury_fee,
                "commitSeconds": p.commit_s,
                "revealSeconds": p.reveal_s,
                "payoutDelaySeconds": p.payout_delay_s,
                "jurorUnbondSeconds": p.juror_unbond_s,
                "drawDelayBlocks": p.draw_delay_blocks,
                "slashBps": p.slash_bps,
                "panelSize": p.panel,
                "quorum": p.quorum,
            },
        ],
        "Referee": [],
        "ProgramStore": [],
        "TraceJudge": [at["ModelRegistry"], at["ProgramStore"], at["Referee"]],
        "ToleranceGame": [
            at["TestUSD"],
            at["TaskRegistry"],
            at["MinerRegistry"],
            at["TraceJudge"],
            {
                "bond": p.bond,
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
            },
            owner,
            owner,
        ],
    }
    for name in CONTRACTS:
        address = await chain.deploy(deployer, name, *arguments[name])
        assert address == at[name], f"{name} landed at {address}, not at {at[name]}"
    return dict(chain.addresses)


def model_spec(model_dir: Path) -> ModelSpec:
    """What the chain calls this model folder.

    The head is charged as many layer units as its weights take layers' worth; the embedding, a look-up, counts one.
    """
    shape, manifest = describe_model(model_dir), model_manifest(model_dir)
    return ModelSpec(
        architecture=signing.name_hash(shape.architecture),
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn=shape.ffn,
        vocab=shape.vocab,
        context=shape.context,
        embed_units=1,
        head_units=max(1, round(shape.head_bytes / shape.layer_bytes)),
        dtype=signing.name_hash("float32"),
        numerics_profile=signing.name_hash("fp32"),
        weights_root=manifest.weights_root,
        manifest_hash="0x" + manifest.hash().hex(),
    )


async def register_model(chain: Chain, signer: DigestSigner, model_dir: Path) -> str:
    """Register the model unless it is; returns its id."""
    spec = model_spec(model_dir)
    model_id = signing.model_id(spec)
    if not await chain.read("ModelRegistry", "exists", model_id):
        roots = model_manifest(model_dir).roots
        await chain.transact(
            signer, "ModelRegistry", "register", spec, ["0x" + r.hex() for r in roots]
        )
    return model_id
