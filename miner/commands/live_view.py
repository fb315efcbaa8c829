"""How does a person watch a running miner? `miner status --watch` and `miner top`."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from core.runtime.commands.console import Run
from miner.commands.facts import Json, ask_daemon, daemon_status, running_daemon

if TYPE_CHECKING:
    from rich.console import RenderableType

RATE_OVER_S = 60.0
_BAR = 24


async def watch(run: Run, every_s: float, *, whole_screen: bool, count: int | None) -> None:
    """Show the daemon's status until it ends, `count` times at most. Raises Unreachable."""
    settings, seen = run.settings, 0
    rates = Rates()
    found: Json | None = await ask_daemon(running_daemon(settings))
    if run.options.json or not run.out.is_terminal:
        while found is not None:
            rates.take(asyncio.get_running_loop().time(), found)
            run.emit(found, human=picture(found, rates))
            seen += 1
            if seen == count:
                return
            await asyncio.sleep(every_s)
            found = await daemon_status(settings)
        return
    from rich.live import Live

    with Live(console=run.out, screen=whole_screen, auto_refresh=False) as live:
        while found is not None and seen != count:
            rates.take(asyncio.get_running_loop().time(), found)
            live.update(picture(found, rates), refresh=True)
            seen += 1
            await asyncio.sleep(every_s)
            found = await daemon_status(settings)
    if found is None:
        run.note("the miner has left")


class Rates:
    """Tokens per second of finished requests over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def take(self, now_s: float, found: dict[str, Any]) -> None:
        """One look at the counters."""
        self._seen.append((now_s, found["tokensIn"], found["tokensOut"]))
        while self._seen[-1][0] - self._seen[0][0] > RATE_OVER_S and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def per_s(self) -> tuple[float, float]:
        """(in, out)."""
        first, last = self._seen[0], self._seen[-1]
        span = last[0] - first[0]
        if span <= 0:
            return 0.0, 0.0
        return (last[1] - first[1]) / span, (last[2] - first[2]) / span


def picture(found: dict[str, Any], rates: Rates | None = None) -> RenderableType:
    """The box: who it is, what it works on, what it can still take."""
    from rich.columns import Columns
    from rich.panel import Panel

    layers = f"{found['layers']} of 0-{found['modelLayers'] - 1}" if found["layers"] else "none yet"
    links = found["rhoMs"].values()
    who = {
        "state": found["state"],
        "problem": found["problem"],
        "operator": found["operator"],
        "owner": found["owner"],
        "model": found["model"],
        "layers": layers,
        "told by": found["matcher"] or ("its owner" if found["layers"] else "nobody yet"),
        "endpoint": found["endpoint"],
    }
    work = {
        "requests": f"{found['activeRequests']} running, {found['waitingRequests']} wait, "
        f"{found['finishedRequests']} finished",
        "tokens": f"{found['tokensIn']:,} in, {found['tokensOut']:,} out",
        "rate": _rate_text(rates),
        "step": f"{found['stepRows']:.1f} rows, {found['tauMsPerLayer']:.3f} ms per layer",
        "ring": f"{found['microbatches']} microbatches of {found['microbatchRows']} rows, links "
        f"{found['ringLatencyMs']:.1f} ms"
        if found["microbatches"]
        else None,
        "idle": f"{found['bubbleShare']:.0%} of the time with work",
    }
    room = {
        "places": _bar(found["maxRequests"] - found["freeRequests"], found["maxRequests"]),
        "cache": _bar(found["kvTokens"], found["kvCapacityTokens"]),
        "peers": f"{len(links)}, one way {min(links):.1f} to {max(links):.1f} ms"
        if links
        else "none seen",
        "chain": "answers" if found["chainReachable"] else "does not answer; accepted work goes on",
        "refused": sum(found["counts"].values()) or None,
        "stream faults": sum(found["streamFaults"].values()) or None,
    }
    panels = [("work", work), ("room", room)]
    if (money := found.get("money")) is not None:
        panels.append(("money", _money(money)))
    name = found["name"] or "miner"
    return Columns(
        [
            Panel(_grid(who), title=f"[bold]{name}[/]", title_align="left"),
            *(Panel(_grid(rows), title=title, title_align="left") for title, rows in panels),
        ]
    )


def _money(money: dict[str, Any]) -> dict[str, Any]:
    disputes = money["openDisputes"]
    return {
        "owed": f"{money['owed']} in open sessions",
        "to claim": f"{money['toClaim']}, by `miner claim`",
        "stake": f"{money['stake']}, at least {money['leastStake']} works",
        "at risk": f"{disputes} open disputes" if disputes else "no open dispute",
        "jailed": f"until chain time {money['jailedUntil']}" if money["jailedUntil"] else None,
        "fees": money["gas"],
    }


def _grid(rows: dict[str, Any]) -> RenderableType:
    from rich.markup import escape
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for label, value in rows.items():
        if value is not None:
            grid.add_row(label, escape(str(value)))
    return grid


def _rate_text(rates: Rates | None) -> str | None:
    if rates is None:
        return None
    tokens_in, tokens_out = rates.per_s
    return f"{tokens_in:.1f} tokens/s in, {tokens_out:.1f} out (finished, last minute)"


def _bar(used: int, of: int) -> str:
    filled = round(_BAR * used / of) if of else 0
    return f"{'█' * filled}{'░' * (_BAR - filled)} {used:,} of {of:,}"
