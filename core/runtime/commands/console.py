"""How does a command talk: results, questions, notes and progress, for people and for scripts?"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from core.protocol.errors import NOTHING_CHANGED, ConfirmationNeeded, Interrupted, WalletMissing
from core.runtime.folders import Folders

if TYPE_CHECKING:
    from rich.console import Console

    from core.keys.keystore import Keystore
    from core.keys.signer import Signer
    from core.runtime.settings import NetworkSettings, Settings

LINE_EVERY_S: Final = 10.0
WIDEST_LIST: Final = 80


@dataclass(frozen=True)
class GlobalOptions:
    """The options every command takes, before or after its name."""

    config: Path | None = None
    network: str | None = None
    wallet: str | None = None
    password_file: Path | None = None
    rpc_url: str | None = None
    json: bool = False
    quiet: bool = False
    verbose: int = 0
    yes: bool = False
    dry_run: bool = False
    no_color: bool = False
    timeout: float | None = None


class DryRunEnds(Exception):
    """``--dry-run`` reached the point where something would have been signed."""


class Run:
    """One run of one command: its options, settings, streams and questions.

    Results go to stdout through ``emit``; everything else goes to stderr.
    """

    def __init__(
        self,
        program: str,
        command: str,
        options: GlobalOptions,
        *,
        daemon: bool = False,
        folders: Folders | None = None,
    ) -> None:
        self.program = program
        self.command = command
        self.options = options
        self.daemon = daemon
        self.folders = folders or Folders.find()
        self.log_file: Path | None = None
        self._settings: Settings | None = None
        self._consoles: dict[str, Console] = {}

    # --- settings and wallet ---

    @property
    def settings(self) -> Settings:
        """Loaded on first use from the layers and the global options."""
        return self._settings or self.load()

    def load(self, flags: Mapping[str, Any] | None = None) -> Settings:
        """Load with this command's own flags: dotted key → value, None if not given."""
        from core.runtime.settings import load

        options = self.options
        own = {
            "network.name": options.network,
            "network.rpc_url": options.rpc_url,
            "wallet.name": options.wallet,
            "wallet.password_file": options.password_file,
        }
        self._settings = load(
            flags={**own, **(flags or {})}, config_file=options.config, folders=self.folders
        )
        self.set_up_logs(self._settings.log.level, self._settings.log.format)
        self._say_network(self._settings.network)
        return self._settings

    def _say_network(self, network: NetworkSettings) -> None:
        """Begin every log with the network that the program is on; a daemon's is seen."""
        from core.runtime.logs import get_logger

        if network.chain_id is not None:
            at = network.contracts.get("TaskRegistry", "")
            get_logger(__name__).info(
                "network", name=network.name, chain_id=network.chain_id, contract=at
            )

    def set_up_logs(self, level: str = "auto", form: str = "auto") -> None:
        """Send logs to stderr and to this run's file. ``-q`` and ``-v`` win over ``level``."""
        from core.runtime import logs

        if level == "auto":
            level = "info" if self.daemon else "warning"
        if self.options.quiet:
            level = "error"
        elif self.options.verbose:
            level = "debug" if self.options.verbose > 1 or self.daemon else "info"
        self.log_file = logs.set_up(
            self.program, level=level, form=form, folder=self.folders.logs, file=self.log_file
        )

    def unlock(
        self,
        wallet: str | None = None,
        *,
        password_file: Path | None = None,
        password: str | None = None,
    ) -> Signer:
        """Open a wallet (the configured one) for the configured chain.

        The password is given, else as in `password`. Raises WalletError, ConfigError.
        """
        keystore, name = self._keystore(wallet)
        chain_id, _ = self.settings.require_network()
        if password is None:
            password = self.password(wallet, password_file=password_file)
        return keystore.unlock(name, password, chain_id=chain_id)

    def password(self, wallet: str | None = None, *, password_file: Path | None = None) -> str:
        """From the file, else from a hidden prompt. Raises WalletError, ConfigError."""
        from core.keys.passwords import read_password

        _, name = self._keystore(wallet)
        return read_password(
            name,
            file=password_file or self.settings.wallet.password_file,
            prompt=self.ask_secret if self.can_ask else None,
        )

    def _keystore(self, wallet: str | None) -> tuple[Keystore, str]:
        """Where the wallet lies, and its name there."""
        from core.keys.keystore import Keystore

        settings = self.settings
        name = wallet or settings.wallet.name
        if not name:
            raise WalletMissing(
                "no wallet is chosen",
                why="neither --wallet nor wallet.name says which",
                next_step="pass --wallet NAME; see `client wallet ls`, `client wallet new NAME`",
            )
        settings.require_network()
        keystore = Keystore(settings.wallet.keystore_dir)
        keystore.path(name)
        return keystore, name

    # --- results ---

    def emit(
        self,
        result: Any,
        *,
        human: Any = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        """Print a result: one JSON document with --json, otherwise ``human`` or a table.

        ``result`` is JSON-ready (amounts as strings with or without unit, ids in printed form), or
        typed (msgspec structs). ``human`` is text or rich. Commands that follow something call it
        once per event: one JSON line each.
        """
        result = _plain(result)
        if self.options.json:
            print_json({"schema": self.schema, "ok": True, "result": result})
            return
        shown = human() if callable(human) else human
        if shown is None:
            shown = self._table(result, columns)
        is_text = isinstance(shown, str)  # of a log or a table, with brackets of its own
        self.out.print(shown, soft_wrap=is_text, markup=not is_text)

    async def follow(
        self,
        look: Callable[[], Awaitable[Any]],
        *,
        every_s: float = 1.0,
        until: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Look again and again until interrupted, or until the result is the last.

        On a terminal a table is redrawn in place, elsewhere each changed result is printed.
        """
        import asyncio

        if self.options.json or not self.out.is_terminal:
            shown = None
            while True:
                found = await look()
                if found != shown:
                    self.emit(found)
                    shown = found
                if until(found):
                    return
                await asyncio.sleep(every_s)
        from rich.live import Live

        with Live(console=self.out, auto_refresh=False) as live:
            while True:
                found = await look()
                live.update(self._table(_plain(found)), refresh=True)
                if until(found):
                    return
                await asyncio.sleep(every_s)

    def _table(self, result: Any, columns: Sequence[str] | None = None) -> Any:
        money = self._settings.money if self._settings is not None else _no_money
        return _as_table(result, money, columns)

    @property
    def schema(self) -> str:
        """What the JSON document of this command is."""
        return name_of(self.program, self.command)

    # --- notes and questions ---

    def note(self, text: str) -> None:
        """Tell the person something on stderr; silent with --quiet."""
        if not self.options.quiet:
            self.err.print(text, soft_wrap=True)

    @property
    def can_ask(self) -> bool:
        """Whether a person is there to answer: a terminal, and not --json."""
        return not self.options.json and sys.stdin.isatty() and sys.stderr.isatty()

    def ask_secret(self, question: str) -> str:
        """A hidden answer. Raises ConfirmationNeeded without a terminal."""
        self._must_ask(question, "give it in a file: --password-file FILE")
        import getpass

        return getpass.getpass(f"{question}: ", stream=sys.stderr)

    def ask(self, question: str, *, flag: str, default: str | None = None) -> str:
        """A visible answer. Raises ConfirmationNeeded naming ``flag`` without a terminal."""
        self._must_ask(question, f"give it with {flag}")
        self.err.print(f"{question}{f' [{default}]' if default else ''}: ", end="", markup=False)
        return input().strip() or (default or "")

    def rehearse(self, what: str, summary: Mapping[str, str] | None = None) -> None:
        """Before something is written that asks no question: ``--dry-run`` ends the command here,
        successfully, and says what would have been done.
        """
        self._end_dry_run(what, summary or {}, f"did not {what}")

    def _end_dry_run(self, question: str, summary: Mapping[str, str], undone: str) -> None:
        if not self.options.dry_run:
            return
        from core.runtime.commands.results import Rehearsed

        rehearsed = Rehearsed(dry_run=True, question=question, summary=dict(summary))
        self.emit(rehearsed, human=f"dry run: {undone}, {NOTHING_CHANGED}")
        raise DryRunEnds

    def confirm(
        self, question: str, summary: Sequence[tuple[str, str]] | Mapping[str, str] = ()
    ) -> None:
        """Show what is about to happen, then ask; returns only if it shall happen.

        ``--yes`` skips the question, never the summary; ``--dry-run`` ends the command successfully
        here (simulate the call before). Raises ConfirmationNeeded without a terminal or with
        --json, Interrupted if the answer is no.
        """
        rows = list(summary.items() if isinstance(summary, Mapping) else summary)
        width = max((len(label) for label, _ in rows), default=0)
        for label, text in rows:
            self.err.print(f"  {label:<{width}}   {text}", soft_wrap=True, markup=False)
        self._end_dry_run(question, dict(rows), f"not asked '{question}'")
        if self.options.yes:
            return
        self._must_ask(question, "repeat the command with --yes")
        self.err.print(f"  {question} [y/N] ", end="", markup=False)
        if input().strip().lower() not in ("y", "yes"):
            raise Interrupted("not done", why="the answer was no", state=NOTHING_CHANGED)

    def _must_ask(self, question: str, fix: str) -> None:
        if not self.can_ask:
            reason = "--json never asks" if self.options.json else "there is no terminal to ask on"
            raise ConfirmationNeeded(f"'{question}' needs an answer", why=reason, next_step=fix)

    # --- progress ---

    @contextmanager
    def stage(
        self, number: int, of: int, name: str, *, total: int | None = None, unit: str = ""
    ) -> Iterator[StageProgress]:
        """One named stage of a long command: a bar on a terminal, else a line every ten seconds."""
        stage = StageProgress(f"[{number}/{of}] {name}", total, unit, self._stage_line)
        if not self.err.is_terminal or self.options.quiet or self.options.json:
            yield stage
            stage.finish()
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
            console=self.err,
            transient=True,
        )
        with bar:
            task = bar.add_task(stage.name, total=total, status="")
            stage.on_change = lambda: bar.update(
                task, completed=stage.done, total=stage.total, status=stage.status()
            )
            yield stage
        stage.finish()

    def _stage_line(self, line: str) -> None:
        if not self.options.quiet:
            self.err.print(line, soft_wrap=True, markup=False, highlight=False)

    # --- streams ---

    @property
    def out(self) -> Console:
        """stdout, for results."""
        return self._console("stdout")

    @property
    def err(self) -> Console:
        """stderr, for everything else."""
        return self._console("stderr")

    def _console(self, name: str) -> Console:
        if name not in self._consoles:
            from rich.console import Console

            stream = getattr(sys, name)
            self._consoles[name] = Console(
                file=stream,
                no_color=self.options.no_color or None,
                highlight=False,
                width=None if stream.isatty() else 160,
            )
        return self._consoles[name]


class StageProgress:
    """How far one stage is; ``advance`` or ``set`` it, with a ``note`` such as the cost so far."""

    def __init__(
        self,
        name: str,
        total: int | None,
        unit: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.total, self.unit, self.note = name, total, unit, ""
        self.done = 0
        self.on_change: Callable[[], None] | None = None
        self._say, self._clock = say, clock
        self._began_s = self._said_s = clock()

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """``count`` more are done."""
        self.set(self.done + count, note)

    def set(self, done: int, note: str | None = None, *, total: int | None = None) -> None:
        """``done`` are done by now, of ``total`` if that is known only now."""
        self.done = done
        self.total = total if total is not None else self.total
        self.note = note if note is not None else self.note
        if self.on_change is not None:
            self.on_change()
        elif self._clock() - self._said_s >= LINE_EVERY_S:
            self._said_s = self._clock()
            self._say(f"{self.name}  {self.status()}")

    def status(self) -> str:
        """``87/120  4.1/s  left 00:08  note``."""
        elapsed_s = self._clock() - self._began_s
        rate = self.done / elapsed_s if elapsed_s > 0 else 0.0
        parts = [f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"]
        parts[0] += f" {self.unit}" if self.unit else ""
        if self.done and elapsed_s >= 0.1:
            parts.append(f"{rate:.1f}/s")
            if self.total is not None and self.done < self.total:
                minutes, seconds = divmod(round((self.total - self.done) / rate), 60)
                parts.append(f"left {minutes:02d}:{seconds:02d}")
        return "  ".join([*parts, *([self.note] if self.note else [])])

    def finish(self) -> None:
        """Say the last line: what was done and how long it took."""
        elapsed_s = self._clock() - self._began_s
        counted = f"  {self.status()}" if self.total is not None or self.done else ""
        note = f"  {self.note}" if self.note and not counted else ""
        self._say(f"{self.name}{counted}{note}  {elapsed_s:.1f}s")


def name_of(program: str, command: str) -> str:
    """What the documents of a command call themselves: ``headrace.miner.status/1``."""
    return f"headrace.{'.'.join([program, *command.split()])}/1"


def print_json(document: Mapping[str, Any]) -> None:
    """One compact JSON line on stdout."""
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str), flush=True)


def _plain(result: Any) -> Any:
    """Structs as JSON-ready values; everything else as it is."""
    one = result[0] if isinstance(result, list) and result else result
    if not hasattr(one, "__struct_fields__"):
        return result
    from core.runtime.commands.results import plain

    return plain(result)


#: What reads an amount of money for people; None where a text is none.
Money = Callable[[str], str | None]


def _no_money(text: str) -> None:
    """Where no settings were read, nothing says what money is."""


def _as_table(result: Any, money: Money, columns: Sequence[str] | None = None) -> Any:
    if isinstance(result, str):
        return result
    from rich.table import Table

    if isinstance(result, Mapping):
        grid = Table.grid(padding=(0, 3))
        for key, value in result.items():
            grid.add_row(_label(str(key)), _cell(value, money))
        return grid
    rows = list(result)
    if not rows:
        return "nothing to show"
    if not isinstance(rows[0], Mapping):
        return "\n".join(str(row) for row in rows)
    names = list(columns or rows[0])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        is_money = any(isinstance(one := row.get(name), str) and money(one) for row in rows)
        table.add_column(_label(name), overflow="fold", justify="right" if is_money else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name), money) for name in names))
    return table


def _label(name: str) -> str:
    """``priceIn`` and ``price_in`` → ``price in``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower()


def _listed(items: Sequence[str]) -> str:
    """Side by side, or one below another where that is too much for a line."""
    line = ", ".join(items)
    return line if len(line) <= WIDEST_LIST else "\n".join(items)


def _item(item: Any) -> str:
    if isinstance(item, Mapping):
        return " ".join(f"{name} {one}" for name, one in item.items())
    return str(item)


def _cell(value: Any, money: Money) -> str:
    from rich.markup import escape

    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return escape(_listed([_item(item) for item in value])) or "–"
    if isinstance(value, Mapping):
        return escape(_listed([f"{name} {one}" for name, one in value.items()])) or "–"
    text = str(value)
    return escape(money(text) or text)
