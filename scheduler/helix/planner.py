"""How does Helix plan a cluster? (§4.5 and §6.2: heuristics, pruning, program)"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.fleet.errors import PlanError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement
from scheduler.flow.valid import validate_placement
from scheduler.helix.milp import MilpOptions, MilpResult, solve_milp
from scheduler.helix.petals import petals
from scheduler.helix.pruning import DEGREE, prune_links
from scheduler.helix.separate import as_placement, separate_pipelines
from scheduler.helix.swarm import swarm


def warm_starts(fleet: Fleet, model: ModelShape) -> Mapping[str, Placement]:
    """Placements of Petals, Swarm, SP and SP+ by name, where they cover the model."""
    methods: Mapping[str, Callable[[], Placement]] = {
        "petals": lambda: petals(fleet, model),
        "swarm": lambda: swarm(fleet, model),
        "separate": lambda: as_placement(separate_pipelines(fleet, model)),
        "separate+": lambda: as_placement(separate_pipelines(fleet, model, mixed=True)),
    }
    found = dict[str, Placement]()
    for name, method in methods.items():
        try:
            placement = method()
            validate_placement(placement, fleet, model)
        except PlanError:
            continue  # this method has no answer here; the others may
        found[name] = placement
    return found


def plan_helix(
    fleet: Fleet,
    model: ModelShape,
    options: MilpOptions = MilpOptions(),
    degree: int | None = DEGREE,
) -> MilpResult:
    """Helix's placement: the program on the cluster pruned to ``degree``, started from the best.

    Pruning keeps every link that a start uses, so none of them loses its worth as in the shipped
    runs. Deterministic unless a time limit is given.
    """
    starts = list(warm_starts(fleet, model).values())
    if degree is not None and degree < len(fleet.machines) - 1:
        fleet = prune_links(fleet, model, degree, starts, partial=options.partial)
    return solve_milp(fleet, model, options, starts)
