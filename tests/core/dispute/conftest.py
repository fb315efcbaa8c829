"""The engine's models and its one thread: traces and judgements are of the same shards."""

from tests.core.engine.conftest import _one_thread, tiny, whole_model

__all__ = ["_one_thread", "tiny", "whole_model"]
