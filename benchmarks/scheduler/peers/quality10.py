"""The 10-node cluster on which Helix judges its solver's quality, and how its authors set T(k) up
by hand.
"""

from __future__ import annotations

import json

from benchmarks.scheduler.peers.token_rates import AS_PUBLISHED, with_token_rates
from benchmarks.scheduler.worlds import DATA
from core.protocol.types import LayerRange
from scheduler.fleet.files import read_cluster
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard

#: Layers that Helix takes a machine of a kind to hold, where the cluster has room to spare and
#: where it has not.
TYPICAL_LAYERS = {
    "llama-70b": {"A100": 8, "V100": 3, "L4": 4, "L4x2": 9, "T4": 3, "T4x2": 6, "T4x4": 12},
    "llama-30b": {"A100": 12, "V100": 4, "L4": 8, "L4x2": 14, "T4": 4, "T4x2": 10, "T4x4": 20},
}
#: The speeds its ten rounds start from.
FIRST_SPEEDS = {
    "llama-70b": {"A100": 80, "V100": 40, "L4": 20, "L4x2": 30, "T4": 12.5, "T4x2": 20, "T4x4": 30},
    "llama-30b": {"A100": 48, "V100": 25, "L4": 9, "L4x2": 15, "T4": 8, "T4x2": 15, "T4x4": 23},
}
#: What Gurobi proved after 3,803 s, tokens/s.
PUBLISHED_OPTIMUM = 286.587


def quality10() -> tuple[Fleet, ModelShape]:
    """4 L4 and 6 T4 with LLaMA-30B, all links 8000 Mbit/s and 1 ms; T(k) derived for just this mix.

    Its nodes hold fewer than 1.2 times the model at the typical layers, so the most layers count as
    typical.
    """
    kinds = ("T4", "L4", "T4", "T4", "L4", "T4", "T4", "T4", "L4", "L4")
    document = {
        "schema": "cluster/1",
        "id": "quality10",
        "model": "llama-30b",
        "coordinator": {"region": "r0"},
        "nodes": [{"id": f"n{i:02}", "gpu": kind, "region": "r0"} for i, kind in enumerate(kinds)],
        "links": [{"a": "r0", "b": "r0", "mbit_s": 8000.0, "latency_ms": 1.0, "per": "node pair"}],
    }
    fleet, model = read_cluster(document, json.loads((DATA / "gpu_profiles.json").read_text()))
    typical = {"L4": 11, "T4": 7}
    speeds = FIRST_SPEEDS["llama-30b"]
    return with_token_rates(fleet, model, AS_PUBLISHED, typical, speeds), model


def published_placement() -> Placement:
    """The placement that Gurobi proved optimal: six layers each."""
    order = ("n07", "n02", "n05", "n03", "n08", "n06", "n01", "n00", "n09", "n04")
    return tuple(Shard(node, LayerRange(6 * i, 6 * i + 6)) for i, node in enumerate(order))
