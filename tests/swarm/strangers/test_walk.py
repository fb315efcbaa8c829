"""The walk of `docs/models.md`: served in parts by three hosts, bought by name, a lie caught."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import httpx2

from core.engine.weights.pulled import PulledFolder
from core.engine.weights.store import pulled_path
from core.models.pull import layers_of
from core.models.registering import give_name
from core.protocol.errors import CheckFailed
from core.protocol.types import LayerRange
from devnet.accounts import signer_of
from devnet.network import MinerProfile
from devnet.ports import free_ports
from tests.swarm.strangers.conftest import APART, NEWCOMER
from tests.swarm.world import (
    MARKS,
    MODEL,
    SERVE_WITHIN_S,
    WITHIN_S,
    World,
    answers_in,
    prompt,
    until,
)

pytestmark = MARKS


def pulled_by(world: World, party: str) -> PulledFolder:
    """What a party has of the model, in a cache of its own."""
    cache = world.net.layout.home(party) / "cache"
    assert cache.is_dir() and not cache.is_symlink()
    return PulledFolder(pulled_path(world.net.model_id, cache))


def held_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir())


async def test_each_host_has_its_own_layers_and_no_others(world: World) -> None:
    for party, profile in APART.items():
        assert profile.layers is not None
        pulled = pulled_by(world, party)
        wanted = layers_of(pulled.model_dir, pulled.manifest, LayerRange(*profile.layers))
        assert pulled.here == set(wanted), party
        assert held_bytes(pulled.model_dir) < sum(
            f.size_bytes for f in pulled.manifest.files.values()
        )


async def test_a_newcomer_pulls_from_the_others_when_the_publisher_is_gone(world: World) -> None:
    """Its layers lie with two hosts. An auditor without stake gets some of them too."""
    (nobody,) = free_ports(1)
    publisher, places = signer_of("deployer"), [f"http://127.0.0.1:{nobody}/"]
    await give_name(world.chain, publisher, world.net.model_id, MODEL, places)
    layers = LayerRange(2, 5)
    await world.net.register_miner(NEWCOMER, "500usd")
    profile = MinerProfile("1GiB", layers=(layers.start, layers.end))
    running = await world.net.start_miner(NEWCOMER, profile)

    async def serves() -> bool:
        with suppress(AssertionError, httpx2.HTTPError):
            return bool((await world.status_of(NEWCOMER))["state"] == "SERVING")
        return False

    await until(serves, within_s=SERVE_WITHIN_S, what="the newcomer serves")
    pulled = pulled_by(world, NEWCOMER)
    assert pulled.here == set(layers_of(pulled.model_dir, pulled.manifest, layers))
    await world.run(NEWCOMER, "miner", "drain", "--within", "5")

    async def has_left() -> bool:
        return not running.is_alive

    await until(has_left, within_s=WITHIN_S, what="the newcomer has left")
    await world.run("auditor-1", "auditor", "models", "pull", MODEL, "--layers", "6:7", "--json")
    pulled = pulled_by(world, "auditor-1")
    assert pulled.here == set(layers_of(pulled.model_dir, pulled.manifest, LayerRange(6, 7)))


async def test_an_answer_is_bought_by_name_and_the_lie_in_it_is_caught(world: World) -> None:
    name = f"{signer_of('deployer').address}/{MODEL}"
    file = world.requests("bought", [prompt("q", "Why is the sky blue?", 8)])
    done, out = await world.submit(file, "--model", name)
    assert answers_in(out)["q"]
    bought = pulled_by(world, "requester-1")
    assert bought.here == frozenset(), "words need the tokenizer alone"

    job = done.result["jobs"][0]
    (seen,) = await world.jobs_of(done.result)
    liar = seen.plan[1].operator
    assert await world.party_of(liar) == "miner-2"
    await world.run("requester-1", "auditor", "check", job, "--json", expect=CheckFailed.exit_code)
    assert pulled_by(world, "requester-1").here, "an auditor fetches what it looks at"

    played = await world.run(
        "requester-1", "auditor", "dispute", job, "--yes", "--json", within_s=300.0
    )
    found = played.result
    assert (found["stage"], found["accused"]) == (1, world.net.addresses["miner-2"])
    assert found["verdict"].startswith("fault: all stake"), found
