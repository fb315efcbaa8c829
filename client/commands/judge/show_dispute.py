"""`auditor disputes show`: a game move by move with the value on trial, or how far a jury is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from client.commands.judge.dispute_results import DisputeRow
from client.commands.judge.move_dispute import Standing, standing
from client.commands.judge.verdicts import jury_row
from client.context import Context, open_context
from client.disputes.game_record import OnTrial, ShownMove, describe_trial, moves_of, on_trial
from core.dispute.game.dispute import ACCUSED_TURNS, ACCUSER_TURNS, JURY, STATUSES, Phase, Verdict
from core.protocol import ids
from core.protocol.units import format_moment
from core.runtime.commands.console import Run
from core.runtime.commands.results import plain

Json = dict[str, Any]
UNRULED = (STATUSES[Verdict.NONE], STATUSES[Verdict.OPEN])


@dataclass(frozen=True)
class Shown:
    """A dispute as it stands: a row for each move of a game, or one for the jury."""

    standing: Standing
    rows: list[ShownMove] | list[DisputeRow]

    @property
    def is_ruled(self) -> bool:
        return self.standing.status not in UNRULED

    def table(self) -> list[Json]:
        """What people see: transactions shortened, and below the moves who is to make the next."""
        rows: list[Json] = plain(self.rows)
        if self.standing.game is None:
            return rows
        rows = [move | {"tx_hash": ids.abridged(move["tx_hash"])} for move in rows]
        if turn := _turn(self.standing):
            rows.append(dict.fromkeys(ShownMove.__struct_fields__, "") | turn)
        return rows


async def show_dispute(run: Run, typed: str) -> None:
    """Print a game's moves and the value on trial, or how far the jury is. Raises IdInvalid."""
    async with open_context(run.settings) as context:
        shown = await look(context, typed)
        trial = await _trial(context, shown)
    run.emit(shown.rows if run.options.json else shown.table())
    if trial is not None:
        run.emit(describe_trial(trial))


async def watch_dispute(run: Run, typed: str) -> None:
    """The same again after each move, until there is a verdict. Raises IdInvalid."""
    async with open_context(run.settings) as context:
        last = await look(context, typed)

        async def rows() -> list[Any]:
            nonlocal last
            last = await look(context, last.standing.name)
            return last.rows if run.options.json else last.table()

        await run.follow(rows, until=lambda _: last.is_ruled)
        trial = await _trial(context, last)
    if trial is not None:
        run.emit(describe_trial(trial))
    run.note(f"{last.standing.name}: {last.standing.status}")


async def look(context: Context, typed: str) -> Shown:
    """The dispute of either kind that a person means. Raises IdInvalid, ChainUnreachable."""
    seen = await standing(context, typed)
    if seen.game is None:
        found = await context.chain.read(JURY, "disputeOf", seen.dispute)
        return Shown(seen, [jury_row(context.settings, seen.dispute, found)])
    head = await context.chain.block_number()
    return Shown(seen, await moves_of(context.chain, seen.game, seen.game.block, head))


async def _trial(context: Context, shown: Shown) -> OnTrial | None:
    game = shown.standing.game
    return None if game is None else await on_trial(context.chain, game)


def _turn(seen: Standing) -> Json | None:
    """Who moves next, and until when; None where nobody has to."""
    for player, turns in (("accuser", ACCUSER_TURNS), ("accused", ACCUSED_TURNS)):
        if seen.phase in turns:
            until = f"until {format_moment(seen.ends_at)}"
            clock = "its clock has run out" if seen.left_s < 0 else until
            return {"player": player, "what": f"is to move, {clock}"}
    if seen.phase is Phase.RULED:
        return {"player": "anyone", "what": "may carry the verdict out"}
    return None
