"""Which operator program is a model registered with, and may it be?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.engine.weights.shape import describe_model
from core.engine.weights.store import model_path
from devnet.models.calibration import calibrated
from devnet.models.unpack import DEFAULT_MODEL, exit_code_of

if TYPE_CHECKING:
    from pathlib import Path

    from core.dispute.play.program import ModelProgram
    from core.dispute.trace.program import Tolerance


def registered_program(
    model_dir: Path, tolerances: Sequence[Tolerance] | None = None
) -> ModelProgram | None:
    """The operator program that a model folder is registered with, by default as calibrated here.

    None where no program describes the model: its disputes are the jury's.
    """
    from core.dispute.play.program import has_program, model_program

    if not has_program(model_dir):
        return None
    architecture = describe_model(model_dir).architecture
    given = calibrated(architecture) if tolerances is None else tolerances
    return model_program(model_dir, given)


def weigh(name: str) -> None:
    """Measure a model's weights as its registration does, once. Raises HeadraceError."""
    from core.dispute.registration.weigh import REGISTERING, check_weights

    folder = model_path(name)
    program = registered_program(folder)
    if program is not None:
        print(f"the weights of {name} are measured, once", flush=True)
        check_weights(folder, program, REGISTERING)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m devnet.models.registering [NAME]`: weigh a model, which its registration needs."""
    asked = argparse.ArgumentParser(description=main.__doc__)
    asked.add_argument("name", nargs="?", default=DEFAULT_MODEL)
    name = asked.parse_args(arguments).name
    return exit_code_of(lambda: weigh(name))


if __name__ == "__main__":
    sys.exit(main())
