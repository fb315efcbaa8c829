"""`auditor dispute` where the order names the tolerance game: charge, bond, every move, the verdict."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client.accusing import Charge, accusation, charge_of, would_convict
from client.audit import StageFinding, audit_stage
from client.context import Context
from client.evidence import Delegation
from client.investigation import Investigation, open_evidence, source_of
from client.registered import shard_roots
from client.trace_game import Played, Prosecution, open_game
from core.protocol import ids
from core.protocol.dispute import Phase, Verdict
from core.protocol.errors import CheckFailed
from core.protocol.game_log import GAME, Opened, games, read_game
from core.protocol.signing import DigestSigner
from core.protocol.types import SignedReceipt
from core.runtime.clock import SystemClock

if TYPE_CHECKING:
    from core.runtime.console import Run

VERDICTS = {
    Verdict.FAULT: "fault: all stake of the stage's owner was slashed",
    Verdict.NO_FAULT: "no fault: the bond is the accused's",
    Verdict.NO_RULING: "no ruling: the bond is back",
}


def is_played(context: Context, found: Investigation) -> bool:
    """Whether a job's disputes are tolerance games."""
    game = context.chain.addresses.get(GAME, "")
    return found.case.order.arbitrator.lower() == game.lower()


async def play_dispute(
    run: Run,
    context: Context,
    signer: DigestSigner,
    found: Investigation,
    accused: SignedReceipt,
    delegation: Delegation | None,
) -> dict[str, Any]:
    """Accuse the stage that signed `accused` and play to the verdict; taken up where it was if it had begun.

    Raises CheckFailed, before anything is paid, for what the referee would not convict.
    """
    chain, stage = context.chain, accused.receipt.stage
    source = await source_of(context, found.case)
    async with open_evidence(context, signer, found.case, delegation) as evidence:
        finding = next((f for f in found.findings if f.stage == stage), None)
        if finding is None:
            place = found.case.plan[stage]
            roots = await shard_roots(chain, found.case.order.model_id, [place])
            registered = roots[place.layer_from, place.layer_to]
            finding = await audit_stage(evidence, source, stage, accused.leaves, registered)
        charge = await charge_of(evidence, source, accused, finding)
    opened = await _begun(context, signer, found, stage)
    if opened is not None:
        seen = await read_game(chain, opened)
        if seen.claim is not None:
            charge = replace(charge, claim=replace(seen.claim, trace_root=bytes(32)))
    folder = _folder(context, found, charge)
    if not await would_convict(source, charge, folder):
        raise CheckFailed(
            f"stage {stage} would not be convicted",
            "the canonical trace of its rows does not end above the tolerance",
            state="nothing was opened; no bond was paid",
        )
    if opened is None:
        bond = await chain.read(GAME, "bond")
        run.confirm("Open the dispute?", _asked(run, found, finding, charge, bond))
        opened = await open_game(chain, signer, found.case, accused, delegation)
        run.note(f"opened {ids.short(ids.Kind.DISPUTE, opened.dispute)}")
    moves: list[Played] = []

    def show(played: Played) -> None:
        moves.append(played)
        run.note(f"  {played.function}  {played.sent.gas_used:,} gas")

    brought = await accusation(chain, source, opened, charge, folder)
    verdict = await Prosecution(chain, signer, SystemClock(), opened, brought, show).play()
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "dispute": ids.short(ids.Kind.DISPUTE, opened.dispute),
        "job": ids.short(ids.Kind.JOB, found.case.job_id),
        "stage": stage,
        "accused": opened.accused,
        "verdict": VERDICTS[verdict],
        "moves": len(moves),
        "gas": sum(played.sent.gas_used for played in moves),
        "bond": run.settings.show_token(opened.bond),
    }


async def _begun(
    context: Context, signer: DigestSigner, found: Investigation, stage: int
) -> Opened | None:
    """Our own game about this stage, if one is running."""
    for opened in await games(context.chain, context.settings.network.deploy_block):
        ours = opened.accuser.lower() == signer.address.lower()
        if ours and (opened.job, opened.stage) == (found.case.job_id, stage):
            seen = await read_game(context.chain, opened)
            if seen.phase != Phase.EXECUTED:
                return opened
    return None


def _folder(context: Context, found: Investigation, charge: Charge) -> Path:
    """Where this claim's trace is kept until the game is over."""
    claim = charge.claim
    name = f"{found.case.job_id[2:18]}-{charge.accused.receipt.stage}"
    request = f"{claim.leaf.request_index}-{claim.window_from}-{claim.positions}"
    return context.settings.folders.state / "traces" / f"{name}-{request}"


def _asked(
    run: Run, found: Investigation, finding: StageFinding, charge: Charge, bond: int
) -> dict[str, str]:
    claim = charge.claim
    what = f"rows {claim.window_from} to {claim.positions - 1}"
    if claim.choice is not None:
        what = f"token {claim.choice.served} instead of {claim.choice.preferred}, at position {claim.positions}"
    return {
        "job": ids.short(ids.Kind.JOB, found.case.job_id),
        "accused": f"stage {finding.stage}, operator {finding.operator}",
        "claim": f"request {claim.leaf.request_index}: {what}",
        "bond": f"{run.settings.show_token(bond)}, lost if one value of the trace does not hold",
    }
