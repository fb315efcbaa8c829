"""How does a machine become a miner's, and how does its owner change his mind?

`miner init` and `miner update`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.models.names import refuse_no_name
from core.protocol.errors import HeadraceError, Unreachable, UsageError
from core.protocol.units import format_bytes, parse_bytes
from core.runtime.commands.config_file import set_value
from core.runtime.commands.console import Run
from miner.commands.results import Initialised, Updated

#: Question, key, flag.
QUESTIONS = (
    ("Your wallet, which pays the stake and receives payouts", "wallet.name", "--wallet"),
    ("The name of this machine", "miner.name", "--name"),
    ("Which model to serve", "miner.model", "--model"),
    ("Your prices per million tokens, IN/OUT", "miner.price_in", "--price"),
    ("Memory for weights and cache", "miner.memory_limit", "--memory-limit"),
)

#: What the registry has of a machine as well.
ON_CHAIN = {"miner.memory_limit", "miner.announce_host", "miner.announce_port"}


async def init(
    run: Run,
    *,
    name: str | None,
    model: str | None,
    price: str | None,
    memory_limit: str | None,
    bench: bool,
) -> Initialised:
    """Ask what was not said, write it to the user's configuration, measure, and say what to type
    next. Without a terminal, what is configured or usual stands; only the wallet must be said.
    Raises UsageError, ConfigError.
    """
    import socket

    from miner.records.machine import memory_limit_bytes

    settings = run.settings
    usual = {
        "wallet.name": settings.wallet.name,
        "miner.name": name or settings.miner.name or socket.gethostname().split(".")[0],
        "miner.model": model or settings.miner.model,
        "miner.price_in": price or f"{settings.miner.price_in}/{settings.miner.price_out}",
        "miner.memory_limit": memory_limit
        or format_bytes(memory_limit_bytes(settings) // 2**20 * 2**20),
    }
    said = {"--name": name, "--model": model, "--price": price, "--memory-limit": memory_limit}
    said["--wallet"] = run.options.wallet
    answers = dict(usual)
    for question, key, flag in QUESTIONS:
        if said[flag] is None and run.can_ask and not run.options.yes:
            answers[key] = run.ask(question, flag=flag, default=usual[key])
    if not answers["wallet.name"]:
        raise UsageError(
            "whose machine is it?",
            "no wallet is chosen",
            next_step="add --wallet NAME; `client wallet new NAME` makes one, `client wallet ls` "
            "lists them",
        )
    price_in, price_out = prices_of(answers.pop("miner.price_in"))
    answers |= {"miner.price_in": price_in, "miner.price_out": price_out}
    _check(run, answers)
    operator = settings.miner.operator or f"{answers['wallet.name']}-operator"
    run.confirm(
        "Write it?",
        {
            "file": str(run.folders.config_file),
            "wallet": f"{answers['wallet.name']} pays and is paid; {operator} signs work",
            "machine": answers["miner.name"],
            "model": answers["miner.model"],
            "prices": f"{price_in} in, {price_out} out",
            "memory": answers["miner.memory_limit"],
        },
    )
    for key, value in answers.items():
        set_value(key, value, run.folders)
    run.load()
    measured = bench and await _measure(run)
    return Initialised(
        file=str(run.folders.config_file),
        wallet=answers["wallet.name"],
        operator_wallet=operator,
        model=answers["miner.model"],
        price_in=price_in,
        price_out=price_out,
        memory_limit=answers["miner.memory_limit"],
        benchmarked=measured,
        next=_next(run, answers["wallet.name"]),
    )


def prices_of(text: str) -> tuple[str, str]:
    """`IN/OUT`, `IN,OUT` or one price for both. Raises UsageError.

    A price has a slash of its own, so `0.10usd/0.40usd`, `0.10usd/Mtok/0.40usd/Mtok` and a comma
    between them are all read.
    """
    if "," in text:
        parts = [part.strip() for part in text.split(",")]
    else:
        parts = [part.strip() for part in text.replace("/Mtok", "").split("/")]
    if len(parts) == 1:
        parts *= 2
    if len(parts) != 2 or not all(parts):
        raise UsageError(
            f"'{text}' is no pair of prices",
            "it is IN,OUT, such as 0.10usd/Mtok,0.40usd/Mtok",
            next_step="write both with their unit",
        )
    first, second = (part if part.endswith("/Mtok") else f"{part}/Mtok" for part in parts)
    return first, second


async def update(run: Run, changes: Mapping[str, Any], pause: bool | None) -> Updated:
    """Change this machine's terms in the configuration, and tell a running daemon to pause or to go
    on. Raises ConfigError for what cannot be set.
    """
    wanted = {key: str(value) for key, value in changes.items() if value is not None}
    _check(run, wanted)
    changed: dict[str, Any] = {}
    if wanted:
        run.confirm("Change it?", wanted)
    for key, value in wanted.items():
        changed[key] = set_value(key, value, run.folders)[1]
    from miner.records.home import Home, operator_wallet

    try:
        operator_wallet(run.settings)
        running = Home.of(run.settings).read_running()
    except UsageError:
        running = None
    if pause is not None:
        if running is None:
            raise Unreachable(
                "there is nothing to pause or resume", "no miner runs", next_step="miner start"
            )
        from miner.commands.facts import tell_daemon

        await tell_daemon(running, f"/pause?paused={'true' if pause else 'false'}")
        changed["paused"] = pause
    restart = bool(wanted) and running is not None
    after = "miner status" if running else "miner start"
    steps = ["miner update (for the chain)"] if ON_CHAIN & set(wanted) else []
    steps.append("miner drain, then miner start" if restart else after)
    return Updated(
        changed=changed,
        file=str(run.folders.config_file),
        restart_needed=restart,
        next=", then ".join(steps),
    )


def _check(run: Run, answers: Mapping[str, str]) -> None:
    """Refuse amounts without units, and no models, before anything is written."""
    if "miner.model" in answers:
        refuse_no_name(answers["miner.model"], run.settings)
    for key in ("miner.price_in", "miner.price_out"):
        if key in answers:
            run.settings.price(answers[key])
    if "miner.memory_limit" in answers:
        parse_bytes(answers["miner.memory_limit"])


async def _measure(run: Run) -> bool:
    from miner.commands.bench import bench_lines, measure_machine

    try:
        found = await measure_machine(run, None, save=True)
    except HeadraceError as error:
        run.note(f"not measured: {error.what}; {error.why}. Later: miner bench")
        return False
    for label, text in bench_lines(found):
        run.note(f"  {label:<15} {text}")
    return True


def _next(run: Run, wallet: str) -> str:
    from core.keys.keystore import Keystore

    known = {w.name for w in Keystore(run.settings.wallet.keystore_dir).ls()}
    if wallet not in known:
        return f"client wallet new {wallet}"
    return "miner quote; then miner register --stake AMOUNT; then miner start"
