"""What is short when machines cannot hold a model, and by how much?"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.costs import capacities, weight_bytes
from scheduler.fleet import Machine, ModelShape
from scheduler.kinds import most_layers_of_any


def too_small(machine: Machine, model: ModelShape) -> str:
    """Why a machine holds no layer."""
    return f"{weight_bytes(machine)} bytes for weights, one layer takes {model.layer_bytes}"


def shortage(machines: Sequence[Machine], model: ModelShape) -> str:
    """What keeps these machines from holding the model once, with the amount."""
    caps = [capacities(machine, model) for machine in machines]
    if not caps:
        return f"no machine can hold a single layer of {model.layer_bytes} bytes"
    held = most_layers_of_any(caps, model.layers)
    if held >= model.layers:
        return "the machines hold the model together but no chain of them is connected"
    if held == 0:
        return (
            f"no machine can hold a layer beside the embedding ({model.embedding_bytes} bytes) or the head "
            f"({model.head_bytes} bytes)"
        )
    short = model.layers - held
    return (
        f"{len(machines)} machines hold {held} of {model.layers} layers: short by {short} layers, "
        f"{short * model.layer_bytes} bytes of weights"
    )
