"""Both programs' players on the Python twin of the game, no chain in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

from core.dispute.game.dispute import ACCUSER_TURNS, Phase, Verdict
from core.dispute.game.game_log import Opened, Seen
from core.dispute.play.loop import Move
from core.dispute.play.players import Accused, Accuser
from core.dispute.trace.calls import claim_tuple
from core.dispute.trace.evidence import Evidence, RowOpening, RunOpening, WeightOpening
from core.dispute.trace.layout import Place
from core.protocol import commit
from tests.twins.game.game import Game, GameParameters, opened

PARAMETERS = GameParameters(bond=20, turn_s=60, payout_delay_s=0)
OPENED = Opened(
    "0x00", "0x00", 0, 0, "accuser", "requester", "owner", "0x00", "0x00", "0x00", 20, 0
)
Answer = Callable[[Seen], Move | None]


def evidence_of(found: Any) -> Evidence:
    """The evidence in a call's tuple."""
    result, runs, weights, row, witness, tokens = found
    part, name, root, siblings = weights
    return Evidence(
        RunOpening(result[0], tuple(result[1])),
        tuple(RunOpening(data, tuple(up)) for data, up in runs),
        WeightOpening(row_of(part), name, root, tuple(siblings)),
        row_of(row),
        witness,
        tokens,
    )


def row_of(found: Any) -> RowOpening:
    return RowOpening(found[0], tuple(found[1]), tuple(found[2]))


class Table:
    """One game between an accuser and an accused that answers.

    Who has no answer is silent and loses by it.
    """

    def __init__(self, accuser: Accuser, accused: Accused, answer: Answer | None = None) -> None:
        self.accuser, self.answer = accuser, answer or accused.answer
        case = accuser.case
        root = commit.root_of_hashes(commit.request_hashes([case.claim.leaf]))
        proof = commit.request_proof([case.claim.leaf], 0)
        fresh = opened(PARAMETERS, 0, "accuser", frozenset(("owner",)), "requester", root, 1)
        self.below = accuser.below_root
        self.chunks: tuple[bytes, ...] = ()
        self.moves: list[str] = ["accuse"]
        # A token's sampling bytes are another test's: here its claim is taken as given.
        posted = fresh._accuse(0, case, 0, proof, self.below)
        self.game: Game = replace(posted, may_plead=case.claim.choice is None)

    def play(self) -> Verdict:
        while self.game.phase != Phase.RULED:
            is_accusers = self.game.phase in ACCUSER_TURNS
            move = (self.accuser.answer if is_accusers else self.answer)(self.seen)
            if move is None:
                self.game = self.game.timeout(self.game.ends_at + 1)
                break
            self.make(move)
        return self.game.verdict

    @property
    def seen(self) -> Seen:
        g = self.game
        node = (g.node.level, g.node.index) if g.node else (0, 0)
        return Seen(
            OPENED,
            g.phase,
            g.verdict,
            g.ends_at,
            node,
            g.child,
            g.part,
            g.case.claim if g.case else None,
            None,
            tuple(self.below),
            self.chunks,
            g.place,
            g.tokens,
            g.stated,
            plea=g.seed,
        )

    def make(self, move: Move) -> None:
        game, args = self.game, move.args
        self.moves.append(move.function)
        match move.function:
            case "pick":
                self.game = game.pick(0, "owner", args[0])
            case "plead":
                self.game = game.plead(0, "owner", args[0])
            case "restate":
                self.below = args[2]
                case = self.accuser.at(game.seed).case
                assert claim_tuple(case.claim) == args[1]
                self.game = game.restate(0, "accuser", case, self.below)
            case "point":
                self.game = game.point(0, "owner", Place(*args[0]))
            case "pointWith":
                self.game = game.point_with(0, "owner", Place(*args[0]), args[1])
            case "pickPart":
                self.game = game.pick_part(0, "owner", args[0])
            case "openNode":
                self.below = args[0]
                self.game = game.open_node(0, "accuser", *args)
            case "openChunks":
                ends = list(accumulate(args[1]))
                self.chunks = tuple(args[0][a:b] for a, b in pairwise([0, *ends]))
                self.game = game.open_chunks(0, "accuser", self.chunks, args[2])
            case "prove":
                self.game = game.prove(0, "accuser", evidence_of(args[2]))
            case "expand":
                self.game = game.expand(0, "accuser", args[0])
            case "proveSum":
                self.game = game.prove_sum(0, "accuser", evidence_of(args[3]), args[4])
            case "provePart":
                self.game = game.prove_part(
                    0, "accuser", evidence_of(args[3]), RunOpening(args[4][0], tuple(args[4][1]))
                )
            case other:
                raise AssertionError(other)
