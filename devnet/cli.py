"""The `devnet` program: a whole network on one machine, its faults, and the story it tells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.runtime.cli import App, Run

app = App(
    "devnet", help="A whole network on one machine: chain, contracts, matcher, miners, jurors."
)
chaos = app.group("chaos", help="Faults on demand.")

NameArgument = Annotated[str, typer.Argument(help="A party, such as miner-2; see `devnet status`.")]


@app.command()
async def up(
    run: Run,
    miners: Annotated[int, typer.Option(help="How many of the three miners.", min=1, max=3)] = 3,
    jurors: Annotated[int, typer.Option(help="How many of the three jurors.", min=0, max=3)] = 3,
    keep: Annotated[bool, typer.Option("--keep/--fresh", help="Continue the last chain.")] = False,
) -> None:
    """Start a devnet in the background."""
    from devnet.lifecycle import bring_up

    run.emit(await bring_up(run, miners, jurors, keep=keep))


@app.command()
async def down(
    run: Run,
    purge: Annotated[bool, typer.Option("--purge", help="Also remove its folder.")] = False,
) -> None:
    """Stop the devnet and everything it started."""
    from devnet.lifecycle import bring_down

    run.emit(await bring_down(purge=purge))


@app.command()
async def status(run: Run) -> None:
    """Which programs run, and what the matcher sees."""
    from devnet.lifecycle import describe

    run.emit(await describe())


@app.command()
async def accounts(run: Run) -> None:
    """Names, addresses and balances; never keys."""
    from devnet.lifecycle import list_accounts

    run.emit(await list_accounts())


@app.command()
async def fund(
    run: Run,
    address: Annotated[str, typer.Argument(help="Any address, or a party's name.")],
    amount: Annotated[str, typer.Argument(help="Such as 100usd.")],
) -> None:
    """The faucet: tokens, and gas money if the account has none."""
    from devnet.lifecycle import give

    run.emit(await give(run, address, amount))


@app.command()
async def warp(
    run: Run, duration: Annotated[str, typer.Argument(help="Such as 90s or 24h.")]
) -> None:
    """Move the chain's clock forward."""
    from devnet.lifecycle import move_clock

    run.emit(await move_clock(duration))


@app.command()
def logs(run: Run, name: NameArgument) -> None:
    """The end of a program's log."""
    from devnet.lifecycle import show_log

    print(show_log(name))


@app.command()
async def demo(
    run: Run,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with logs and answers.")
    ] = False,
) -> None:
    """The whole story on one machine: a paid job, then a lie, a dispute and a slashed stake."""
    from devnet.lifecycle import tell_story

    await tell_story(run, keep=keep)


@app.command("measure-generate", hidden=True)
def measure_generate(run: Run, file: Annotated[Path, typer.Argument()]) -> None:
    """Tokens per second of one process running transformers' generate on a file's prompts."""
    from devnet.measure import generate_rate

    run.emit(generate_rate(file))


@chaos.command()
async def kill(run: Run, name: NameArgument) -> None:
    """Kill a program as a power cut would."""
    from devnet.lifecycle import kill_program

    run.emit(await kill_program(name))


@chaos.command()
async def freeze(run: Run, name: NameArgument) -> None:
    """Stop a program's clock (SIGSTOP); `devnet chaos thaw` continues it."""
    from devnet.lifecycle import signal_program

    run.emit(signal_program(name, "SIGSTOP"))


@chaos.command()
async def thaw(run: Run, name: NameArgument) -> None:
    """Continue a frozen program."""
    from devnet.lifecycle import signal_program

    run.emit(signal_program(name, "SIGCONT"))


@chaos.command()
async def lie(
    run: Run,
    name: NameArgument,
    layer: Annotated[int, typer.Option(help="Which layer to round to int8.")],
) -> None:
    """Restart a miner with one layer rounded to int8, so that an audit can be seen to work."""
    from devnet.lifecycle import make_liar

    run.emit(await make_liar(name, layer))


@chaos.command()
async def slow(
    run: Run, name: NameArgument, ms: Annotated[float, typer.Option("--ms-per-layer", min=0.0)]
) -> None:
    """Restart a miner so much slower."""
    from devnet.lifecycle import make_slow

    run.emit(await make_slow(name, ms))


main = app.main

if __name__ == "__main__":
    raise SystemExit(main())
