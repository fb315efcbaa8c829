"""What is known about this miner: by itself, by the chain, by the matcher and by other machines?

Each source is asked once; one that does not answer leaves its error where its facts would be.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from core.keys.keystore import Keystore
from core.protocol.errors import HeadraceError, Unreachable, UsageError
from core.protocol.types import ZERO_ADDRESS
from core.runtime.settings import Settings
from miner.commands.market import ask, model_id_of
from miner.records.home import Home, RunningDaemon, operator_wallet

Json = dict[str, Any]
DIAL_WITHIN_S = 3.0


@dataclass(frozen=True)
class OwnerOnChain:
    """The registry's words about the owner, and the clock they are judged by."""

    owner: str
    operator: str
    state: int
    stake: int
    min_stake: int
    leaving: int
    jailed_for_s: int
    strikes: int
    open_disputes: int
    can_work: bool
    now_s: int


@dataclass(frozen=True)
class MinerFacts:
    """Everything at one moment; a text `…_problem` says why its neighbour is missing."""

    settings: Settings
    operator: str | None
    operator_problem: str
    daemon: Json | None
    daemon_problem: str
    chain: OwnerOnChain | None
    chain_problem: str
    miners: list[Json] = field(default_factory=list)
    models: list[Json] = field(default_factory=list)
    jobs: list[Json] = field(default_factory=list)
    matcher_problem: str = ""
    is_running: bool = False
    """A daemon has the miner's folder, whether it answers or not."""
    reached: bool | None = None
    reach_problem: str = ""

    @property
    def own(self) -> Json | None:
        """This machine as the matcher sees it."""
        if self.operator is None:
            return None
        wanted = self.operator.lower()
        return next((m for m in self.miners if m["operator"].lower() == wanted), None)

    @property
    def model(self) -> Json | None:
        """The configured model as the matcher sees it."""
        wanted = model_id_of(self.settings)
        return next((m for m in self.models if m["modelId"].lower() == wanted), None)

    @property
    def others(self) -> list[Json]:
        """Other living machines of the same model."""
        wanted, own = model_id_of(self.settings), (self.operator or "").lower()
        return [
            m
            for m in self.miners
            if m["alive"] and m["modelId"].lower() == wanted and m["operator"].lower() != own
        ]


async def gather_facts(settings: Settings) -> MinerFacts:
    """Ask daemon, chain and market at once. Only a broken configuration raises."""
    operator, operator_problem = operator_address(settings)
    daemon, chain, market = await asyncio.gather(
        _daemon(settings), _chain(settings, operator), _market(settings)
    )
    is_running = _is_running(settings)
    facts = MinerFacts(
        settings, operator, operator_problem, *daemon, *chain, *market, is_running=is_running
    )
    endpoint = (facts.own or {}).get("endpoint") or (facts.daemon or {}).get("endpoint")
    if endpoint is None:
        return facts
    reached, why = await dial(endpoint)
    return replace(facts, reached=reached, reach_problem=why)


def operator_address(settings: Settings) -> tuple[str | None, str]:
    """The address of the operator's wallet without opening it, or why there is none."""
    try:
        name = operator_wallet(settings)
        wallets = Keystore(settings.wallet.keystore_dir).ls()
    except HeadraceError as error:
        return None, error.what
    found = next((w for w in wallets if w.name == name), None)
    if found is None:
        return None, f"there is no wallet '{name}' in {settings.wallet.keystore_dir}"
    if found.address is not None:
        return found.address, ""
    running = Home.of(settings).read_running()  # Foundry's files do not say their address
    if running is not None:
        return running.operator, ""
    return None, f"the file of '{name}' does not say its address; start the miner once"


def require_operator(settings: Settings, question: str) -> str:
    """The address of the operator's wallet. Raises UsageError, with the question, without one."""
    operator, problem = operator_address(settings)
    if operator is None:
        raise UsageError(question, problem, next_step="miner register --stake AMOUNT")
    return operator


def _is_running(settings: Settings) -> bool:
    try:
        return Home.of(settings).read_running() is not None
    except HeadraceError:
        return False


async def dial(endpoint: str, within_s: float = DIAL_WITHIN_S) -> tuple[bool, str]:
    """Whether one of an endpoint's routes takes a connection `within_s`, and why none does."""
    from core.runtime.network.channel import open_route

    why, routes = [], endpoint.split(",")
    for route in routes:
        where = f"{route}: " if len(routes) > 1 else ""
        try:
            async with asyncio.timeout(within_s):
                _, writer = await open_route(route)
        except TimeoutError:
            why.append(f"{where}no answer within {within_s:g} s")
        except (OSError, ValueError) as error:
            why.append(where + (getattr(error, "strerror", None) or str(error)))
        else:
            writer.close()
            return True, ""
    return False, "; ".join(why)


def running_daemon(settings: Settings) -> RunningDaemon:
    """The daemon that uses the miner's folder. Raises Unreachable where none does."""
    home = Home.of(settings)
    running = home.read_running()
    if running is None:
        raise Unreachable(
            "the miner is not running", f"no daemon uses {home.folder}", next_step="miner start"
        )
    return running


async def daemon_status(settings: Settings) -> Json | None:
    """What the running daemon says, None without one. Raises Unreachable if it is silent."""
    running = Home.of(settings).read_running()
    return None if running is None else await ask_daemon(running)


async def ask_daemon(running: RunningDaemon) -> Json:
    """What a daemon says of itself. Raises Unreachable if it is silent."""
    return await _call(running, "GET", "/status")


async def tell_daemon(running: RunningDaemon, path: str) -> Json:
    """Ask a running daemon for what only its owner may. Raises Unreachable if it is silent."""
    return await _call(running, "POST", path, authorization=f"Bearer {running.token}")


async def _call(running: RunningDaemon, method: str, path: str, **headers: str) -> Json:
    import httpx2

    from core.runtime.http_client import NoAnswer, ask_json

    silent = "the miner does not answer"
    try:
        async with httpx2.AsyncClient() as client:
            status, found = await ask_json(
                client, method, running.url + path, headers=headers, within_s=5.0
            )
    except NoAnswer as error:
        raise Unreachable(silent, f"{running.url}: {error}") from None
    if not 200 <= status < 300 or not isinstance(found, dict):
        raise Unreachable(silent, f"{running.url}: HTTP {status}")
    return found


async def _daemon(settings: Settings) -> tuple[Json | None, str]:
    try:
        found = await daemon_status(settings)
    except HeadraceError as error:
        return None, f"{error.what}: {error.why}"
    return found, "" if found else "it is not running"


async def _chain(settings: Settings, operator: str | None) -> tuple[OwnerOnChain | None, str]:
    from miner.commands.registration import REGISTRY, open_chain

    if operator is None:
        return None, "the operator's address is not known"
    try:
        async with open_chain(settings) as chain:
            owner = await chain.read(REGISTRY, "ownerOf", operator)
            now_s = await chain.now()
            least = int(await chain.read(REGISTRY, "minStake"))
            if owner == ZERO_ADDRESS:
                return OwnerOnChain("", operator, 0, 0, least, 0, 0, 0, 0, False, now_s), ""
            found = await chain.read(REGISTRY, "minerOf", owner)
            can_work = await chain.read(REGISTRY, "canWork", operator, 0)
    except HeadraceError as error:
        return None, f"{error.what}: {error.why}"
    return OwnerOnChain(
        owner=owner,
        operator=found["operator"],
        state=found["state"],
        stake=found["stake"],
        min_stake=least,
        leaving=found["leaving"],
        jailed_for_s=max(0, found["jailUntil"] - now_s),
        strikes=found["strikes"],
        open_disputes=found["openDisputes"],
        can_work=bool(can_work),
        now_s=now_s,
    ), ""


async def _market(settings: Settings) -> tuple[list[Json], list[Json], list[Json], str]:
    try:
        miners, models, jobs = await asyncio.gather(
            ask(settings, "/v1/miners"), ask(settings, "/v1/models"), ask(settings, "/v1/jobs")
        )
    except HeadraceError as error:
        return [], [], [], f"{error.what}: {error.why}"
    return miners["miners"], models["models"], jobs["jobs"], ""
