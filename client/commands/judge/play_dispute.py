"""`auditor dispute` of an order with the tolerance game: charge, bond, every move, the verdict."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from client.audit.evidence import Delegation, EvidenceCollector
from client.audit.investigation import Investigation, endpoints_of, open_evidence, source_of
from client.audit.rerun import ShardSource, StageFinding, audit_stage
from client.commands.judge.dispute_results import PlayedDispute
from client.context import Context
from client.disputes.charge import Charge, accusation, charge_of, inquest_of, would_convict
from client.disputes.inquest import Inquest
from client.disputes.prosecution import Accusation, Brought, Played, Prosecution, open_game
from client.disputes.show_trace import Showing
from client.orders.shard_roots import shard_roots
from core.dispute.game.dispute import Phase, Verdict
from core.dispute.game.game_log import GAME, Opened, games, read_game
from core.dispute.trace.judge import Claim
from core.protocol import ids
from core.protocol.errors import CheckFailed, PeerUnreachable
from core.protocol.signing import DigestSigner
from core.protocol.types import SignedReceipt
from core.runtime.clock import SystemClock
from core.runtime.network.channel import Channel, Peers, StreamIdentity

if TYPE_CHECKING:
    from core.runtime.commands.console import Run

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
    *,
    wait: bool = True,
) -> PlayedDispute:
    """Accuse the stage that signed `accused` and play to the verdict, or go on where that stands.

    Without `wait`, only the move that is due now is made. A stage that withholds its rows is asked
    for them on chain first; that it shows no valid rows is proven first. Raises CheckFailed, before
    anything is paid, for what the referee would not convict.
    """
    chain, stage = context.chain, accused.receipt.stage
    trial = _Preparing(
        context, signer, found, accused, delegation, await source_of(context, found.case)
    )
    opened = await _begun(context, signer, found, stage)
    seen = None if opened is None else await read_game(chain, opened)
    has_claim = seen is not None and seen.claim is not None
    inquest = None if has_claim else await trial.inquest()
    if inquest is None:
        await trial.charge(seen.claim if seen is not None else None)
    if opened is None:
        bond = await chain.read(GAME, "bond")
        asked = (
            trial.described(run, bond)
            if inquest is None
            else _questioned(run, found, inquest, bond)
        )
        run.confirm("Open the dispute?", asked)
        opened = await open_game(chain, signer, found.case, accused, delegation)
        run.note(f"opened {ids.short(ids.Kind.DISPUTE, opened.dispute)}")
    name = ids.short(ids.Kind.DISPUTE, opened.dispute)
    moves: list[Played] = []

    def show(played: Played) -> None:
        moves.append(played)
        run.note(f"  {played.function}  {played.sent.gas_used:,} gas")

    brought = await trial.brought(opened, inquest)
    async with trial.showing() as showing:
        game = Prosecution(chain, signer, SystemClock(), opened, brought, show, showing)
        if wait:
            verdict = VERDICTS[await game.play()]
            trial.forget()
        else:
            await game.step(await read_game(chain, opened))
            verdict = f"none yet; `auditor disputes move {name}` when it is our turn"
    return PlayedDispute(
        dispute=name,
        job=ids.short(ids.Kind.JOB, found.case.job_id),
        stage=stage,
        accused=opened.accused,
        verdict=verdict,
        moves=len(moves),
        gas=sum(played.sent.gas_used for played in moves),
        bond=run.settings.show_token(opened.bond),
    )


async def next_move(
    context: Context,
    signer: DigestSigner,
    found: Investigation,
    opened: Opened,
    delegation: Delegation | None,
) -> Played | None:
    """Make the move that is due in a game of ours, and no other; None where none was.

    Raises CheckFailed for what the referee would not convict, or a receipt that is not here.
    """
    signed = (pipeline[opened.stage] for pipeline in found.pipelines)
    accused = next((s for s in signed if s.receipt.requests_root == opened.requests_root), None)
    if accused is None:
        raise CheckFailed(
            "the accused receipt is not here",
            f"none of stage {opened.stage} has the requests root {opened.requests_root}",
        )
    source = await source_of(context, found.case)
    trial = _Preparing(context, signer, found, accused, delegation, source)
    seen = await read_game(context.chain, opened)
    inquest = None if seen.claim is not None else await trial.inquest()
    if inquest is None:
        await trial.charge(seen.claim)
    brought = await trial.brought(opened, inquest)
    moves: list[Played] = []
    game = Prosecution(context.chain, signer, SystemClock(), opened, brought, moves.append)
    await game.step(await read_game(context.chain, opened))
    return moves[-1] if moves else None


class _Preparing:
    """From a stage's receipt to an accusation of it, with what was found on the way."""

    def __init__(
        self,
        context: Context,
        signer: DigestSigner,
        found: Investigation,
        accused: SignedReceipt,
        delegation: Delegation | None,
        source: ShardSource,
    ) -> None:
        self._context, self._signer, self._found = context, signer, found
        self._accused, self._delegation, self._source = accused, delegation, source
        self._finding = next((f for f in found.findings if f.stage == accused.receipt.stage), None)
        self._charge: Charge | None = None

    async def inquest(self) -> Inquest | None:
        """What comes before an accusation, where the rows are not here or are none."""
        async with self._evidence() as evidence:
            finding = await self._audited(evidence)
            return await inquest_of(evidence, self._source, self._accused, finding)

    async def charge(self, made: Claim | None = None) -> Charge:
        """The charge that the rows support and that convicts, with the claim `made` on chain.

        Raises CheckFailed where none would, RowsWithheld.
        """
        async with self._evidence() as evidence:
            finding = await self._audited(evidence)
            charge = await charge_of(evidence, self._source, self._accused, finding)
        if made is not None:
            charge = replace(charge, claim=replace(made, trace_root=bytes(32)))
        self._charge = charge
        if not await would_convict(self._source, charge, self._folder(charge)):
            raise CheckFailed(
                f"stage {finding.stage} would not be convicted",
                "the trace of its rows does not end above the tolerance",
                state="nothing was opened; no bond was paid",
            )
        return charge

    async def accusation(self, opened: Opened) -> Accusation:
        assert self._charge is not None
        folder = self._folder(self._charge)
        return await accusation(self._context.chain, self._source, opened, self._charge, folder)

    async def brought(self, opened: Opened, inquest: Inquest | None) -> Brought:
        """What the accuser of this game comes with."""
        if inquest is None:
            return await self.accusation(opened)
        return inquest.then(partial(self.accuse_again, opened))

    async def accuse_again(self, opened: Opened) -> Accusation:
        """Audit anew, now that rows may have come. Raises HeadraceError while no charge holds."""
        self._finding = None
        await self.charge()
        return await self.accusation(opened)

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[Showing]:
        """A way to show the accused our trace."""
        operator = self._found.case.plan[self._accused.receipt.stage].operator
        peers = Peers(StreamIdentity(self._signer, self._context.chain.domain))

        async def connect() -> Channel:
            endpoints = await endpoints_of(self._context, self._found.case)
            endpoint = endpoints.get(operator.lower())
            if endpoint is None:
                raise PeerUnreachable(f"{operator} is not in the swarm", "no endpoint known")
            return await peers.get(operator, endpoint)

        try:
            yield Showing(connect)
        finally:
            await peers.close()

    def forget(self) -> None:
        """The trace is of no use any more."""
        if self._charge is not None:
            shutil.rmtree(self._folder(self._charge), ignore_errors=True)

    def described(self, run: Run, bond: int) -> dict[str, str]:
        assert self._charge is not None and self._finding is not None
        return _asked(run, self._found, self._finding, self._charge, bond)

    def _evidence(self) -> AbstractAsyncContextManager[EvidenceCollector]:
        return open_evidence(self._context, self._signer, self._found.case, self._delegation)

    async def _audited(self, evidence: EvidenceCollector) -> StageFinding:
        """The stage re-run, unless it was."""
        if self._finding is None:
            stage, case = self._accused.receipt.stage, self._found.case
            place = case.plan[stage]
            roots = await shard_roots(self._context.chain, case.order.model_id, [place])
            registered = roots[place.layer_from, place.layer_to]
            self._finding = await audit_stage(
                evidence, self._source, stage, self._accused.leaves, registered
            )
        return self._finding

    def _folder(self, charge: Charge) -> Path:
        return _folder(self._context, self._found, charge)


def _questioned(run: Run, found: Investigation, inquest: Inquest, bond: int) -> dict[str, str]:
    return {
        "job": ids.short(ids.Kind.JOB, found.case.job_id),
        "first": inquest.describe(),
        "bond": f"{run.settings.show_token(bond)}, lost if the stage shows what it is asked for "
        "and nothing is wrong with it",
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
        tokens = f"token {claim.choice.served} instead of {claim.choice.preferred}"
        what = f"{tokens}, at position {claim.positions}"
    return {
        "job": ids.short(ids.Kind.JOB, found.case.job_id),
        "accused": f"stage {finding.stage}, operator {finding.operator}",
        "claim": f"request {claim.leaf.request_index}: {what}",
        "bond": f"{run.settings.show_token(bond)}, lost if one value of the trace does not hold",
    }
