"""What is the same in all five programs: options, streams, errors, exit codes?

A program is a handful of functions; the frame adds the global options, opens logs, maps errors::

    # miner/cli.py
    from typing import Annotated
    import typer
    from core.runtime.commands.cli import App, Run

    app = App("miner", help="Serve layers of a model and earn.")
    stake = app.group("stake", help="Add, withdraw and show stake.")

    @app.command(daemon=True)                    # logs at info; SIGTERM is a clean stop
    async def start(
        run: Run, layers: Annotated[str | None, typer.Option(help="auto or A:B")] = None
    ) -> None:
        "Serve until stopped."
        settings = run.load({"miner.layers": layers})   # flags are the last layer
        signer = run.unlock(settings.miner.operator, password_file=settings.miner.password_file)
        from miner.daemon.daemon import serve           # heavy imports inside the command
        await serve(settings, signer)

    @stake.command()
    async def add(run: Run, amount: Annotated[str, typer.Argument(help="such as 500usd")]) -> None:
        "Lock more stake."
        units = run.settings.token(amount)
        run.confirm("Lock it?", {"amount": run.settings.show_token(units), "at risk": "all of it"})
        run.emit({"staked": run.settings.show_token(units)})

    main = app.main

The first parameter is the ``Run``; the others are typer's. A parameter that is a dataclass stands
for its fields: a group of options that several commands have. ``main`` returns the exit code (0
done, 1 bug, 2 usage, 3 unreachable, 4 wallet, 5 funds, 6 contract, 7 no capacity, 8 deadline, 9
check failed, 130 interrupted) and prints each failure as four lines, and as a JSON document with
--json. The first Ctrl-C cancels the command's task, so that its ``finally`` blocks stop cleanly;
the second raises in the middle of it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from core.keys.passwords import refuse_raw_keys
from core.protocol.errors import DeadlinePassed, HeadraceError, Interrupted, UsageError
from core.runtime import tracing
from core.runtime.commands.console import DryRunEnds, GlobalOptions, Run, print_json
from core.runtime.folders import Folders
from core.runtime.garbage import look_seldom

if TYPE_CHECKING:
    from core.runtime.commands.results import Results

__all__ = ["App", "CommandGroup", "Run"]

PANEL: Final = "Global options (before or after the command)"
EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 a bug on our side, 2 wrong use or configuration, 3 cannot reach chain, "
    "matcher or peers, 4 wallet, 5 not enough money or stake, 6 the contract said no, 7 no "
    "capacity at this price, 8 deadline passed, 9 a check failed, 130 interrupted."
)
#: Under which name a program's spans are filed.
_SERVICES: Final = {"client": "headrace-gateway"}
Command = Callable[..., Any]
_typed: ContextVar[tuple[str, ...]] = ContextVar("command line as typed", default=())


class CommandGroup:
    """A set of commands; ``App`` is the outermost one."""

    def __init__(self, program: str, help: str, path: tuple[str, ...] = (), bare: str = "") -> None:
        self.program = program
        self._path = path
        self.typer = typer.Typer(
            cls=_group_with(bare) if bare else typer.core.TyperGroup,
            help=help,
            no_args_is_help=not bare,
            add_completion=not path,
            pretty_exceptions_enable=False,
            epilog=EXIT_CODES if not path else None,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.typer.callback()(_with_globals(self._remember, ()))

    def command(
        self, name: str | None = None, *, daemon: bool = False, hidden: bool = False
    ) -> Callable[[Command], Command]:
        """Register a function, sync or async, whose first parameter is the Run; return it."""

        def register(function: Command) -> Command:
            own = list(inspect.signature(function).parameters.values())[1:]
            hints = get_type_hints(function, include_extras=True)
            groups = {p.name: hints[p.name] for p in own if is_dataclass(hints.get(p.name))}
            own = [option for param in own for option in _options_of(param, hints)]
            shown = name or function.__name__.strip("_").replace("_", "-")

            def wrapper(ctx: typer.Context, **values: Any) -> None:
                options = _merge(ctx, values)
                for group, kind in groups.items():
                    values[group] = kind(**{f.name: values.pop(f.name) for f in fields(kind)})
                run = Run(self.program, " ".join([*self._path, shown]), options, daemon=daemon)
                ctx.find_root().meta["headrace.run"] = run
                _execute(function, run, values)

            wrapper.__doc__ = _in_paragraphs(function.__doc__)
            wrapper.__name__ = function.__name__
            self.typer.command(shown, hidden=hidden)(_with_globals(wrapper, own))
            return function

        return register

    def group(self, name: str, help: str, bare: str = "") -> CommandGroup:
        """A sub-command that has commands of its own: ``client wallet ls``.

        Typed alone, it is its command ``bare``, if it has one.
        """
        inner = CommandGroup(self.program, help, (*self._path, name), bare)
        self.typer.add_typer(inner.typer, name=name)
        return inner

    @staticmethod
    def _remember(ctx: typer.Context, **values: Any) -> None:
        _merge(ctx, values)


def _group_with(bare: str) -> type[typer.core.TyperGroup]:
    class GroupWithBare(typer.core.TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = next((word for word in args if not word.startswith("-")), "")
            if named not in self.commands and not {"-h", "--help"} & set(args):
                args = [bare, *args]
            return super().parse_args(ctx, args)

    return GroupWithBare


class App(CommandGroup):
    """One of the five programs, with ``config`` and ``debug`` built in."""

    def __init__(self, program: str, help: str) -> None:
        super().__init__(program, help)
        self._results: Callable[[], Results] = dict
        from core.runtime.commands.shared_commands import mount

        mount(self)

    def results(self, types: Callable[[], Results]) -> Callable[[], Results]:
        """Register the function that imports and lists what each own command prints with --json."""
        self._results = types
        return types

    def printed(self) -> Results:
        """Command → types of what it prints with --json, the shared commands included."""
        from core.runtime.commands.results import SHARED

        return {**SHARED, **self._results()}

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command line and return the exit code; never raises, never exits."""
        arguments = list(sys.argv[1:] if argv is None else argv)
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        json_wanted = "--json" in options
        _typed.set((self.program, *arguments))
        look_seldom()
        try:
            refuse_raw_keys(arguments)
            command = typer.main.get_command(self.typer)
            code = command.main(args=arguments, prog_name=self.program, standalone_mode=False)
            return code if isinstance(code, int) else 0
        except DryRunEnds:
            return 0
        except typer.TyperException as error:
            return _report(_usage_error(error, self.program), json_wanted)
        except typer.Abort:
            return _report(Interrupted(), json_wanted)
        except KeyboardInterrupt:
            return _report(Interrupted(), json_wanted)
        except BaseExceptionGroup as group:
            known = _first_known(group)
            return _report(known or self._crash(group, arguments), json_wanted)
        except HeadraceError as error:
            return _report(error, json_wanted)
        except Exception as error:
            return _report(self._crash(error, arguments), json_wanted)
        finally:
            # else the interpreter's end walks all of torch and web3, for about a second
            gc.freeze()

    __call__ = main

    def _crash(self, error: BaseException, arguments: Sequence[str]) -> HeadraceError:
        from core.runtime.commands.debug import write_crash
        from core.runtime.redact import redact_text

        message = redact_text(f"{type(error).__name__}: {error}")
        state = "what the command did before this may have taken effect; its journal is valid"
        try:
            file = write_crash(self.program, error, arguments, Folders.find())
            fix = f"{self.program} debug save FILE bundles it with the logs; report it"
            why = f"{message} (written to {file})"
        except OSError as unwritable:
            fix = "report it with what is above"
            why = f"{message} (not written: {unwritable})"
        return HeadraceError("a bug on our side", why, state, fix)


def as_typed() -> tuple[str, ...]:
    """The program's name and its arguments, as this run was begun with."""
    return _typed.get()


def _options_of(param: inspect.Parameter, hints: dict[str, Any]) -> list[inspect.Parameter]:
    """A command's parameter as typer takes it; of a dataclass, a parameter for each field."""
    kind = hints.get(param.name, param.annotation)
    if not is_dataclass(kind):
        return [param.replace(annotation=kind)]
    inner = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=inner[field.name],
        )
        for field in fields(kind)
    ]


def _in_paragraphs(doc: str | None) -> str:
    """A docstring with each paragraph on one line, for typer keeps the line breaks of the code."""
    paragraphs = inspect.cleandoc(doc or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# --- running a command -------------------------------------------------------------------------


def _execute(function: Command, run: Run, values: dict[str, Any]) -> None:
    run.set_up_logs()
    tracing.set_up(_SERVICES.get(run.program, f"headrace-{run.program}"))
    try:
        if inspect.iscoroutinefunction(function):
            _execute_async(function, run, values)
        else:
            function(run, **values)
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise Interrupted from None
    except BrokenPipeError:  # `miner status | head`: the reader has left, nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit from None
    finally:
        tracing.shut_down()


def _execute_async(function: Command, run: Run, values: dict[str, Any]) -> None:
    stop = _Stop()
    with (
        stop.listening(),
        asyncio.Runner(loop_factory=daemon_loop if run.daemon else None) as runner,
    ):
        try:
            runner.run(_under_deadline(function(run, **values), run, stop))
        except asyncio.CancelledError:
            if stop.signal is None:
                raise
        if stop.signal == signal.SIGINT:
            raise Interrupted(state="stopped cleanly; everything done so far is kept")
        if stop.signal == signal.SIGTERM and not run.daemon:
            raise Interrupted(why="the program was asked to end (SIGTERM)")


def daemon_loop() -> asyncio.AbstractEventLoop:
    """A fifth less work per frame or request; commands are over before it is imported."""
    import uvloop

    return uvloop.new_event_loop()


async def _under_deadline(work: Coroutine[Any, Any, None], run: Run, stop: _Stop) -> None:
    stop.task, stop.loop = asyncio.current_task(), asyncio.get_running_loop()
    limit = asyncio.timeout(run.options.timeout)
    try:
        async with limit:
            await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlinePassed(
            f"{run.program} {run.command} was stopped",
            why=f"it took longer than --timeout {run.options.timeout:g} s",
            resume=shlex.join(_typed.get()),
        ) from None


class _Stop:
    """First signal: cancel the command. Second: raise in the middle of it. Third: leave at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._count = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self.signal = self.signal or signal.Signals(number)
        if self._count >= 3:
            os._exit(130)
        if self._count == 2 or self.task is None or self.loop is None:
            raise KeyboardInterrupt
        self.loop.call_soon_threadsafe(self.task.cancel)


# --- reporting ---------------------------------------------------------------------------------


def _report(error: HeadraceError, json_wanted: bool) -> int:
    from rich.console import Console

    if json_wanted:
        print_json({"schema": "headrace.error/1", "ok": False, "error": error.to_dict()})
    width = None if sys.stderr.isatty() else 10_000
    console = Console(file=sys.stderr, highlight=False, width=width)
    for line in error.lines():
        label, _, text = line.partition(":")
        style = "bold red" if label.startswith("error") else "bold"
        console.print(f"{label}:", style=style, end="")
        console.print(text, markup=False, soft_wrap=True)
    return error.exit_code


def _usage_error(error: typer.TyperException, program: str) -> UsageError:
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else program
    fix = f"{path} --help"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return UsageError(f"{path} needs a command", why="none was given", next_step=fix)
    why = error.format_message().rstrip(".")
    return UsageError(f"{path}: wrong use", why=why, next_step=fix)


def _first_known(group: BaseExceptionGroup[BaseException]) -> HeadraceError | None:
    """The first of our errors, if the group holds nothing else than ours and cancellations."""
    _, bugs = group.split(lambda error: isinstance(error, HeadraceError | asyncio.CancelledError))
    if bugs is not None:
        return None
    queue: list[BaseException] = list(group.exceptions)
    while queue:
        error = queue.pop(0)
        if isinstance(error, HeadraceError):
            return error
        if isinstance(error, BaseExceptionGroup):
            queue.extend(error.exceptions)
    return None


# --- global options ----------------------------------------------------------------------------


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"headrace {version('headrace')}")
        raise typer.Exit


def _option(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PANEL, show_default=False, **more)


_GLOBALS: Final[dict[str, tuple[Any, Any]]] = {
    "config": (Path | None, _option("--config", help="Configuration file on top of the user's.")),
    "network": (str | None, _option("--network", help="Network name or file (default devnet).")),
    "wallet": (str | None, _option("--wallet", help="Wallet name or address.")),
    "password_file": (
        Path | None,
        _option("--password-file", help="File with the wallet's password."),
    ),
    "rpc_url": (str | None, _option("--rpc-url", help="The chain's RPC endpoint.")),
    "json": (bool, _option("--json", help="Results as JSON; never asks.")),
    "quiet": (bool, _option("-q", "--quiet", help="Only results and errors.")),
    "verbose": (int, _option("-v", "--verbose", help="More logs; -vv for all.", count=True)),
    "yes": (bool, _option("--yes", help="Skip questions, not summaries.")),
    "dry_run": (bool, _option("--dry-run", help="Stop before anything is signed.")),
    "no_color": (bool, _option("--no-color", help="No colours.")),
    "timeout": (
        float | None,
        _option("--timeout", help="Give up after this many seconds.", min=0.001),
    ),
    "version": (
        bool,
        _option("--version", help="Print the version.", is_eager=True, callback=_print_version),
    ),
}
_UNSET: Final = {
    "verbose": 0,
    **dict.fromkeys(("json", "quiet", "yes", "dry_run", "no_color", "version"), False),
}


def _with_globals(
    function: Callable[..., None], own: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Give typer a signature with ``ctx``, the command's own and the global parameters."""
    taken = {param.name for param in own}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    ctx = inspect.Parameter("ctx", kind, annotation=typer.Context)
    added = [
        inspect.Parameter(
            f"global_{name}",
            inspect.Parameter.KEYWORD_ONLY,
            default=_UNSET.get(name),
            annotation=Annotated[kind, option],
        )
        for name, (kind, option) in _GLOBALS.items()
        if name not in taken
    ]
    mine = [param.replace(kind=inspect.Parameter.KEYWORD_ONLY) for param in own]

    def adapted(ctx: typer.Context, **values: Any) -> None:
        function(ctx, **values)

    adapted.__doc__ = function.__doc__
    adapted.__name__ = function.__name__
    adapted.__signature__ = inspect.Signature([ctx, *mine, *added])  # type: ignore[attr-defined]
    adapted.__annotations__ = {param.name: param.annotation for param in [ctx, *mine, *added]}
    return adapted


def _merge(ctx: typer.Context, values: dict[str, Any]) -> GlobalOptions:
    """Take the global options out of ``values``; those after the command win over those before."""
    meta = ctx.find_root().meta
    known: dict[str, Any] = meta.setdefault("headrace.options", {})
    for field in fields(GlobalOptions):
        value = values.pop(f"global_{field.name}", None)
        if value not in (None, False, 0):
            known[field.name] = value
    values.pop("global_version", None)
    return GlobalOptions(**known)
