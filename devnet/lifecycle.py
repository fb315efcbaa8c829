"""What do `devnet up`, `down`, `status` and the fault switches do?"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from core.chain.rpc import RpcChain
from core.models.publication import JUDGED_NUMERICS
from core.protocol import ids, units
from core.protocol.errors import HeadraceError, Unreachable, UsageError
from core.runtime.commands.console import Run
from core.runtime.folders import Folders
from devnet.accounts import PARTIES, signer_of
from devnet.anvil import keep_state, start_anvil_again
from devnet.fleets import DevnetFleet, fleet_of
from devnet.layout import DevnetFolders
from devnet.ledger import snapshot
from devnet.links.conditions import WAYS, Conditions
from devnet.links.service import ask
from devnet.models.unpack import DEFAULT_MODEL, SOURCES, ensure_model, is_ready
from devnet.network import Devnet, MinerProfile
from devnet.ports import free_port_like
from devnet.processes import Processes, RunningProgram, log_lines
from devnet.results import (
    Account,
    AddedLine,
    Broken,
    ChainClock,
    Down,
    Funded,
    Killed,
    ProgramLog,
    ProgramRow,
    Restarted,
    Signalled,
    Snapshot,
    Up,
    WayRow,
)

GAS_GIFT_WEI = 10**18
FOLLOW_EVERY_S = 0.2
GATEWAY_PORT = 8080  # where it is free


def load(layout: DevnetFolders) -> Devnet:
    """The devnet that runs, or ran, in this folder. Raises Unreachable when there is none."""
    if not layout.network_file.is_file():
        raise Unreachable("no devnet runs here", f"{layout.root} has none", next_step="devnet up")
    document = json.loads(layout.network_file.read_text())
    net = Devnet(layout)
    net.processes = Processes.load(layout.processes_file, layout.logs)
    net.chain = RpcChain(document["rpc_url"], document["chain_id"], document["contracts"])
    net.rpc_port = int(document["rpc_url"].rpartition(":")[2])
    net.matcher_url = document.get("matcher_url", "")
    net.bootstrap = document.get("bootstrap_peers", [])
    net.deploy_block = document["deploy_block"]
    (net.model, net.model_id), *_ = document["models"].items()
    net.parties = tuple(dict.fromkeys([*PARTIES, *DevnetFleet.load(layout.fleet_file).machines]))
    net.addresses = {party: signer_of(party).address for party in net.parties}
    net.gateway_port = _gateway_port(layout)
    return net


def _gateway_port(layout: DevnetFolders) -> int:
    """Where the gateway listens, by the settings of its home; 0 before there is one."""
    file = Folders.at(layout.home("requester-1")).config_file
    found = tomllib.loads(file.read_text()) if file.is_file() else {}
    return int(found.get("gateway", {}).get("port", 0))


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[Devnet, RpcChain]]:
    """The devnet of this user and its chain. Raises Unreachable."""
    net = load(DevnetFolders.default())
    try:
        yield net, net.running_chain
    finally:
        await net.disconnect()


@dataclass(frozen=True)
class WantedDevnet:
    """What a devnet is to be like. None: as it was, or as usual. `links`: to every miner."""

    miners: int | None = None
    jurors: int = 3
    model: str | None = None
    profile: str | None = None
    block_time_s: int = 1
    links: Conditions | None = None
    pages: bool = True
    numerics: str | None = None


def _new_or_kept(
    layout: DevnetFolders, wanted: WantedDevnet, *, keep: bool
) -> tuple[Devnet, DevnetFleet, bool]:
    """The devnet to start, its machines, and whether it goes on from where it was.

    Raises UsageError for a profile that is none, and for another model or fleet than before;
    ModelMissing.
    """
    if keep and layout.network_file.is_file() and layout.chain_state_file.is_file():
        net, fleet = load(layout), DevnetFleet.load(layout.fleet_file)
        changes = wanted.profile is not None or wanted.numerics is not None
        if changes or wanted.model not in (None, net.model):
            raise UsageError(
                "a devnet goes on as it was",
                f"this one has the model {net.model} and {len(fleet.machines)} machines",
                next_step="begin another one: --fresh",
            )
        return net, fleet.first(wanted.miners), True
    numerics = wanted.numerics or "float32"
    if numerics not in JUDGED_NUMERICS:
        raise UsageError(
            f"a devnet does not compute in {numerics}", "it is " + " or ".join(JUDGED_NUMERICS)
        )
    net = Devnet(layout, model=wanted.model or DEFAULT_MODEL, numerics=numerics)
    fleet = fleet_of(wanted.profile or "hetero", net.model_folder).first(wanted.miners)
    net.parties = tuple(dict.fromkeys([*PARTIES, *fleet.machines]))
    return net, fleet, False


async def _fetch_model(run: Run, name: str, stages: int) -> None:
    """Have a model on this machine that is not there yet, as stage 1. Raises Unreachable."""
    with run.stage(1, stages, f"model {name}") as stage:
        await asyncio.to_thread(ensure_model, name, progress=lambda text: stage.set(0, text))


async def bring_up(run: Run, wanted: WantedDevnet, *, keep: bool) -> Up:
    """Start everything, a model that must be fetched first; on failure stop all again."""
    layout = DevnetFolders.default()
    running = Processes.load(layout.processes_file, layout.logs)
    if any(r.is_alive for r in running.running):
        why = f"in {layout.root}"
        raise UsageError("a devnet already runs", why, next_step="devnet status, or devnet down")
    name = wanted.model or DEFAULT_MODEL
    is_new = name in SOURCES and not is_ready(name) and not (keep and layout.network_file.is_file())
    first, stages = (2, 6) if is_new else (1, 5)
    if is_new:
        await _fetch_model(run, name, stages)
    net, fleet, continued = _new_or_kept(layout, wanted, keep=keep)
    if not continued:
        if layout.root.exists():
            shutil.rmtree(layout.root)
        layout.root.mkdir(parents=True)
        fleet.save(layout.fleet_file)
    parties, jurors, links = list(fleet.machines), wanted.jurors, wanted.links
    net.min_machines, net.block_time_s = len(parties), wanted.block_time_s
    try:
        await net.warm_up()
        with run.stage(first, stages, "chain, contracts and model"):
            await net.start_chain(keep=True)
            if not continued:
                await net.deploy()
        with run.stage(first + 1, stages, "matcher"):
            await net.start_matcher()
        with run.stage(first + 2, stages, "miners"):
            if links is not None or fleet.links or layout.links_file.is_file():
                await net.start_links(parties, links)
                for party, link in fleet.links.items():
                    ask(layout.links_file, do="change", link=party, changes=asdict(link))
            for party in parties:
                if not continued:
                    await net.register_miner(party, "500usd")
                await net.start_miner(party, fleet.machines[party])
            await net.wait_serving(len(parties))
        with run.stage(first + 3, stages, "jurors"):
            for index in range(1, jurors + 1):
                await net.start_juror(f"juror-{index}", None if continued else "100usd")
        with run.stage(first + 4, stages, "gateway"):
            net.gateway_port = free_port_like(GATEWAY_PORT)
            await net.start_gateway(pages=wanted.pages)
            key = await net.new_key("devnet")
            pages = await net.pages_link() if wanted.pages else "no pages (--no-dashboard)"
    except BaseException:
        await net.processes.stop_all()
        raise
    finally:
        if net.chain is not None:
            await net.chain.close()
    home = layout.home("requester-1")
    return Up(
        network=str(layout.network_file),
        chain=f"http://127.0.0.1:{net.rpc_port}",
        matcher=net.matcher_url,
        gateway=net.gateway_url,
        try_=f'HEADRACE_HOME={home} client chat "hello"',
        or_=f"export OPENAI_BASE_URL={net.gateway_url}/v1 OPENAI_API_KEY={key}",
        watch=pages,
        stop="devnet down",
    )


async def bring_down(*, purge: bool) -> Down:
    """Stop what runs; with `purge` remove the folder too."""
    layout = DevnetFolders.default()
    processes = Processes.load(layout.processes_file, layout.logs)
    names = [r.name for r in processes.running if r.is_alive]
    await processes.stop_all()
    if purge and layout.root.exists():
        shutil.rmtree(layout.root)
    return Down(names, purge)


async def describe() -> list[ProgramRow]:
    """A row per program: whether it runs, where it answers, what the matcher sees of a machine."""
    async with _running() as (net, chain):
        party_of = {address.lower(): party for party, address in net.addresses.items()}
        machines = DevnetFleet.load(net.layout.fleet_file).machines
        try:
            miners = (await net.ask_matcher("/v1/miners"))["miners"]
        except HeadraceError:  # then no machine is seen, which is what the rows say
            miners = []
        jailed = await _jailed(chain, {name: net.addresses[name] for name in machines})
    seen = {party_of.get(str(m["owner"]).lower()): m for m in miners if m["alive"]}
    return [
        _program_row(
            net,
            running,
            seen.get(running.name),
            is_machine=running.name in machines,
            is_jailed=running.name in jailed,
        )
        for running in net.processes.running
    ]


async def _jailed(chain: RpcChain, owners: Mapping[str, str]) -> set[str]:
    """Machines whose owner was slashed and may not work yet; none where the chain is away."""
    try:
        now_s = await chain.now()
        return {
            name
            for name, owner in owners.items()
            if (await chain.read("MinerRegistry", "minerOf", owner))["jailUntil"] > now_s
        }
    except HeadraceError:
        return set()


def _program_row(
    net: Devnet,
    running: RunningProgram,
    miner: dict[str, Any] | None,
    *,
    is_machine: bool,
    is_jailed: bool,
) -> ProgramRow:
    if not running.is_alive:
        state = "dead"
    elif running.is_frozen:
        state = "frozen"
    elif is_jailed:
        state = "jailed"
    elif is_machine:
        state = miner["state"].lower() if miner else "not seen by the matcher"
    else:
        state = "running"
    urls = {
        "anvil": f"http://127.0.0.1:{net.rpc_port}",
        "matcher-1": net.matcher_url,
        "gateway": net.gateway_url,
    }
    layers = miner["layers"] if miner else None
    return ProgramRow(
        program=running.name,
        state=state,
        layers=f"{layers[0]}-{layers[1] - 1}" if layers else "",
        at=urls.get(running.name) or (miner["endpoint"] if miner else ""),
        pid=running.pid,
        alive=running.is_alive,
        log=str(running.log),
    )


async def list_accounts() -> list[Account]:
    """Address and holdings of every party."""
    async with _running() as (net, chain):
        held = await snapshot(chain, net.addresses)
    return [
        Account(
            name,
            net.addresses.get(name, ""),
            *map(units.format_token, (h.wallet, h.prepaid, h.credit, h.stake)),
        )
        for name, h in held.items()
    ]


async def give(run: Run, address: str, amount: str) -> Funded:
    """Mint tokens to an account, and send it gas money if it has none.

    Raises UsageError for what is neither a party's name nor an address.
    """
    async with _running() as (net, chain):
        if address not in net.addresses and not address.startswith("0x"):
            why = f"there are {', '.join(net.addresses)}, or any address"
            raise UsageError(f"there is no party '{address}'", why)
        to = net.addresses.get(address) or ids.address(address)
        deployer = signer_of("deployer")
        await chain.transact(deployer, "TestUSD", "mint", to, units.parse_token(amount))
        if not await chain.balance_wei(to):
            await chain.send_eth(deployer, to, GAS_GIFT_WEI)
        balance = await chain.read("TestUSD", "balanceOf", to)
    return Funded(to, units.format_token(balance))


async def move_clock(duration: str) -> ChainClock:
    """Let the chain believe that time has passed."""
    async with _running() as (_, chain):
        await chain.rpc("evm_increaseTime", units.parse_duration(duration))
        await chain.rpc("evm_mine")
        return ChainClock(await chain.now())


async def mine_blocks(count: int) -> ChainClock:
    """Let the chain make blocks."""
    async with _running() as (_, chain):
        await chain.rpc("anvil_mine", hex(count))
        return ChainClock(await chain.now(), await chain.block_number())


async def take_snapshot() -> Snapshot:
    """Remember the chain's state; its name is what `revert_to` takes, once."""
    async with _running() as (_, chain):
        block = await chain.block_number()
        return Snapshot(str(await chain.rpc("evm_snapshot")), block)


async def revert_to(name: str) -> Snapshot:
    """Put the chain back. Raises UsageError for a snapshot that is not there (any more)."""
    async with _running() as (_, chain):
        if not (name.startswith("0x") and await chain.rpc("evm_revert", name)):
            raise UsageError(
                f"there is no snapshot {name}",
                "each is good for going back once, and going back forgets later ones",
                next_step="devnet snapshot",
            )
        return Snapshot(name, await chain.block_number())


def read_logs(name: str | None) -> list[ProgramLog]:
    """The last lines of a program's log, or a few of every program's."""
    running = _logged(name)
    count = 60 if name else 8
    return [ProgramLog(one.name, str(one.log), log_lines(one.log, count)) for one in running]


async def follow_log(name: str | None, say: Callable[[AddedLine], None]) -> None:
    """Say the lines that are added to a program's log, or to any program's.

    Until the programs end or the caller is cancelled.
    """
    tails = [_Tail(one) for one in _logged(name)]
    try:
        while tails:
            alive = [tail.running.is_alive for tail in tails]  # what one says last, it says before
            for tail in tails:
                tail.say_new(say)
            for tail in [tail for tail, runs in zip(tails, alive, strict=True) if not runs]:
                tail.say_rest(say)
                tail.close()
                tails.remove(tail)
            await asyncio.sleep(FOLLOW_EVERY_S)
    finally:
        for tail in tails:
            tail.close()


class _Tail:
    """What comes to one program's log from now on, line by line."""

    def __init__(self, running: RunningProgram) -> None:
        self.running, self._begun = running, ""
        self._file = running.log.open(errors="replace")
        self._file.seek(0, os.SEEK_END)

    def say_new(self, say: Callable[[AddedLine], None]) -> None:
        *lines, self._begun = (self._begun + self._file.read()).split("\n")
        for line in lines:
            say(AddedLine(self.running.name, line))

    def say_rest(self, say: Callable[[AddedLine], None]) -> None:
        if self._begun:
            say(AddedLine(self.running.name, self._begun))

    def close(self) -> None:
        self._file.close()


def _logged(name: str | None) -> list[RunningProgram]:
    """Raises Unreachable when there is no such program, or none at all."""
    processes = load(DevnetFolders.default()).processes
    if name is None and not processes.running:
        raise Unreachable("no program runs here", "the devnet is down", next_step="devnet up")
    return processes.running if name is None else [processes.get(name)]


async def kill_program(name: str) -> Killed:
    """SIGKILL a program and its children. What it has on its disk stays, a chain's blocks too."""
    async with _running() as (net, chain):
        if name == "anvil" and net.processes.get(name).is_alive:
            await keep_state(chain, net.layout.chain_state_file)
        await net.processes.kill(name)
    return Killed(name)


async def in_a_moment(run: Run, name: str, after: str | None) -> None:
    """Wait before a fault strikes a program, if asked to. Raises Unreachable for none."""
    if after is not None:
        wait_s = units.parse_duration(after)
        load(DevnetFolders.default()).processes.get(name)
        run.note(f"{name} in {after}")
        await asyncio.sleep(wait_s)


def signal_program(name: str, number: str) -> Signalled:
    """Send a signal to every process of a program."""
    from devnet.processes import members_of_session

    running = load(DevnetFolders.default()).processes.get(name)
    for pid in members_of_session(running.pid):
        os.kill(pid, signal.Signals[number])
    return Signalled(name, number)


async def make_liar(name: str, layer: int | None, *, defend: bool) -> Restarted:
    """Restart a miner that rounds one of its layers (the middle one by default) and keeps all.

    The matcher would else tell it other layers, and its lie might be in none of them. Raises
    UsageError for a layer that it does not hold.
    """
    held = await _layers_of(name)
    rounded = (held[0] + held[1]) // 2 if layer is None else layer
    if not held[0] <= rounded < held[1]:
        raise UsageError(
            f"{name} does not hold layer {rounded}",
            f"it holds layers {held[0]}-{held[1] - 1}",
            next_step=f"name one of them, or none for the middle one: devnet chaos lie {name}",
        )
    return await _restart(name, lie_layer=rounded, layers=held, defend=defend)


async def _layers_of(name: str) -> tuple[int, int]:
    """The layers [a, b) that a miner holds. Raises UsageError, Unreachable if it holds none."""
    async with _running() as (net, _):
        _check_miner(net, name)
        owner = net.addresses[name].lower()
        miners = (await net.ask_matcher("/v1/miners"))["miners"]
    held = [m["layers"] for m in miners if m["alive"] and str(m["owner"]).lower() == owner]
    if not held or not held[0]:
        raise Unreachable(
            f"{name} holds no layers",
            "the matcher does not see it serve",
            next_step=f"devnet status, or devnet chaos restart {name}",
        )
    return held[0][0], held[0][1]


async def make_slow(name: str, ms_per_layer: float) -> Restarted:
    """Restart a miner that takes longer."""
    return await _restart(name, slow_ms_per_layer=ms_per_layer)


async def start_again(name: str) -> Restarted:
    """Start a program as it was, a miner as the fleet has it, whether it was killed or changed."""
    net = load(DevnetFolders.default())
    if name in DevnetFleet.load(net.layout.fleet_file).machines:
        return await _restart(name)
    if name == "anvil":
        where = {"states": net.layout.chain_states, "state_file": net.layout.chain_state_file}
        await start_anvil_again(net.processes, net.rpc_port, **where)
    else:
        await net.processes.start_again(name)
    return Restarted(name, "as it was")


async def _restart(name: str, **changes: Any) -> Restarted:
    net = load(DevnetFolders.default())
    profile: MinerProfile = replace(_check_miner(net, name), **changes)
    if any(running.name == name for running in net.processes.running):
        await net.processes.stop(name)
    await net.start_miner(name, profile)
    return Restarted(name, _described(profile))


def _check_miner(net: Devnet, name: str) -> MinerProfile:
    """How the fleet has this miner. Raises UsageError for no miner."""
    machines = DevnetFleet.load(net.layout.fleet_file).machines
    if name not in machines:
        raise UsageError(f"{name} is not a miner", f"miners are {', '.join(machines)}")
    return machines[name]


def _described(profile: MinerProfile) -> str:
    """A profile in words."""
    said = [f"{profile.memory} of memory"]
    if profile.slow_ms_per_layer:
        said.append(f"{profile.slow_ms_per_layer:g} ms slower per layer")
    if profile.layers is not None:
        said.append(f"keeps layers {profile.layers[0]}-{profile.layers[1] - 1}")
    if profile.lie_layer is not None:
        said.append(f"layer {profile.lie_layer} rounded to int8")
        said.append("defends itself" if profile.defend else "silent when accused")
    return ", ".join(said)


def show_links() -> list[WayRow]:
    """A row for each direction of each link."""
    return _link_rows(ask(DevnetFolders.default().links_file, do="describe"))


def change_links(name: str | None, way: str | None, changes: dict[str, Any]) -> list[WayRow]:
    """Replace conditions while the links carry. Raises UsageError for what makes no sense."""
    file = DevnetFolders.default().links_file
    return _link_rows(ask(file, do="change", link=name, way=way, changes=changes))


def break_links(name: str | None, do: str) -> Broken:
    """ "reset" breaks connections, "cut" also refuses new ones until "mend"."""
    broken = ask(DevnetFolders.default().links_file, do=do, link=name)
    return Broken(name or "all", do, broken)


def _link_rows(links: list[dict[str, Any]]) -> list[WayRow]:
    return [
        WayRow(
            link=link["link"],
            endpoint=link["endpoint"],
            way=way,
            latency_ms=link[way]["latencyMs"],
            jitter_ms=link[way]["jitterMs"],
            bytes_per_s=link[way]["bytesPerS"],
            state="cut" if link["cut"] else link[way]["state"],
            carried_bytes=link[way]["carriedBytes"],
            connections=link["connections"],
        )
        for link in links
        for way in WAYS
    ]


async def tell_story(run: Run, *, keep: bool, story: str) -> None:
    """Run the demonstration in a folder of its own, and remove that folder unless it fails."""
    from devnet.story import PATIENT, STORIES, Story

    if story not in STORIES:
        raise UsageError(f"there is no story '{story}'", f"there are {', '.join(STORIES)}")
    root = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    net = Devnet(DevnetFolders(root), parameters=PATIENT)
    failed = True
    try:
        await Story(net, run.out, story).tell()
        failed = False
    finally:
        await asyncio.shield(net.close())
        if keep or failed:
            run.note(f"logs and files are kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    left = [r.name for r in net.processes.running if r.is_alive]
    run.note("everything is shut down" if not left else f"still running: {', '.join(left)}")
