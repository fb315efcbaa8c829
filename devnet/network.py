"""How does a whole network run on one machine, each program in its own process and home?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.chain.rpc import RpcChain
from core.engine.weights.store import resolve_model
from core.protocol.errors import MatcherUnreachable
from core.protocol.network_file import USD, Parameters
from core.protocol.whole_file import write_whole
from core.runtime.folders import Folders
from devnet.accounts import PARTIES, environ_of, make_wallets, signer_of, write_home
from devnet.anvil import CHAIN_ID, start_anvil
from devnet.deploy import deploy, register_model
from devnet.layout import DevnetFolders
from devnet.links.conditions import Conditions
from devnet.links.service import ask, read_plan, write_plan
from devnet.models.unpack import DEFAULT_MODEL
from devnet.ports import free_ports
from devnet.processes import Processes, ProcessFailed, RunningProgram

if TYPE_CHECKING:
    from core.dispute.registration.search import SearchEffort

ENROLLED_WITHIN_S = 120.0

NETWORK = "devnet"
#: All programs share one machine's cores here, and waiting for a core is not silence.
MISSED_PINGS = 12
#: Base units of the token that each party starts with.
FUNDS = {
    "matcher-1": 10 * USD,  # for audits
    "requester-1": 100 * USD,
    "auditor-1": 100 * USD,
    **{f"miner-{i}": 1000 * USD for i in (1, 2, 3, 4)},
    **{f"juror-{i}": 200 * USD for i in (1, 2, 3)},
}


@dataclass(frozen=True)
class MinerProfile:
    """How a devnet miner differs from the others: its memory, its speed, its faults."""

    memory: str
    slow_ms_per_layer: float = 0.0
    lie_layer: int | None = None
    lie_bits: int = 8
    defend: bool = False  # a liar that plays on instead of staying silent when it is accused
    layers: tuple[int, int] | None = None  # fixed by its owner; None: the matcher says


#: Three unequal machines, no two of which have room for the whole of SmolLM2 in float32.
HETEROGENEOUS = {
    "miner-1": MinerProfile("450MiB"),
    "miner-2": MinerProfile("365MiB", slow_ms_per_layer=0.2),
    "miner-3": MinerProfile("230MiB", slow_ms_per_layer=0.5),
}


@dataclass
class Devnet:
    """One running devnet. Methods start one thing each and return when it is ready."""

    layout: DevnetFolders
    model: str = DEFAULT_MODEL
    cache: Path | None = None  # where models are; None: the user's cache
    numerics: str = "float32"  # what machines compute the model in
    are_caches_apart: bool = False  # each party pulls what it needs, as on machines of strangers
    parameters: Parameters = field(default_factory=Parameters)
    effort: SearchEffort | None = None  # before the model is registered; None: as usual
    parties: Sequence[str] = tuple(PARTIES)
    processes: Processes = field(init=False)
    addresses: dict[str, str] = field(default_factory=dict)
    chain: RpcChain | None = None
    model_id: str = ""
    deploy_block: int = 0
    rpc_port: int = 0
    block_time_s: int = 1
    min_machines: int = len(HETEROGENEOUS)
    matcher_port: int = 0
    matcher_url: str = ""
    gateway_port: int = 0
    gateway_metrics_port: int | None = None
    bootstrap: list[str] = field(default_factory=list)
    _http: Any = None

    def __post_init__(self) -> None:
        self.processes = Processes(self.layout.processes_file, self.layout.logs)

    # --- chain ---

    async def warm_up(self) -> None:
        """Import once what all programs need; for a devnet that one process starts and stops."""
        await self.processes.warm_up({"DEVNET_ROOT": str(self.layout.root), "HF_HUB_OFFLINE": "1"})

    async def start_chain(self, *, keep: bool = False) -> RpcChain:
        """Anvil on a free port, or where it was; with `keep` it goes on from where it stopped."""
        if not self.rpc_port:
            (self.rpc_port,) = free_ports(1)
        self.layout.root.mkdir(parents=True, exist_ok=True)
        await start_anvil(
            self.processes,
            self.rpc_port,
            states=self.layout.chain_states,
            state_file=self.layout.chain_state_file if keep else None,
            block_time_s=self.block_time_s,
        )
        self.chain = self.chain or RpcChain(f"http://127.0.0.1:{self.rpc_port}", CHAIN_ID, {})
        return self.chain

    async def deploy(self) -> dict[str, str]:
        """Contracts, wallets, money, the model; writes the network file."""
        chain = self.running_chain
        deployer = signer_of("deployer")
        self.addresses = make_wallets(self.layout, self.parties)
        self.deploy_block = await chain.block_number()
        contracts = await deploy(chain, deployer, deployer.address, self.parameters)
        for party in self.parties:
            if party in FUNDS:
                address = self.addresses[party]
                await chain.transact(deployer, "TestUSD", "mint", address, FUNDS[party])
        self.model_id = await register_model(
            chain,
            deployer,
            self.model_folder,
            effort=self.effort,
            name=self.model,
            numerics=self.numerics,
        )
        self.write_network_file()
        for party in self.parties:
            self.write_home(party, {"client": self._client_section})
        return contracts

    @property
    def _client_section(self) -> dict[str, object]:
        return {"model": self.model, "deadline": "20m", "window": "10m"}

    @property
    def model_folder(self) -> Path:
        """The model's files, in the user's own cache: unpacked once for all devnets."""
        return resolve_model(self.model, self.cache)

    def write_network_file(self) -> None:
        """What every program of the devnet reads: addresses, URLs, names."""
        chain = self.running_chain
        document = {
            "name": NETWORK,
            "chain_id": CHAIN_ID,
            "rpc_url": chain.rpc_url,
            "contracts": dict(chain.addresses),
            "models": {self.model: self.model_id},
            "bootstrap_peers": self.bootstrap,
            "matcher_url": self.matcher_url or None,
            "matcher": signer_of("matcher-1").address,
            "deploy_block": self.deploy_block,
        }
        found = {k: v for k, v in document.items() if v is not None}
        # Programs of the devnet may be reading it.
        write_whole(self.layout.network_file, (json.dumps(found, indent=2) + "\n").encode())

    def write_home(self, party: str, sections: Mapping[str, Mapping[str, object]]) -> None:
        """A party's home; models are found in one cache through a link, unless caches are apart."""
        every = {"failover": {"missed_pings": MISSED_PINGS}} | sections
        home = write_home(self.layout, party, {k: dict(v) for k, v in every.items()})
        link = home / "cache"
        if not self.are_caches_apart and not link.is_symlink() and not link.exists():
            link.symlink_to(self.cache or Folders.find({}).cache)

    # --- programs ---

    async def start_matcher(self) -> RunningProgram:
        """The matching daemon; the swarm's first peer. Started again, it listens where it did."""
        if not self.matcher_port:
            (self.matcher_port,) = free_ports(1)
        self.matcher_url = f"http://127.0.0.1:{self.matcher_port}"
        auditors = [a for party, a in self.addresses.items() if party.startswith("auditor")]
        matcher = {
            "listen_host": "127.0.0.1",
            "listen_port": self.matcher_port,
            "fee_bps": 200,
            "replan_interval": "1s",
            "min_machines": self.min_machines,
            "ack_grace": "3s",
            "auditors": auditors,
            "paid_auditors": auditors,
            "audit_rate_bps": 10_000,  # few requests are made here: others would never be seen
        }
        self.write_home("matcher-1", {"matcher": matcher})
        running = await self._start("matcher-1", program("matcher", "start"))
        await self.processes.wait_ready(running, self._matcher_answers, 60.0)
        status = await self.ask_matcher("/v1/status")
        self.bootstrap = [str(a) for a in status["swarm"]]
        self.write_network_file()
        return running

    async def start_links(
        self, parties: Sequence[str], conditions: Conditions | None = None
    ) -> RunningProgram:
        """A relay before every miner that is still to start, which announces the relay's port.

        `conditions` hold for both directions of every link; None leaves them as the last devnet of
        this folder had them.
        """
        file = self.layout.links_file
        links, before = read_plan(file)
        new = [party for party in parties if party not in links]
        ports = iter(free_ports(2 * len(new)))
        for party in new:
            links[party] = {f: f"127.0.0.1:{next(ports)}" for f in ("listen", "to")}
        write_plan(file, links, before if conditions is None else asdict(conditions))
        argv = [sys.executable, "-m", "devnet.links.service", str(file)]
        running = await self.processes.start("links", argv)
        await self.processes.wait_ready(running, self._links_answer, 30.0)
        return running

    async def register_miner(self, party: str, stake: str) -> str:
        """`miner register`, as a person would type it. Returns what it printed."""
        self.write_home(party, {"miner": self._miner_section(party)})
        options = ("--stake", stake, "--operator", "new", "--yes")
        return await self.run(party, program("miner", "register", *options))

    async def start_miner(self, party: str, profile: MinerProfile) -> RunningProgram:
        """`miner start`, with this profile. Does not wait until it serves."""
        section = self._miner_section(party) | {"memory_limit": profile.memory}
        if profile.layers is not None:
            section["layers"] = f"{profile.layers[0]}:{profile.layers[1]}"
        self.write_home(party, {"miner": section, "engine": {"threads": 1}})
        if profile.lie_layer is None and not profile.slow_ms_per_layer:
            argv = program("miner", "start")
        else:
            argv = [sys.executable, "-m", "devnet.faulty_miner", "start"]
            argv += ["--slow-ms-per-layer", str(profile.slow_ms_per_layer)]
            if profile.lie_layer is not None:
                argv += ["--lie-layer", str(profile.lie_layer)]
                argv += ["--lie-bits", str(profile.lie_bits)]
                argv += ["--defend"] if profile.defend else []
        return await self._start(party, argv)

    async def start_juror(self, party: str, stake: str | None) -> RunningProgram:
        """Stake (unless it did before), serve on the jury, and be on its roll.

        Raises TimeoutError where the program does not enrol its stake.
        """
        if stake is not None:
            await self.run(party, program("auditor", "jury", "stake", stake, "--yes"))
        started = await self._start(party, program("auditor", "jury", "serve"))
        async with asyncio.timeout(ENROLLED_WITHIN_S):
            while not await self._is_enrolled(party):
                await asyncio.sleep(0.2)
        return started

    async def _is_enrolled(self, party: str) -> bool:
        address = self.addresses[party]
        return bool((await self.running_chain.read("JuryArbitrator", "jurorOf", address))["place"])

    async def start_gateway(
        self, party: str = "requester-1", *, pages: bool = True
    ) -> RunningProgram:
        """`client serve`, paid by this party. Started again, it listens where it did."""
        if not self.gateway_port:
            (self.gateway_port,) = free_ports(1)
        gateway = {"host": "127.0.0.1", "port": self.gateway_port, "dashboard": pages}
        if self.gateway_metrics_port is not None:
            gateway["metrics_port"] = self.gateway_metrics_port
        self.write_home(party, {"client": self._client_section, "gateway": gateway})
        argv = program("client", "serve")
        running = await self.processes.start("gateway", argv, environ_of(self.layout, party))
        await self.processes.wait_ready(running, self._gateway_answers, 60.0)
        return running

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    async def new_key(self, name: str, *options: str, party: str = "requester-1") -> str:
        """An API key of the gateway, made as a person would make it. Its secret."""
        out = await self.run(party, program("client", "keys", "new", name, "--json", *options))
        return str(json.loads(out)["result"]["key"])

    async def pages_link(self, party: str = "requester-1") -> str:
        """A new link to the gateway's pages, which opens them once."""
        out = await self.run(party, program("client", "pages", "--json"))
        return str(json.loads(out)["result"]["pages"])

    async def wait_serving(self, count: int, limit_s: float = 90.0) -> list[dict[str, Any]]:
        """Until `count` miners serve and together cover the model; as the matcher sees them."""

        async def covered() -> bool:
            serving = await self.serving()
            models = (await self.ask_matcher("/v1/models"))["models"]
            ours = [m for m in models if m["modelId"] == self.model_id]
            return len(serving) >= count and any(m["covered"] for m in ours)

        await self.processes.wait_ready(self.processes.get("matcher-1"), covered, limit_s)
        return await self.serving()

    async def serving(self) -> list[dict[str, Any]]:
        """Miners that announce SERVING."""
        miners = (await self.ask_matcher("/v1/miners"))["miners"]
        return [m for m in miners if m["state"] == "SERVING"]

    # --- running commands ---

    async def run(
        self,
        party: str,
        argv: Sequence[str],
        *,
        expect: int = 0,
        inherit: bool = False,
        show_progress: bool = False,
    ) -> str:
        """Run a command as a party to its end; its stdout, unless it inherits ours.

        Raises ProcessFailed when it exits with anything but `expect`.
        """
        code, stdout, stderr = await self.processes.run(
            argv,
            environ_of(self.layout, party),
            stdout=sys.stdout.fileno() if inherit else None,
            stderr=sys.stderr.fileno() if inherit or show_progress else None,
        )
        if code != expect:
            raise ProcessFailed(
                f"{' '.join(argv[-6:])} as {party} ended with {code}, not {expect}",
                stderr.strip()[-1500:] or "see its output above",
            )
        return stdout

    async def ask_matcher(self, path: str) -> dict[str, Any]:
        """GET from the matcher. Raises MatcherUnreachable."""
        try:
            return dict((await self._get(self.matcher_url + path)).json())
        except ValueError as error:
            raise MatcherUnreachable(f"no answer from {self.matcher_url}", str(error)) from None

    async def _get(self, url: str) -> Any:
        """An answer over HTTP. Raises MatcherUnreachable."""
        import httpx2

        self._http = self._http or httpx2.AsyncClient(timeout=10.0)
        try:
            return await self._http.get(url)
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise MatcherUnreachable(f"no answer from {url}", why) from None

    async def close(self) -> None:
        """Stop every program and the connections; safe to call at any time."""
        await self.processes.stop_all()
        await self.disconnect()

    async def disconnect(self) -> None:
        """End our connections and leave the programs as they are."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None
        if self.chain is not None:
            await self.chain.close()

    # --- inside ---

    @property
    def running_chain(self) -> RpcChain:
        """The chain of a devnet that was started or loaded."""
        assert self.chain is not None, "start_chain comes first"
        return self.chain

    def _miner_section(self, party: str) -> dict[str, object]:
        section = self._ports_section(party)
        return section | {
            "name": party,
            "operator": f"{party}-operator",
            "password_file": str(self.layout.password_file),
            "model": self.model,
            "price_in": "20usd/Mtok",
            "price_out": "80usd/Mtok",
            "allow_matchers": [a for p, a in self.addresses.items() if p.startswith("matcher-")],
        }

    async def _start(self, party: str, argv: Sequence[str]) -> RunningProgram:
        return await self.processes.start(party, argv, environ_of(self.layout, party))

    def _ports_section(self, party: str) -> dict[str, object]:
        """Where a miner behind a link listens, and what it says."""
        link = read_plan(self.layout.links_file)[0].get(party)
        if link is None:
            return {}
        port_of = {name: int(end.rpartition(":")[2]) for name, end in link.items()}
        return {"listen_port": port_of["to"], "announce_port": port_of["listen"]}

    async def _links_answer(self) -> bool:
        await asyncio.to_thread(ask, self.layout.links_file, do="describe")
        return True

    async def _gateway_answers(self) -> bool:
        return bool((await self._get(f"{self.gateway_url}/health")).is_success)

    async def _matcher_answers(self) -> bool:
        await self.ask_matcher("/v1/status")
        return True


def program(name: str, *arguments: str) -> list[str]:
    """Command line of one of our programs, in this Python."""
    module = {"auditor": "client.auditor_cli"}.get(name, f"{name}.cli")
    return [sys.executable, "-m", module, *arguments]
