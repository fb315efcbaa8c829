"""What does every machine load in the end, so that requests can be routed over all of it?"""

from __future__ import annotations

from scheduler.fleet import Fleet, ModelShape, Placement
from scheduler.leftovers import place_leftovers
from scheduler.utility.plan import UtilityPlan
from scheduler.utility.widen import widen


def serving_placement(
    fleet: Fleet, model: ModelShape, plan: UtilityPlan, *, wide: bool = True
) -> Placement:
    """The plan's pipelines, its standby machines where layers are dearest and, with `wide`, every slice grown into the
    room its machine has left. The pipelines of the plan stay servable as they are."""
    placed = place_leftovers(fleet, model, plan.placement, plan.standby)
    return widen(fleet, model, placed) if wide else placed
