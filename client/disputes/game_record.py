"""What does the chain show of a tolerance game: each move, its price, the number on trial?"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from core.chain.chain import Chain, ChainCall, Mined
from core.dispute.game.game_log import GAME, Opened, case_of, game_events, read_game
from core.dispute.referee import Kind, Leaf, Ruling, check
from core.dispute.referee.exact import VALUES, exact_value
from core.dispute.referee.leaf import Malformed
from core.dispute.trace.calls import evidence_of
from core.dispute.trace.evidence import EvidenceError
from core.dispute.trace.judge import Case
from core.dispute.trace.layout import Place
from core.runtime.commands.results import Result

_MOVES_OF_ACCUSED = frozenset(("pick", "point", "pointWith", "pickPart", "showOpening", "reveal"))
_PROOFS = ("prove", "proveSum", "provePart")


class ShownMove(Result, frozen=True):
    """`disputes show`: one transaction of a game.

    `player` is accuser, accused or anyone; `what` says what the transaction showed.
    """

    player: str
    function: str
    what: str
    gas: int
    calldata_bytes: int
    block: int
    tx_hash: str


@dataclass(frozen=True)
class OnTrial:
    """The number that a game ended at."""

    place: Place
    operator: str
    layer: int | None
    part: int | None  # the partial sum that was picked, if the value has several
    terms: int  # products of operands that were added up
    stated: float | None  # by the accuser's trace
    found: float | None  # by the referee, from the operands
    ruling: str


async def moves_of(chain: Chain, opened: Opened, first: int, last: int) -> list[ShownMove]:
    """The transactions about this game in these blocks, in order. Raises ChainUnreachable."""
    found = []
    for number in await _blocks(chain, opened, max(first, opened.block), last):
        for mined in await chain.mined(number):
            shown = _shown(opened, mined)
            if shown is not None:
                found.append(shown)
    return found


async def _blocks(chain: Chain, opened: Opened, first: int, last: int) -> list[int]:
    """Blocks with moves of this game: every move has an event."""
    found = await game_events(chain, first, last)
    return sorted({e.block_number for e in found if e.args.get("id") == opened.dispute})


def _shown(opened: Opened, mined: Mined) -> ShownMove | None:
    call = mined.call
    if call is None:
        return None
    if call.contract == "TaskRegistry" and call.function == "dispute":
        if mined.block_number != opened.block:
            return None
        player, what = "accuser", "pays the bond and opens the game"
    elif call.contract == GAME and _is_about(call, opened):
        player, what = _player(call), _says(call)
    else:
        return None
    price = mined.gas_used, mined.calldata_bytes
    return ShownMove(player, call.function, what, *price, mined.block_number, mined.tx_hash)


def _is_about(call: ChainCall, opened: Opened) -> bool:
    if call.function == "execute":
        args = call.args
        return (args["job"], args["stage"]) == (opened.job, opened.stage)
    return call.args.get("id") == opened.dispute


def _player(call: ChainCall) -> str:
    if call.function in ("timeout", "execute"):
        return "anyone"
    return "accused" if call.function in _MOVES_OF_ACCUSED else "accuser"


def _says(call: ChainCall) -> str:
    a = call.args
    match call.function:
        case "accuse" | "accuseToken":
            claim = a["claim"]
            rows = f"rows {claim['windowFrom']} to {claim['positions'] - 1}"
            if claim["how"]:
                rows = f"token {claim['served']} instead of {claim['preferred']}"
            return f"{rows} of request {claim['leaf']['requestIndex']}; root of the trace"
        case "pick":
            return f"hash {a['child']} is not ours"
        case "point" | "pointWith":
            at = a["place"]
            value = f"value {at['index']} of row {at['row']}"
            return f"{value}, operator {at['op']}, section {at['section']}"
        case "pickPart":
            return f"partial sum {a['part']} is not ours"
        case "openNode":
            return f"{len(a['below'])} hashes below it"
        case "openChunks":
            return f"{len(a['data'][2:]) // 16} values"
        case "expand":
            return f"the value's {len(a['stated'][2:]) // 16} partial sums"
        case "prove" | "provePart":
            return "operands and weights, opened"
        case "proveSum":
            return "the value and its partial sums, opened"
        case "ask" | "reveal":
            return f"{len(a['spots'])} parts of rows"
        case "timeout":
            return "the clock has run out"
        case "execute":
            return "slash, refund, release"
    return ""


async def on_trial(chain: Chain, opened: Opened) -> OnTrial | None:
    """The number that the last proof was about, computed again from the operands that it opened.

    None where there was no proof. Raises ChainUnreachable.
    """
    seen = await read_game(chain, opened)
    proof = await _last_proof(chain, opened)
    if seen.claim is None or seen.place is None or proof is None:
        return None
    case = await case_of(chain, opened, seen.claim)
    place, is_part = seen.place, proof.function == "provePart"
    if not case.layout.contains(place):
        return None
    part = seen.part if is_part else None
    evidence = evidence_of(proof.args["evidence"])
    try:
        if is_part:
            leaf = case.opened_part(place, seen.part, evidence, seen.stated)
        else:
            stated = bytes.fromhex(proof.args["stated"][2:]) if "stated" in proof.args else b""
            leaf = case.opened(place, evidence, stated)
    except EvidenceError:
        return None
    return None if leaf is None else _trial(case, place, part, leaf)


def _trial(case: Case, place: Place, part: int | None, leaf: Leaf) -> OnTrial:
    op = case.layout.op(place.section, place.op)
    depth = case.claim.layer_to - case.claim.layer_from
    stated = found = None
    if leaf.kind in VALUES:
        (stated,) = struct.unpack("<d", leaf.operands[:8])
        try:
            bits = exact_value(leaf)
        except Malformed:
            bits = None
        found = None if bits is None else struct.unpack("<d", bits)[0]
    ruling = check(leaf)
    terms = case.derivation.part(place, part).runs[0].count if part is not None else 1
    return OnTrial(
        place=place,
        operator=Kind(op.kind).name.lower(),
        layer=case.claim.layer_from + place.section - 1 if 1 <= place.section <= depth else None,
        part=part,
        terms=terms,
        stated=stated,
        found=found,
        ruling={Ruling.HOLDS: "holds", Ruling.FAILS: "fails"}.get(ruling, ruling.name.lower()),
    )


async def _last_proof(chain: Chain, opened: Opened) -> ChainCall | None:
    """The last proof that was posted; of a value with partial sums, that of the part."""
    found: ChainCall | None = None
    head = await chain.block_number()
    for number in await _blocks(chain, opened, opened.block, head):
        for mined in await chain.mined(number):
            if mined.call is None or mined.call.contract != GAME:
                continue
            if mined.call.function in _PROOFS and mined.call.args.get("id") == opened.dispute:
                found = mined.call
    return found


def describe_trial(trial: OnTrial) -> dict[str, str]:
    """What people read about it."""
    where = "the verdict's end" if trial.layer is None else f"layer {trial.layer}"
    at = trial.place
    value = f"{trial.operator} of {where}, operator {at.op}, row {at.row}, value {at.item}"
    part = "" if trial.part is None else f", partial sum {trial.part} of {trial.terms} products"
    return {
        "on trial": value + part,
        "the accuser's trace says": _number(trial.stated),
        "the referee computes": _number(trial.found),
        "may differ by": "0: to the bit",
        "so the leaf": trial.ruling,
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value!r}  ({value.hex()})"
