"""What machines, links and model is a plan made for?

Everything here is an immutable value whose constructor refuses absurd numbers (NaN, negative,
duplicate ids) with a FleetError, so the planner itself never meets them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeAlias

from core.protocol.types import LayerRange
from scheduler.fleet.errors import FleetError
from scheduler.fleet.numbers import LARGEST, SMALLEST, check_number, check_whole
from scheduler.fleet.profile import Profile

#: One-way latency assumed between machines while nobody has measured anything.
UNMEASURED_RHO_MS = 50.0


class Located(Protocol):
    """Anything a link can lead to: a machine, or the coordinator that feeds the pipelines."""

    @property
    def id(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def access_ms(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Where requests start and tokens end: links to and from it carry tokens, not activations."""

    id: str = "coordinator"
    region: str = ""
    access_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine g_i as it announced itself.

    ``weight_fraction`` and ``kv_fraction`` are the shares of its memory kept for weights and for KV
    cache; ``overhead_bytes`` is what the runtime takes besides (activations, graphs). ``tflops`` is
    effective, not peak. ``tau_ms_per_layer`` is the measured time of one layer for ``tau_batch``
    sequences, None before the first measurement. ``kv_tokens`` is the announced room in tokens over
    all layers it holds, None to derive it. ``access_ms`` is its own share of every hop's latency
    when links are given by region. ``stability`` is the share of time it has been there. ``kind``
    names its hardware for reports. ``profile``, where measured, replaces the roofline and the
    capacity formula.
    """

    id: str
    memory_bytes: int
    tflops: float
    bandwidth_gb_s: float
    region: str = ""
    weight_fraction: float = 0.65
    kv_fraction: float = 0.25
    overhead_bytes: int = 0
    max_concurrent: int = 16
    tau_ms_per_layer: float | None = None
    tau_batch: int = 1
    kv_tokens: int | None = None
    access_ms: float = 0.0
    stability: float = 1.0
    kind: str = ""
    profile: Profile | None = None

    def __post_init__(self) -> None:
        if not self.id:
            raise FleetError("a machine without an id")
        for name, value in (("tflops", self.tflops), ("bandwidth_gb_s", self.bandwidth_gb_s)):
            if not SMALLEST <= value <= LARGEST:
                raise FleetError(f"machine {self.id}: {name} is {value}, no such machine exists")
        for name, share in (
            ("weight_fraction", self.weight_fraction),
            ("kv_fraction", self.kv_fraction),
            ("stability", self.stability),
        ):
            if not 0 <= share <= 1:
                raise FleetError(f"machine {self.id}: {name} is {share}, not in [0, 1]")
        for name, count in (
            ("memory_bytes", self.memory_bytes),
            ("overhead_bytes", self.overhead_bytes),
            ("max_concurrent", self.max_concurrent),
            ("kv_tokens", self.kv_tokens or 0),
        ):
            if not 0 <= count < 2**62:
                raise FleetError(f"machine {self.id}: {name} is {count}, not in [0, 2^62)")
        if not 0 <= self.access_ms <= LARGEST:
            raise FleetError(f"machine {self.id}: access_ms is {self.access_ms}")
        tau = self.tau_ms_per_layer
        if tau is not None and not SMALLEST <= tau <= LARGEST:
            raise FleetError(f"machine {self.id}: tau_ms_per_layer is {tau}, no such time exists")
        if not 1 <= self.tau_batch <= LARGEST:
            raise FleetError(f"machine {self.id}: tau_batch is {self.tau_batch}")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model weighs and costs. All transformer layers count alike.

    ``head_bytes`` is the output projection as the last stage loads it. A ``tied`` model shares one
    table between both ends: separate first and last stages each load it, a single stage loads it
    once. A mixture of experts has ``experts`` of ``expert_bytes`` in every layer (part of
    ``layer_bytes``), of which a token visits ``experts_per_token``; ``flops_per_layer_per_token``
    counts only those.
    """

    layers: int
    layer_bytes: int
    embedding_bytes: int
    head_bytes: int
    tied: bool
    hidden: int
    flops_per_layer_per_token: float
    attention_flops_per_context_token: float = 0.0
    head_flops_per_token: float = 0.0
    kv_bytes_per_token_per_layer: int = 0
    activation_bytes_per_token: int = 0
    token_bytes: int = 4
    experts: int = 0
    experts_per_token: int = 0
    expert_bytes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.layers < 2**16:
            raise FleetError(f"a model of {self.layers} layers")
        if self.layer_bytes < 1 or self.hidden < 1:
            raise FleetError(
                f"layer_bytes {self.layer_bytes}, hidden {self.hidden}: must be above 0"
            )
        for name in (
            "embedding_bytes",
            "head_bytes",
            "flops_per_layer_per_token",
            "attention_flops_per_context_token",
            "head_flops_per_token",
            "kv_bytes_per_token_per_layer",
            "activation_bytes_per_token",
            "token_bytes",
            "experts",
            "experts_per_token",
            "expert_bytes",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise FleetError(f"{name} is {value}, must not be negative")
        if self.experts_per_token > self.experts:
            raise FleetError(f"{self.experts_per_token} of {self.experts} experts per token")
        if self.experts * self.expert_bytes > self.layer_bytes:
            raise FleetError(f"{self.experts} experts of {self.expert_bytes} bytes exceed a layer")
        if self.tied and self.head_bytes != self.embedding_bytes:
            raise FleetError(
                f"a tied model has one table, not {self.embedding_bytes} and {self.head_bytes} "
                "bytes"
            )

    @classmethod
    def dense(
        cls,
        *,
        layers: int,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        vocab: int,
        tied: bool,
        head_dim: int | None = None,
        bytes_per_parameter: float = 2.0,
        kv_bytes_per_value: int = 2,
        activation_bytes_per_value: int = 2,
        layer_bytes: int | None = None,
        experts: int = 0,
        experts_per_token: int = 0,
        expert_intermediate: int = 0,
    ) -> ModelShape:
        """Shape of a decoder with gated MLPs; ``layer_bytes`` overrides what is counted.

        With ``experts``, ``intermediate`` is the MLP every token visits (0 if none) and
        ``expert_intermediate`` that of one expert. Raises FleetError naming a number that is
        absurd.
        """
        for name, value, least in (
            ("layers", layers, 1),
            ("hidden", hidden, 1),
            ("intermediate", intermediate, 0),
            ("heads", heads, 1),
            ("kv_heads", kv_heads, 0),
            ("vocab", vocab, 1),
            ("head_dim", 0 if head_dim is None else head_dim, 0),
            ("kv_bytes_per_value", kv_bytes_per_value, 0),
            ("activation_bytes_per_value", activation_bytes_per_value, 0),
            ("experts", experts, 0),
            ("experts_per_token", experts_per_token, 0),
            ("expert_intermediate", expert_intermediate, 0),
        ):
            check_whole(name, value, least, 2**31)
        check_whole("layer_bytes", 0 if layer_bytes is None else layer_bytes)
        check_number("bytes_per_parameter", bytes_per_parameter)
        if not isinstance(tied, bool):
            raise FleetError(f"tied is {tied!r}, not true or false")
        head_dim = head_dim or hidden // heads
        q, kv = heads * head_dim, 2 * kv_heads * head_dim
        shared = 2 * hidden * q + hidden * kv + 3 * hidden * intermediate
        expert = 3 * hidden * expert_intermediate if experts else 0
        parameters = shared + experts * expert
        table = math.ceil(vocab * hidden * bytes_per_parameter)
        return cls(
            layers=layers,
            layer_bytes=layer_bytes or math.ceil(parameters * bytes_per_parameter),
            embedding_bytes=table,
            head_bytes=table,
            tied=tied,
            hidden=hidden,
            flops_per_layer_per_token=2.0 * (shared + experts_per_token * expert),
            attention_flops_per_context_token=4.0 * q,
            head_flops_per_token=2.0 * vocab * hidden,
            kv_bytes_per_token_per_layer=kv * kv_bytes_per_value,
            activation_bytes_per_token=hidden * activation_bytes_per_value,
            experts=experts,
            experts_per_token=experts_per_token,
            expert_bytes=math.floor(expert * bytes_per_parameter),
        )


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a connection: ρ and any known bandwidth. Infinite latency: none at all."""

    latency_ms: float
    bandwidth_mbit_s: float | None = None

    def __post_init__(self) -> None:
        if math.isnan(self.latency_ms) or self.latency_ms < 0:
            raise FleetError(f"a link of {self.latency_ms} ms")
        bandwidth = self.bandwidth_mbit_s
        if bandwidth is not None and not bandwidth > 0:
            raise FleetError(f"a link of {bandwidth} Mbit/s")


@dataclass(frozen=True)
class Links:
    """One-way latencies ρ(g, g′), measured by pair or, failing that, factored by region.

    Looked up in this order: the pair, the reverse pair, region to region plus both machines'
    ``access_ms``, then ``default_ms`` with ``default_mbit_s``. When nothing answers, the two
    machines cannot reach each other.
    """

    pairs: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    regions: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    default_ms: float | None = None
    default_mbit_s: float | None = None

    def between(self, a: Located, b: Located) -> Link | None:
        """The link a → b, or None when b cannot be reached from a."""
        if a.id == b.id:
            return Link(0.0)
        link = self.pairs.get((a.id, b.id)) or self.pairs.get((b.id, a.id))
        if link is None:
            region = self.regions.get((a.region, b.region)) or self.regions.get(
                (b.region, a.region)
            )
            if region is not None:
                latency_ms = region.latency_ms + a.access_ms + b.access_ms
                link = Link(latency_ms, region.bandwidth_mbit_s)
            elif self.default_ms is not None:
                link = Link(self.default_ms, self.default_mbit_s)
        return None if link is None or math.isinf(link.latency_ms) else link

    def rho_ms(self, a: Located, b: Located) -> float:
        """ρ(a, b) in milliseconds, infinite when b cannot be reached from a."""
        link = self.between(a, b)
        return math.inf if link is None else link.latency_ms


@dataclass(frozen=True)
class Fleet:
    """The machines G, kept in order of id so that input order never matters, and their links.

    ``coordinator`` is where a flow starts and ends; None where requests come from everywhere.
    """

    machines: tuple[Machine, ...]
    links: Links = field(default_factory=lambda: Links(default_ms=UNMEASURED_RHO_MS))
    coordinator: Coordinator | None = None

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.machines, key=lambda machine: machine.id))
        for a, b in pairwise(ordered):
            if a.id == b.id:
                raise FleetError(f"machine {a.id} is listed twice")
        object.__setattr__(self, "machines", ordered)

    @cached_property
    def by_id(self) -> Mapping[str, Machine]:
        return {machine.id: machine for machine in self.machines}

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """R, the regions in order of name."""
        return tuple(sorted({machine.region for machine in self.machines}))

    def subset(self, machines: Iterable[Machine]) -> Fleet:
        """The same links over fewer machines."""
        return Fleet(tuple(machines), self.links, self.coordinator)


class Shard(NamedTuple):
    """The layers of the model that one machine holds."""

    machine_id: str
    layers: LayerRange


#: Ordered stages that cover [0, L) once.
Pipeline: TypeAlias = tuple[Shard, ...]
#: Who holds what, at most one shard a machine, in order of layers; chains over it are chosen per
#: request.
Placement: TypeAlias = tuple[Shard, ...]


def in_layer_order(shards: Iterable[Shard]) -> Placement:
    """Shards as a placement lists them: by layers, then by machine."""
    return tuple(sorted(shards, key=lambda shard: (shard.layers, shard.machine_id)))


def consecutive(machines: Sequence[Machine], counts: Sequence[int]) -> Pipeline:
    """A pipeline of these machines in this order, with these numbers of layers from layer 0 on."""
    stages, cursor = list[Shard](), 0
    for machine, count in zip(machines, counts, strict=True):
        stages.append(Shard(machine.id, LayerRange(cursor, cursor + count)))
        cursor += count
    return tuple(stages)
