"""What is short when machines cannot hold a model, and by how much?"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.fleet.costs import capacities, weight_bytes
from scheduler.fleet.fleet import Machine, ModelShape
from scheduler.fleet.kinds import most_layers_of_any

GIB = 2**30


def too_small(machine: Machine, model: ModelShape) -> str:
    """Why a machine holds no layer."""
    return f"{size(weight_bytes(machine))} for weights, one layer takes {size(model.layer_bytes)}"


def size(count_bytes: int) -> str:
    """A number of bytes for people, large ones in GiB too."""
    more = f" ({count_bytes / GIB:.1f} GiB)" if count_bytes >= GIB else ""
    return f"{count_bytes} bytes{more}"


def shortage(machines: Sequence[Machine], model: ModelShape) -> str:
    """What keeps these machines from holding the model once, with the amount."""
    caps = [found for m in machines if (found := capacities(m, model)).plain >= 1]
    if not caps:
        most = max((weight_bytes(machine) for machine in machines), default=0)
        return (
            f"no machine can hold a single layer of {size(model.layer_bytes)}: the largest has "
            f"{size(most)} for "
            f"weights, short by {size(model.layer_bytes - most)}"
        )
    held = most_layers_of_any(caps, model.layers)
    if held >= model.layers:
        return "the machines hold the model together but no chain of them is connected"
    if held == 0:
        return (
            f"no machine can hold a layer beside the embedding of {size(model.embedding_bytes)} "
            "or the head of "
            f"{size(model.head_bytes)}"
        )
    short = model.layers - held
    return (
        f"{len(caps)} machines hold {held} of {model.layers} layers: short by {short} layers, "
        f"{size(short * model.layer_bytes)} of weights"
    )
