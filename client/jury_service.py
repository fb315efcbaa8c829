"""`auditor jury serve`: the juror daemon with real connections."""

from __future__ import annotations

from client.audit import StageFinding
from client.context import Context, open_context
from client.evidence import Case, Evidence
from client.investigation import describe_finding, endpoints_of, source_of
from client.jury import JurorDaemon
from client.votes import VoteBook, VoteKind
from core.protocol import ids
from core.protocol.follower import EventFollower
from core.runtime.channel import Peers, StreamIdentity
from core.runtime.clock import SystemClock
from core.runtime.console import Run
from core.runtime.logs import get_logger

log = get_logger(__name__)


async def serve(run: Run) -> None:
    """Judge until stopped."""
    settings = run.settings
    signer = run.unlock()
    async with open_context(settings) as context:
        peers = Peers(StreamIdentity(signer, context.chain.domain))
        book = VoteBook(
            settings.folders.state / f"jury-{settings.network.name}-{signer.address}.sqlite"
        )
        daemon = JurorDaemon(
            context.chain,
            signer,
            book,
            SystemClock(),
            EventFollower(context.chain, start_block=settings.network.deploy_block),
            lambda case: _evidence(context, peers, case),
            lambda case: source_of(context, case),
            on_vote=_say_vote,
        )
        log.info("juror ready", juror=signer.address)
        try:
            await daemon.run()
        finally:
            await peers.close()
            book.close()


async def _evidence(context: Context, peers: Peers, case: Case) -> Evidence:
    return Evidence(case, context.chain.domain, peers, await endpoints_of(context, case))


def _say_vote(dispute: str, vote: VoteKind, finding: StageFinding | None) -> None:
    log.info(
        "judged",
        dispute=ids.short(ids.Kind.DISPUTE, dispute),
        vote=vote.name,
        **(describe_finding(finding) if finding else {"why": "judged without re-running"}),
    )
