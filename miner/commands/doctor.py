"""Is everything here that a miner needs, and what is to be done where it is not?

Every check looks for itself; none changes anything.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from core.protocol.errors import ChainUnreachable, HeadraceError, ModelMissing
from core.protocol.units import format_eth
from core.runtime.settings import Settings
from miner.commands.bench import most_layers
from miner.commands.facts import daemon_status, dial, operator_address
from miner.commands.market import ask, model_id_of
from miner.commands.reach import placed, with_peers
from miner.commands.results import Check
from miner.records.home import model_folder

#: Two machines' clocks may differ by the swarm's slack; the chain's newest block is older the
#: slower its blocks.
CLOCK_WARNING_S = 30.0
LEAST_DISK_BYTES = 2**30
#: Gas of claims and defences; an operator with less than this many plain transfers runs dry soon.
LEAST_OPERATOR_WEI = 10**15
_MULTIADDRESS = re.compile(r"/(?:ip4|ip6|dns4|dns6|dns)/([^/]+)/tcp/(\d+)")


async def examine(settings: Settings) -> list[Check]:
    """Every check, in the order in which a miner needs what they look at."""
    found = [*_wallets(settings)]
    found += [check async for check in _chain(settings)]
    found += [check async for check in _model(settings)]
    found.append(await asyncio.to_thread(_compiler))
    found += _machine(settings)
    found += [check async for check in _network(settings)]
    return found


def _ok(check: str, found: str) -> Check:
    return Check(check, "ok", found, "")


def _warning(check: str, found: str, fix: str) -> Check:
    return Check(check, "warning", found, fix)


def _broken(check: str, found: str, fix: str) -> Check:
    return Check(check, "broken", found, fix)


def _wallets(settings: Settings) -> Iterator[Check]:
    from core.keys.keystore import Keystore

    names = {w.name for w in Keystore(settings.wallet.keystore_dir).ls()}
    owner = settings.wallet.name
    if not owner:
        yield _warning("owner wallet", "none is chosen", "miner config set wallet.name NAME")
    elif owner not in names:
        yield _warning(
            "owner wallet",
            f"no '{owner}' in {settings.wallet.keystore_dir}; only needed to register, claim and "
            f"leave",
            f"client wallet new {owner}, or client wallet import {owner}",
        )
    else:
        yield _ok("owner wallet", f"{owner} in {settings.wallet.keystore_dir}")
    operator, problem = operator_address(settings)
    if operator is None:
        yield _broken("operator wallet", problem, "miner register --stake AMOUNT makes it")
    else:
        yield _ok("operator wallet", operator)
    for label, file in (
        ("owner password", settings.wallet.password_file),
        ("operator password", settings.miner.password_file or settings.wallet.password_file),
    ):
        if file is None:
            yield _warning(
                label,
                "will be asked for, so nobody can start it unattended",
                "miner config set miner.password_file FILE",
            )
        elif not file.is_file():
            yield _broken(label, f"{file} does not exist", f"write it, then chmod 600 {file}")
        elif file.stat().st_mode & 0o077:
            yield _broken(label, f"{file} can be read by other users", f"chmod 600 {file}")
        else:
            yield _ok(label, str(file))


async def _chain(settings: Settings) -> AsyncIterator[Check]:
    from miner.commands.registration import ACTIVE, REGISTRY, open_chain

    try:
        chain_id, rpc_url = settings.require_network()
    except HeadraceError as error:
        yield _broken("chain", f"{error.what}: {error.why}", error.next_step)
        return
    try:
        async with open_chain(settings) as chain:
            started = time.perf_counter()
            block = await chain.block_number()
            took_ms = (time.perf_counter() - started) * 1e3
            yield _ok("chain", f"{chain_id}, block {block}, answers in {took_ms:.0f} ms")
            ahead_s = await chain.now() - time.time()
            if abs(ahead_s) > CLOCK_WARNING_S:
                yield _warning(
                    "clock",
                    f"the chain's newest block is {abs(ahead_s):.0f} s "
                    f"{'ahead of' if ahead_s > 0 else 'behind'} this machine",
                    "set the clock (timedatectl set-ntp true); on a test chain that was moved, "
                    "ignore it",
                )
            else:
                yield _ok("clock", f"{abs(ahead_s):.0f} s from the chain's newest block")
            operator, _ = operator_address(settings)
            if operator is None:
                return
            wei = await chain.balance_wei(operator)
            if wei < LEAST_OPERATOR_WEI:
                yield _warning(
                    "fees",
                    f"operator {operator} holds {format_eth(wei)}",
                    f"send it {format_eth(LEAST_OPERATOR_WEI)}: it pays for claims and defences",
                )
            else:
                yield _ok("fees", f"the operator holds {format_eth(wei)}")
            owner = await chain.read(REGISTRY, "ownerOf", operator)
            miner = await chain.read(REGISTRY, "minerOf", owner)
            least, show = await chain.read(REGISTRY, "minStake"), settings.show_token
            if miner["state"] != ACTIVE:
                yield _broken(
                    "stake",
                    "this operator is not registered",
                    f"miner register --stake {show(least)}",
                )
            elif miner["stake"] < least:
                yield _broken(
                    "stake",
                    f"{show(miner['stake'])}, the minimum is {show(least)}",
                    f"miner stake add {show(least - miner['stake'])}",
                )
            elif miner["jailUntil"]:
                yield _broken(
                    "stake",
                    f"in jail, with {miner['strikes']} strikes",
                    "miner unjail, when the time is over",
                )
            else:
                yield _ok("stake", f"{show(miner['stake'])}, the minimum is {show(least)}")
    except ChainUnreachable as error:
        yield _broken(
            "chain", f"{rpc_url}: {error.why}", "check network.rpc_url, or start the node"
        )
    except HeadraceError as error:
        yield _broken("chain", f"{error.what}: {error.why}", error.next_step)


async def _model(settings: Settings) -> AsyncIterator[Check]:
    from core.engine.weights.shape import describe_model
    from miner.records.machine import memory_limit_bytes

    name = settings.miner.model
    try:
        folder = model_folder(settings)
        shape = await asyncio.to_thread(describe_model, folder)
    except ModelMissing as error:
        yield _broken("model files", f"{error.what}; {error.why}", error.next_step)
        return
    except HeadraceError as error:
        yield _broken("model files", f"{error.what}: {error.why}", error.next_step)
        return
    yield _ok(
        "model files", f"{name} in {folder}: {shape.layers} layers, {shape.parameters:,} parameters"
    )
    checks, numerics = await _registered(settings, folder)
    for check in checks:
        yield check
    shape = await asyncio.to_thread(describe_model, folder, numerics)
    limit, whole = memory_limit_bytes(settings), shape.shard_bytes(0, shape.layers)
    fits = most_layers(shape, limit)
    if not fits:
        yield _broken(
            "memory",
            f"not one layer fits into the limit of {limit / 2**20:,.0f} MiB",
            "miner config set miner.memory_limit SIZE",
        )
    else:
        yield _ok(
            "memory",
            f"limit {limit / 2**20:,.0f} MiB holds {fits} of {shape.layers} layers in {numerics}; "
            f"the whole model takes {whole / 2**20:,.0f} MiB",
        )


async def _registered(settings: Settings, folder: Path) -> tuple[list[Check], str]:
    """Whether the files are those that the registry names and its longest requests can be defended,
    and the numerics that it names, float32 where it names none that are known here.
    """
    import msgspec

    from core.engine.weights.formats import FORMATS
    from core.engine.weights.weights import weight_roots
    from core.models.names import numerics_of
    from core.protocol.types import ModelSpec
    from miner.commands.registration import open_chain
    from miner.defence.longest import undefended

    model_id = model_id_of(settings)
    if not (model_id.startswith("0x") and len(model_id) == 66):
        known = ", ".join(sorted(settings.network.models)) or "none"
        network, name = settings.network.name, settings.miner.model
        found = f"network {network} has no model '{name}'; it has {known}"
        return [_broken("model", found, "miner config set miner.model NAME")], "float32"
    try:
        async with open_chain(settings) as chain:
            spec = msgspec.convert(await chain.read("ModelRegistry", "specOf", model_id), ModelSpec)
            longest = await undefended(chain, settings, spec)
        weights = await asyncio.to_thread(weight_roots, folder)
    except HeadraceError as error:
        found = f"cannot be compared with the registry: {error.what}"
        return [_warning("model", found, error.next_step)], "float32"
    numerics = numerics_of(spec) if numerics_of(spec) in FORMATS else "float32"
    if weights.weights_root.lower() != spec.weights_root.lower():
        found = "the files differ from the registered weights"
        return [_broken("model", found, "fetch or unpack the model again")], numerics
    checks = [_ok("model", f"the files are the registered ones, {model_id[:10]}")]
    if longest is not None:
        found = f"{longest:,} tokens can be defended within a turn and on this disk; more are taken"
        checks.append(
            _warning("long requests", found, f"miner config set miner.max_context {longest}")
        )
    return checks, numerics


def _compiler() -> Check:
    from core.engine.native.native import NoKernels, kernels

    try:
        kernels()
    except NoKernels as error:
        return _warning(
            "compiler",
            f"{error}; the engine runs, but slower",
            "install gcc or clang, or name one with HEADRACE_CC",
        )
    return _ok("compiler", "the C kernels compile and load")


def _machine(settings: Settings) -> Iterator[Check]:
    from miner.records.machine import memory_limit_bytes

    available = _available_bytes()
    limit = memory_limit_bytes(settings)
    if available is not None and available < limit:
        yield _warning(
            "free memory",
            f"{available / 2**20:,.0f} MiB are free, the limit is {limit / 2**20:,.0f} MiB",
            "close other programs, or lower miner.memory_limit",
        )
    elif available is not None:
        yield _ok("free memory", f"{available / 2**20:,.0f} MiB")
    folder = settings.folders.state
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        yield _broken(
            "disk", f"{folder} cannot be written", "give this user the right, or set HEADRACE_HOME"
        )
    elif free < LEAST_DISK_BYTES:
        yield _warning(
            "disk",
            f"{free / 2**20:,.0f} MiB are free at {folder}",
            "make room: rows of running jobs are kept for disputes",
        )
    else:
        yield _ok("disk", f"{free / 2**30:,.1f} GiB are free at {folder}")


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found.split()[1]) * 1024


async def _network(settings: Settings) -> AsyncIterator[Check]:
    settings = await asyncio.to_thread(placed, settings)
    daemon, problem = None, ""
    try:
        daemon = await daemon_status(settings)
    except HeadraceError as error:
        problem = f"{error.what}: {error.why}"
    if problem:
        yield _broken("daemon", problem, "miner stop, then miner start")
    elif daemon is None:
        yield _warning("daemon", "not running", "miner start")
        for check in _ports(settings):
            yield check
    else:
        reached, why = await dial(daemon["endpoint"])
        yield _ok("daemon", f"{daemon['state']}, process {daemon['pid']}")
        if reached:
            yield _ok(
                "data port",
                f"{daemon['endpoint']} answers from here; `miner why` knows who else reached it",
            )
        else:
            yield _broken(
                "data port",
                f"{daemon['endpoint']}: {why}",
                "open the port, or set miner.announce_host and miner.announce_port; where neither "
                'can be, miner.reach = "relay"',
            )
    miner = settings.miner
    if miner.reach == "relay":
        yield _ok(
            "announced address",
            f"a circuit through a relay, as {miner.listen_host} is for machines that nobody dials; "
            "it adds its round trip to every step. Where the port can be opened: miner config set "
            "miner.announce_host HOST",
        )
    elif miner.listen_host in ("0.0.0.0", "::") and not miner.announce_host:
        yield _broken(
            "announced address",
            f"it listens on {miner.listen_host}, which nobody can dial",
            "miner config set miner.announce_host HOST",
        )
    elif (miner.announce_host or miner.listen_host) in ("127.0.0.1", "localhost", "::1"):
        yield _warning(
            "announced address",
            "loopback: only machines on this one reach it",
            "miner config set miner.listen_host 0.0.0.0 and miner.announce_host HOST",
        )
    else:
        yield _ok("announced address", miner.announce_host or miner.listen_host)
    try:
        settings = await with_peers(settings)
    except HeadraceError as error:
        yield _broken("swarm", error.why, error.next_step)
    peers = [*settings.network.bootstrap_peers, *miner.peers]
    if not peers and not settings.network.matcher_places:
        yield _warning(
            "swarm",
            "no peers to join through: this machine would be alone",
            "set network.bootstrap_peers, or start with --peers",
        )
    for peer in peers:
        yield await _peer(peer)
    yield await _matcher(settings)


def _ports(settings: Settings) -> Iterator[Check]:
    miner = settings.miner
    for label, host, port in (
        ("data port", miner.listen_host, miner.listen_port),
        ("status port", "127.0.0.1", miner.metrics_port or 0),
    ):
        if not port:
            yield _ok(
                label,
                f"any free one of {host}; behind a firewall, fix it with "
                f"miner.{'listen' if label == 'data port' else 'metrics'}_port",
            )
            continue
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                yield _broken(
                    label,
                    f"{host}:{port}: {error.strerror}",
                    "end what uses it, or choose another port",
                )
                continue
        yield _ok(label, f"{host}:{port} is free")


async def _peer(address: str) -> Check:
    match = _MULTIADDRESS.match(address)
    if match is None:
        return _broken(
            "swarm",
            f"{address} is no multiaddress with a TCP port",
            "write /ip4/HOST/tcp/PORT/p2p/ID",
        )
    reached, why = await dial(f"{match[1]}:{match[2]}")
    where = f"{match[1]}:{match[2]}"
    if reached:
        return _ok("swarm", f"{where} answers")
    return _broken("swarm", f"{where}: {why}", "ask who runs it, or name another peer with --peers")


async def _matcher(settings: Settings) -> Check:
    if not settings.network.matcher_places:
        return _warning(
            "matcher",
            "none is configured: hold layers of your own choice with --layers",
            "miner config set network.matcher_url URL",
        )
    try:
        status = await ask(settings, "/v1/status")
    except HeadraceError as error:
        return _broken("matcher", f"{error.what}: {error.why}", "check network.matcher_url")
    allowed = {who.lower() for who in settings.miner.allow_matchers}
    if allowed and str(status.get("matcher", "")).lower() not in allowed:
        return _broken(
            "matcher",
            f"{status.get('matcher')} is not among miner.allow_matchers",
            "add it, or take work of another matcher",
        )
    ready = "ready" if status.get("ready") else "not ready"
    return _ok(
        "matcher", f"{status.get('matcher')} is {ready} and sees {status.get('machines')} machines"
    )
