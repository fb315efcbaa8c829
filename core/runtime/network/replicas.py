"""Which nodes of the swarm keep a topic, and how are they told and asked without a search?

hivemind searches for the nodes nearest to a topic whenever it stores or looks something up: it asks
twenty or more, and each answers with all that it keeps of the topic. Who is nearest changes seldom.
So they are searched for once in a while, and told and asked directly.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.runtime.slowing import Slowing

#: Nodes that keep a topic, and how many of them a look asks.
REPLICAS, ASKED = 5, 2


@dataclass
class _Nearest:
    """The nodes that were nearest to a topic when they were last searched for."""

    peers: list[Any] = field(default_factory=list)
    search: Slowing = field(default_factory=Slowing)


class Replicas:
    """Records of topics, where hivemind would store them and find them."""

    def __init__(
        self,
        node: Any,
        *,
        keeps: bool,
        monotonic: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """`keeps`: whether this node keeps records of others, as those that can be dialled do."""
        self._node, self._keeps, self._monotonic = node, keeps, monotonic
        self._rng = rng or random.Random()
        self._nearest: dict[Any, _Nearest] = defaultdict(_Nearest)

    async def store(self, topic: str, key: str, record: bytes, expires_at_s: float) -> bool:
        """Whether one of them has it. Where one does not answer, they are searched for anew."""
        from hivemind.dht.routing import DHTID

        at = DHTID.generate(source=topic)
        value = self._node.protocol.serializer.dumps(record)
        peers = await self._near([at])
        answers = await asyncio.gather(
            *(self._store_at(peer, at, key, value, expires_at_s) for peer in peers[at])
        )
        if None in answers or not answers:
            self._nearest[at].search.hurry()
        return any(answers)

    async def find(self, topics: Sequence[str]) -> list[Any]:
        """What some of them have of these topics: dictionaries of values with their expiry."""
        from hivemind.dht.routing import DHTID

        ids = [DHTID.generate(source=topic) for topic in topics]
        asked = defaultdict[Any, list[Any]](list)
        for at, peers in (await self._near(ids)).items():
            for peer in self._rng.sample(peers, min(ASKED, len(peers))):
                asked[peer].append(at)
        own = asked.pop(self._node.peer_id, [])
        here = [self._node.protocol.storage.get(at) for at in own]
        protocol = self._node.protocol
        answers = await asyncio.gather(*(protocol.call_find(*one) for one in asked.items()))
        for peer, answer in zip(asked, answers, strict=True):
            if answer is None:
                for at in asked[peer]:
                    self._nearest[at].search.hurry()
        there = [found for answer in answers if answer for found, _ in answer.values()]
        return [found.value for found in (*here, *there) if found]

    async def _near(self, ids: Sequence[Any]) -> dict[Any, list[Any]]:
        """By topic the nodes that are nearest to it, as of their last search."""
        now_s = self._monotonic()
        due = [at for at in ids if self._nearest[at].search.due_s <= now_s]
        if due:
            found = await self._node.find_nearest_nodes(
                due, k_nearest=REPLICAS, exclude_self=not self._keeps
            )
            for at in due:
                near, peers = self._nearest[at], list(found[at].values())
                near.search.looked(self._monotonic(), is_same=set(peers) == set(near.peers))
                near.peers = peers
        return {at: self._nearest[at].peers for at in ids}

    async def _store_at(
        self, peer: Any, at: Any, key: str, value: bytes, expires_at_s: float
    ) -> bool | None:
        """Whether a node took it; None where it does not answer."""
        protocol = self._node.protocol
        if peer == self._node.peer_id:
            return bool(self._store_here(at, key, value, expires_at_s))
        answer = await protocol.call_store(peer, [at], [value], expires_at_s, [key])
        return answer[0] if answer else None

    def _store_here(self, at: Any, key: str, value: bytes, expires_at_s: float) -> bool:
        from hivemind.dht.validation import DHTRecord

        protocol = self._node.protocol
        record = DHTRecord(at.to_bytes(), protocol.serializer.dumps(key), value, expires_at_s)
        check = protocol.record_validator
        if check is not None and not check.validate(record):
            return False
        return bool(protocol.storage.store(at, value, expires_at_s, subkey=key))
