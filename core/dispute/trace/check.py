"""Does a leaf hold on a trace's own operands? What both sides ask of a trace before a move."""

from __future__ import annotations

import struct

from core.dispute.referee import LeafKind, Ruling, exact_value, rule
from core.dispute.trace.derive import Derivation, DerivedLeaf
from core.dispute.trace.layout import Place
from core.dispute.trace.operands import Trace, largest_key, referee_leaf
from core.dispute.trace.program import Form
from core.dispute.trace.sources import Sources


class Checker:
    """Judges places of a trace on the trace's own operands, as the chain would."""

    def __init__(self, derivation: Derivation, sources: Sources) -> None:
        self._derivation = derivation
        self._sources = sources

    def ruling(self, trace: Trace, place: Place) -> Ruling:
        """What the referee would rule at this place, its partial sums being right."""
        op = trace.layout.op(place.section, place.op)
        witness = largest_key(trace, place) if op.kind == LeafKind.STABILISER else 0
        trial = self._derivation.trial(place, witness)
        stated = self.partial_sums(trace, place) if trial.parts else b""
        result = b"" if op.form == Form.VERDICT else struct.pack("<d", trace[place])
        return rule(referee_leaf(trace, trial.whole, self._sources, result, stated))

    def partial_sums(self, trace: Trace, place: Place) -> bytes:
        """The partial sums of the value at `place`, each as f64le, from the operands in `trace`.

        Raises ArithmeticError where no number is right.
        """
        parts = range(self._derivation.trial(place).parts)
        return b"".join(self.right(trace, self._derivation.part(place, part)) for part in parts)

    def right(self, trace: Trace, leaf: DerivedLeaf, stated: bytes = b"") -> bytes:
        """The one right result of a leaf, as f64le. Raises ArithmeticError if there is none."""
        found = exact_value(referee_leaf(trace, leaf, self._sources, bytes(8), stated))
        if found is None:
            raise ArithmeticError(f"{leaf.kind.name} of these operands is no number")
        return found
