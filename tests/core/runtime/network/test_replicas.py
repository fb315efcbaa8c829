"""Are the nodes that keep a topic told and asked directly, and searched for when one is silent?"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

from core.runtime.network.replicas import ASKED, REPLICAS, Replicas
from core.runtime.slowing import OFTEN_S, SELDOM_S

OURS = "our own node"
TOPIC, OTHER = "headrace/machines/1", "headrace/machines/2"


class Protocol:
    """Nodes by name, each a dictionary of what it keeps."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[Any, dict[str, bytes]]] = {}
        self.silent: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.serializer = SimpleNamespace(dumps=lambda value: value)
        self.record_validator: Any = None
        self.storage = SimpleNamespace(store=self._store_here, get=self._get_here)

    def _store_here(self, at: Any, value: bytes, _: float, subkey: str) -> bool:
        self.kept.setdefault(OURS, {}).setdefault(at, {})[subkey] = value
        return True

    def _get_here(self, at: Any) -> Any:
        found = self.kept.get(OURS, {}).get(at)
        return None if found is None else SimpleNamespace(value=found)

    async def call_store(
        self, peer: str, keys: list[Any], values: list[bytes], _: float, subkeys: list[str]
    ) -> list[bool] | None:
        if peer in self.silent:
            return None
        self.kept.setdefault(peer, {}).setdefault(keys[0], {})[subkeys[0]] = values[0]
        return [True]

    async def call_find(self, peer: str, keys: list[Any]) -> dict[Any, Any] | None:
        self.asked[peer] += 1
        if peer in self.silent:
            return None
        kept = self.kept.get(peer, {})
        return {at: (SimpleNamespace(value=kept[at]) if at in kept else None, {}) for at in keys}


class Node:
    """A node whose searches are counted; `near` is whom each finds."""

    peer_id = OURS

    def __init__(self) -> None:
        self.protocol = Protocol()
        self.near = [f"node {number}" for number in range(REPLICAS)]
        self.searches = 0

    async def find_nearest_nodes(
        self, queries: list[Any], *, k_nearest: int, exclude_self: bool
    ) -> dict[Any, dict[str, str]]:
        self.searches += 1
        return {at: {name: name for name in self.near[:k_nearest]} for at in queries}


class World:
    def __init__(self) -> None:
        self.node, self.now_s = Node(), 0.0
        self.replicas = Replicas(
            self.node, keeps=True, monotonic=lambda: self.now_s, rng=random.Random(1)
        )

    async def store(self, key: str = "a", record: bytes = b"says a") -> bool:
        return await self.replicas.store(TOPIC, key, record, 9e9)

    async def find(self, *topics: str) -> list[dict[str, bytes]]:
        return list(await self.replicas.find(topics))


async def test_they_are_searched_for_seldom_and_all_told() -> None:
    world = World()
    for _ in range(120):
        assert await world.store()
        world.now_s += 1.0
    assert world.node.searches < 120 / SELDOM_S + 6
    assert set(world.node.protocol.kept) == set(world.node.near)


async def test_a_look_asks_some_of_them_and_of_a_topic_that_nobody_has_nothing_comes() -> None:
    world = World()
    await world.store()
    found = await world.find(TOPIC, OTHER)
    assert found == [{"a": b"says a"}] * ASKED
    assert sum(world.node.protocol.asked.values()) <= 2 * ASKED
    asked = Counter[str]()
    for _ in range(100):
        await world.find(TOPIC)
        asked += world.node.protocol.asked
    assert set(asked) == set(world.node.near), "each of them in its turn"


async def test_where_one_is_silent_they_are_searched_for_anew() -> None:
    world = World()
    world.now_s = 100.0
    await world.store()
    before = world.node.searches
    world.node.protocol.silent = {world.node.near[0]}
    assert await world.store(), "the others have it"
    world.node.near = ["a new one", *world.node.near[1:]]
    assert await world.store()
    assert world.node.searches == before + 1
    assert world.node.protocol.kept["a new one"]

    world.node.protocol.silent = set(world.node.near)
    assert not await world.store()
    assert await world.find(TOPIC) == []
    world.now_s += OFTEN_S
    world.node.near = ["another one"]
    await world.store()
    assert await world.find(TOPIC) == [{"a": b"says a"}]


async def test_our_own_node_keeps_what_passes_its_check() -> None:
    world = World()
    world.node.near = [OURS]
    world.node.protocol.record_validator = SimpleNamespace(
        validate=lambda record: record.value == b"good"
    )
    assert not await world.store("a", b"bad")
    assert await world.find(TOPIC) == []
    assert await world.store("a", b"good")
    assert await world.find(TOPIC) == [{"a": b"good"}]
