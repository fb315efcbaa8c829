"""Why is a pipeline as fast as it is, and what would make it faster?"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocol.types import LayerRange
from scheduler.fleet.costs import (
    RATE_BATCH,
    capacity,
    hop_ms,
    position_of,
    stage_ms,
    tau_ms_per_layer,
)
from scheduler.fleet.fleet import Fleet, ModelShape, Pipeline


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage: time for a token alone, the hop into it, its rate in full batches, its room."""

    machine_id: str
    layers: LayerRange
    hop_ms: float
    compute_ms: float
    tokens_per_s: float
    spare_layers: int


@dataclass(frozen=True, slots=True)
class PipelineReport:
    """A pipeline: a token's latency, its slowest stage's throughput, and what would help."""

    stages: tuple[StageReport, ...]
    latency_ms: float
    hops_ms: float
    tokens_per_s: float
    bottleneck: str
    advice: str


def explain_pipeline(pipeline: Pipeline, fleet: Fleet, model: ModelShape) -> PipelineReport:
    """Time of each stage and hop, the bottleneck, and the change that would relieve it most."""
    reports: list[StageReport] = []
    previous = None
    for machine_id, layers in pipeline:
        machine = fleet.by_id[machine_id]
        hop = 0.0 if previous is None else hop_ms(fleet.links, previous, machine, model)
        step_ms = stage_ms(machine, model, layers, RATE_BATCH)
        reports.append(
            StageReport(
                machine_id,
                layers,
                hop,
                stage_ms(machine, model, layers),
                RATE_BATCH * 1e3 / step_ms,
                capacity(machine, model, position_of(layers, model)) - len(layers),
            )
        )
        previous = machine
    slowest = min(reports, key=lambda report: (report.tokens_per_s, report.machine_id))
    hops = sum(report.hop_ms for report in reports)
    return PipelineReport(
        tuple(reports),
        hops + sum(report.compute_ms for report in reports),
        hops,
        slowest.tokens_per_s,
        slowest.machine_id,
        _advice(tuple(reports), slowest, hops, fleet, model),
    )


def _advice(
    reports: tuple[StageReport, ...],
    slowest: StageReport,
    hops_ms: float,
    fleet: Fleet,
    model: ModelShape,
) -> str:
    compute_ms = sum(report.compute_ms for report in reports)
    others = [report for report in reports if report is not slowest]
    if hops_ms > compute_ms:
        worst = max(reports, key=lambda report: (report.hop_ms, report.machine_id))
        return (
            f"{hops_ms:.1f} of {hops_ms + compute_ms:.1f} ms go into hops, most into "
            f"{worst.machine_id} "
            f"({worst.hop_ms:.1f} ms): machines nearer to each other would help most"
        )
    if not others:
        return f"{slowest.machine_id} serves alone: only a faster machine would help"
    fastest = min(
        others, key=lambda r: (tau_ms_per_layer(fleet.by_id[r.machine_id], model), r.machine_id)
    )
    if fastest.spare_layers == 0 and len(slowest.layers) > 1:
        return (
            f"{slowest.machine_id} limits the rate and {fastest.machine_id} is faster but full: "
            f"{model.layer_bytes} more bytes for weights there would take over a layer"
        )
    if len(slowest.layers) == 1:
        return (
            f"{slowest.machine_id} limits the rate with a single layer: a faster machine would help"
        )
    return (
        f"{slowest.machine_id} limits the rate; the stages are as even as whole layers allow, "
        "so another machine in this pipeline would help"
    )
