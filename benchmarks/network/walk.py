"""How many commands, and how long, from a chain without any contract to a paid answer?

Six hosts in network namespaces share nothing but what people send each other: a parameters file,
the network's file, and addresses. One host is a chain's node with the web server of who publishes
the model, one the owner's with a matcher, three are machines, of which one is behind a router that
forwards nothing, and one is the requester's. Programs run from the wheel that people install. Who
takes part has a wallet with money, as on any chain.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.network.people import Person, at
from benchmarks.table import Row
from core.chain.rpc import RpcChain
from core.engine.weights.manifest import MANIFEST_FILE
from core.engine.weights.pulled import PulledFolder
from core.keys.signer import DEVNET_PHRASE, Signer, secret_from_phrase
from core.protocol.network_file import USD
from devnet.anvil import CHAIN_ID, find_anvil, old_states_in
from devnet.models.unpack import ensure_model
from tests import netns
from tests.wheel import build

MOST_COMMANDS, MOST_S, MOST_BYTES = 12, 300.0, 1.02
#: Of 30 layers: what the three machines hold.
SHARES = ("0:12", "12:15", "15:30")
DEPLOYER, OWNER, GUARDIAN, FEES, MATCHER, MAKER, REQUESTER, BANK = 0, 1, 2, 3, 4, 5, 9, 10
MINERS = (6, 7, 8)
NODE, MARKET, ASKER = "node", "market", "asker"
NEAR, THIN, HOUSE = MACHINES = ("near", "thin", "house")


def rows() -> list[Row]:
    """Needs root and nftables, for the hosts."""
    try:
        with ExitStack() as stack:
            made = stack.enter_context(
                netns.internet(NODE, MARKET, NEAR, THIN, ASKER, homes=(HOUSE,))
            )
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-walk-")))
            return _walk(made, folder, stack)
    except netns.Unavailable as error:
        return [Row("the walk over six hosts", "", "not measured", "", str(error), True)]


def _walk(hosts: netns.Network, folder: Path, stack: ExitStack) -> list[Row]:
    installed = build(folder / "wheel")
    people = {
        name: Person(namespace, folder / name, installed)
        for name, namespace in hosts.namespaces.items()
        if name != netns.HUB
    }
    node, market, asker = people[NODE], people[MARKET], people[ASKER]
    node.has_wallets(maker=MAKER)
    market.has_wallets(deployer=DEPLOYER, owner=OWNER, matcher=MATCHER)
    asker.has_wallets(asker=REQUESTER)
    for name, account in zip(MACHINES, MINERS, strict=True):
        people[name].has_wallets(owner=account)
    for person in people.values():
        stack.callback(person.leaves)
    rpc_url = f"http://{hosts.address(NODE)}:8545"
    stack.enter_context(_chain(node, folder / "states"))
    token = at(node.namespace, lambda: asyncio.run(_money(rpc_url)))
    maker = _account(MAKER).address
    model, matcher_url = f"{maker}/smollm2", f"http://{hosts.address(MARKET)}:7100"
    source = f"http://{hosts.address(NODE)}:8080/"
    _write_parameters(market.home / "riverside.toml", matcher_url)
    unhashed = shutil.ignore_patterns("headrace-*", ".*")
    shutil.copytree(ensure_model(), node.home / "smollm2", ignore=unhashed, copy_function=_link)
    on = f"--network riverside.json --rpc-url {rpc_url}"

    began = time.monotonic()
    asked = f"matcher network deploy riverside.toml --token {token}"
    made = market.types(f"{asked} --rpc-url {rpc_url} --wallet deployer")
    shutil.copy(made["file"], market.home / "riverside.json")
    market.types(f"matcher network sign riverside.json --rpc-url {rpc_url} --wallet owner")
    for person in people.values():
        if person is not market:
            shutil.copy(market.home / "riverside.json", person.home)
    listen = f"--listen {hosts.address(MARKET)}:7100 --relay"
    market.starts(f"matcher start {listen} --wallet matcher {on}")
    node.types(f"client models publish ./smollm2 --name smollm2 --at {source} --wallet maker {on}")
    node.starts(f"client models share ./smollm2 --listen {hosts.address(NODE)}:8080")
    market.waits(_answers(market, f"{matcher_url}/v1/status"))
    node.waits(_answers(node, source + MANIFEST_FILE))
    before = 0
    for name, layers in zip(MACHINES, SHARES, strict=True):
        person = people[name]
        person.types(f"miner register --stake 500usd --operator new --wallet owner {on}")
        before = person.received_bytes if name == THIN else before
        person.starts(f"miner start --model {model} --layers {layers} --wallet owner {on}")
    thin = people[THIN]
    thin.waits(lambda: _serves(thin))
    came = thin.received_bytes - before
    for name in MACHINES:
        people[name].waits(lambda name=name: _serves(people[name]))
    market.waits(lambda: _is_covered(market, matcher_url))
    said = asker.types(
        f"client chat 'Name three rivers.' --model {model} --max-tokens 24 --wallet asker {on}"
    )
    contracts = json.loads((market.home / "riverside.json").read_text())["contracts"]
    paid: list[int] = []

    def is_paid() -> bool:
        paid[:] = at(node.namespace, lambda: asyncio.run(_earned(rpc_url, contracts)))
        return all(paid) or time.monotonic() - began > MOST_S

    market.waits(is_paid, MOST_S)
    took_s = time.monotonic() - began
    is_relayed = "/p2p-circuit/" in _note(people[HOUSE])["endpoint"]
    typed = [line for person in people.values() for line in person.typed]
    most = max(len(person.typed) for person in people.values() if person is not market)
    return [
        Row(
            "from a chain without contracts to a paid answer, on six hosts",
            f"≤ {MOST_COMMANDS} commands, ≤ {MOST_S:g} s, each machine paid",
            f"{len(typed)} commands, {took_s:.0f} s, {said['tokens']} tokens; "
            f"{sum(amount > 0 for amount in paid)} of {len(paid)} machines paid",
            "-",
            f"at most {most} commands of one person beside the owner",
            len(typed) <= MOST_COMMANDS and took_s <= MOST_S and all(paid),
        ),
        _pulled(thin, came),
        Row(
            "a machine behind a router that forwards nothing, without a setting",
            "served over a relay",
            "over a relay" if is_relayed else _note(people[HOUSE])["endpoint"],
            "-",
            "one of three machines",
            is_relayed,
        ),
    ]


def _pulled(person: Person, came: int) -> Row:
    """What the machine with three layers received until it served, of all that its host heard."""
    folders = [file.parent for file in person.home.rglob(MANIFEST_FILE)]
    ((folder, pulled),) = ((f, found) for f in folders if (found := PulledFolder.find(f)))
    tensors = sum(pulled.fact(name).size_bytes for name in pulled.here)
    small = sum(
        file.stat().st_size
        for file in folder.iterdir()
        if file.suffix != ".safetensors" and not file.name.startswith(".")
    )
    return Row(
        "3 of 30 layers, from a name on the chain to SERVING on a host",
        f"≤ {MOST_BYTES:g} of their tensors and the small files",
        f"{came / (tensors + small):.4f}: {came / 2**20:.2f} MiB with all that the host heard",
        "-",
        f"{tensors / 2**20:.2f} MiB of tensors, {small / 2**20:.2f} of small files",
        came <= MOST_BYTES * (tensors + small),
    )


def _account(index: int) -> Signer:
    return Signer(secret_from_phrase(DEVNET_PHRASE, index), chain_id=CHAIN_ID)


@contextmanager
def _chain(person: Person, states: Path) -> Iterator[None]:
    argv = ["ip", "netns", "exec", person.namespace, str(find_anvil()), "--silent"]
    argv += ["--mixed-mining", "--hardfork=prague", "--host=0.0.0.0", "--port=8545"]
    argv += ["--block-time=1", f"--chain-id={CHAIN_ID}", "--accounts=12", *old_states_in(states)]
    states.mkdir()
    running = subprocess.Popen(argv)
    try:
        person.waits(_answers(person, "http://127.0.0.1:8545"))
        yield
    finally:
        running.kill()
        running.wait()


async def _money(rpc_url: str) -> str:
    """A token that everybody who takes part has; its address."""
    chain, bank = RpcChain(rpc_url, CHAIN_ID, {}), _account(BANK)
    token = await chain.deploy(bank, "TestUSD", bank.address)
    for index in (DEPLOYER, *MINERS, REQUESTER):
        await chain.transact(bank, "TestUSD", "mint", _account(index).address, 1000 * USD)
    await chain.close()
    return token


async def _earned(rpc_url: str, contracts: dict[str, str]) -> list[int]:
    """What each machine has earned, in nano units of the token."""
    chain = RpcChain(rpc_url, CHAIN_ID, contracts)
    found = []
    for index in MINERS:
        account = _account(index).address
        operators = await chain.read("MinerRegistry", "operatorsOf", account)
        pay = [(await chain.read("Escrow", "nanoOf", one))["earned"] for one in operators]
        found.append(sum(pay))
    await chain.close()
    return found


def _write_parameters(path: Path, matcher_url: str) -> None:
    owner, guardian, fees, matcher = (_account(i).address for i in (OWNER, GUARDIAN, FEES, MATCHER))
    path.write_text(
        f'name = "riverside"\nchain_id = {CHAIN_ID}\npreset = "devnet"\n'
        f'owner = "{owner}"\nguardian = "{guardian}"\nfee_recipient = "{fees}"\n'
        f'[[matchers]]\naddress = "{matcher}"\nurl = "{matcher_url}"\n'
    )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


def _get(person: Person, url: str) -> Any:
    """What a URL answers at a person's host, None where it does not."""

    def ask() -> Any:
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            return error.read()
        except (urllib.error.URLError, OSError):
            return None

    return at(person.namespace, ask)


def _answers(person: Person, url: str) -> Callable[[], bool]:
    return lambda: _get(person, url) is not None


def _serves(person: Person) -> bool:
    """Whether the page of the miner on this host says SERVING."""
    url = _note(person).get("url")
    found = url and _get(person, f"{url}/status")
    return bool(found) and json.loads(found).get("state") == "SERVING"


def _note(person: Person) -> dict[str, Any]:
    """What the miner on this host has written of itself for its commands; empty before."""
    return next((json.loads(f.read_text()) for f in person.home.rglob("daemon.json")), {})


def _is_covered(person: Person, matcher_url: str) -> bool:
    found = _get(person, f"{matcher_url}/v1/models")
    return found is not None and any(m["covered"] for m in json.loads(found)["models"])
