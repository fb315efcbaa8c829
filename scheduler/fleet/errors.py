"""What can be wrong with what the planner is given, and with a plan?"""

from __future__ import annotations


class FleetError(ValueError):
    """A machine, link or model that no plan can be made from; the text has the numbers."""


class PlanError(ValueError):
    """A plan that must not reach any machine.

    ``problem`` is one of ``empty``, ``gap``, ``overlap``, ``over-capacity``, ``unknown-machine``,
    ``machine-twice``, ``unreachable``; ``machine_id`` names the machine where one is at fault.
    """

    def __init__(self, problem: str, text: str, machine_id: str | None = None) -> None:
        super().__init__(f"{problem}: {text}")
        self.problem = problem
        self.machine_id = machine_id
