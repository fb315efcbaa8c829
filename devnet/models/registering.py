"""May a model be published with the tolerances of its family? Measured ahead, as it takes time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from core.engine.weights.store import model_path
from core.models.publication import program_to_publish
from devnet.models.unpack import DEFAULT_MODEL, exit_code_of


def weigh(name: str) -> None:
    """Measure a model's weights as its registration does, once. Raises HeadraceError."""
    from core.dispute.registration.weigh import REGISTERING, check_weights

    folder = model_path(name)
    program = program_to_publish(folder)
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
