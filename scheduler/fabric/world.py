"""Which types of GPU are there, and what do the models on them ask for (LLMFabric §3.3)?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.fleet.costs import Position, end_bytes
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import ModelShape
from scheduler.fleet.numbers import check_number, check_whole
from scheduler.fleet.workload import Workload

#: ψ_TP that are tried; only those that divide a node, so that whatever C1 allows also fits into
#: nodes.
TENSOR_DEGREES = (1, 2, 4, 8)
#: GPUs of one type at most.
MOST_GPUS = 2**20 - 1


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
            check_number(f"{name} efficiency", getattr(self, name), most=1)
        for name in ("kernel_us", "all_reduce_us", "step_ms"):
            check_number(name, getattr(self, name), least=0)
        check_whole("kernels_per_layer", self.kernels_per_layer)
        for name in ("token_budget", "max_sequences"):
            check_whole(name, getattr(self, name), least=1)


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
            check_number(f"GPU type {self.name}: {name}", getattr(self, name))
        check_whole(f"GPU type {self.name}: count", self.count, most=MOST_GPUS)
        for name in ("memory_bytes", "gpus_per_node"):
            check_whole(f"GPU type {self.name}: {name}", getattr(self, name), least=1)

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
        check_number(f"model {self.name}: bytes_per_parameter", self.bytes_per_parameter, most=8)
        if self.kv_heads is not None:
            check_whole(f"model {self.name}: kv_heads", self.kv_heads, least=1)
        for name in ("slo_ms", "weight"):
            if getattr(self, name) is not None:
                check_number(f"model {self.name}: {name}", getattr(self, name))

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
