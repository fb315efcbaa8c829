"""Where does a tolerance game stand, and what was shown in it so far?

Read from the chain alone, so that a restart loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

from core.chain.chain import Chain, ChainCall, ChainEvent, history
from core.dispute.game.dispute import Phase, Verdict
from core.dispute.trace.calls import claim_of, place_of
from core.dispute.trace.judge import Case, Claim
from core.dispute.trace.layout import Place
from core.dispute.trace.program import Program
from core.protocol import commit
from core.protocol.errors import CheckFailed

GAME = "ToleranceGame"


@dataclass(frozen=True)
class Opened:
    """What a dispute is about, as it was opened."""

    dispute: str
    job: str
    stage: int
    right: int  # `IArbitrator.Right`: 0 the requester's, 1 an auditor's
    accuser: str
    requester: str
    accused: str
    model: str
    receipt_hash: str
    requests_root: str
    bond: int
    block: int


@dataclass(frozen=True)
class Seen:
    """A game as it stands: whose turn, and what the last moves showed.

    `node` is (level, index) of the last node opened.
    """

    opened: Opened
    phase: Phase
    verdict: Verdict
    ends_at: int
    node: tuple[int, int]
    child: int
    part: int
    claim: Claim | None = None
    receipt: dict[str, Any] | None = None
    below: tuple[bytes, ...] = ()  # hashes under the node
    chunks: tuple[bytes, ...] = ()  # of a node that was opened to values, from `node[1]` on
    place: Place | None = None
    tokens: bytes = b""
    stated: bytes = b""
    asked: dict[str, Any] | None = None
    listed: bytes = b""  # tokens that the claim lists
    plea: int | None = None  # seed that the accused pleaded with
    moves: tuple[str, ...] = ()


async def games(chain: Chain, first_block: int, last_block: int | None = None) -> list[Opened]:
    """Every game that was opened in these blocks, oldest first. Raises ChainUnreachable."""
    found = await game_events(chain, first_block, last_block)
    return [opened_in(event) for event in found if event.name == "GameOpened"]


def opened_in(event: ChainEvent) -> Opened:
    """What a `GameOpened` event says."""
    args = event.args
    return Opened(
        args["id"],
        args["job"],
        args["stage"],
        args["right"],
        args["accuser"],
        args["requester"],
        args["accused"],
        args["model"],
        args["receiptHash"],
        args["requestsRoot"],
        args["bond"],
        event.block_number,
    )


async def read_game(chain: Chain, opened: Opened) -> Seen:
    """The game as of the newest block. Raises ChainUnreachable."""
    while True:
        head = await chain.block_number()
        game = await chain.read(GAME, "gameOf", opened.dispute, block=head)
        seen = await _shown(chain, opened, game, head)
        # A node that is making a block may answer for the newest one with what the next leaves.
        if game == await chain.read(GAME, "gameOf", opened.dispute, block=head):
            return seen


async def _shown(chain: Chain, opened: Opened, game: dict[str, Any], head: int) -> Seen:
    """A game that stands so, with what its moves up to a block showed."""
    phase, verdict = Phase(game["phase"]), Verdict(game["status"])
    node = game["level"], game["index"]
    seen = Seen(opened, phase, verdict, game["endsAt"], node, game["child"], game["part"])
    for event in await game_events(chain, opened.block, head):
        if event.args.get("id") == opened.dispute and event.name in _SHOWN:
            call = await chain.call_of(event.tx_hash)
            seen = _SHOWN[event.name](seen, event, call)
            seen = replace(seen, moves=(*seen.moves, event.name))
    return seen


async def program_of(chain: Chain, opened: Opened) -> Program:
    """The operator program of the model that a game is about."""
    profile = await chain.read("ModelRegistry", "numericsProfileOf", opened.model)
    data = bytes.fromhex((await chain.read("ProgramStore", "load", profile))[2:])
    return Program.from_bytes(data)


async def case_of(chain: Chain, opened: Opened, claim: Claim) -> Case:
    """The claim with the program and the registered roots that it is judged by."""
    program = await program_of(chain, opened)
    parts = range(len(program.layer_types) + 2)
    roots = [await chain.read("ModelRegistry", "partRootOf", opened.model, part) for part in parts]
    return Case(program, tuple(commit.unhex(root) for root in roots), claim)


async def game_events(chain: Chain, first: int, last: int | None = None) -> list[ChainEvent]:
    """Every event of every game in these blocks, oldest first. Raises ChainUnreachable."""
    return [
        event
        async for _, events in history(chain, first, last)
        for event in events
        if event.contract == GAME
    ]


def _args(call: ChainCall | None, *names: str) -> dict[str, Any]:
    """What the move said. Raises CheckFailed where the node shows another call: the game takes
    such moves from a key itself alone.
    """
    if call is None or call.function not in names:
        raise CheckFailed(
            f"a move ({names[0]}) cannot be read", "the node shows no such call of the game"
        )
    return dict(call.args)


def _accused(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    args = _args(call, "accuse", "accuseToken")
    listed = commit.unhex(args["drawn"]["tokens"]) if "drawn" in args else b""
    claim, below = claim_of(args["claim"]), _hashes(args["below"])
    return replace(seen, claim=claim, receipt=args["receipt"], below=below, listed=listed)


def _pleaded(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    return replace(seen, plea=event.args["seed"])


def _restated(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    args = _args(call, "restate")
    return replace(seen, claim=claim_of(args["claim"]), below=_hashes(args["below"]))


def _node_opened(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    return replace(seen, below=_hashes(_args(call, "openNode")["below"]))


def _chunks_shown(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    args = _args(call, "openChunks")
    data, ends = commit.unhex(args["data"]), list(accumulate(commit.unhex(args["sizes"])))
    chunks = tuple(data[start:end] for start, end in pairwise([0, *ends]))
    return replace(seen, chunks=chunks)


def _pointed(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    listed = call is not None and call.function == "pointWith"
    tokens = commit.unhex(call.args["tokens"]) if call is not None and listed else b""
    return replace(seen, place=place_of(event.args["place"]), tokens=tokens)


def _expanded(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    return replace(seen, stated=commit.unhex(_args(call, "expand")["stated"]))


def _asked(seen: Seen, event: ChainEvent, call: ChainCall | None) -> Seen:
    return replace(seen, asked=_args(call, "ask"))


def _hashes(found: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(commit.unhex(one) for one in found)


_SHOWN = {
    "Accused": _accused,
    "Pleaded": _pleaded,
    "Restated": _restated,
    "NodeOpened": _node_opened,
    "ChunksShown": _chunks_shown,
    "PointedAt": _pointed,
    "Expanded": _expanded,
    "Asked": _asked,
}
