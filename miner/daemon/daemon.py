"""What does a miner do from start to end?

Start: registered? model here? swarm, listener, status. Then, side by side: announce, measure
distances, follow the allocation, follow the chain, tend the requests. End: take nothing new, finish
what was accepted, say goodbye.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from core.chain.follower import ChainPosition
from core.chain.machines import ListedMachine
from core.chain.rpc import RpcChain
from core.chain.staked import StakedOperators
from core.models.having import have_model
from core.models.names import model_id_of, numerics_of, spec_of
from core.models.programs import span_layers_of
from core.protocol import signing, units, wire
from core.protocol import types as t
from core.protocol.errors import (
    ChainUnreachable,
    ConfigError,
    HeadraceError,
    PeerUnreachable,
    UsageError,
)
from core.protocol.records import Lifecycle, MinerRecord, SwarmCheck
from core.runtime.alerts import Alerts
from core.runtime.backup import restored_as
from core.runtime.clock import SystemClock
from core.runtime.garbage import pass_over_what_is_here
from core.runtime.logs import get_logger
from core.runtime.network.channel import Listener, Peers, StreamIdentity
from core.runtime.network.circuits import Circuits
from core.runtime.network.pulse import Beat
from core.runtime.network.targets import route_to
from core.runtime.network.transport import Swarm
from core.runtime.retry import Backoff, retry
from core.runtime.settings import Settings
from core.runtime.sharing import SharedLook
from miner.chain.onchain import MinerChain, News
from miner.commands.reach import placed, with_peers
from miner.commands.results import MinerStatus, Money
from miner.compute.compute import Compute
from miner.compute.numerics import refuse_other_numerics
from miner.daemon import assignment
from miner.daemon.announce import Announcer, Distances, Neighbourhood, machines, neighbours
from miner.daemon.arranging import Arranger, SeenMachine, own_layers
from miner.daemon.assignment import Assignment, LocalModel, ShardHook
from miner.daemon.claims import Claims
from miner.daemon.link_speeds import EVERY_S as LINKS_S
from miner.daemon.link_speeds import LinkSpeeds
from miner.daemon.stake_watch import EVENTS, OwnerSeen, StakeWatch
from miner.daemon.status import serve_status
from miner.daemon.swarm_places import SwarmPlaces
from miner.defence.defence import OFFER_S, Defence, TraceHook
from miner.defence.longest import undefended
from miner.records.home import Home, RunningDaemon
from miner.records.machine import compute_device, memory_limit_bytes
from miner.records.metrics import MinerMetrics
from miner.records.store import MinerStore
from miner.serving.job_table import JobTable, MinerTerms
from miner.serving.neighbours import Neighbours
from miner.serving.outbox import Outboxes
from miner.serving.receipts import ReceiptBook
from miner.serving.sharing import SharedFiles, Sharing
from miner.serving.stage import StageService

FOLLOW_S = 1.0
DISTANCES_S = 3.0
TEND_S = 1.0
GOODBYE_S = 2.0
PURGE_S = 600.0
CLAIM_S = 5.0
STANDING_S = 15.0
STAKED_S = 2.0
#: A matcher that has said nothing for so long may be followed by another.
SILENT_S = 60.0
#: How often machines that no matcher speaks to look at the others, and how long they see the same.
ARRANGE_S, STEADY_S = 6.0, 12.0
#: A step that hangs for so long hangs for ever.
STUCK_S = 60.0
RELOAD_AFTER_FAILURE_S = 10.0
CHAIN_BACKOFF = Backoff(attempts=None, timeout_s=None, initial_s=0.5, max_s=5.0, jitter_s=0.5)
_POSITION, _FIRST_BLOCK, _PORT = "position", "first_block", "port"
log = get_logger(__name__)


async def serve(
    settings: Settings,
    signer: signing.DigestSigner,
    *,
    shard_hook: ShardHook | None = None,
    trace_hook: TraceHook | None = None,
) -> None:
    """Serve until told to leave or cancelled.

    Accepted work is finished first, within `miner.drain_timeout`. `signer` holds the operator's
    key. `shard_hook` gets each shard after it was loaded, `trace_hook` the weights that a defence
    is made of; the product passes none. Raises HeadraceError when it cannot start.
    """
    home = Home.of(settings)
    with home.locked():
        async with AsyncExitStack() as stack:
            daemon = await _start(settings, signer, home, stack, shard_hook, trace_hook)
            try:
                await daemon.run()
            except asyncio.CancelledError:
                # The first signal. Leaving takes a while, so the cancellation is answered first and
                # passed on after.
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
                await daemon.leave(None)
                raise


async def _start(
    settings: Settings,
    signer: signing.DigestSigner,
    home: Home,
    stack: AsyncExitStack,
    shard_hook: ShardHook | None,
    trace_hook: TraceHook | None,
) -> MinerDaemon:
    settings = await with_peers(await asyncio.to_thread(placed, settings))
    chain_id, rpc_url = settings.require_network()
    known, state = dict(settings.network.contracts), settings.folders.state
    node = RpcChain(rpc_url, chain_id, known, state=state)
    stack.push_async_callback(node.close)
    await node.check()
    chain = MinerChain(node, signer.address, SystemClock())
    owner = await chain.owner()
    if owner == t.ZERO_ADDRESS:
        raise UsageError(
            f"operator {signer.address} is not registered",
            f"no miner on chain {chain_id} names it",
            next_step="miner register --stake AMOUNT",
        )
    await _warn_of_another_machine(settings, chain, owner)
    model_id, spec = await _registered(settings, chain)

    # The swarm forks a child, which must happen before the compute thread exists.
    is_relayed = settings.miner.reach == "relay"
    swarm = Swarm.start(
        settings.miner.listen_host,
        0,
        [*settings.network.bootstrap_peers, *settings.miner.peers],
        check=SwarmCheck(node.domain),
        is_relay=settings.miner.relay and not is_relayed,
        only_dials=is_relayed,
    )
    stack.callback(swarm.close)
    first, window = settings.network.deploy_block, settings.network.reorg_window_blocks
    staked = StakedOperators(node, start_block=first, window=window)
    identity = StreamIdentity.on(settings.network, signer, node.domain)
    places = SwarmPlaces(swarm, staked, identity)
    model = await _open_model(settings, chain, model_id, spec, places)
    await _warn_of_long_requests(settings, chain, spec)
    store = MinerStore(home.database)
    stack.callback(store.close)
    if orders := store.heed_restoring(restored_as(settings.folders)):
        log.warning("records were put back: nothing more is signed for their orders", orders=orders)
    daemon = MinerDaemon(
        settings, signer, owner, chain, model, swarm, places, store, shard_hook, trace_hook
    )
    stack.push_async_callback(daemon.close)
    await daemon.listen()
    token = secrets.token_urlsafe(24)
    ours, status_port = settings.miner, settings.miner.metrics_port or 0
    if ours.metrics_host:
        shown = await daemon.metrics.registry.serve(status_port, ours.metrics_host)
        stack.push_async_callback(shown.stop)
        status_port = 0
    server = await serve_status(
        daemon.describe,
        daemon.metrics.registry,
        daemon.ask_to_leave,
        token,
        status_port,
        pause=daemon.pause,
    )
    stack.push_async_callback(server.stop)
    home.write_running(
        RunningDaemon(os.getpid(), server.url, token, signer.address, daemon.endpoint)
    )
    stack.callback(home.forget_running)
    log.info("started", operator=signer.address, endpoint=daemon.endpoint, status=server.url)
    return daemon


async def _warn_of_another_machine(settings: Settings, chain: MinerChain, owner: str) -> None:
    """Log where no machine that the chain lists of this owner is like this one."""
    kind = compute_device(settings.engine.device).kind
    memory_mib = memory_limit_bytes(settings) // 2**20
    listed = await chain.machines(owner)
    if any(is_alike(machine, kind, memory_mib) for machine in listed):
        return
    log.warning(
        "the chain says something else of this machine",
        chain="; ".join(map(str, listed)) or "no machine",
        here=f"{kind}, {memory_mib:,} MiB",
        then="work is done all the same",
        next="miner update",
    )


async def _warn_of_long_requests(settings: Settings, chain: MinerChain, spec: t.ModelSpec) -> None:
    """Log where requests may be longer than those whose work this machine can defend in time."""
    longest = await undefended(chain.chain, settings, spec)
    if longest is not None:
        log.warning(
            "longer requests are taken than can be defended within a turn of a dispute",
            defended_tokens=longest,
            then="an accuser that takes its time may win the stake",
            next=f"miner config set miner.max_context {longest}",
        )


def is_alike(machine: ListedMachine, kind: str, memory_mib: int) -> bool:
    """Whether an entry says so of a machine: its class, and its memory within a tenth."""
    return machine.kind == kind and abs(machine.memory_mib - memory_mib) <= 0.1 * memory_mib


async def _registered(settings: Settings, chain: MinerChain) -> tuple[str, t.ModelSpec]:
    """The configured model's id, and what the chain says of it.

    Raises ModelUnknown, and UsageError for a machine that is set to compute it in other numerics
    than the registered ones.
    """
    name = settings.miner.model
    model_id = (await model_id_of(chain.chain, name, settings)).lower()
    spec = await spec_of(chain.chain, model_id)
    refuse_other_numerics(settings, name, spec)
    return model_id, spec


async def _open_model(
    settings: Settings, chain: MinerChain, model_id: str, spec: t.ModelSpec, places: SwarmPlaces
) -> LocalModel:
    """The configured model as it is registered, with its small files fetched unless here.

    Raises what `have_model` and `assignment.open_model` do.
    """
    name = settings.miner.model
    span_layers = await span_layers_of(chain.chain, spec.numerics_profile)
    peers = partial(places.find, model_id)
    here = await have_model(chain.chain, settings, name, model_id, peers=peers)
    files = here if here.pulled else None
    return await asyncio.to_thread(
        assignment.open_model, name, model_id, spec, here.folder, files, span_layers
    )


class MinerDaemon:
    """One running miner."""

    def __init__(
        self,
        settings: Settings,
        signer: signing.DigestSigner,
        owner: str,
        chain: MinerChain,
        model: LocalModel,
        swarm: Swarm,
        places: SwarmPlaces,
        store: MinerStore,
        shard_hook: ShardHook | None,
        trace_hook: TraceHook | None = None,
    ) -> None:
        self._settings, self._signer, self._owner = settings, signer, owner
        self._chain, self._model, self._swarm, self._store = chain, model, swarm, store
        self._places, self._hook = places, shard_hook
        self._swarm_addresses = swarm.addresses()
        self._clock = SystemClock()
        self._domain = chain.chain.domain
        self._device = compute_device(settings.engine.device)
        self._memory_bytes = memory_limit_bytes(settings)
        self._shares = self._device.shares(self._memory_bytes)
        self.metrics = MinerMetrics()
        self._book = ReceiptBook(store, signer, self._domain, chain.now_s)
        self._compute = Compute(threads=settings.engine.threads or 1, on_step=self.metrics.step)
        identity = StreamIdentity.on(settings.network, signer, self._domain)
        self._peers = Peers(identity)
        self._outboxes = Outboxes(self._peers)
        self._beat = Beat(settings.failover.ping_ms / 1000, settings.failover.missed_pings)
        self._neighbours = Neighbours(Peers(identity), self._beat, self._clock)
        self._table = JobTable(self._terms(), self._book, chain, self._clock.monotonic)
        self._stage = StageService(
            self._table,
            self._compute,
            self._outboxes,
            self._clock.monotonic,
            look_for_disputes=SharedLook(self._follow_chain, self._clock.monotonic).fresh,
            on_shown=lambda peer, message, data: self._defence.shown(peer, message, data),
            on_allocated=self._take_allocation,
            sharing=Sharing(
                model.model_id,
                SharedFiles(model.folder, model.spec.manifest_hash, self._clock),
                settings.miner.share_rate_bytes_s,
                self._clock,
            ),
            neighbours=self._neighbours,
        )
        self._listener = Listener(identity, self._stage.handle, standing=self._with_standing)
        self._circuits: Circuits | None = None
        self._announcer = Announcer(swarm, signer, self._domain)
        self._distances = Distances(self._peers)
        self._link_speeds = LinkSpeeds(Peers(identity), lambda: self._table.is_idle)
        self._near = Neighbourhood(self._look_around)
        fixed = settings.miner.layers
        self._is_fixed = fixed is not None
        self._assignment = Assignment(t.LayerRange(*fixed) if fixed else None, 0)
        self._heard_at = self._clock.monotonic()
        self._arranger = Arranger(STEADY_S)
        self._speed = (0.0, 0.0)
        self._claims = Claims(chain.chain, signer, self._book, self._peers, self._table.is_running)
        self._defence = Defence(
            chain.chain,
            signer,
            owner,
            store,
            model.folder,
            SystemClock(),
            first_block=settings.network.deploy_block,
            folder=Home.of(settings).folder / "traces",
            trace_hook=trace_hook,
            patience_s=OFFER_S,
        )
        self._seen: OwnerSeen | None = None
        self._standing = StakeWatch(
            chain,
            owner,
            Alerts.of(
                settings,
                self.metrics.registry,
                self._clock,
                daemon="miner",
                account=signer.address,
                events=EVENTS,
            ),
            settings.alerts,
            settings.show_token,
        )
        self._news: News | None = None
        self._news_lock = asyncio.Lock()
        self._changing_since = 0.0
        self._retry_load_at = 0.0
        self._problem = ""
        self._ending: HeadraceError | None = None
        self._stuck_since = 0.0
        self._has_left = False
        self._leave_within: float | None = None
        self._asked_to_leave = asyncio.Event()

    def _terms(self) -> MinerTerms:
        miner, spec = self._settings.miner, self._model.spec
        return MinerTerms(
            operator=self._signer.address,
            domain=self._domain,
            model_id=self._model.model_id,
            spec=spec,
            price_in=units.nano_price(self._settings.price(miner.price_in), spec.layer_units),
            price_out=units.nano_price(self._settings.price(miner.price_out), spec.layer_units),
            max_requests=miner.max_batch,
            matchers=frozenset(matcher.lower() for matcher in miner.allow_matchers),
            max_unpaid=self._settings.token(miner.max_unpaid),
        )

    # --- the loop ---

    async def run(self) -> None:
        """Everything, until the owner asks to leave. PeerUnreachable when no peer can be had."""
        numerics = numerics_of(self._model.spec)
        self._speed = await self._compute.benchmark(self._shares, numerics)
        loops = [
            _every(STAKED_S, self._places.admit_staked),
            _every(self._settings.miner.announce_interval_s, self._announce),
            _every(DISTANCES_S, self._measure_distances),
            _every(LINKS_S, self._measure_link),
            _every(FOLLOW_S, self._follow_allocation),
            _every(ARRANGE_S, self._arrange),
            _every(FOLLOW_S, self._follow_chain_for_ever),
            _every(TEND_S, self._tend),
            _every(PURGE_S, self._purge),
            _every(CLAIM_S, self._claim),
            _every(STANDING_S, self._look_at_standing),
            self._defence.watch(),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            await self._asked_to_leave.wait()
            await self.leave(self._leave_within)
            for task in tasks:
                task.cancel()
        if self._ending is not None:
            raise self._ending

    async def leave(self, within_s: float | None) -> None:
        """Take nothing new, finish what was accepted, say LEFT. Safe to call twice."""
        if self._has_left:
            return
        within_s = self._settings.miner.drain_timeout_s if within_s is None else within_s
        self._table.is_draining = True
        log.info("leaving", within_s=within_s, active=self._table.active_requests)
        deadline = announce_at = self._clock.monotonic()
        deadline += within_s
        while not self._table.is_idle and self._clock.monotonic() < deadline:
            if self._clock.monotonic() >= announce_at:
                await self._announce()
                announce_at = self._clock.monotonic() + self._settings.miner.announce_interval_s
                if self._chain.is_reachable:  # a job settled meanwhile needs no waiting for
                    await _quietly(self._follow_chain)
            self._stage.tick()
            await asyncio.sleep(0.1)
        await self._stage.flush(2.0)
        self._has_left = True
        await self._announcer.announce(self._record(), timeout_s=GOODBYE_S)
        log.info("left", unfinished=self._table.active_requests)

    def ask_to_leave(self, within_s: float | None) -> None:
        """Start leaving, from anywhere in the loop."""
        self._leave_within = within_s
        self._table.is_draining = True
        self._asked_to_leave.set()

    def pause(self, paused: bool) -> None:
        """Take nothing new, or go on; one that is asked to leave does not go on."""
        if not self._asked_to_leave.is_set():
            self._table.is_draining = paused

    # --- its phases ---

    async def listen(self) -> None:
        """Open the data port: as configured, as last time, or any. ConfigError, PeerUnreachable."""
        miner = self._settings.miner
        is_relayed = miner.reach == "relay"
        if miner.listen_host in ("0.0.0.0", "::") and not miner.announce_host and not is_relayed:
            raise ConfigError(
                "peers cannot dial this miner",
                f"it listens on {miner.listen_host} and miner.announce_host is not set",
                next_step="miner config set miner.announce_host HOST",
            )
        last = int(self._store.note(_PORT) or 0)
        for port in (miner.listen_port,) if miner.listen_port else (last, 0):
            try:
                await self._listener.start(miner.listen_host, port)
                break
            except OSError as error:
                if port == 0 or port == miner.listen_port:
                    raise ConfigError(
                        f"cannot listen at {miner.listen_host}:{port}", error.strerror or str(error)
                    ) from error
        self._store.put_note(_PORT, str(self._listener.port).encode())
        if is_relayed:
            relays = [*self._settings.network.bootstrap_peers, *miner.peers]
            key = Home.of(self._settings).folder / "libp2p.key"
            self._circuits = Circuits(relays, key, self._listener.accept)
            await self._circuits.start()

    @property
    def endpoint(self) -> str:
        """How others reach the data port: host:port, a circuit's address, or both with a comma."""
        miner = self._settings.miner
        host = miner.announce_host or miner.listen_host
        direct = route_to(host, miner.announce_port or self._listener.port)
        if self._circuits is None:
            return direct
        return ",".join([direct] * bool(miner.announce_host) + [self._circuits.address])

    def _with_standing(self) -> frozenset[str]:
        """Keys whose streams go before strangers': staked, followed, or party to a job of ours."""
        jobs = self._table.jobs.values()
        parties = {key for job in jobs for key in (*job.payers, job.proposer.lower())}
        parties |= {stage.operator.lower() for job in jobs for stage in job.stored.plan}
        return self._places.staked | parties | {self._assignment.matcher}

    async def _announce(self) -> None:
        if not await self._announcer.announce(self._record()) and self._swarm.is_lost:
            # Nobody could find this miner any more, and none may be forked beside running threads.
            why = "the process that keeps our peer was killed"
            self._ending = self._ending or PeerUnreachable("the swarm", why)
            self.ask_to_leave(None)

    async def _look_around(self) -> list[MinerRecord]:
        serving = self._table.serving
        return await neighbours(
            self._swarm,
            self._domain,
            self._signer.address,
            self._model.model_id,
            serving.layers if serving else None,
        )

    async def _measure_distances(self) -> None:
        await self._distances.measure(await self._near.others())

    async def _measure_link(self) -> None:
        await self._link_speeds.measure_next(self._near.known)

    def _take_allocation(self, peer: str, message: wire.Allocate) -> bool:
        """A matcher's word: whether it is followed."""
        is_ours = message.model_id == self._model.model_id
        if self._is_fixed or self._table.is_draining or not is_ours:
            return False
        matcher, network = peer.lower(), self._settings.network.matcher
        trusted = self._table.terms.matchers or ({network.lower()} if network else set())
        now = self._clock.monotonic()
        self._assignment = assignment.follow(
            self._assignment,
            Assignment(message.layers, message.sequence, matcher),
            frozenset(trusted),
            is_silent=now - self._heard_at > SILENT_S,
        )
        if self._assignment.matcher != matcher:
            return False
        self._heard_at = now
        return True

    async def _arrange(self) -> None:
        """Where no matcher speaks, choose what to hold by what the others do."""
        now, serving = self._clock.monotonic(), self._table.serving
        held = serving.layers if serving else None
        is_told = self._is_fixed or self._table.is_draining or self._assignment.layers != held
        if is_told or now - self._heard_at < self._settings.miner.alone_after_s:
            return
        own, model = self._signer.address, self._model
        records = await machines(self._swarm, self._domain, own, model.model_id)
        wanted = own_layers(
            SeenMachine(own, held, self._memory_bytes),
            [SeenMachine(one.operator, one.layers, one.memory_bytes) for one in records],
            model.spec.layers,
            model.layer_bytes,
        )
        if self._arranger.decide(wanted, held, now):
            log.warning("no matcher speaks: machines share the layers", layers=str(wanted))
            self._assignment = Assignment(wanted, 0)

    async def _follow_allocation(self) -> None:
        """Hold what we are told: finish running work, then load."""
        now, serving = self._clock.monotonic(), self._table.serving
        if self._assignment.layers == (serving.layers if serving else None):
            self._table.is_changing = False
            return
        if self._table.is_draining or now < self._retry_load_at:
            return
        if not self._table.is_changing:
            self._table.is_changing, self._changing_since = True, now
        patience_s = self._settings.miner.drain_timeout_s
        if self._table.is_idle or now - self._changing_since > patience_s:
            await self._change_layers(self._assignment.layers)

    async def _change_layers(self, layers: t.LayerRange | None) -> None:
        for job in self._table.jobs.values():
            for run in list(job.runs.values()):
                run.fail(HeadraceError("this stage holds other layers now", str(layers)))
        self._stage.serve(None)
        self._table.is_changing = False
        try:
            if layers is None:
                await self._compute.unload()
            else:
                self._stage.serve(
                    await assignment.load(
                        self._compute,
                        self._model,
                        layers,
                        memory_bytes=self._memory_bytes,
                        kv_bytes=self._settings.engine.kv_memory_bytes,
                        max_requests=self._table.terms.max_requests,
                        offload_bytes=self._settings.engine.offload_bytes,
                        offload_folder=self._settings.engine.offload_folder,
                        prefix_share=self._settings.engine.prefix_share,
                        max_context=self._settings.miner.max_context,
                        devices=self._shares,
                        numerics=numerics_of(self._model.spec),
                        hook=self._hook,
                    )
                )
            pass_over_what_is_here()
            self._problem = ""
        except HeadraceError as error:
            self._problem = str(error)
            self._retry_load_at = self._clock.monotonic() + RELOAD_AFTER_FAILURE_S
            log.error("cannot hold these layers", layers=str(layers), error=str(error))
        await self._announce()

    async def _follow_chain_for_ever(self) -> None:
        def silent(error: Exception) -> None:
            log.warning("the chain does not answer; accepted work goes on", error=str(error))

        await retry(self._follow_chain, on=ChainUnreachable, backoff=CHAIN_BACKOFF, on_retry=silent)

    async def _follow_chain(self) -> None:
        """Take in news of jobs and disputes since the last look. Raises ChainUnreachable."""
        async with self._news_lock:
            await self._chain.refresh_time()
            if self._news is None:
                self._news = await self._make_news()
            try:
                news, position, moved_back = await self._news.poll()
                for item in news:
                    await self._table.hear(item)
                if moved_back:
                    await self._table.ask_again()
            except BaseException:
                self._news = None  # its position may be ahead of what was taken in
                raise
            await self._book.disk(self._store.put_note, _POSITION, msgspec.msgpack.encode(position))

    async def _make_news(self) -> News:
        stored, first = self._store.note(_POSITION), self._store.note(_FIRST_BLOCK)
        if first is None:
            first = str(await self._chain.chain.block_number()).encode()
            self._store.put_note(_FIRST_BLOCK, first)
        return News(
            self._chain.chain,
            start_block=int(first),
            deploy_block=self._settings.network.deploy_block,
            position=msgspec.msgpack.decode(stored, type=ChainPosition)
            if stored
            else ChainPosition(),
            window=max(1, self._settings.network.reorg_window_blocks),
        )

    async def _claim(self) -> None:
        """Bring on chain what is ours and the matcher did not bring."""
        try:
            await self._claims.look(self._chain.now_s())
        except ChainUnreachable as error:
            log.debug("what is due is not known", why=str(error))

    async def _look_at_standing(self) -> None:
        """Numbers and alerts of what is at stake and what is owed."""
        try:
            seen = await self._standing.look(self._table.jobs.values(), self._table.terms.spec)
        except ChainUnreachable as error:
            log.debug("our standing is not known", why=str(error))
            return
        self._seen = seen
        self.metrics.standing(seen.stake_units, seen.least_units, seen.gas_wei, seen.disputes)

    @property
    def _layers_held(self) -> int:
        layers = self._table.serving.layers if self._table.serving else None
        return layers.end - layers.start if layers else 0

    @property
    def _unpaid_units(self) -> int:
        spec = self._table.terms.spec
        return sum(j.unpaid_units(spec) for j in self._table.jobs.values() if j.is_open_order)

    async def _tend(self) -> None:
        self._look_whether_stuck()
        self._stage.tick()
        self.metrics.update(
            counts=self._stage.counts,
            streams=self._listener.stats.counts + self._peers.stats.counts,
            finished=self._stage.requests_done,
            tokens_in=self._stage.tokens_in,
            tokens_out=self._stage.tokens_out,
            active=self._table.active_requests,
            free=self._table.free_requests,
            engine=self._compute.metrics(),
            chain_up=self._chain.is_reachable,
            rho_ms=self._distances.rho_ms,
            queued=sum(len(job.waiting) for job in self._table.jobs.values()),
            layers=self._layers_held,
            unpaid_units=self._unpaid_units,
        )

    def _look_whether_stuck(self) -> None:
        """A step that does not end keeps new work away; one that never ends ends the miner."""
        step_s, due_s = self._compute.running_s()
        is_stuck, now = self._beat.is_stuck(step_s, due_s), self._clock.monotonic()
        if is_stuck and not self._table.is_stuck:
            self._stuck_since = now
            log.error("a step does not end", step_s=round(step_s, 1), due_s=round(due_s, 3))
        self._table.is_stuck = is_stuck
        if is_stuck and now - self._stuck_since > STUCK_S:
            self._ending = self._ending or HeadraceError(
                "this miner computes no more",
                f"a step that should take {due_s:.2g} s has not ended in {STUCK_S:g} s",
                next_step="miner start",
            )
            self.ask_to_leave(0.0)

    async def _purge(self) -> None:
        cleared = await self._book.disk(self._store.purge, self._chain.now_s())
        if cleared:
            log.info("cleared", jobs=cleared)

    # --- what it is ---

    @property
    def state(self) -> Lifecycle:
        if self._has_left:
            return "LEFT"
        if self._table.is_draining:
            return "DRAINING"
        is_ready = self._table.serving and not (self._table.is_changing or self._table.is_stuck)
        return "SERVING" if is_ready else "JOIN"

    def _record(self) -> MinerRecord:
        table, serving = self._table, self._table.serving
        engine = self._compute.metrics()
        shown = serving if self.state in ("SERVING", "DRAINING") else None
        return MinerRecord(
            operator=self._signer.address,
            endpoint=self.endpoint,
            state=self.state,
            model_id=table.terms.model_id,
            layers=shown.layers if shown else None,
            memory_bytes=self._memory_bytes,
            tflops=round(self._speed[0], 4),
            bandwidth_gb_s=round(self._speed[1], 3),
            region=self._settings.miner.region,
            tau_ms_per_layer=round(self._compute.tau_ms_per_layer, 4),
            rho_ms={who: round(ms, 3) for who, ms in self._distances.rho_ms.items()},
            max_requests=table.terms.max_requests,
            active_requests=max(0, table.terms.max_requests - table.free_requests),
            kv_free_tokens=self._compute.kv_free_tokens if serving else 0,
            context=serving.context if serving else table.terms.spec.context,
            price_in=table.terms.price_in,
            price_out=table.terms.price_out,
            allocation=self._assignment.allocation,
            sent_at_ms=int(self._clock.now() * 1000),
            tau_ms_by_rows=dict(engine.tau_ms_by_rows),
            link_mb_s={who: round(mb_s, 3) for who, mb_s in self._link_speeds.mb_s.items()},
        )

    def describe(self) -> MinerStatus:
        """What `/status` and `miner status` show."""
        table, engine = self._table, self._compute.metrics()
        return MinerStatus(
            state=self.state,
            name=self._settings.miner.name or None,
            operator=self._signer.address,
            owner=self._owner,
            endpoint=self.endpoint,
            swarm=self._swarm_addresses,
            model=self._model.name,
            model_id=self._model.model_id,
            layers=str(table.serving.layers) if table.serving else None,
            model_layers=self._model.spec.layers,
            allocation=self._assignment.allocation,
            matcher=self._assignment.matcher or None,
            problem=self._problem or None,
            tau_ms_per_layer=self._compute.tau_ms_per_layer,
            rho_ms=dict(self._distances.rho_ms),
            link_mb_s=dict(self._link_speeds.mb_s),
            active_requests=table.active_requests,
            free_requests=table.free_requests,
            max_requests=table.terms.max_requests,
            open_jobs=len(table.jobs),
            finished_requests=self._stage.requests_done,
            tokens_in=self._stage.tokens_in,
            tokens_out=self._stage.tokens_out,
            money=self._money(),
            kv_tokens=engine.kv_tokens,
            kv_capacity_tokens=engine.kv_capacity_tokens,
            kv_free_tokens=engine.kv_free_tokens,
            waiting_requests=engine.waiting_requests,
            tau_ms_by_rows={str(rows): ms for rows, ms in engine.tau_ms_by_rows.items()},
            microbatches=engine.microbatches,
            microbatch_rows=engine.microbatch_rows,
            ring_latency_ms=round(engine.ring_latency_s * 1000, 3),
            bubble_share=round(engine.bubble_share, 4),
            step_rows=round(engine.rows / max(1, engine.steps), 2),
            same_bits=self._compute.same_bits,
            chain_reachable=self._chain.is_reachable,
            chain_time=self._chain.now_s(),
            announcement_failures=self._announcer.failures,
            counts=dict(self._stage.counts),
            stream_faults=dict(self._listener.stats.counts + self._peers.stats.counts),
            pid=os.getpid(),
        )

    def _money(self) -> Money | None:
        """What is at stake, owed and paid; None until the chain was asked."""
        seen, show = self._seen, self._settings.show_token
        if seen is None:
            return None
        return Money(
            stake=show(seen.stake_units),
            least_stake=show(seen.least_units),
            open_disputes=seen.disputes,
            jailed_until=seen.jail_until_s or None,
            owed=show(self._unpaid_units),
            to_claim=show(seen.credit_units),
            gas=units.show_eth(seen.gas_wei),
        )

    async def close(self) -> None:
        """End streams, requests and the compute thread."""
        await self._standing.alerts.close()
        await self._stage.close()
        await self._outboxes.close()
        await self._link_speeds.close()
        await self._peers.close()
        if self._circuits is not None:
            await self._circuits.close()
        await self._listener.close()
        self._compute.close()
        self._book.close()


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat for ever. What fails is logged and tried again at its next turn."""
    while True:
        await _quietly(work)
        await asyncio.sleep(seconds)


async def _quietly(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except HeadraceError as error:
        log.warning("failed, will be tried again", work=work.__name__, error=str(error))
    except Exception:
        log.exception("a bug; the daemon goes on", work=work.__name__)
