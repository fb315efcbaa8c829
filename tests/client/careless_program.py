"""A program that logs, stores and forks with an unlocked wallet, and crashes with it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from core.protocol import signing
from core.protocol.types import AuditorDelegation
from core.runtime.commands.cli import App, Run
from core.runtime.logs import get_logger
from tests.town.orders import DOMAIN, prompts

app = App("client", help="For tests.")


@app.command()
def die(
    run: Run, child: Annotated[Path, typer.Argument(help="Where a child says its environment.")]
) -> None:
    """Everything that a mistake of ours could do with a key."""
    from client.context import open_store
    from client.orders.orders import PromptBatch
    from tests.town.stages import Stages

    signer = run.unlock()
    log = get_logger(__name__)
    log.warning("unlocked", signer=signer, text=str(signer), both=f"{signer!r}")
    logging.getLogger("stranger").error("a library says %r", signer)
    run.note(f"{signer}")
    message = AuditorDelegation("0x" + "11" * 32, signer.address, 1)
    signature = signing.sign(signer, DOMAIN, message)
    store = open_store(run.settings)
    store.add_job(
        signature, Stages().match(PromptBatch.of(prompts(1))), PromptBatch.of(prompts(1)), 1
    )
    store.close()
    said = subprocess.run(["env", "-0"], capture_output=True, check=True).stdout
    child.write_bytes(said)
    try:
        raise ValueError(signer, vars(signer) if hasattr(signer, "__dict__") else ())
    except ValueError as error:
        raise RuntimeError(f"a bug while holding {signer!r}") from error


if __name__ == "__main__":
    sys.exit(app.main())
