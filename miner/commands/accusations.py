"""Which accusations are there against this miner, and how is each answered?"""

from __future__ import annotations

from typing import Any

from core.chain.chain import Chain, ChainEvent, history
from core.dispute.game.dispute import STATUSES, JuryPhase, Phase
from core.dispute.game.game_log import GAME
from core.protocol import ids
from core.protocol.errors import UsageError
from core.protocol.types import ZERO_ADDRESS
from core.runtime.commands.console import Run
from miner.commands.facts import require_operator
from miner.commands.results import AccusationRow

_OPENED = {"GameOpened": ("id", "accuser"), "DisputeOpened": ("dispute", "challenger")}


async def accusations(run: Run) -> list[AccusationRow]:
    """Every dispute against this machine's owner, newest first. Raises UsageError."""
    from miner.commands.registration import REGISTRY, open_chain

    settings = run.settings
    operator = require_operator(settings, "whose disputes?")
    async with open_chain(settings) as chain:
        owner = str(await chain.read(REGISTRY, "ownerOf", operator))
        if owner == ZERO_ADDRESS:
            return []
        stake = int((await chain.read(REGISTRY, "minerOf", owner))["stake"])
        opened = await _opened(chain, settings.network.deploy_block, owner.lower())
        return [await _row(run, chain, event, stake) for event in reversed(opened)]


async def accusation(run: Run, typed: str) -> AccusationRow:
    """The one that a printed id, or the beginning of it, means. Raises IdInvalid."""
    rows = await accusations(run)
    found = [row for row in rows if row.dispute.startswith(typed)]
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"{len(found) or 'no'} disputes against this miner begin with '{typed}'",
        f"there are {', '.join(row.dispute for row in rows) or 'none'}",
        next_step="miner disputes ls",
    )


async def respond(run: Run) -> list[AccusationRow]:
    """Play every open game to its end, as a daemon does. Raises ConfigError while one runs."""
    from core.runtime.clock import SystemClock
    from miner.commands.registration import REGISTRY, open_chain
    from miner.defence.defence import Defence
    from miner.records.home import Home, model_folder, operator_wallet
    from miner.records.store import MinerStore

    settings = run.settings
    rows = [row for row in await accusations(run) if row.state != "executed"]
    games = [row for row in rows if row.arbiter == GAME]
    if not games:
        run.note("no open game waits for an answer; jurors judge the others by themselves")
        return rows
    signer = run.unlock(operator_wallet(settings), password_file=settings.miner.password_file)
    home = Home.of(settings)
    run.confirm(
        "Answer them?",
        {
            "games": ", ".join(row.dispute for row in games),
            "with": f"what {home.database} keeps, signed by operator {signer.address}",
            "fee": "gas of each move, from the operator's wallet",
        },
    )
    with home.locked():
        store = MinerStore(home.database)
        try:
            async with open_chain(settings) as chain:
                owner = str(await chain.read(REGISTRY, "ownerOf", signer.address))
                defence = Defence(
                    chain,
                    signer,
                    owner,
                    store,
                    model_folder(settings),
                    SystemClock(),
                    first_block=settings.network.deploy_block,
                    folder=home.folder / "traces",
                    on_move=lambda dispute, move: run.note(
                        f"  {ids.short(ids.Kind.DISPUTE, dispute)}  {move}"
                    ),
                )
                try:
                    await defence.look()
                    await defence.done()
                finally:
                    await defence.close()
        finally:
            store.close()
    mine = {row.dispute for row in rows}
    return [row for row in await accusations(run) if row.dispute in mine]


async def _opened(chain: Chain, deploy_block: int, owner: str) -> list[ChainEvent]:
    return [
        event
        async for _, events in history(chain, deploy_block)
        for event in events
        if event.name in _OPENED and event.args["accused"].lower() == owner
    ]


async def _row(run: Run, chain: Chain, event: ChainEvent, stake: int) -> AccusationRow:
    id_name, accuser_name = _OPENED[event.name]
    dispute = str(event.args[id_name])
    function = "gameOf" if event.contract == GAME else "disputeOf"
    found: dict[str, Any] = await chain.read(event.contract, function, dispute)
    phases = Phase if event.contract == GAME else JuryPhase
    state = phases(found["phase"]).name.lower().replace("_", " ")
    show = run.settings.show_token
    return AccusationRow(
        dispute=ids.short(ids.Kind.DISPUTE, dispute),
        arbiter=event.contract,
        job=ids.short(ids.Kind.JOB, event.args["job"]),
        stage=event.args["stage"],
        accuser=event.args[accuser_name],
        state=state,
        verdict=STATUSES[found["status"]],
        bond=show(event.args["bond"]),
        at_risk=show(0 if state == "executed" else stake),
    )
