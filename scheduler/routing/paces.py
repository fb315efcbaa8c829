"""What is τ of each machine at its own batch, looked up instead of computed?

Machines of the same hardware share one row per batch, computed through `costs` when it is first
needed; a machine's own measurements are one factor on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from scheduler.fleet import costs
from scheduler.fleet.arrays import Floats, Ints
from scheduler.fleet.fleet import Machine, ModelShape

#: Larger batches than this are looked up one by one.
WIDTH = 1024


class Paces:
    """τ and the head's time of machines g, by batch."""

    def __init__(self, machines: Sequence[Machine], model: ModelShape, context_tokens: int) -> None:
        kinds: dict[object, int] = {}
        self._samples: list[Machine] = []
        self.kind: list[int] = []
        self._model, self._context_tokens = model, context_tokens
        for machine in machines:
            key = (machine.tflops, machine.bandwidth_gb_s, machine.profile)
            if key not in kinds:
                kinds[key] = len(kinds)
                self._samples.append(replace(machine, tau_ms_per_layer=None))
            self.kind.append(kinds[key])
        self.correction = [costs.correction(m, model, context_tokens) for m in machines]
        self._kinds: Ints = np.array(self.kind, dtype=np.int64)
        self._corrections: Floats = np.array(self.correction)
        self._cells: list[dict[int, tuple[float, float]]] = [{} for _ in self._samples]
        self._tau: Floats = np.full((len(self._samples), 0), np.nan)
        self._head: Floats = np.full((len(self._samples), 0), np.nan)

    def cell(self, kind: int, batch: int) -> tuple[float, float]:
        """τ and head of a kind of machine before correction."""
        found = self._cells[kind].get(batch)
        if found is None:
            sample = self._samples[kind]
            found = (
                costs.tau_ms_per_layer(sample, self._model, batch, self._context_tokens),
                costs.head_ms(sample, self._model, batch, self._context_tokens),
            )
            if batch <= WIDTH:
                self._cells[kind][batch] = found
        return found

    def one(self, g: int, batch: int) -> tuple[float, float]:
        """τ(g, ℓ) as `costs.tau_ms_per_layer`, and `costs.head_ms`."""
        tau_ms, head_ms = self.cell(self.kind[g], batch)
        return self.correction[g] * tau_ms, self.correction[g] * head_ms

    def all(self, batch: Ints) -> tuple[Floats, Floats]:
        """`one` of every machine at its own batch."""
        widest = int(batch.max(initial=1))
        if widest > WIDTH:
            pairs = np.array([self.one(g, int(b)) for g, b in enumerate(batch)]).reshape(-1, 2)
            return pairs[:, 0], pairs[:, 1]
        if widest >= self._tau.shape[1]:
            wider = np.full((len(self._samples), min(WIDTH, 2 * widest) + 1), np.nan)
            head = wider.copy()
            wider[:, : self._tau.shape[1]] = self._tau
            head[:, : self._head.shape[1]] = self._head
            self._tau, self._head = wider, head
        tau = self._tau[self._kinds, batch]
        missing = np.isnan(tau)
        if missing.any():
            for kind, at in {
                *zip(self._kinds[missing].tolist(), batch[missing].tolist(), strict=True)
            }:
                self._tau[kind, at], self._head[kind, at] = self.cell(kind, at)
            tau = self._tau[self._kinds, batch]
        return tau * self._corrections, self._head[self._kinds, batch] * self._corrections

    def least(self) -> tuple[Floats, Floats]:
        """A lower bound of τ and head of every machine at any batch."""
        return self.least_with(self.correction)

    def least_with(self, factors: Sequence[float]) -> tuple[Floats, Floats]:
        """`least` with other measurements."""
        low = np.array(self._least).reshape(-1, 2)[self._kinds]
        both = low * np.array(factors)[:, None]
        return both[:, 0], both[:, 1]

    def least_of(self, g: int) -> tuple[float, float]:
        """`least` of one machine before correction."""
        return self._least[self.kind[g]]

    @cached_property
    def _least(self) -> list[tuple[float, float]]:
        """By kind. A roofline grows with the batch, a measured curve need not."""
        low = []
        for kind, sample in enumerate(self._samples):
            tau_ms, head_ms = self.cell(kind, 1)
            if sample.profile is not None:
                curve = sample.profile.decode_ms_per_layer
                falls = curve.ys[-1] < curve.ys[-2]
                tau_ms = 1e-9 if falls else max(1e-9, min(curve.ys))
            low.append((tau_ms, head_ms))
        return low
