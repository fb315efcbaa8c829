"""Which types of GPU are there, and what do the models on them ask for (LLMFabric §3.3)?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.fleet.costs import Position, end_bytes
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import LARGEST, SMALLEST, ModelShape
from scheduler.fleet.workload import Workload

#: ψ_TP that are tried; only those that divide a node, so that whatever C1 allows also fits into
#: nodes.
TENSOR_DEGREES = (1, 2, 4, 8)


class NeedsChain(FleetError):
    """A model that no node holds: it needs a pipeline over several, which is not placed here."""


class Overloaded(FleetError):
    """No placement under C1–C3 serves the load; one serves its share ``load_factor``."""

    def __init__(self, text: str, load_factor: float) -> None:
        super().__init__(text)
        self.load_factor = load_factor


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How far real kernels stay below the peaks, and what a step costs besides.

    Shares of peak reached: ``compute``, ``bandwidth`` of memory, ``interconnect``. ``memory`` is
    the share of a GPU's memory that the engine takes, ``kv_high_water`` the share of the KV room
    that may be full on average. ``token_budget`` and ``max_sequences`` bound one iteration's prompt
    tokens and running requests.
    """

    compute: float = 0.55
    bandwidth: float = 0.8
    interconnect: float = 0.7
    kernel_us: float = 4.0
    kernels_per_layer: int = 10
    all_reduce_us: float = 10.0
    step_ms: float = 1.0
    memory: float = 0.9
    kv_high_water: float = 0.9
    token_budget: int = 8192
    max_sequences: int = 256

    def __post_init__(self) -> None:
        for name in ("compute", "bandwidth", "interconnect", "memory", "kv_high_water"):
            if not 0 < getattr(self, name) <= 1:
                raise FleetError(f"{name} efficiency is {getattr(self, name)}, not in (0, 1]")
        for name in ("kernel_us", "kernels_per_layer", "all_reduce_us", "step_ms"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise FleetError(f"{name} is {getattr(self, name)}, must not be negative")
        if self.token_budget < 1 or self.max_sequences < 1:
            raise FleetError("token_budget and max_sequences must be at least 1")


@dataclass(frozen=True, slots=True)
class GpuType:
    """d_n GPUs of type n with peak figures; ``interconnect_gb_s`` is one GPU's, one way."""

    name: str
    count: int
    memory_bytes: int
    tflops: float
    bandwidth_gb_s: float
    interconnect_gb_s: float = 25.0
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        if not self.name:
            raise FleetError("a GPU type without a name")
        for name in ("tflops", "bandwidth_gb_s", "interconnect_gb_s"):
            if not SMALLEST <= getattr(self, name) <= LARGEST:
                raise FleetError(f"GPU type {self.name}: {name} is {getattr(self, name)}")
        if not 0 <= self.count < 2**20 or self.gpus_per_node < 1 or self.memory_bytes < 0:
            raise FleetError(
                f"GPU type {self.name}: count {self.count}, memory_bytes {self.memory_bytes}, "
                f"gpus_per_node {self.gpus_per_node}"
            )

    @property
    def tensor_degrees(self) -> tuple[int, ...]:
        """The ψ_TP that fit into one node of this type."""
        most = min(self.count, self.gpus_per_node)
        return tuple(t for t in TENSOR_DEGREES if t <= most and self.gpus_per_node % t == 0)


@dataclass(frozen=True, slots=True)
class Demand:
    """One model m and its workload w_m = ⟨λ, μ_in, μ_out⟩.

    ``bytes_per_parameter`` is how its weights are stored (2 for 16 bits). ``kv_heads`` limits how
    far KV cache is divided by tensor parallelism, None when it always divides. ``slo_ms`` bounds
    the mean time of a request where the objective asks for it; ``weight`` counts in the weighted
    sum, None for its rate.
    """

    name: str
    shape: ModelShape
    workload: Workload
    bytes_per_parameter: float = 2.0
    kv_heads: int | None = None
    slo_ms: float | None = None
    weight: float | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise FleetError("a model without a name")
        if self.workload.requests_per_s is None:
            raise FleetError(f"model {self.name}: its rate of requests must be given")
        if not 0 < self.bytes_per_parameter <= 8:
            raise FleetError(f"model {self.name}: {self.bytes_per_parameter} bytes per parameter")
        for name in ("kv_heads", "slo_ms", "weight"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise FleetError(f"model {self.name}: {name} is {value}, must be above 0")

    @property
    def requests_per_s(self) -> float:
        """λ."""
        return self.workload.requests_per_s or 0.0

    @property
    def weight_bytes(self) -> int:
        """All weights, tables included."""
        shape = self.shape
        return shape.layers * shape.layer_bytes + end_bytes(shape, Position.BOTH)


class Group(NamedTuple):
    """⟨ψ_DP, ψ_TP⟩ of one model on one GPU type: ``replicas`` copies over ``tensor`` GPUs each."""

    gpu: str
    tensor: int
    replicas: int

    @property
    def gpus(self) -> int:
        """a_{m,n} = ψ_DP × ψ_TP (C3)."""
        return self.tensor * self.replicas


def check_world(types: Sequence[GpuType], demands: Sequence[Demand]) -> None:
    """Raise FleetError when a name appears twice or there is nothing to place."""
    if not demands:
        raise FleetError("no model to place")
    for what, names in (
        ("GPU type", [gpu.name for gpu in types]),
        ("model", [demand.name for demand in demands]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise FleetError(f"{what} {name} is listed twice")
