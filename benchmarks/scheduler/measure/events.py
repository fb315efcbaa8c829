"""What does a cluster come to after one event, decided upon at once?"""

from __future__ import annotations

from scheduler.live.churn import Cluster, Event, observe
from scheduler.live.holdings import is_whole
from scheduler.live.repair import Change, decide
from scheduler.live.standby import Rules


def apply(
    cluster: Cluster, event: Event, now_ms: int, rules: Rules = Rules()
) -> tuple[Cluster, Change]:
    """The cluster after an event, and what it takes to serve on. Never raises for what strangers
    say.
    """
    cluster, ignored = observe(cluster, event, now_ms)
    if not ignored:
        return decide(cluster, now_ms, rules)
    holding = dict(cluster.placement)
    covered = bool(holding) and is_whole(cluster.fleet, cluster.model, holding, rules.partial)
    return cluster, Change((), f"ignored: {ignored}", covered, cluster.version)
