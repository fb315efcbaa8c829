"""Which worlds is the scheduler measured on?"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from scheduler.fleet.files import read_cluster, read_fleet, read_placement
from scheduler.fleet.fleet import Fleet, ModelShape, Placement

DATA = Path(__file__).parent.parent / "data"
#: Larger data that is not carried along; the recipes below stand in where it is missing.
SHARED = Path(__file__).parents[3] / "shared" / "data"
T = TypeVar("T")


def cluster(name: str, model: str = "llama-70b") -> tuple[Fleet, ModelShape]:
    """One of Helix's clusters: single24, geo24 or het42."""
    document = json.loads((DATA / "clusters" / f"{name}.json").read_text())
    return read_cluster(document, json.loads((DATA / "gpu_profiles.json").read_text()), model)


def shipped_placement(name: str, method: str, model: ModelShape) -> tuple[Placement, float]:
    """A placement that Helix ships (helix, petals, swarm) and its max flow without partial
    inference.
    """
    document = json.loads((DATA / "placements.json").read_text())
    found = document["clusters"][name]["placements"][method]
    return read_placement(found["layers"], model), float(found["max_flow_tokens_per_s"])


@cache
def mixed_fleet(nodes: int) -> dict[str, Any]:
    """A mixed `fleet/1` document of that many nodes: the published one where present, else by its
    recipe.
    """
    for folder in (DATA, SHARED):
        published = folder / "fleets" / f"mixed_{nodes}.json"
        if published.exists():
            document: dict[str, Any] = json.loads(published.read_text())
            return document
    return recipe_fleet(nodes)


def recipe_fleet(nodes: int) -> dict[str, Any]:
    """The recipe of the mixed fleets, seeded by the number of nodes: the same everywhere, not the
    published draw.
    """
    draw = random.Random(nodes)
    cards = {
        "RTX4090": (24, 82.6, 1008.0),
        "RTX5090": (32, 104.8, 1792.0),
        "A100": (80, 312.0, 2039.0),
        "H100": (80, 989.0, 3350.0),
        "L4": (24, 121.0, 300.0),
        "T4": (16, 65.0, 320.0),
    }
    kinds = draw.choices(list(cards), (30, 15, 10, 5, 20, 20), k=nodes)
    regions = ("us-west", "us-east", "eu", "asia")
    between = ((5, 32, 70, 55), (32, 5, 40, 85), (70, 40, 5, 95), (55, 85, 95, 5))
    return {
        "schema": "fleet/1",
        "id": f"mixed_{nodes}",
        "columns": [
            "id",
            "gpu",
            "memory_gib",
            "tflops_fp16",
            "bandwidth_gb_s",
            "region",
            "access_ms",
        ],
        "nodes": [
            [f"n{i:05}", kind, *cards[kind], draw.choice(regions), round(draw.uniform(1, 9), 2)]
            for i, kind in enumerate(kinds)
        ],
        "region_latency_ms": {
            a: {b: float(between[i][j]) for j, b in enumerate(regions)}
            for i, a in enumerate(regions)
        },
        "models": {
            "32b": {
                "layers": 64,
                "hidden": 5120,
                "intermediate": 25600,
                "heads": 64,
                "kv_heads": 8,
                "head_dim": 128,
                "vocab": 151936,
                "param_bytes": 2.0,
                "kv_bytes": 2,
                "embed_bytes": 2,
                "layer_bytes": 975175680,
                "embedding_bytes": 1555824640,
            },
            "70b": {
                "layers": 80,
                "hidden": 8192,
                "intermediate": 28672,
                "heads": 64,
                "kv_heads": 8,
                "head_dim": 128,
                "vocab": 128256,
                "param_bytes": 2.0,
                "kv_bytes": 2,
                "embed_bytes": 2,
                "layer_bytes": 1711276032,
                "embedding_bytes": 2101346304,
            },
        },
    }


@cache
def mixed(nodes: int, model: str) -> tuple[Fleet, ModelShape]:
    """The mixed fleet as a world, for "32b" or "70b"."""
    return read_fleet(mixed_fleet(nodes), model)


def median_ms(call: Callable[[], T], times: int = 5) -> tuple[float, T]:
    """Median wall time of a call in ms, after one unmeasured call, and what it returned."""
    result = call()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        result = call()
        taken.append((time.perf_counter() - start) * 1e3)
    return median(taken), result
