"""The `devnet` program: a whole network on one machine, its faults, and the story it tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.runtime.commands.cli import App, Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results
    from devnet.results import AddedLine

app = App(
    "devnet", help="A whole network on one machine: chain, contracts, matcher, miners, jurors."
)
chaos = app.group("chaos", help="Faults on demand.")
links = app.group(
    "links", help="How far miners are from everybody; for `devnet up --latency-ms 64`."
)

NameArgument = Annotated[str, typer.Argument(help="A party, such as miner-2; see `devnet status`.")]
AfterOption = Annotated[
    str | None, typer.Option("--after", help="Wait so long first, such as 10s.")
]
LinkArgument = Annotated[
    str | None, typer.Argument(help="The miner that the link leads to; every link if not said.")
]
WayOption = Annotated[
    str | None, typer.Option("--way", help="in: towards the miner, out: from it; both if not said.")
]
LatencyOption = Annotated[
    float | None, typer.Option("--latency-ms", help="One way, between a miner and others.", min=0.0)
]
JitterOption = Annotated[
    float | None, typer.Option("--jitter-ms", help="Up to so much more, at random.", min=0.0)
]
BandwidthOption = Annotated[
    float | None, typer.Option("--mbit-s", help="Bandwidth of a direction; 0: no limit.", min=0.0)
]


@app.command()
async def up(
    run: Run,
    miners: Annotated[
        int | None, typer.Option(help="How many of the fleet's; all if not said.", min=1, max=4)
    ] = None,
    jurors: Annotated[int, typer.Option(help="How many of the three jurors.", min=0, max=3)] = 3,
    keep: Annotated[bool, typer.Option("--keep/--fresh", help="Continue the last chain.")] = False,
    model: Annotated[
        str | None, typer.Option(help="What the miners serve, such as gemma3-270m.")
    ] = None,
    numerics: Annotated[
        str | None, typer.Option(help="What they compute it in: float32 or bfloat16.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="The fleet: hetero, equal, or a file with machines, speeds and regions."),
    ] = None,
    block_time: Annotated[
        int, typer.Option("--block-time", help="Seconds between blocks at most.", min=1, max=3600)
    ] = 1,
    pages: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="The gateway also serves pages.")
    ] = True,
    latency_ms: LatencyOption = None,
    jitter_ms: JitterOption = None,
    mbit_s: BandwidthOption = None,
) -> None:
    """Start a devnet in the background."""
    from devnet.lifecycle import WantedDevnet, bring_up
    from devnet.links.conditions import Conditions

    given = _conditions(latency_ms, jitter_ms, mbit_s)
    links = Conditions(**given) if given else None
    wanted = WantedDevnet(miners, jurors, model, profile, block_time, links, pages, numerics)
    run.emit(await bring_up(run, wanted, keep=keep))


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
    """Which programs run, where they answer, and which layers each machine holds."""
    from devnet.lifecycle import describe

    found = await describe()
    down = None if found else "nothing runs; `devnet up --keep` goes on, `devnet up` begins anew"
    run.emit(found, human=down, columns=("program", "state", "layers", "at", "pid"))


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
async def mine(
    run: Run, blocks: Annotated[int, typer.Argument(help="How many.", min=1, max=10_000)] = 1
) -> None:
    """Make blocks, as if transactions had come."""
    from devnet.lifecycle import mine_blocks

    run.emit(await mine_blocks(blocks))


@app.command()
async def snapshot(run: Run) -> None:
    """Remember the chain as it is; `devnet revert` goes back to it once."""
    from devnet.lifecycle import take_snapshot

    run.emit(await take_snapshot())


@app.command()
async def revert(
    run: Run, name: Annotated[str, typer.Argument(help="What `devnet snapshot` printed.")]
) -> None:
    """Go back to a snapshot; what programs of the devnet saw meanwhile has not happened."""
    from devnet.lifecycle import revert_to

    run.emit(await revert_to(name))


@app.command()
async def logs(
    run: Run,
    name: Annotated[
        str | None, typer.Argument(help="A party, such as miner-2; every program if not said.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="And what comes after.")] = False,
) -> None:
    """The end of a program's log, or of all of them."""
    from devnet.lifecycle import follow_log, read_logs

    found = read_logs(name)
    shown = ("\n".join([f"== {one.program}: {one.log}", *one.lines]) for one in found)
    run.emit(found, human="\n\n".join(shown))
    if not follow:
        return

    def say(said: AddedLine) -> None:
        label = "" if name else f"{said.program:<10} "
        run.emit(said, human=f"{label}{said.line}")

    await follow_log(name, say)


@app.command()
async def demo(
    run: Run,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with logs and answers.")
    ] = False,
    story: Annotated[
        str,
        typer.Option(
            help="all; offline: a paid file; online: questions to a gateway; dispute: from a lie "
            "to the slash alone; jury: with jurors as judges."
        ),
    ] = "all",
) -> None:
    """The whole story on one machine: a paid job, then a lie, a dispute and a slashed stake."""
    from devnet.lifecycle import tell_story

    await tell_story(run, keep=keep, story=story)


@app.command("measure-generate", hidden=True)
def measure_generate(run: Run, file: Annotated[Path, typer.Argument()]) -> None:
    """Tokens per second of one process running transformers' generate on a file's prompts."""
    from devnet.models.measure import generate_rate

    run.emit(generate_rate(file))


@chaos.command()
async def kill(run: Run, name: NameArgument, after: AfterOption = None) -> None:
    """Kill a program as a power cut would."""
    from devnet.lifecycle import in_a_moment, kill_program

    await in_a_moment(run, name, after)
    run.emit(await kill_program(name))


@chaos.command()
async def restart(run: Run, name: NameArgument) -> None:
    """Start a program again as it was, after `kill`, `lie` or `slow`."""
    from devnet.lifecycle import start_again

    run.emit(await start_again(name))


@chaos.command()
async def freeze(run: Run, name: NameArgument, after: AfterOption = None) -> None:
    """Stop a program's clock (SIGSTOP); `devnet chaos thaw` continues it."""
    from devnet.lifecycle import in_a_moment, signal_program

    await in_a_moment(run, name, after)
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
    layer: Annotated[
        int | None, typer.Option(help="Which of its layers to round to int8; else the middle one.")
    ] = None,
    defend: Annotated[
        bool,
        typer.Option(
            "--defend", help="When accused it plays on and loses by a number, not by the clock."
        ),
    ] = False,
) -> None:
    """Restart a miner with one layer rounded to int8, so that an audit can be seen to work."""
    from devnet.lifecycle import make_liar

    run.emit(await make_liar(name, layer, defend=defend))


@chaos.command()
async def slow(
    run: Run, name: NameArgument, ms: Annotated[float, typer.Option("--ms-per-layer", min=0.0)]
) -> None:
    """Restart a miner so much slower."""
    from devnet.lifecycle import make_slow

    run.emit(await make_slow(name, ms))


@links.command("show")
def show_links(run: Run) -> None:
    """What each direction of each link is like, and what it has carried."""
    from devnet.lifecycle import show_links

    run.emit(show_links())


@links.command("set")
def set_links(
    run: Run,
    name: LinkArgument = None,
    way: WayOption = None,
    latency_ms: LatencyOption = None,
    jitter_ms: JitterOption = None,
    mbit_s: BandwidthOption = None,
) -> None:
    """Change them while they carry."""
    from devnet.lifecycle import change_links

    run.emit(change_links(name, way, _conditions(latency_ms, jitter_ms, mbit_s)))


@links.command("freeze")
def freeze_links(run: Run, name: LinkArgument = None, way: WayOption = None) -> None:
    """Let nothing through and break nothing, as a network that is partitioned."""
    from devnet.lifecycle import change_links

    run.emit(change_links(name, way, {"state": "frozen"}))


@links.command("lose")
def lose_links(run: Run, name: LinkArgument = None, way: WayOption = None) -> None:
    """Let bytes vanish; at `thaw` a connection that lost some is reset."""
    from devnet.lifecycle import change_links

    run.emit(change_links(name, way, {"state": "lost"}))


@links.command("thaw")
def thaw_links(run: Run, name: LinkArgument = None, way: WayOption = None) -> None:
    """Let everything through again."""
    from devnet.lifecycle import change_links

    run.emit(change_links(name, way, {"state": "open"}))


@links.command("reset")
def reset_links(run: Run, name: LinkArgument = None) -> None:
    """Break every connection; new ones are taken."""
    from devnet.lifecycle import break_links

    run.emit(break_links(name, "reset"))


@links.command("cut")
def cut_links(run: Run, name: LinkArgument = None) -> None:
    """Break every connection and refuse new ones until `devnet links mend`."""
    from devnet.lifecycle import break_links

    run.emit(break_links(name, "cut"))


@links.command("mend")
def mend_links(run: Run, name: LinkArgument = None) -> None:
    """Take connections again."""
    from devnet.lifecycle import break_links

    run.emit(break_links(name, "mend"))


def _conditions(
    latency_ms: float | None, jitter_ms: float | None, mbit_s: float | None
) -> dict[str, float]:
    given = {
        "latency_ms": latency_ms,
        "jitter_ms": jitter_ms,
        "bytes_per_s": None if mbit_s is None else mbit_s * 125_000,
    }
    return {name: value for name, value in given.items() if value is not None}


@app.results
def _results() -> Results:
    """What each command prints with --json."""
    from devnet import results as r

    return {
        "up": (r.Up,),
        "down": (r.Down,),
        "status": (list[r.ProgramRow],),
        "logs": (list[r.ProgramLog], r.AddedLine),
        "accounts": (list[r.Account],),
        "fund": (r.Funded,),
        "warp": (r.ChainClock,),
        "mine": (r.ChainClock,),
        "snapshot": (r.Snapshot,),
        "revert": (r.Snapshot,),
        "chaos kill": (r.Killed,),
        "chaos freeze": (r.Signalled,),
        "chaos thaw": (r.Signalled,),
        "chaos lie": (r.Restarted,),
        "chaos slow": (r.Restarted,),
        "chaos restart": (r.Restarted,),
        "links show": (list[r.WayRow],),
        "links set": (list[r.WayRow],),
        "links freeze": (list[r.WayRow],),
        "links lose": (list[r.WayRow],),
        "links thaw": (list[r.WayRow],),
        "links reset": (r.Broken,),
        "links cut": (r.Broken,),
        "links mend": (r.Broken,),
        "measure-generate": (r.Generated,),
    }


main = app.main

if __name__ == "__main__":
    raise SystemExit(main())
