"""In which numerics does this machine compute a model? In those that it is registered with."""

from __future__ import annotations

from core.engine.weights.formats import FORMATS
from core.models.names import numerics_of
from core.protocol import types as t
from core.protocol.errors import ModelUnsupported, UsageError
from core.runtime.settings import Settings


def refuse_other_numerics(settings: Settings, name: str, spec: t.ModelSpec) -> None:
    """Raise UsageError where this machine would compute something else than was registered."""
    registered, wanted = numerics_of(spec), settings.engine.dtype
    if registered not in FORMATS:
        raise ModelUnsupported(
            f"{name} is computed in numerics that this program does not know",
            why=f"the registry names them by {registered}",
            next_step="update this program, or serve another model",
        )
    if wanted not in ("auto", registered):
        raise UsageError(
            f"{name} is computed in {registered}, and engine.dtype is {wanted}",
            why="what is computed in other numerics counts as a lie and costs the stake",
            next_step="miner config set engine.dtype auto, or serve another model",
        )
