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
from client.disputes.jury_dispute import bond_due
from client.disputes.prosecution import Accusation, Brought, Played, Prosecution, open_game
from client.disputes.show_trace import Showing
from client.orders.shard_roots import shard_roots
from core.dispute.game.dispute import Phase, Verdict
from core.dispute.game.game_log import GAME, Opened, Seen, games, read_game
from core.dispute.trace.judge import Claim
from core.protocol import ids, signing
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
    source = await source_of(context, found.case)
    trial = _Preparing(context, signer, found, accused, delegation, source)
    opened = await _begun(context, signer, found, accused)
    await trial.prepare(None if opened is None else await read_game(chain, opened))
    if opened is None:
        bond = await bond_due(chain, GAME, found.case.plan[stage].operator)
        run.confirm("Open the dispute?", trial.described(run.settings.show_token(bond)))
        opened = await open_game(chain, signer, found.case, accused, delegation)
        run.note(f"opened {ids.short(ids.Kind.DISPUTE, opened.dispute)}")
    name = ids.short(ids.Kind.DISPUTE, opened.dispute)
    moves: list[Played] = []

    def show(played: Played) -> None:
        moves.append(played)
        run.note(f"  {played.function}  {played.sent.gas_used:,} gas")

    brought = await trial.brought(opened)
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
    accused = next(
        (s for s in signed if signing.struct_hash(s.receipt) == opened.receipt_hash), None
    )
    if accused is None:
        raise CheckFailed(
            "the accused receipt is not here",
            f"none of stage {opened.stage} has the hash {opened.receipt_hash}",
        )
    source = await source_of(context, found.case)
    trial = _Preparing(context, signer, found, accused, delegation, source)
    await trial.prepare(await read_game(context.chain, opened))
    brought = await trial.brought(opened)
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
        #: What comes before an accusation, where the rows are not here or are none.
        self._inquest: Inquest | None = None

    async def prepare(self, seen: Seen | None) -> None:
        """Find a charge, by the claim of the game as `seen`, or what is to be asked for before one.

        Raises CheckFailed where no charge would convict, RowsWithheld.
        """
        made = None if seen is None else seen.claim
        if made is None:
            async with self._evidence() as evidence:
                finding = await self._audited(evidence)
                self._inquest = await inquest_of(evidence, self._source, self._accused, finding)
        if self._inquest is None:
            await self._find_charge(made)

    async def _find_charge(self, made: Claim | None = None) -> None:
        """The charge that the rows support and that convicts, with the claim `made` on chain."""
        async with self._evidence() as evidence:
            finding = await self._audited(evidence)
            charge = await charge_of(evidence, self._source, self._accused, finding)
        if made is not None:
            charge = replace(charge, claim=replace(made, trace_root=bytes(32), plea=None))
        self._charge = charge
        if not await would_convict(self._source, charge, self._folder(charge)):
            raise CheckFailed(
                f"stage {finding.stage} would not be convicted",
                "the trace of its rows does not end above the tolerance, or their noise may "
                "explain what it deviates by",
                state="nothing was opened; no bond was paid",
            )

    async def _accusation(self, opened: Opened) -> Accusation:
        assert self._charge is not None
        folder = self._folder(self._charge)
        return await accusation(self._context.chain, self._source, opened, self._charge, folder)

    async def brought(self, opened: Opened) -> Brought:
        """What the accuser of this game comes with."""
        if self._inquest is None:
            return await self._accusation(opened)
        return self._inquest.then(partial(self._accuse_again, opened))

    async def _accuse_again(self, opened: Opened) -> Accusation:
        """Audit anew, now that rows may have come. Raises HeadraceError while no charge holds."""
        self._finding = None
        await self._find_charge()
        return await self._accusation(opened)

    @asynccontextmanager
    async def showing(self) -> AsyncIterator[Showing]:
        """A way to show the accused our trace."""
        operator = self._found.case.plan[self._accused.receipt.stage].operator
        network, domain = self._context.settings.network, self._context.chain.domain
        peers = Peers(StreamIdentity.on(network, self._signer, domain))

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

    def described(self, bond: str) -> dict[str, str]:
        """What a person is to agree to, at this bond."""
        job = {"job": ids.short(ids.Kind.JOB, self._found.case.job_id)}
        if self._inquest is not None:
            risk = "if the stage shows what it is asked for and nothing is wrong with it"
            return job | {"first": self._inquest.describe(), "bond": f"{bond}, lost {risk}"}
        assert self._charge is not None and self._finding is not None
        claim, finding = self._charge.claim, self._finding
        what = f"rows {claim.window_from} to {claim.positions - 1}"
        if claim.choice is not None:
            tokens = f"token {claim.choice.served} instead of {claim.choice.preferred}"
            what = f"{tokens}, at position {claim.positions}"
        return job | {
            "accused": f"stage {finding.stage}, operator {finding.operator}",
            "claim": f"request {claim.leaf.request_index}: {what}",
            "bond": f"{bond}, lost if one value of the trace does not hold",
        }

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
        """Where this claim's trace is kept until the game is over."""
        claim = charge.claim
        name = f"{self._found.case.job_id[2:18]}-{charge.accused.receipt.stage}"
        request = f"{claim.leaf.request_index}-{claim.window_from}-{claim.positions}"
        return self._context.settings.folders.state / "traces" / f"{name}-{request}"


async def _begun(
    context: Context, signer: DigestSigner, found: Investigation, accused: SignedReceipt
) -> Opened | None:
    """Our own game about this receipt, if one is running."""
    about = found.case.job_id, accused.receipt.stage, signing.struct_hash(accused.receipt)
    for opened in await games(context.chain, context.settings.network.deploy_block):
        ours = opened.accuser.lower() == signer.address.lower()
        if ours and (opened.job, opened.stage, opened.receipt_hash) == about:
            seen = await read_game(context.chain, opened)
            if seen.phase != Phase.EXECUTED:
                return opened
    return None
