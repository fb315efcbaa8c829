"""What do pages read, from the matcher, the chain, its log and the gateway's own records?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from client.context import model_name
from client.dashboard.sources.cached import Cached, Dated
from client.dashboard.sources.chain_log import MAX_PAGE, ChainLog, LoggedEvent
from client.dashboard.sources.uptime import LOOK_EVERY_S, Uptime
from client.wallet import Balances, balances
from core.chain.chain import CONTRACTS
from core.chain.rpc import RpcChain
from core.protocol import ids
from core.protocol.errors import ConfigError, HeadraceError, MatcherUnreachable
from core.runtime.logs import get_logger

if TYPE_CHECKING:
    from client.disputes.game_record import OnTrial
    from client.gateway.gateway import Gateway
    from client.orders.matcher_api import MatcherApi
    from client.orders.matchers import Matchers
    from core.models.local import ShownModel

log = get_logger(__name__)
Json = dict[str, Any]
T = TypeVar("T")
#: How long a page waits for a tokenizer or a game's last value; later ones come with its next look.
READ_WITHIN_S = 0.1
#: A manifest that was fetched, and other places of a model, are seen so much later.
FACTS_FRESH_S = 20.0
#: What the contracts were deployed with, by the functions that say it.
RULES = {
    "TaskRegistry": ("params", "pausedUntil"),
    "MinerRegistry": ("minStake", "unbondSeconds", "jailSeconds", "pausedUntil"),
    "Escrow": ("withdrawDelaySeconds",),
    "JuryArbitrator": (
        "bond",
        "fee",
        "panelSize",
        "slashBps",
        "commitSeconds",
        "revealSeconds",
        "appealSeconds",
        "payoutDelaySeconds",
        "maturitySeconds",
        "minJurorStake",
    ),
}


class PageSources:
    """What one dashboard reads. Every value carries its age; nothing here raises into a page."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.settings, self.clock = gateway, gateway.settings, gateway.clock
        self.status: Cached[Json] = self._of_matcher(lambda api: api.status())
        self.models: Cached[list[Json]] = self._of_matcher(lambda api: api.models())
        self.miners: Cached[list[Json]] = self._of_matcher(lambda api: api.miners())
        self.routes: Cached[list[Json]] = self._of_matcher(lambda api: api.routes())
        self.allocations: Cached[list[Json]] = self._of_matcher(lambda api: api.allocations())
        self.balances: Cached[Balances] = Cached(self._balances, self.clock, fresh_s=2.0)
        self.parameters: Cached[Json] = Cached(self._parameters, self.clock, fresh_s=60.0)
        self.chain: RpcChain | None = None
        self.log: ChainLog | None = None
        self.uptime: Uptime | None = None
        self._following: list[asyncio.Task[None]] = []
        self._readers: dict[str, asyncio.Task[Any]] = {}
        self._trials: dict[str, asyncio.Task[OnTrial | None]] = {}
        self._kept: dict[str, Cached[Any]] = {}
        self._is_started = False

    def start(self) -> None:
        """Begin to follow the chain, where one is configured; needs a running loop. Idempotent."""
        settings = self.settings
        if self._is_started or settings.network.rpc_url is None:
            return
        self._is_started = True
        try:
            self.chain = chain_of(settings)
        except ConfigError as error:
            log.warning("the dashboard shows nothing of the chain", reason=str(error))
            return
        registry = settings.network.contract("TaskRegistry").lower()
        of_network = f"{settings.network.name}-{registry[2:10]}.sqlite"
        self.log = ChainLog(
            self.chain,
            settings.folders.state / f"chain-log-{of_network}",
            self.clock,
            start_block=settings.network.deploy_block,
        )
        seen = settings.folders.state / f"uptime-{of_network}"
        self.uptime = Uptime(seen, self._there, self.clock)
        self._following = [
            asyncio.create_task(self.log.run(), name="chain log"),
            asyncio.create_task(self.uptime.run(), name="uptime"),
        ]

    async def close(self) -> None:
        begun = [*self._readers.values(), *self._trials.values(), *self._following]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        for file in (self.log, self.uptime):
            if file is not None:
                await file.close()
        for value in [*vars(self).values(), *self._kept.values()]:
            if isinstance(value, Cached):
                await value.close()
        if self.chain is not None:
            await self.chain.close()

    async def reader(self, model: str) -> Callable[[list[int]], str] | None:
        """Tokens to text, where this machine has the model's tokenizer and has loaded it by now."""
        served = await self._soon(self._readers, model, lambda: self.gateway.catalogue.find(model))
        return None if served is None else served.tokenizer.decode

    async def trial(self, opened: LoggedEvent) -> OnTrial | None:
        """The value that a ruled game ended at; None where it had none, or while it is read."""
        dispute = str(opened.args["id"])
        read = partial(self._trial, opened)
        return await self._soon(self._trials, dispute, read, tell=log.warning)

    async def _soon(
        self,
        begun: dict[str, asyncio.Task[T]],
        name: str,
        read: Callable[[], Coroutine[Any, Any, T]],
        tell: Callable[..., object] = log.debug,
    ) -> T | None:
        """What is read once; None while that takes longer than a page waits, or where it failed.

        `tell` is told of a failure.
        """
        if name not in begun:
            begun[name] = asyncio.create_task(read(), name=f"read {name}")
        await asyncio.wait({begun[name]}, timeout=READ_WITHIN_S)
        if not begun[name].done():
            return None
        try:
            return await begun[name]
        except HeadraceError as error:
            tell("a page cannot read what it shows", of=name, reason=str(error))
            del begun[name]
            return None

    async def _trial(self, opened: LoggedEvent) -> OnTrial | None:
        from client.disputes.game_record import on_trial
        from core.chain.chain import ChainEvent
        from core.dispute.game.game_log import opened_in

        event = ChainEvent(
            opened.contract, opened.name, opened.args, opened.block, "", opened.tx, opened.log_index
        )
        return await on_trial(self.require_chain(), opened_in(event))

    def now_ms(self) -> int:
        return int(self.clock.now() * 1000)

    def name_of(self, model_id: str) -> str:
        """What people call a model, else its short id."""
        name = model_name(model_id, self.settings)
        try:
            return name or ids.short(ids.Kind.MODEL, model_id)
        except HeadraceError:
            return model_id

    def matcher(self) -> Matchers:
        """Raises MatcherUnreachable where none is configured."""
        if self.gateway.matcher is None:
            raise MatcherUnreachable("no matcher is configured", "network.matcher_url is not set")
        return self.gateway.matcher

    async def read(self, contract: str, function: str, *args: Any) -> Any:
        """Call a view function. Raises ConfigError without a chain, and what the chain raises."""
        return await self.require_chain().read(contract, function, *args)

    def require_chain(self) -> RpcChain:
        if self.chain is None:
            raise ConfigError("no chain is configured", "network.rpc_url is not set")
        return self.chain

    def require_log(self) -> ChainLog:
        if self.log is None:
            raise ConfigError("no chain is configured", "network.rpc_url is not set")
        return self.log

    def _of_matcher(self, ask: Callable[[MatcherApi], Awaitable[Any]]) -> Cached[Any]:
        return Cached(lambda: self.matcher().ask(ask), self.clock)

    def kept(
        self, name: str, fetch: Callable[[], Awaitable[T]], *, fresh_s: float, first_s: float = 2.0
    ) -> Cached[T]:
        """What takes long to add up, under a name of which there are few.

        A page waits `first_s` for its first value.
        """
        if name not in self._kept:
            self._kept[name] = Cached(fetch, self.clock, fresh_s=fresh_s, first_patience_s=first_s)
        return self._kept[name]

    async def facts(self, model_id: str) -> Dated[ShownModel]:
        """What chain, log and manifest say of a model. A page asks no place that strangers named.

        What takes longer than a page waits comes with its next look.
        """
        shown = partial(self._facts, model_id)
        name = f"facts of {model_id}"
        return await self.kept(name, shown, fresh_s=FACTS_FRESH_S, first_s=READ_WITHIN_S).get()

    async def _facts(self, model_id: str) -> ShownModel:
        from core.models.local import shown_model
        from core.models.names import publications_of

        chain, log = self.require_chain(), self.require_log()
        events = await log.about(model_id, names=("ModelPublished",), limit=MAX_PAGE)
        published = publications_of(model_id, reversed(events))
        return await shown_model(chain, self.settings, model_id, published, are_places_asked=False)

    async def uptimes(self, days: int) -> dict[str, float]:
        """Shares of the last days by model id and operator; nothing where none were counted."""
        if (uptime := self.uptime) is None:
            return {}
        name, shares = f"uptime {days}", lambda: uptime.shares(days)
        return (await self.kept(name, shares, fresh_s=LOOK_EVERY_S).get()).value or {}

    async def _there(self) -> list[str] | None:
        """Machines that serve and models that all layers are held of; None: nobody says."""
        models, miners = await asyncio.gather(self.models.get(), self.miners.get())
        if models.problem or miners.problem:
            return None
        served = [str(one["modelId"]) for one in models.value or [] if one.get("covered")]
        serving = [m for m in miners.value or [] if m.get("alive") and m.get("state") == "SERVING"]
        return served + [str(miner["operator"]) for miner in serving]

    async def _balances(self) -> Balances:
        return await balances(self.require_chain(), self.gateway.payer)

    async def _parameters(self) -> Json:
        """What the contracts were deployed with."""
        chain = self.require_chain()
        return {
            contract: {name: await chain.read(contract, name) for name in names}
            for contract, names in RULES.items()
            if contract in chain.addresses
        }


def chain_of(settings: Any) -> RpcChain:
    """The chain with every contract the network file names. Raises ConfigError."""
    chain_id, rpc_url = settings.require_network()
    known = {name for name in CONTRACTS if name in settings.network.contracts}
    return RpcChain(
        rpc_url, chain_id, {name: settings.network.contract(name) for name in sorted(known)}
    )
