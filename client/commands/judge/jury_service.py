"""`auditor jury serve`: the juror daemon with real connections, and what Prometheus reads of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from client.audit.evidence import AuditCase, EvidenceCollector
from client.audit.investigation import describe_finding, endpoints_of, source_of
from client.audit.rerun import StageFinding
from client.context import Context, open_context
from client.jury.enrolment import enrol_if_due
from client.jury.jury import JurorDaemon
from client.jury.votes import VoteBook, VoteKind
from core.chain.chain import Chain
from core.chain.follower import EventFollower
from core.dispute.game.dispute import JURY
from core.protocol import ids
from core.protocol.errors import HeadraceError
from core.protocol.signing import DigestSigner
from core.runtime.clock import SystemClock
from core.runtime.commands.console import Run
from core.runtime.logs import get_logger
from core.runtime.metrics import Metrics
from core.runtime.network.channel import Peers, StreamIdentity

LOOK_EVERY_S = 15.0
ENROL_EVERY_S = 1.0  # while stake matures
log = get_logger(__name__)


async def serve(run: Run) -> None:
    """Judge until stopped."""
    settings = run.settings
    signer = run.unlock()
    async with open_context(settings) as context:
        network, domain = context.settings.network, context.chain.domain
        peers = Peers(StreamIdentity.on(network, signer, domain))
        book = VoteBook(
            settings.folders.state / f"jury-{settings.network.name}-{signer.address}.sqlite"
        )
        metrics = JuryMetrics()

        def voted(dispute: str, vote: VoteKind, finding: StageFinding | None) -> None:
            _say_vote(dispute, vote, finding)
            metrics.voted(vote)

        daemon = JurorDaemon(
            context.chain,
            signer,
            book,
            SystemClock(),
            EventFollower(context.chain, start_block=settings.network.deploy_block),
            lambda case: _evidence(context, peers, case),
            lambda case: source_of(context, case),
            on_vote=voted,
        )
        metrics.follow(lambda: daemon.open_disputes, lambda: daemon.is_chain_up)
        async with AsyncExitStack() as stack:
            stack.callback(book.close)
            stack.push_async_callback(peers.close)
            ours = settings.auditor
            await metrics.registry.serve_while(stack, ours.metrics_port, ours.metrics_host)
            look = asyncio.create_task(_look_at_stake(context.chain, signer, metrics))
            stack.callback(look.cancel)
            log.info("juror ready", juror=signer.address)
            await daemon.run()


class JuryMetrics:
    """A juror's metrics."""

    def __init__(self) -> None:
        metrics = self.registry = Metrics()
        self._disputes = metrics.gauge("headrace_disputes", "Disputes by state", ["state"])
        self._votes = metrics.counter(
            "headrace_votes_total", "Votes that were decided on", ["vote"]
        )
        self._chain = metrics.gauge("headrace_chain_up", "1 when the chain answered last")
        self._gas = metrics.gauge("headrace_balance_wei", "ETH for fees", ["account"])
        self._stake = metrics.gauge("headrace_stake_units", "The juror's stake, in base units")
        for vote in VoteKind:
            self._votes.labels(vote.name.lower())

    def follow(self, disputes: Callable[[], int], is_chain_up: Callable[[], bool]) -> None:
        """Ask these at every scrape."""
        self._disputes.labels("open").set_function(disputes)
        self._chain.set_function(lambda: 1 if is_chain_up() else 0)

    def voted(self, vote: VoteKind) -> None:
        self._votes.labels(vote.name.lower()).inc()

    def holds(self, stake_units: int, gas_wei: int) -> None:
        self._stake.set(stake_units)
        self._gas.labels("juror").set(gas_wei)


async def _look_at_stake(chain: Chain, signer: DigestSigner, metrics: JuryMetrics) -> None:
    """Show the stake, and put it on the roll once it is mature."""
    while True:
        waits = False
        try:
            found = await chain.read(JURY, "jurorOf", signer.address)
            metrics.holds(int(found["stake"]), await chain.balance_wei(signer.address))
            waits = await enrol_if_due(chain, signer, found, int(SystemClock().now()))
        except HeadraceError as error:
            log.debug("the juror's stake is not known", why=str(error))
        await asyncio.sleep(ENROL_EVERY_S if waits else LOOK_EVERY_S)


async def _evidence(context: Context, peers: Peers, case: AuditCase) -> EvidenceCollector:
    return EvidenceCollector(case, context.chain.domain, peers, await endpoints_of(context, case))


def _say_vote(dispute: str, vote: VoteKind, finding: StageFinding | None) -> None:
    said = {"why": "judged without re-running"}
    if finding is not None:
        said = msgspec.structs.asdict(describe_finding(finding))
    log.info("judged", dispute=ids.short(ids.Kind.DISPUTE, dispute), vote=vote.name, **said)
