"""How much KV cache will the running requests need, before anyone knows how long their answers get?

Helix §5.2: prompt plus the mean answer on every layer used, freed when the request ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.fleet.costs import kv_tokens
from scheduler.fleet.errors import FleetError
from scheduler.fleet.fleet import Fleet, ModelShape, Placement, Shard

#: Mean answer of the Azure conversation trace as Helix rounds it.
MEAN_OUTPUT_TOKENS = 240
#: The share of a cache that may be promised.
HIGH_WATER = 0.85


class KvEstimate:
    """Expected use of every machine's cache, in tokens × layers.

    ``high_water`` is the share of a cache that may be promised; ``output_tokens`` is added to every
    prompt (Helix takes 1.0 × 240 offline and 0.6 × 240 online, with marks 0.85 and 0.9).
    """

    __slots__ = ("_groups", "_layers", "_room", "capacity", "high_water", "output_tokens", "used")

    def __init__(
        self,
        fleet: Fleet,
        model: ModelShape,
        placement: Placement,
        *,
        high_water: float = HIGH_WATER,
        output_tokens: int = MEAN_OUTPUT_TOKENS,
    ) -> None:
        if not 0 < high_water <= 1 or output_tokens < 0:
            raise FleetError(f"high_water {high_water}, output_tokens {output_tokens}")
        self.high_water = high_water
        self.output_tokens = output_tokens
        self._layers = {shard.machine_id: len(shard.layers) for shard in placement}
        self.capacity = {
            shard.machine_id: kv_tokens(fleet.by_id[shard.machine_id], model, len(shard.layers))
            * len(shard.layers)
            for shard in placement
        }
        self._room = {m: high_water * capacity for m, capacity in self.capacity.items()}
        self.used = dict.fromkeys(self.capacity, 0)
        # Layers covered by the same machines fill alike: one group for each stretch between
        # boundaries.
        ends = sorted({edge for s in placement for edge in (s.layers.start, s.layers.end)})
        self._groups = [
            tuple(s.machine_id for s in placement if s.layers.start <= first < s.layers.end)
            for first in ends[:-1]
        ]

    def fits(self, machine_id: str, prompt_tokens: int) -> bool:
        """Whether another request stays under the mark, as if it used all layers here."""
        needed = (prompt_tokens + self.output_tokens) * self._layers[machine_id]
        return self.used[machine_id] + needed <= self._room[machine_id]

    def add(self, stages: Iterable[Shard], prompt_tokens: int) -> None:
        """A request begins on these layers."""
        tokens = prompt_tokens + self.output_tokens
        for machine_id, layers in stages:
            self.used[machine_id] += tokens * len(layers)

    def remove(self, stages: Iterable[Shard], prompt_tokens: int) -> None:
        """The request that was added with these arguments has ended."""
        tokens = prompt_tokens + self.output_tokens
        for machine_id, layers in stages:
            self.used[machine_id] -= tokens * len(layers)

    def bottleneck(self) -> float:
        """Expected use of the fullest layer over its holders: what a closed-loop feed watches."""
        fullest = 0.0
        for group in self._groups:
            room = used = 0.0
            for machine_id in group:
                layers = self._layers[machine_id]
                room += self.capacity[machine_id] / layers
                used += self.used[machine_id] / layers
            if room and used / room > fullest:
                fullest = used / room
        return fullest
