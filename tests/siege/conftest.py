"""Machines with a tiny model, and requesters of them, as in other tests."""

from tests.client.sessions.conftest import village
from tests.failover.conftest import town
from tests.miner.conftest import chain, model_dir, start

__all__ = ["chain", "model_dir", "start", "town", "village"]
