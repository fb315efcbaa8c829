"""`auditor check` and `auditor dispute`: what they do and what they print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from client.audit.evidence import Delegation, case_of_job, events_named
from client.audit.explain import Layer, explain_stage, rows_of
from client.audit.investigation import (
    Investigation,
    StageChecked,
    describe_cost,
    describe_finding,
    investigate,
    open_evidence,
    read_delegation,
    resolve_job,
    source_of,
)
from client.commands.judge.convict import contradictions
from client.commands.judge.dispute_results import DisputeRow, JuryDispute
from client.commands.judge.play_dispute import is_played, play_dispute
from client.context import Context, open_context
from client.disputes.jury_dispute import challenge_cost, check_standing, open_dispute, right_of
from client.jury.jury import Phase
from client.wallet import dispute_credits
from core.dispute.game.dispute import STATUSES
from core.dispute.game.dispute import Phase as GamePhase
from core.dispute.game.game_log import GAME, Opened, games
from core.protocol import ids, signing
from core.protocol.errors import CheckFailed, DeadlinePassed, UsageError
from core.protocol.signing import DigestSigner
from core.protocol.types import LayerRange, SignedReceipt
from core.runtime.clock import SystemClock
from core.runtime.commands.console import Run
from core.runtime.settings import Settings


@dataclass(frozen=True)
class CheckOptions:
    """How a job is checked: which layers, and by how many times the network's tolerance."""

    layers: str | None = None
    tolerance: float = 1.0
    explain: bool = False


async def check_job(
    run: Run, typed: str, delegation_file: Path | None, options: CheckOptions = CheckOptions()
) -> None:
    """Print a row per stage, or also per layer. Raises CheckFailed naming the guilty stage."""
    delegation, layers = read_delegation(delegation_file), _layers(options.layers)
    signer = run.unlock()
    async with open_context(run.settings) as context:
        await _check_words(run, context, signer, typed, delegation)
        found = await _rerun(run, context, signer, typed, delegation, layers, options.tolerance)
        by_layer = await _explained(context, signer, found, delegation) if options.explain else []
    run.emit(
        [
            StageChecked(
                **msgspec.structs.asdict(describe_finding(f, options.tolerance)),
                **describe_cost(found, f.stage),
            )
            for f in found.findings
        ]
    )
    if options.explain:
        run.emit(by_layer)
    guilty = found.guilty
    if guilty is None:
        return
    job = ids.short(ids.Kind.JOB, found.case.job_id)
    who = {"stage": guilty.stage, "operator": guilty.operator}
    if options.tolerance != 1.0:
        raise CheckFailed(
            f"stage {guilty.stage} lies outside {options.tolerance:g} times the network's "
            "tolerance",
            describe_finding(guilty, options.tolerance).why,
            state="by that alone nobody is at fault: the registered tolerance counts",
            next_step=f"auditor check {job}",
            **who,
        )
    held = f"layers {guilty.layers[0]}-{guilty.layers[1] - 1}"
    faulty = ", ".join(str(finding.stage) for finding in found.findings if finding.at_fault)
    raise CheckFailed(
        f"stage {guilty.stage} ({held}) did not do what it signed",
        describe_finding(guilty).why,
        state=f"operator {guilty.operator}; at fault: stage {faulty}",
        next_step=f"auditor dispute {job} --stage {guilty.stage}",
        **who,
    )


async def _check_words(
    run: Run, context: Context, signer: DigestSigner, typed: str, delegation: Delegation | None
) -> None:
    """Raise CheckFailed where a stage's own words convict it: prompts, ids, counts, last words."""
    job_id = await resolve_job(context, typed)
    case = await case_of_job(context.chain, job_id, context.settings.network.deploy_block)
    found, gaps = await contradictions(context, signer, case, delegation)
    for gap in gaps:
        run.note(f"not seen: {gap}")
    if not found:
        return
    first = found[0]
    raise CheckFailed(
        f"stage {first.stage} is convicted by its own words ({first.call})",
        f"request {first.request}: {first.why}",
        state=f"at fault: stage {', '.join(str(one.stage) for one in found)}; nothing was re-run",
        next_step=f"auditor convict {ids.short(ids.Kind.JOB, job_id)}",
        stage=first.stage,
        operator=case.plan[first.stage].operator,
    )


async def _explained(
    context: Context, signer: DigestSigner, found: Investigation, delegation: Delegation | None
) -> list[Layer]:
    """Every layer of the job's stages, for the request that speaks most against each."""
    rows: list[Layer] = []
    source = await source_of(context, found.case)
    async with open_evidence(context, signer, found.case, delegation) as evidence:
        for finding in found.findings:
            worst = finding.worst
            if finding.withheld or worst is None:
                continue
            leaf = next(
                leaf
                for receipts in found.pipelines
                for leaf in receipts[finding.stage].leaves
                if leaf.request_index == worst.request_index
            )
            rows += rows_of(await explain_stage(evidence, source, finding.stage, leaf))
    return rows


def _layers(typed: str | None) -> LayerRange | None:
    """`A:B` as the layers from A to before B. Raises UsageError."""
    if typed is None:
        return None
    first, _, end = typed.partition(":")
    try:
        return LayerRange(int(first), int(end))
    except ValueError:
        why = "it is A:B with A < B, such as 4:8; layer B is not included"
        raise UsageError(f"--layers {typed}", why) from None


async def _rerun(
    run: Run,
    context: Context,
    signer: DigestSigner,
    typed: str,
    delegation: Delegation | None,
    layers: LayerRange | None = None,
    tolerance: float = 1.0,
) -> Investigation:
    with run.stage(1, 1, "re-running in float64", unit="requests") as stage:
        return await investigate(
            context,
            signer,
            typed,
            delegation,
            lambda index, done, total: stage.set(done, f"stage {index}", total=total),
            layers=layers,
            tolerance=tolerance,
        )


async def dispute_job(
    run: Run, typed: str, stage: int | None, delegation_file: Path | None, *, wait: bool
) -> None:
    """Dispute the guilty stage and follow that to its verdict; a named stage is not re-run."""
    settings, delegation = run.settings, read_delegation(delegation_file)
    signer = run.unlock()
    async with open_context(settings) as context:
        if stage is None:
            found = await _rerun(run, context, signer, typed, delegation)
        else:
            found = await investigate(
                context, signer, typed, delegation, lambda *_: None, rerun=False
            )
        check_standing(found.case, signer.address, delegation)
        accused = _accused(found, stage)
        if is_played(context, found):
            played = await play_dispute(run, context, signer, found, accused, delegation, wait=wait)
            run.emit(played)
            await _tell_credit(run, context, signer)
            return
        show = settings.show_token
        index = accused.receipt.stage
        operator = found.case.plan[index].operator
        cost = await challenge_cost(context.chain, operator)
        run.confirm(
            "Open the dispute?",
            {
                "job": ids.short(ids.Kind.JOB, found.case.job_id),
                "accused": f"stage {index}, operator {operator}",
                "bond": f"{show(cost.bond)}, lost if the jury finds no fault",
                "fee": f"{show(cost.fee)} for the jury",
            },
        )
        await open_dispute(context.chain, signer, found.case, accused, delegation)
        dispute = await context.chain.read(
            "JuryArbitrator",
            "disputeIdOf",
            found.case.job_id,
            index,
            signing.struct_hash(accused.receipt),
            right_of(found.case, signer.address),
        )
        run.note(f"opened {ids.short(ids.Kind.DISPUTE, dispute)}")
        if wait:
            run.emit(await _await_verdict(run, context, dispute))
            await _tell_credit(run, context, signer)
        else:
            run.emit(jury_line(settings, dispute, await _read(context, dispute)))


async def _tell_credit(run: Run, context: Context, signer: DigestSigner) -> None:
    """A bond that came back and a reward lie in the contracts until they are fetched."""
    owed = sum((await dispute_credits(context.chain, signer.address)).values())
    if owed:
        run.note(f"{run.settings.show_token(owed)} of disputes are yours: `auditor withdraw`")


def _accused(found: Investigation, stage: int | None) -> SignedReceipt:
    if stage is None:
        if found.guilty is None:
            raise UsageError(
                "no stage is at fault",
                "every stage's outputs lie within the tolerance",
                state="nothing was opened; a false accusation would cost the bond",
            )
        stage = found.guilty.stage
    if not 0 <= stage < len(found.case.plan):
        raise UsageError(f"there is no stage {stage}", f"the plan has {len(found.case.plan)}")
    return found.accused(stage)


async def _read(context: Context, dispute: str) -> dict[str, Any]:
    found: dict[str, Any] = await context.chain.read("JuryArbitrator", "disputeOf", dispute)
    return found


async def _await_verdict(run: Run, context: Context, dispute: str) -> JuryDispute:
    clock, shown = SystemClock(), ""
    longest_s = await context.chain.read("JuryArbitrator", "maxDisputeSeconds")
    give_up = clock.monotonic() + longest_s + 120
    while True:
        found = await _read(context, dispute)
        phase = Phase(found["phase"])
        votes = f"{found['commits']} committed, {found['reveals']} revealed of {found['panel']}"
        line = f"{phase.name.lower()}  {votes}"
        if line != shown:
            run.note(f"  {line}")
            shown = line
        if phase is Phase.EXECUTED:
            return jury_line(run.settings, dispute, found)
        if clock.monotonic() > give_up:
            raise DeadlinePassed(
                "no verdict within the longest time a dispute takes",
                f"phase {phase.name}, after {longest_s} s",
                resume="auditor disputes ls",
            )
        await clock.sleep(0.5)


def jury_line(settings: Settings, dispute: str, found: dict[str, Any]) -> JuryDispute:
    """A dispute before the jury as it stands."""
    return JuryDispute(
        dispute=ids.short(ids.Kind.DISPUTE, dispute),
        job=ids.short(ids.Kind.JOB, found["job"]),
        stage=found["stage"],
        accused=found["accused"],
        phase=Phase(found["phase"]).name.lower(),
        verdict=STATUSES[found["status"]],
        votes=f"{found['votesFault']} fault of {found['reveals']} revealed, panel {found['panel']}",
        bond=settings.show_token(found["bond"]),
    )


async def list_disputes(settings: Settings) -> list[DisputeRow]:
    """Every dispute of either kind, oldest first."""
    async with open_context(settings) as context:
        chain, first = context.chain, settings.network.deploy_block
        found = []
        for event in await events_named(chain, "DisputeOpened", first):
            dispute = event.args["dispute"]
            row = jury_row(settings, dispute, await _read(context, dispute))
            found.append((event.block_number, row))
        if GAME in chain.addresses:
            for opened in await games(chain, first):
                game = await chain.read(GAME, "gameOf", opened.dispute)
                found.append((opened.block, _game_row(settings, opened, game)))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def jury_row(settings: Settings, dispute: str, found: dict[str, Any]) -> DisputeRow:
    """The same in a list of disputes of both kinds."""
    line = msgspec.structs.asdict(jury_line(settings, dispute, found))
    return DisputeRow(before="jury", **line)


def _game_row(settings: Settings, opened: Opened, game: dict[str, Any]) -> DisputeRow:
    return DisputeRow(
        before="game",
        dispute=ids.short(ids.Kind.DISPUTE, opened.dispute),
        job=ids.short(ids.Kind.JOB, opened.job),
        stage=opened.stage,
        accused=opened.accused,
        phase=GamePhase(game["phase"]).name.lower(),
        verdict=STATUSES[game["status"]],
        votes="none are cast",
        bond=settings.show_token(opened.bond),
    )
