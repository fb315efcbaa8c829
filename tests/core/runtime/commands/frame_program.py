"""A program built with the frame, for the tests of the frame; run it as a process or call
``app.main``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from core.protocol import errors
from core.runtime.commands.cli import App, Run

app = App("prog", help="For tests.")
stake = app.group("stake", help="A group.")


@app.command(daemon=True)
async def serve(
    run: Run, ready: Annotated[Path | None, typer.Option(help="file")] = None, hang: bool = False
) -> None:
    """Serve until stopped."""
    try:
        if ready:
            ready.write_text("ready")
        await asyncio.sleep(60)
    finally:
        run.note("stopped cleanly")
        if hang:
            await asyncio.sleep(60)


@app.command()
async def wait(run: Run, ready: Annotated[Path | None, typer.Option()] = None) -> None:
    """Not a daemon."""
    if ready:
        ready.write_text("ready")
    await asyncio.sleep(60)


@app.command("options")
def options_(run: Run, timeout: float | None = None) -> None:
    """Print the global options; has a --timeout of its own."""
    options = run.options
    run.emit({"network": options.network, "verbose": options.verbose, "own": timeout})


@stake.command()
async def add(run: Run, amount: Annotated[str, typer.Argument()]) -> None:
    """Lock more stake."""
    units = run.settings.token(amount)
    run.confirm("Lock it?", {"amount": run.settings.show_token(units)})
    with run.stage(1, 1, "locking", total=2, unit="steps") as stage:
        stage.advance(2)
    run.emit({"staked": run.settings.show_token(units)})


@app.command()
def unlock(run: Run) -> None:
    """Open the wallet."""
    run.emit({"address": run.unlock().address})


@app.command()
def fail(run: Run, name: str) -> None:
    """Raise one error of the tree."""
    raise {
        "HeadraceError": lambda: errors.HeadraceError("x"),
        "UsageError": lambda: errors.UsageError("x"),
        "ChainUnreachable": lambda: errors.ChainUnreachable("x"),
        "WrongPassword": lambda: errors.WrongPassword("x"),
        "TokenShort": lambda: errors.TokenShort("x", have=1, need=3, address="0xab", fix="y"),
        "ContractRefused": lambda: errors.ContractRefused("x", error="Nope", args={"a": 1}),
        "NoCapacity": lambda: errors.NoCapacity("x", nearest_offer="z"),
        "DeadlinePassed": lambda: errors.DeadlinePassed("x", resume="prog again"),
        "CheckFailed": lambda: errors.CheckFailed("x"),
        "Interrupted": errors.Interrupted,
        "KeyboardInterrupt": KeyboardInterrupt,
        "bug": lambda: RuntimeError("key 0x" + "4c" * 32),
    }[name]()


@app.command()
async def group_fail(run: Run, bug: bool = False) -> None:
    """Fail inside a task group."""

    async def one() -> None:
        raise ValueError("a bug") if bug else errors.PeerUnreachable("mnr_1 does not answer")

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(60))
        group.create_task(one())


@app.command()
def follow(run: Run, count: int = 3) -> None:
    """Emit several documents."""
    for number in range(count):
        run.emit({"number": number})


@app.command()
def table(run: Run) -> None:
    """Emit a list."""
    run.emit([{"name": "a[b]", "peers": ["x", "y"], "ok": True}, {"name": "c", "ok": False}])


if __name__ == "__main__":
    sys.exit(app.main())
