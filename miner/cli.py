"""What can the owner of a machine type?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.runtime.cli import App, Run

if TYPE_CHECKING:
    from miner.assignment import ShardHook
    from miner.home import Running

app = App("miner", help="Serve layers of a model and earn.")
stake_commands = app.group("stake", help="Add and show stake.")

LEFT_WITHIN_S = 20.0
Layers = Annotated[str | None, typer.Option(help="auto, or A:B to hold layers A to B-1.")]


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
    from miner.registration import register as go

    done = await go(run, stake, operator)
    run.emit(
        done,
        human=f"registered  operator {done['operator']}  tx {done['tx']}  block {done['block']}  "
        f"next: {done['next']}",
    )


@app.command(daemon=True)
async def start(
    run: Run,
    layers: Layers = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="For weights and cache, such as 6GiB.")
    ] = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests at once.")] = None,
    port: Annotated[int | None, typer.Option(help="Data port; 0: any.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /status and /metrics.")] = None,
    peers: Annotated[str | None, typer.Option(help="Multiaddresses to bootstrap from.")] = None,
    drain_timeout: Annotated[
        str | None, typer.Option(help="How long accepted work may take when stopping, such as 60s.")
    ] = None,
) -> None:
    """Serve until stopped. The first Ctrl-C finishes accepted work, the second leaves at once."""
    flags = {
        "miner.layers": layers,
        "miner.memory_limit": memory_limit,
        "miner.max_batch": max_batch,
        "miner.listen_port": port,
        "miner.metrics_port": metrics_port,
        "miner.peers": peers,
        "miner.drain_timeout": drain_timeout,
    }
    await run_daemon(run, flags)


async def run_daemon(
    run: Run, flags: Mapping[str, Any] | None = None, shard_hook: ShardHook | None = None
) -> None:
    """Load the settings, open the operator's wallet and serve. `shard_hook` is for demonstrations and tests."""
    from miner.home import operator_wallet

    settings = run.load(flags)
    signer = run.unlock(operator_wallet(settings), password_file=settings.miner.password_file)
    from miner.daemon import serve

    await serve(settings, signer, shard_hook=shard_hook)


@app.command()
async def status(run: Run) -> None:
    """Show what the running miner does."""
    found = await _ask(_running(run), "GET", "/status")
    run.emit(found, human=lambda: _status_table(found))


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
    amount: Annotated[
        str | None, typer.Argument(help="Part of the stake; all of it if not given.")
    ] = None,
    credits: Annotated[bool, typer.Option("--credits", help="Earnings instead of stake.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Keep the leaving stake instead.")
    ] = False,
) -> None:
    """Take stake out: the first call starts the clock, a later one pays. With --credits: take earnings."""
    from core.protocol.errors import UsageError
    from miner import registration

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
    from miner.registration import add_stake

    run.emit(await add_stake(run, amount))


@stake_commands.command("status")
async def stake_status(run: Run) -> None:
    """Show stake, what is leaving, and what is owed."""
    from miner.registration import stake_status as go

    run.emit(await go(run))


@app.command()
async def unjail(run: Run) -> None:
    """Work again after a slash, once the time is over."""
    from miner.registration import unjail as go

    run.emit(await go(run))


@app.command()
async def rotate_operator(
    run: Run, name: Annotated[str, typer.Argument(help="Wallet of the new key; made when missing.")]
) -> None:
    """Name another key to sign work."""
    from miner.registration import rotate_operator as go

    run.emit(await go(run, name))


# --- talking to the daemon ---


def _running(run: Run) -> Running:
    from core.protocol.errors import Unreachable
    from miner.home import Home

    home = Home.of(run.settings)
    running = home.read_running()
    if running is None:
        raise Unreachable(
            "the miner is not running",
            f"no daemon uses {home.folder}",
            next_step="miner start",
        )
    return running


async def _ask(running: Running, method: str, path: str) -> dict[str, Any]:
    import httpx2

    from core.protocol.errors import Unreachable

    try:
        async with httpx2.AsyncClient(timeout=5.0) as client:
            response = await client.request(
                method,
                running.url + path,
                headers={"authorization": f"Bearer {running.token}"},
            )
            found: dict[str, Any] = response.raise_for_status().json()
    except (httpx2.HTTPError, ValueError) as error:
        raise Unreachable(
            "the miner does not answer", f"{running.url}: {error or type(error).__name__}"
        ) from None
    return found


async def _leave(run: Run, within_s: float | None) -> None:
    from core.protocol.errors import Unreachable
    from miner.home import Home

    running, home = _running(run), Home.of(run.settings)
    query = "" if within_s is None else f"?timeout_s={within_s}"
    found = await _ask(running, "POST", f"/drain{query}")
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
    run.emit({"state": "LEFT", "operator": running.operator}, human="the miner has left")


def _status_table(found: dict[str, Any]) -> Any:
    from rich.table import Table

    grid = Table.grid(padding=(0, 3))
    layers = f"{found['layers']} of 0-{found['modelLayers'] - 1}" if found["layers"] else "none yet"
    rows = [
        ("state", found["state"] + (f"  ({found['problem']})" if found["problem"] else "")),
        ("operator", found["operator"]),
        ("owner", found["owner"]),
        ("model", found["model"]),
        ("layers", layers),
        ("endpoint", found["endpoint"]),
        ("peers", ", ".join(f"{ms:.1f} ms" for ms in found["rhoMs"].values()) or "none seen"),
        ("requests", f"{found['activeRequests']} running, {found['finishedRequests']} finished"),
        ("slots", f"{found['freeRequests']} of {found['maxRequests']} free"),
        ("tokens", f"{found['tokensIn']} in, {found['tokensOut']} out"),
        ("decode", f"{found['tauMsPerLayer']:.2f} ms per layer"),
        (
            "chain",
            "answers" if found["chainReachable"] else "does not answer; accepted work goes on",
        ),
    ]
    for label, text in rows:
        grid.add_row(label, text)
    return grid


main = app.main

if __name__ == "__main__":
    sys.exit(main())
