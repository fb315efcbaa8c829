"""What can the owner of a machine type?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.models import commands as models_commands
from core.networks import commands as network_commands
from core.runtime.commands.cli import App, Run

if TYPE_CHECKING:
    from core.runtime.commands.results import Results
    from miner.commands.results import Earnings, ListedRow
    from miner.daemon.assignment import ShardHook
    from miner.defence.defence import TraceHook

app = App("miner", help="Serve layers of a model and earn.")
stake_commands = app.group("stake", help="Add, withdraw and show stake.")
operator_commands = app.group("operator", help="The key that signs work and cannot withdraw.")
models_commands.mount(app.group("models", models_commands.HELP, bare="ls"))
network_commands.mount(app.group("network", network_commands.HELP, bare="show"))
dispute_commands = app.group("disputes", help="Accusations against this miner.")

LEFT_WITHIN_S = 20.0


class By(StrEnum):
    """What a row of `miner earnings` is."""

    JOB = "job"
    DAY = "day"
    MODEL = "model"


Layers = Annotated[str | None, typer.Option(help="auto, or A:B to hold layers A to B-1.")]
ModelName = Annotated[str | None, typer.Option("--model", help="The model to serve.")]
Price = Annotated[str | None, typer.Option(help="IN,OUT, such as 0.10usd/Mtok,0.40usd/Mtok.")]
MemoryLimit = Annotated[str | None, typer.Option(help="For weights and cache, such as 6GiB.")]
MachineNumber = Annotated[
    int | None,
    typer.Option("--machine", help="Its number on the chain, if the owner has several.", min=0),
]
StakeAmount = Annotated[
    str | None, typer.Argument(help="Part of the stake; all of it if not given.")
]
Cancel = Annotated[bool, typer.Option("--cancel", help="Keep the leaving stake instead.")]


@app.command()
async def init(
    run: Run,
    name: Annotated[str | None, typer.Option(help="What you call this machine.")] = None,
    model: ModelName = None,
    price: Price = None,
    memory_limit: MemoryLimit = None,
    bench: Annotated[
        bool, typer.Option("--bench/--no-bench", help="Also measure this machine.")
    ] = True,
) -> None:
    """Set this machine up: five questions, a configuration file, a measurement."""
    from miner.commands.init import init as go

    run.emit(
        await go(run, name=name, model=model, price=price, memory_limit=memory_limit, bench=bench)
    )


@app.command()
async def bench(
    run: Run,
    model: Annotated[
        str | None, typer.Option(help="Another model than the configured one.")
    ] = None,
    layers: Layers = None,
    save: Annotated[
        bool, typer.Option("--save/--no-save", help="Keep the numbers for `miner quote`.")
    ] = True,
) -> None:
    """Measure this machine by real steps of the engine: memory, flops, time per layer, rates."""
    settings = run.load({"miner.model": model, "miner.layers": layers})
    from core.protocol.types import LayerRange
    from miner.commands.bench import bench_lines, measure_machine

    fixed = settings.miner.layers
    found = await measure_machine(run, LayerRange(*fixed) if fixed else None, save=save)
    run.emit(found, human=lambda: _lines(bench_lines(found)))


@app.command()
async def quote(
    run: Run,
    power_watts: Annotated[int, typer.Option(help="What the machine draws.", min=0)] = 0,
    energy_price: Annotated[str | None, typer.Option(help="Such as 0.30usd/kWh.")] = None,
    rent_per_hour: Annotated[str | None, typer.Option(help="Such as 0.35usd.")] = None,
    utilisation: Annotated[
        float, typer.Option(help="The share of the time with work.", min=0.0, max=1.0)
    ] = 1.0,
    tokens_per_s: Annotated[
        float | None, typer.Option(help="Instead of what `miner bench` measured.", min=0.0)
    ] = None,
    price_in: Annotated[str | None, typer.Option(help="Such as 0.10usd/Mtok.")] = None,
    price_out: Annotated[str | None, typer.Option(help="Such as 0.40usd/Mtok.")] = None,
    prompt_ratio: Annotated[
        float, typer.Option(help="Prompt tokens paid for with each answer token.", min=0.0)
    ] = 0.0,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="DeServe's table instead: four machines at 0.90usd/Mtok."),
    ] = False,
) -> None:
    """Say from which rate on this machine pays: cost per hour over price per token (M > C/P)."""
    settings = run.load({"miner.price_in": price_in, "miner.price_out": price_out})
    from miner.commands import quote as model

    if paper:
        run.emit(model.paper_table(settings))
        return
    found = await model.quote(
        settings,
        model.Costs(rent_per_hour, power_watts, energy_price),
        utilisation=utilisation,
        prompt_ratio=prompt_ratio,
        tokens_per_s=tokens_per_s,
    )
    run.emit(found, human=lambda: _lines(model.quote_lines(found)))


@app.command()
async def register(
    run: Run,
    stake: Annotated[str, typer.Option(help="Stake to lock, such as 500usd.")],
    operator: Annotated[
        str | None,
        typer.Option(help="Wallet that signs work; made when missing. new: the default name."),
    ] = None,
) -> None:
    """Register this machine: lock stake and name the key that signs work."""
    from miner.commands.registration import register as go

    done = await go(run, stake, operator)
    run.emit(
        done,
        human=f"registered  operator {done.operator}  tx {done.tx}  block {done.block}  "
        f"next: {done.next}",
    )


@app.command(daemon=True)
async def start(
    run: Run,
    model: ModelName = None,
    layers: Layers = None,
    memory_limit: MemoryLimit = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests at once.")] = None,
    offload: Annotated[
        str | None,
        typer.Option(help="More room for requests whose turn is not near, such as 8GiB, or off."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Data port; 0: any.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /status and /metrics.")] = None,
    peers: Annotated[str | None, typer.Option(help="Multiaddresses to bootstrap from.")] = None,
    drain_timeout: Annotated[
        str | None, typer.Option(help="How long accepted work may take when stopping, such as 60s.")
    ] = None,
) -> None:
    """Serve until stopped. The first Ctrl-C finishes accepted work, the second leaves at once."""
    flags = {
        "miner.model": model,
        "miner.layers": layers,
        "miner.memory_limit": memory_limit,
        "miner.max_batch": max_batch,
        "engine.offload": "0B" if offload == "off" else offload,
        "miner.listen_port": port,
        "miner.metrics_port": metrics_port,
        "miner.peers": peers,
        "miner.drain_timeout": drain_timeout,
    }
    await run_daemon(run, flags)


async def run_daemon(
    run: Run,
    flags: Mapping[str, Any] | None = None,
    shard_hook: ShardHook | None = None,
    trace_hook: TraceHook | None = None,
) -> None:
    """Load the settings, open the operator's wallet and serve. The hooks are for demonstrations."""
    from miner.records.home import operator_wallet

    settings = run.load(flags)
    signer = run.unlock(operator_wallet(settings), password_file=settings.miner.password_file)
    from miner.daemon.daemon import serve

    await serve(settings, signer, shard_hook=shard_hook, trace_hook=trace_hook)


@app.command()
async def update(
    run: Run,
    endpoint: Annotated[str | None, typer.Option(help="HOST:PORT that peers dial.")] = None,
    price: Price = None,
    model: ModelName = None,
    memory_limit: MemoryLimit = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests at once.", min=1)] = None,
    pause: Annotated[
        bool | None,
        typer.Option(
            "--pause/--resume", help="The running miner takes no new work, or does again."
        ),
    ] = None,
    machine: MachineNumber = None,
) -> None:
    """Correct what the chain says of this machine; with terms: change these, in the configuration.

    A running miner takes terms up when it is started anew.
    """
    from core.protocol.errors import UsageError
    from miner.commands.init import prices_of
    from miner.commands.init import update as go

    price_in, price_out = (None, None) if price is None else prices_of(price)
    host, port = (None, None) if endpoint is None else _host_and_port(endpoint)
    changes = {
        "miner.announce_host": host,
        "miner.announce_port": port,
        "miner.price_in": price_in,
        "miner.price_out": price_out,
        "miner.model": model,
        "miner.memory_limit": memory_limit,
        "miner.max_batch": max_batch,
    }
    if pause is None and all(value is None for value in changes.values()):
        await _correct(run, machine)
        return
    if machine is not None:
        raise UsageError("--machine is of an entry on the chain", "terms are of this machine alone")
    done = await go(run, changes, pause)
    words = {True: "yes", False: "no"}
    changed = [(key, words.get(value, str(value))) for key, value in done.changed.items()]
    run.emit(done, human=lambda: _lines([*changed, ("file", done.file), ("next", done.next)]))


async def _correct(run: Run, machine: int | None) -> None:
    from miner.commands.listing import correct

    done = await correct(run, machine)
    lines = [(name, f"{was} → {now}") for name, (was, now) in done.changed.items()]
    if not lines:
        lines = [("chain", "it says what this machine has; nothing was sent")]
    lines += [("transaction", tx) for tx in done.transactions]
    lines += [("also listed", _listed(other)) for other in done.others]
    run.emit(done, human=lambda: _lines([*lines, ("miner", done.miner), ("next", done.next)]))


@app.command()
async def retire(run: Run, machine: MachineNumber = None) -> None:
    """Take this machine off the chain's list; stake, operator and earnings stay."""
    from miner.commands.listing import retire as go

    done = await go(run, machine)
    lines = [("retired", _listed(done.machine)), ("transaction", done.tx)]
    lines += [("still listed", _listed(other)) for other in done.others]
    run.emit(done, human=lambda: _lines([*lines, ("miner", done.miner), ("next", done.next)]))


@app.command()
async def status(
    run: Run,
    follow: Annotated[
        bool, typer.Option("--watch", help="Again every second, until it ends.")
    ] = False,
) -> None:
    """Show what the running miner does."""
    from miner.commands.facts import ask_daemon, running_daemon
    from miner.commands.live_view import picture, watch

    if follow:
        await watch(run, 1.0, whole_screen=False, count=None)
        return
    found = await ask_daemon(running_daemon(run.settings))
    run.emit(found, human=lambda: picture(found))


@app.command()
async def top(
    run: Run,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    count: Annotated[int | None, typer.Option(help="End after so many looks.", min=1)] = None,
) -> None:
    """Watch the running miner on the whole screen; Ctrl-C ends the view, not the miner."""
    from miner.commands.live_view import watch

    await watch(run, every, whole_screen=True, count=count)


@app.command()
async def why(run: Run) -> None:
    """Say why this miner gets no work: each reason with its fact, the gravest first."""
    from miner.commands.facts import gather_facts
    from miner.commands.why import reasons

    found = reasons(await gather_facts(run.settings))
    run.emit(found, columns=("rank", "weight", "topic", "fact", "next"))


@app.command()
async def doctor(run: Run) -> None:
    """Check all that a miner needs and say what to do; exit 9 when something is broken."""
    from core.protocol.errors import CheckFailed
    from miner.commands.doctor import examine

    found = await examine(run.settings)
    run.emit(found, columns=("state", "check", "found", "next"))
    broken = [check for check in found if check.state == "broken"]
    if broken:
        raise CheckFailed(
            f"{len(broken)} of {len(found)} checks found something broken",
            "; ".join(f"{check.check}: {check.found}" for check in broken),
            next_step=broken[0].next,
        )


@app.command()
async def earnings(
    run: Run,
    since: Annotated[str | None, typer.Option(help="Such as 7d; all of it if not said.")] = None,
    by: Annotated[By, typer.Option(help="What a row is.")] = By.DAY,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write the rows here.")] = None,
) -> None:
    """Show what was delivered, settled, disputed and slashed, and what can be claimed."""
    from miner.commands.earnings import read_earnings

    found = await read_earnings(run, by.value, since, csv)
    run.emit(found, human=lambda: _earnings(found))


@app.command()
async def claim(run: Run) -> None:
    """Take all earnings to the owner's wallet; the same as `withdraw --credits`."""
    from miner.commands.registration import withdraw_credits

    run.emit(await withdraw_credits(run))


@app.command()
async def drain(
    run: Run,
    within: Annotated[
        float | None, typer.Option(help="Seconds that accepted work may take.")
    ] = None,
) -> None:
    """Take no new work, finish what was accepted, then stop."""
    await _leave(run, within)


@app.command()
async def stop(run: Run) -> None:
    """Stop now: work that is not finished is given up."""
    await _leave(run, 0.0)


@app.command()
async def withdraw(
    run: Run,
    amount: StakeAmount = None,
    credits: Annotated[bool, typer.Option("--credits", help="Earnings instead of stake.")] = False,
    cancel: Cancel = False,
) -> None:
    """Take stake out: the first call starts the clock, a later one pays. --credits: earnings."""
    from core.protocol.errors import UsageError
    from miner.commands import registration

    if credits and (cancel or amount is not None):
        raise UsageError("--credits takes all earnings", "it goes with neither AMOUNT nor --cancel")
    if credits:
        run.emit(await registration.withdraw_credits(run))
    elif cancel:
        run.emit(await registration.cancel_withdrawal(run))
    else:
        run.emit(await registration.withdraw(run, amount))


@stake_commands.command()
async def add(run: Run, amount: Annotated[str, typer.Argument(help="Such as 500usd.")]) -> None:
    """Lock more stake."""
    from miner.commands.registration import add_stake

    run.emit(await add_stake(run, amount))


@stake_commands.command("withdraw")
async def stake_withdraw(run: Run, amount: StakeAmount = None, cancel: Cancel = False) -> None:
    """Take stake out: the first call starts the clock, a later one pays."""
    await withdraw(run, amount, credits=False, cancel=cancel)


@stake_commands.command("status")
async def stake_status(run: Run) -> None:
    """Show stake, what is leaving, and what is owed."""
    from miner.commands.registration import stake_status as go

    run.emit(await go(run))


@app.command()
async def unjail(run: Run) -> None:
    """Work again after a slash, once the time is over."""
    from miner.commands.registration import unjail as go

    run.emit(await go(run))


NewOperator = Annotated[str, typer.Argument(help="Wallet of the new key; made when missing.")]


@operator_commands.command("rotate")
async def operator_rotate(run: Run, name: NewOperator) -> None:
    """Name another key to sign work; what the old one signed stays valid."""
    from miner.commands.registration import rotate_operator as go

    run.emit(await go(run, name))


@app.command(hidden=True)
async def rotate_operator(run: Run, name: NewOperator) -> None:
    """Name another key to sign work; the older spelling of `operator rotate`."""
    await operator_rotate(run, name)


@dispute_commands.command("ls")
async def disputes_ls(run: Run) -> None:
    """Accusations against this miner, newest first."""
    from miner.commands.accusations import accusations

    run.emit(await accusations(run))


@dispute_commands.command("show")
async def disputes_show(
    run: Run, dispute: Annotated[str, typer.Argument(help="Its id, or the beginning of it.")]
) -> None:
    """One accusation: who makes it, where it stands, what is at risk."""
    from miner.commands.accusations import accusation

    run.emit(await accusation(run, dispute))


@dispute_commands.command("respond")
async def disputes_respond(run: Run) -> None:
    """Answer open games from stored rows until they end; a running miner does so by itself."""
    from miner.commands.accusations import respond

    run.emit(await respond(run))


# --- talking to the daemon ---


async def _leave(run: Run, within_s: float | None) -> None:
    from core.protocol.errors import Unreachable
    from miner.commands.facts import running_daemon, tell_daemon
    from miner.commands.results import LeftNetwork
    from miner.records.home import Home

    running, home = running_daemon(run.settings), Home.of(run.settings)
    query = "" if within_s is None else f"?timeout_s={within_s}"
    found = await tell_daemon(running, f"/drain{query}")
    run.note(f"{found['activeRequests']} requests are running; waiting for the miner to leave")
    patience_s = run.settings.miner.drain_timeout_s if within_s is None else within_s
    try:
        async with asyncio.timeout(patience_s + LEFT_WITHIN_S):
            while home.is_in_use:
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Unreachable(
            "the miner did not end",
            f"process {running.pid} still runs after {patience_s + LEFT_WITHIN_S:g} s",
            next_step=f"kill {running.pid}",
        ) from None
    run.emit(LeftNetwork("LEFT", running.operator), human="the miner has left")


def _lines(lines: Sequence[tuple[str, str]]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    grid = Table.grid(padding=(0, 3))
    for label, text in lines:
        grid.add_row(label, escape(text))
    return grid


def _listed(machine: ListedRow) -> str:
    return f"{machine.number}: {machine.kind}, {machine.memory_bytes / 2**20:,.0f} MiB"


def _earnings(found: Earnings) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("jobs", "settled", "delivered", "disputed", "running", "ended", "paid", "pending")
    for name in (found.by, *columns):
        table.add_column(name, justify="left" if name == found.by else "right")
    for row in found.rows:
        table.add_row(row.key, *(str(getattr(row, name)) for name in columns))
    total = (
        f"paid {found.paid}, collected {found.collected}, pending {found.pending}, "
        f"disputed {found.disputed}, slashed {found.slashed}; {found.to_claim} to claim with "
        "`miner claim`"
    )
    return Group(table if found.rows else "no job yet", "", total)


def _host_and_port(endpoint: str) -> tuple[str, int]:
    from core.protocol.errors import UsageError

    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--endpoint {endpoint}", "it is not HOST:PORT")
    return host.strip("[]"), int(port)


@app.results
def _results() -> Results:
    """What each command prints with --json."""
    from miner.commands import results as r

    return {
        **models_commands.printed(),
        **network_commands.printed(),
        "init": (r.Initialised,),
        "bench": (r.Bench,),
        "quote": (r.Profit, list[r.PaperRow]),
        "register": (r.Registered,),
        "update": (r.Updated, r.MachineUpdated),
        "retire": (r.MachineRetired,),
        "status": (r.MinerStatus,),
        "top": (r.MinerStatus,),
        "why": (list[r.Reason],),
        "doctor": (list[r.Check],),
        "earnings": (r.Earnings,),
        "claim": (r.WithdrawnStake,),
        "drain": (r.LeftNetwork,),
        "stop": (r.LeftNetwork,),
        "withdraw": (r.Leaving, r.WithdrawnStake, r.StakeChanged),
        "stake add": (r.StakeChanged,),
        "stake withdraw": (r.Leaving, r.WithdrawnStake, r.StakeChanged),
        "stake status": (r.Stake,),
        "unjail": (r.StakeChanged,),
        "rotate-operator": (r.Rotated,),
        "operator rotate": (r.Rotated,),
        "disputes ls": (list[r.AccusationRow],),
        "disputes show": (r.AccusationRow,),
        "disputes respond": (list[r.AccusationRow],),
    }


main = app.main

if __name__ == "__main__":
    sys.exit(main())
