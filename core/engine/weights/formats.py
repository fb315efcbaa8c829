"""In which numbers does a machine hold and multiply weights, and what do they weigh?

A registered model names one of these; two machines serve the same model only if they use the same
one.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.protocol.errors import UsageError

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
_ROW_BYTES = 4 + 1  # one float32 scale, one int8 zero point


@dataclass(frozen=True)
class NumberFormat:
    """How the matrices of layers are held, and what everything else is held and computed in.

    `bits` is 0 where matrices are held in `compute` too. Else they are integers, and the embedding,
    norms, biases, router and head stay in `compute`, as do activations, keys and values. `group`
    inputs share one scale (0: a whole row does).
    """

    name: str
    compute: str
    bits: int = 0
    group: int = 0
    meaning: str = ""

    @property
    def item_bytes(self) -> int:
        """Of one value that is not a quantised weight: activations, keys and values among them."""
        return ITEM_BYTES[self.compute]

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """What one matrix of a layer takes, scales included."""
        if not self.bits:
            return outputs * inputs * self.item_bytes
        integers = outputs * inputs * self.bits // 8
        if self.group:  # a scale and an offset, both in `compute`
            return integers + outputs * (inputs // self.group) * 2 * self.item_bytes
        return integers + outputs * _ROW_BYTES


FORMATS = {
    form.name: form
    for form in (
        NumberFormat(
            "float32", "float32", meaning="what serves on processors and is audited exactly"
        ),
        NumberFormat("float64", "float64", meaning="what audits are computed in"),
        NumberFormat("bfloat16", "bfloat16", meaning="what serves on graphics processors"),
        NumberFormat(
            "int8-weight-only",
            "float32",
            bits=8,
            meaning="symmetric, one scale per output; float32 activations",
        ),
        NumberFormat(
            "int8-weight-only-bfloat16",
            "bfloat16",
            bits=8,
            meaning="symmetric, one scale per output; bfloat16 activations",
        ),
        NumberFormat(
            "int4-weight-only",
            "bfloat16",
            bits=4,
            group=32,
            meaning="scale and offset per 32 inputs; bfloat16 activations",
        ),
    )
}


def format_of(name: str) -> NumberFormat:
    """The format of this name. Raises UsageError, listing what there is."""
    try:
        return FORMATS[name]
    except KeyError:
        raise UsageError(
            f"cannot run in {name}", why="known numerics are " + ", ".join(FORMATS)
        ) from None
