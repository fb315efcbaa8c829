"""How is a matcher put together from settings, and taken apart again?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from core.chain.chain import CONTRACTS
from core.chain.rpc import RpcChain
from core.protocol.errors import ChainUnreachable, ConfigError, PeerUnreachable
from core.protocol.records import SwarmCheck
from core.protocol.signing import DigestSigner
from core.protocol.types import MAX_MATCHER_FEE_BPS
from core.runtime.clock import SystemClock
from core.runtime.commands.results import Result
from core.runtime.database import sqlite_url
from core.runtime.folders import make_private
from core.runtime.http_server import STRANGERS, HttpServer
from core.runtime.logs import get_logger
from core.runtime.metrics import Metrics
from core.runtime.network.channel import Peers, StreamIdentity
from core.runtime.network.transport import Swarm
from core.runtime.settings import Settings
from matcher.api.api import make_app
from matcher.api.views import audits_json
from matcher.audits.audit_desk import Pays
from matcher.daemon.service import PLANNING, MatcherDaemon, MatcherRules
from matcher.matching.orders import MatcherTerms
from matcher.records.store import Store
from matcher.settling.next_step import Patience

SHORTEST_WINDOW_BLOCKS = 64
#: By `matcher.placement`, the method of `scheduler.methods.methods` that plans anew.
PLACEMENTS = {
    "auto": "utility",
    "simulated": "simulated",
    "parallax": "regions",
    "helix": "helix",
    "memory": "memory",
}
#: Of these, those whose slices may overlap: requests then use parts of them.
OVERLAPPING = frozenset({"helix"})
log = get_logger(__name__)


class Identity(Result, frozen=True, rename="camel"):
    """What a matcher says of itself."""

    matcher: str
    fee_bps: int
    opening_fee: int
    chain_id: int
    task_registry: str
    network: str
    swarm: list[str]
    audits: dict[str, Any] | None


class Started(Identity, frozen=True):
    """`start`, once the matcher answers."""

    url: str


def rules_of(settings: Settings) -> MatcherRules:
    """The daemon's rules. Raises ConfigError for what this matcher cannot do."""
    matcher = settings.matcher
    if matcher.fee_bps > MAX_MATCHER_FEE_BPS:
        raise ConfigError(
            f"matcher.fee_bps {matcher.fee_bps} is too high",
            why=f"the contract allows {MAX_MATCHER_FEE_BPS}",
        )
    return MatcherRules(
        planning=replace(
            PLANNING,
            method=PLACEMENTS[matcher.placement],
            partial=matcher.placement in OVERLAPPING,
            min_machines=matcher.min_machines,
            settle_ms=matcher.settle_s * 1000,
        ),
        by_turns=matcher.routing == "iwrr",
        patience=Patience(ack_grace_s=matcher.ack_grace_s),
        replan_every_ms=matcher.replan_interval_s * 1000,
        queue_s=matcher.queue_s,
        registered=matcher.registered_orders,
        auditors=frozenset(matcher.auditors),
        memory_s=matcher.audit_memory_s,
        pays=pays_of(settings),
        start_block=settings.network.deploy_block,
        window_blocks=max(SHORTEST_WINDOW_BLOCKS, settings.network.reorg_window_blocks),
    )


def pays_of(settings: Settings) -> Pays:
    """What it pays for audits, and to whom. Raises ConfigError if never paid, AmountInvalid."""
    matcher = settings.matcher
    if not matcher.paid_auditors:
        return Pays()
    fee, cap = settings.token(matcher.audit_fee), settings.token(matcher.audit_cap)
    if not 0 < fee <= cap:
        raise ConfigError(
            "matcher.paid_auditors would never be paid",
            why=f"the fee for a request is {settings.show_token(fee)}, the cap for a day "
            f"{settings.show_token(cap)}",
            next_step="set a matcher.audit_fee above 0 and a matcher.audit_cap of at least that",
        )
    return Pays(matcher.paid_auditors, matcher.audit_rate_bps, fee, cap, matcher.audit_within_s)


def chain_of(settings: Settings) -> RpcChain:
    """The chain with every contract we know. Raises ConfigError naming what is missing."""
    chain_id, rpc_url = settings.require_network()
    addresses = {name: settings.network.contract(name) for name in CONTRACTS}
    return RpcChain(rpc_url, chain_id, addresses, state=settings.folders.state)


def database_url(settings: Settings) -> str:
    """Where this matcher's memory lies."""
    if settings.matcher.db_url:
        return settings.matcher.db_url
    folder = make_private(settings.folders.state)
    return sqlite_url(folder / f"matcher-{settings.network.name}.sqlite")


def join_swarm(settings: Settings, store: Store, check: SwarmCheck) -> Swarm:
    """Our peer of the swarm, through the configured peers or those of an earlier life, or alone.

    The configured list may name our own former address, which no peer answers any more: it does not
    count. Raises PeerUnreachable when peers are configured and none of them, nor any former one,
    answers.
    """
    ours = settings.matcher
    host, port = ours.swarm_host or ours.listen_host, ours.swarm_port
    key = make_private(settings.folders.state) / f"matcher-{settings.network.name}.libp2p"

    def start(through: list[str]) -> Swarm:
        is_relay = settings.matcher.relay
        return Swarm.start(
            host,
            port,
            through,
            check=check,
            is_relay=is_relay,
            key=key,
            asks_anchors_every_s=0.0,  # there are few of us
        )

    was_ours, former = store.remembered_swarm()
    store.engine.dispose()  # the swarm's child is forked and must not inherit an open database
    given = (*settings.network.bootstrap_peers, *settings.matcher.peers)
    configured = [address for address in given if address not in was_ours]
    through = list(dict.fromkeys((*configured, *former)))
    try:
        return start(through)
    except PeerUnreachable:
        if configured or not former:
            raise
        log.warning("no former peer of the swarm answers: starting alone", tried=len(former))
        return start([])


@asynccontextmanager
async def running(settings: Settings, signer: DigestSigner) -> AsyncIterator[Started]:
    """A matcher at work inside the block; yields what it says of itself.

    Raises ConfigError (wrong network, port taken, database of another network) and PeerUnreachable
    (no swarm); an unreachable chain only keeps it from being ready.
    """
    rules, clock, metrics = rules_of(settings), SystemClock(), Metrics()
    async with AsyncExitStack() as stack:

        def on_exit(close: Callable[[], Awaitable[object]]) -> None:
            stack.push_async_callback(close)

        chain = chain_of(settings)
        on_exit(chain.close)
        store = Store.open(database_url(settings))
        stack.callback(store.close)
        swarm = join_swarm(settings, store, SwarmCheck(chain.domain))
        stack.callback(swarm.close)
        try:
            await chain.check()
        except ChainUnreachable as error:
            log.warning("the chain does not answer yet", why=error.why)
        peers = Peers(StreamIdentity.on(settings.network, signer, chain.domain))
        on_exit(peers.close)
        ours = settings.matcher
        opening_fee = settings.token(ours.opening_fee)
        terms = MatcherTerms(signer.address, ours.fee_bps, opening_fee)
        daemon = MatcherDaemon(chain, swarm, peers, signer, store, metrics, clock, terms, rules)
        await daemon.prepare()
        on_exit(daemon.close)
        identity = Identity(
            matcher=signer.address,
            fee_bps=terms.fee_bps,
            opening_fee=terms.opening_fee,
            chain_id=chain.chain_id,
            task_registry=chain.addresses["TaskRegistry"],
            network=settings.network.name,
            swarm=swarm.addresses(),
            audits=audits_json(rules.pays),
        )
        app = make_app(
            daemon.world,
            store,
            daemon.matchmaker,
            daemon.settler,
            daemon.reports,
            daemon.audits,
            metrics,
            clock,
            msgspec.to_builtins(identity),
        )
        host, port = settings.matcher.listen_host, settings.matcher.listen_port
        server = HttpServer(app, host, port, limits=STRANGERS)
        await server.start()
        on_exit(server.stop)
        if settings.matcher.metrics_port is not None:
            port, host = settings.matcher.metrics_port, settings.matcher.listen_host
            on_exit((await metrics.serve(port, host)).stop)
        loop = asyncio.create_task(daemon.run(), name="matcher")

        async def stop_loop() -> None:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)

        on_exit(stop_loop)
        yield Started(**msgspec.structs.asdict(identity), url=server.url)
