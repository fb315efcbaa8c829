"""`auditor disputes move`, `resolve` and `claim`: how does a person play a dispute step by step?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from client.audit.evidence import events_named
from client.audit.investigation import investigate, read_delegation
from client.commands.judge.dispute_results import Appealed, Moved
from client.commands.judge.play_dispute import next_move
from client.commands.wallet.credit import withdraw_credits
from client.context import Context, open_context
from client.jury.jury import Action, Memory, View, next_action
from client.wallet import require_tokens
from core.dispute.game.dispute import (
    ACCUSED_TURNS,
    JURY,
    STATUSES,
    JuryPhase,
    Phase,
    Verdict,
)
from core.dispute.game.game_log import GAME, Opened, games
from core.protocol import ids, units
from core.protocol.errors import UsageError
from core.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from core.chain.chain import ChainEvent
    from core.protocol.signing import DigestSigner
    from core.runtime.commands.console import Run


@dataclass(frozen=True)
class Standing:
    """A dispute as the chain has it at this moment. `game` is None before a jury."""

    dispute: str
    game: Opened | None
    phase: Phase | JuryPhase
    status: str
    ends_at: int
    now: int

    @property
    def name(self) -> str:
        return ids.short(ids.Kind.DISPUTE, self.dispute)

    @property
    def left_s(self) -> int:
        """Until the clock of this phase has run out."""
        return self.ends_at - self.now

    def line(self, done: str = "") -> Moved:
        """What the commands print. `done` is the call that was made."""
        return Moved(
            dispute=self.name,
            before="jury" if self.game is None else "game",
            done=done,
            phase=self.phase.name.lower(),
            verdict=self.status,
            clock_s=max(0, self.left_s),
        )


async def move(run: Run, typed: str, delegation_file: Path | None) -> None:
    """Make the one move of a game that is the accuser's now. Raises UsageError where none is."""
    delegation, signer = read_delegation(delegation_file), run.unlock()
    async with open_context(run.settings) as context:
        seen = await standing(context, typed)
        opened = _ours_to_move(seen, signer.address)
        job = ids.full(ids.Kind.JOB, opened.job)
        found = await investigate(context, signer, job, delegation, lambda *_: None, rerun=False)
        run.confirm(
            "Make the next move?",
            {
                "dispute": f"{seen.name}, {seen.phase.name.lower()}",
                "clock": units.format_duration(max(0, seen.left_s)) + " left",
                "fee": "gas of the move",
            },
        )
        with run.stage(1, 1, "preparing the move"):
            played = await next_move(context, signer, found, opened, delegation)
        if played is not None:
            run.note(f"  {played.function}  {played.sent.gas_used:,} gas")
        made = "" if played is None else played.function
        run.emit((await standing(context, opened.dispute)).line(made))


def _ours_to_move(seen: Standing, who: str) -> Opened:
    """The game. Raises UsageError unless it is this accuser's turn."""
    opened, name = seen.game, seen.name
    if opened is None:
        raise UsageError(
            f"{name} is before the jury",
            "the jurors move; nobody else has anything to do before the verdict",
            next_step=f"auditor disputes resolve {name}",
        )
    if opened.accuser.lower() != who.lower():
        raise UsageError(
            f"{who} does not play in {name}",
            f"its accuser is {opened.accuser}",
            next_step="choose its wallet with --wallet; the accused answers with "
            "`miner disputes respond`",
        )
    is_over = seen.phase in (Phase.RULED, Phase.EXECUTED)
    if is_over or seen.left_s < 0:
        late = f"the clock ran out {units.format_duration(-seen.left_s)} ago"
        raise UsageError(
            f"no move is left in {name}",
            f"it is {seen.phase.name.lower()}" if is_over else late,
            next_step=f"auditor disputes resolve {name}",
        )
    if seen.phase in ACCUSED_TURNS:
        raise UsageError(
            f"it is the accused's turn in {name}",
            f"it has {units.format_duration(seen.left_s)} left, and loses by silence",
            next_step=f"auditor disputes show {name}",
        )
    return opened


async def resolve(run: Run, typed: str) -> None:
    """Make the call that anyone may make once a clock has run out. Raises UsageError before."""
    signer = run.unlock()
    async with open_context(run.settings) as context:
        seen = await standing(context, typed)
        call = _due(seen) if seen.game is not None else await _due_of_jury(context, seen)
        contract, function = (GAME if seen.game else JURY), call
        args: tuple[Any, ...] = (seen.dispute,)
        if seen.game is not None and function == "execute":
            args = (seen.game.job, seen.game.stage, seen.game.receipt_hash, seen.game.right)
        await context.chain.simulate(signer.address, contract, function, *args)
        run.confirm(
            "Move it on?",
            {
                "dispute": f"{seen.name}, {seen.phase.name.lower()}",
                "call": f"{contract}.{function}",
            },
        )
        await context.chain.transact(signer, contract, function, *args)
        run.emit((await standing(context, seen.dispute)).line(function))


def _due(seen: Standing) -> str:
    """The call that moves a game on. Raises UsageError where it is over or its clock runs."""
    if seen.phase is Phase.EXECUTED:
        raise _over(seen)
    is_ruled = seen.phase is Phase.RULED
    if seen.left_s > 0 or (seen.left_s == 0 and not is_ruled):
        whose = "the accused" if seen.phase in ACCUSED_TURNS else "the accuser"
        what = "the payout waits" if is_ruled else f"{whose} has"
        raise UsageError(
            f"the clock of {seen.name} still runs",
            f"{what} {units.format_duration(seen.left_s)} more",
            next_step=f"auditor disputes show {seen.name}",
        )
    return "execute" if is_ruled else "timeout"


async def _due_of_jury(context: Context, seen: Standing) -> str:
    """The same of a dispute before the jury."""
    if seen.phase is JuryPhase.EXECUTED:
        raise _over(seen)
    found = await context.chain.read(JURY, "disputeOf", seen.dispute)
    view = View.of(found, on_panel=False)
    action = next_action(view, Memory(), block=await context.chain.block_number(), now=seen.now)
    calls = {Action.DRAW: "draw", Action.ADVANCE: "advance", Action.EXECUTE: "execute"}
    if action not in calls:
        raise UsageError(
            f"the clock of {seen.name} still runs",
            f"{view.phase.name.lower()} for {units.format_duration(max(0, seen.left_s))} more",
            next_step="auditor disputes ls",
        )
    return calls[action]


async def appeal(run: Run, typed: str) -> None:
    """Bring a jury's ruling before a larger panel. Raises UsageError where that cannot be."""
    signer = run.unlock()
    async with open_context(run.settings) as context:
        seen = await standing(context, typed)
        check_appealable(seen, is_appealable=await _is_appealable(context, seen))
        run.emit(await send_appeal(run, context, signer, seen.dispute))


async def _is_appealable(context: Context, seen: Standing) -> bool:
    return seen.game is None and bool(await context.chain.read(JURY, "isAppealable", seen.dispute))


def check_appealable(seen: Standing, *, is_appealable: bool) -> None:
    """Raise UsageError unless this is a ruling of a jury that a larger panel may still change."""
    why = ""
    if seen.game is not None:
        why = "it is a game: its moves decide it, and nobody's vote"
    elif seen.phase is not JuryPhase.RULED:
        why = f"it is {seen.phase.name.lower()}; a ruling may be appealed until it is carried out"
    elif seen.left_s <= 0:
        why = f"the time to appeal ran out {units.format_duration(-seen.left_s)} ago"
    elif not is_appealable:
        why = "there were two appeals, or there are too few jurors for a larger panel"
    if why:
        shows = f"auditor disputes show {seen.name}"
        raise UsageError(f"{seen.name} cannot be appealed", why, next_step=shows)


async def send_appeal(run: Run, context: Context, signer: DigestSigner, dispute: str) -> Appealed:
    """Pay bond and fee of the next panel. Raises TokenShort or ContractRefused."""
    chain, show = context.chain, run.settings.show_token
    bond, fee = await chain.read(JURY, "appealCostOf", dispute)
    panel = fee // await chain.read(JURY, "seatFee")
    name = ids.short(ids.Kind.DISPUTE, dispute)
    run.confirm(
        "Appeal?",
        {
            "dispute": f"{name}, before a panel of {panel}",
            "bond": f"{show(bond)}, the other side's if it is ruled for them",
            "fee": f"{show(fee)} for the jurors, unless nothing is ruled",
        },
    )
    await require_tokens(chain, signer.address, bond + fee, "the appeal cannot be made")
    await chain.transact(signer, "TestUSD", "approve", chain.addresses[JURY], bond + fee)
    await chain.transact(signer, JURY, "appeal", dispute)
    asks_fault = (await chain.read(JURY, "appealsOf", dispute))[-1]["asksFault"]
    asked = Verdict.FAULT if asks_fault else Verdict.NO_FAULT
    return Appealed(dispute=name, asks=STATUSES[asked], panel=panel, bond=show(bond), fee=show(fee))


async def claim(run: Run, typed: str) -> None:
    """Take what a dispute owes this wallet. Raises UsageError while it runs or owes nothing."""
    async with open_context(run.settings) as context:
        seen = await standing(context, typed)
    if seen.phase.name != Phase.EXECUTED.name:  # the two kinds number their phases differently
        raise UsageError(
            f"{seen.name} owes nothing yet",
            f"it is {seen.phase.name.lower()}; bonds and rewards are credited when it is executed",
            next_step=f"auditor disputes resolve {seen.name}",
        )
    run.emit(await withdraw_credits(run))


async def standing(context: Context, typed: str) -> Standing:
    """The dispute of either kind that a person means, as it stands. Raises IdInvalid."""
    chain, first = context.chain, context.settings.network.deploy_block
    known: dict[str, Opened | ChainEvent] = {
        event.args["dispute"]: event for event in await events_named(chain, "DisputeOpened", first)
    }
    if GAME in chain.addresses:
        known |= {opened.dispute: opened for opened in await games(chain, first)}
    dispute = ids.find(ids.Kind.DISPUTE, typed, known, lambda dispute: dispute)
    # Without transactions a local chain makes no blocks, and its clock stands.
    now = max(await chain.now(), int(SystemClock().now()))
    opened = known[dispute]
    if isinstance(opened, Opened):
        game = await chain.read(GAME, "gameOf", dispute)
        phase, status = Phase(game["phase"]), STATUSES[game["status"]]
        return Standing(dispute, opened, phase, status, game["endsAt"], now)
    found = await chain.read(JURY, "disputeOf", dispute)
    phase = JuryPhase(found["phase"])
    ends_at = found["payoutAt"] if phase is JuryPhase.RULED else found["phaseEndsAt"]
    return Standing(dispute, None, phase, STATUSES[found["status"]], ends_at, now)


def _over(seen: Standing) -> UsageError:
    return UsageError(
        f"{seen.name} is over",
        f"the verdict was {seen.status}, and it is executed",
        next_step=f"auditor disputes claim {seen.name}",
    )
