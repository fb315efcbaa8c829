"""Machines with a tiny model, requesters of them, and a gateway, as in other tests."""

from tests.client.gateway.conftest import client, make_world, world
from tests.client.sessions.conftest import village
from tests.failover.conftest import town
from tests.miner.conftest import chain, model_dir, start

__all__ = [
    "chain",
    "client",
    "make_world",
    "model_dir",
    "start",
    "town",
    "village",
    "world",
]
