"""Machines with a tiny model, as in the tests of the miner."""

from tests.miner.conftest import chain, model_dir, start

__all__ = ["chain", "model_dir", "start"]
