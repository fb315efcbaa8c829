"""What does the chain rule on opened evidence? Evidence is checked against the roots, the leaf goes to the referee.

Twin: contracts/src/trace/TraceJudge.sol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from eth_utils.crypto import keccak

from core.dispute.referee import Leaf, LeafKind, Ruling, rule
from core.dispute.trace.derive import (
    MAX_LISTED,
    Boundary,
    Choice,
    Derivation,
    DerivedLeaf,
    How,
    RowElement,
    TraceRun,
    Trial,
    delta_of,
)
from core.dispute.trace.evidence import Evidence, EvidenceError, open_row, open_run, open_weights
from core.dispute.trace.layout import (
    MAX_CHUNKS,
    MAX_POSITIONS,
    MAX_WINDOW_ROWS,
    VALUE_BYTES,
    Place,
    TraceLayout,
)
from core.dispute.trace.program import Form, Program
from core.protocol import commit
from core.protocol.types import RequestLeaf

TOKEN_BYTES = 4


class Forfeit(Exception):
    """A list of tokens that proves nothing: whoever made it loses by it, with this ruling."""

    def __init__(self, ruling: Ruling) -> None:
        super().__init__(ruling.name)
        self.ruling = ruling


class ClaimError(ValueError):
    """A claim that no trace can be about; the contract reverts on it."""


@dataclass(frozen=True)
class Claim:
    """What an accuser says: over these rows of this request, by this trace, the stage was too far off."""

    leaf: RequestLeaf
    layer_from: int
    layer_to: int
    positions: int
    window_from: int
    tolerance_entry: int
    trace_root: bytes
    choice: Choice | None = None  # a token is accused, not a deviation


@dataclass(frozen=True)
class Case:
    """A claim with the program and the registered roots it is judged by. `part_roots` are embed, layer 0 … L−1, head."""

    program: Program
    part_roots: tuple[bytes, ...]
    claim: Claim

    @cached_property
    def layout(self) -> TraceLayout:
        c = self.claim
        return TraceLayout(
            self.program, c.layer_from, c.layer_to, c.positions, c.window_from, c.choice is None
        )

    @cached_property
    def derivation(self) -> Derivation:
        tolerance = 0
        if self.claim.choice is None:
            tolerance = self.program.tolerances[self.claim.tolerance_entry].parts_per_trillion
        return Derivation(self.layout, tolerance, self.claim.choice, self.first_out)

    @property
    def rows(self) -> int:
        """Rows that the stage was fed."""
        return self.claim.leaf.tokens_in + self.claim.leaf.tokens_out - 1

    @property
    def first_out(self) -> int:
        """Position of the first row that the stage signed as its work; a last stage's are those that a token was drawn from."""
        ends = self.program.ends_at(self.claim.layer_to)
        return self.claim.leaf.tokens_in - 1 if ends else 0

    def check_claim(self) -> None:
        """Raises ClaimError unless the claim is about rows, layers and a tolerance that exist."""
        claim, program = self.claim, self.program
        layers = len(program.layer_types)
        if not 0 <= claim.layer_from < claim.layer_to <= layers:
            raise ClaimError("layers that the model has not")
        if claim.leaf.tokens_out == 0 or not 1 <= claim.positions <= min(
            self.rows, MAX_POSITIONS, program.context
        ):
            raise ClaimError(f"{claim.positions} positions of {self.rows} rows")
        if claim.choice is None:
            self._check_window()
        else:
            self._check_choice(claim.choice, layers)
        if self.layout.chunks > MAX_CHUNKS:
            raise ClaimError("a trace of too many chunks")

    def _check_window(self) -> None:
        claim = self.claim
        rows = claim.positions - claim.window_from
        if not 1 <= rows <= MAX_WINDOW_ROWS or claim.window_from < max(0, self.first_out):
            raise ClaimError(f"a window of {rows} rows from position {claim.window_from} on")
        if not 0 <= claim.tolerance_entry < len(self.program.tolerances):
            raise ClaimError("no such tolerance")
        entry = self.program.tolerances[claim.tolerance_entry]
        if claim.layer_to - claim.layer_from > entry.max_depth or rows < entry.min_rows:
            raise ClaimError("a tolerance for other depths or windows")

    def _check_choice(self, choice: Choice, layers: int) -> None:
        claim, vocab = self.claim, self.program.vocab
        if claim.layer_to != layers or claim.positions < claim.leaf.tokens_in:
            raise ClaimError("no token is drawn there")
        if not 0 <= choice.preferred < vocab or not 0 <= choice.served < vocab:
            raise ClaimError("tokens that the model has not")
        if delta_of(self.program.delta_micro, choice.temperature_micro) >= 2**32:
            raise ClaimError("so cold that any token is a near tie")
        if choice.top_k > MAX_LISTED:
            raise ClaimError(f"a top-k of more than {MAX_LISTED}")
        needs = {
            How.AHEAD: True,
            How.OUTSIDE_MIN_P: choice.temperature_micro and choice.min_p_micro,
            How.OUTSIDE_TOP_K: choice.temperature_micro and choice.top_k,
        }
        if not needs[choice.how]:
            raise ClaimError("a filter that is off")

    # --- rulings ---

    def trial(self, place: Place, witness: int = 0) -> Trial:
        """Raises IndexError if there is no such place or no such witness."""
        if not 0 <= witness < self.claim.positions:
            raise IndexError(f"no position {witness}")
        return self.derivation.trial(place, witness)

    def token_of(self, place: Place, evidence: Evidence) -> int | None:
        """The token of a list that is looked at: the accused names one of the accuser's, the accuser one of the accused's.

        None if there is no list. Raises Forfeit where the list is none of `top_k` tokens in ascending order.
        """
        choice, tokens = self.claim.choice, evidence.tokens
        outside = choice is not None and choice.how == How.OUTSIDE_TOP_K
        if choice is None or not (outside or (choice.how == How.AHEAD and tokens)):
            return None
        if outside and keccak(tokens) != choice.listed:
            raise EvidenceError("another list")
        ids = [int.from_bytes(tokens[at : at + 4], "big") for at in range(0, len(tokens), 4)]
        own = choice.served if outside else choice.preferred
        rising = len(tokens) == 4 * choice.top_k > 0 and all(a < b for a, b in pairwise(ids))
        if not rising or ids[-1] >= self.program.vocab or own in ids:
            raise Forfeit(Ruling.FAILS if outside else Ruling.HOLDS)
        number = place.item if outside else evidence.witness
        if number < len(ids):
            return ids[number]
        if outside:
            raise Forfeit(Ruling.HOLDS)  # the accused named none of them
        raise EvidenceError(f"token {number} of a list of {len(ids)}")

    def rule(self, place: Place, evidence: Evidence, stated: bytes = b"") -> Ruling:
        """On the value at `place` and its operands; for one of many terms, on whether the `stated` parts add up to it.

        Raises EvidenceError where the contract reverts.
        """
        if self.layout.op(place.section, place.op).kind == LeafKind.GREEDY:
            try:
                named = self.token_of(place, evidence)
            except Forfeit as found:
                return found.ruling
            trial = self.derivation.trial(place, 0, named)
        else:
            trial = self.trial(place, evidence.witness)
        if len(stated) != trial.parts * VALUE_BYTES:
            raise EvidenceError(f"{len(stated)} bytes of {trial.parts} partial sums")
        result = b""
        if self.layout.op(place.section, place.op).form != Form.VERDICT:
            result = open_run(
                self.layout, self.claim.trace_root, TraceRun(place, 1), evidence.result
            )
        return self._rule(trial.whole, result + stated, evidence)

    def opened(self, place: Place, evidence: Evidence, stated: bytes) -> Leaf | None:
        """The leaf of the value at `place` with its opened operands, as the referee gets it; None where no leaf is looked at.

        Raises EvidenceError where the contract reverts.
        """
        if self.layout.op(place.section, place.op).kind == LeafKind.GREEDY:
            return None
        trial = self.trial(place, evidence.witness)
        result = b""
        if self.layout.op(place.section, place.op).form != Form.VERDICT:
            result = open_run(
                self.layout, self.claim.trace_root, TraceRun(place, 1), evidence.result
            )
        found = self._referee_leaf(trial.whole, result + stated, evidence)
        return found if isinstance(found, Leaf) else None

    def opened_part(
        self, place: Place, part: int, evidence: Evidence, stated: bytes
    ) -> Leaf | None:
        """The same of partial sum `part` of those stated."""
        result = stated[part * VALUE_BYTES : (part + 1) * VALUE_BYTES]
        found = self._referee_leaf(self.derivation.part(place, part), result, evidence)
        return found if isinstance(found, Leaf) else None

    def rule_part(self, place: Place, part: int, evidence: Evidence, stated: bytes) -> Ruling:
        """On partial sum `part` of those stated for the value at `place`.

        Raises EvidenceError where the contract reverts.
        """
        parts = self.derivation.trial(place).parts
        if part >= parts:
            raise EvidenceError(f"partial sum {part} of {parts}")
        leaf = self.derivation.part(place, part)
        result = stated[part * VALUE_BYTES : (part + 1) * VALUE_BYTES]
        return self._rule(leaf, result, evidence)

    def _rule(self, leaf: DerivedLeaf, first: bytes, evidence: Evidence) -> Ruling:
        found = self._referee_leaf(leaf, first, evidence)
        if isinstance(found, Ruling):
            return found
        return rule(found)

    def _referee_leaf(self, leaf: DerivedLeaf, first: bytes, evidence: Evidence) -> Leaf | Ruling:
        if len(evidence.runs) != len(leaf.runs):
            raise EvidenceError(f"{len(evidence.runs)} runs instead of {len(leaf.runs)}")
        pairs = zip(leaf.runs, evidence.runs, strict=True)
        root = self.claim.trace_root
        data = first + b"".join(open_run(self.layout, root, run, found) for run, found in pairs)
        data += bytes(VALUE_BYTES * leaf.padding)
        row = b"" if leaf.row is None else self._row(leaf.row, leaf.by_token, evidence)
        if leaf.weights is not None:
            want = leaf.weights
            if leaf.by_token:
                want = replace(want, row=int.from_bytes(row, "little"))
                row = b""
            if want.row >= want.rows:
                return Ruling.ROW_MALFORMED
            root = self.program.tables_root if want.part == -2 else self.part_roots[want.part + 1]
            data += open_weights(root, want, evidence.weights)
        return Leaf(leaf.kind, leaf.params, data + row)

    def _row(self, element: RowElement, by_token: bool, evidence: Evidence) -> bytes:
        claim = self.claim
        is_in, is_state = element.boundary == Boundary.IN, element.boundary == Boundary.STATES
        root = claim.leaf.in_root if is_in else claim.leaf.out_root
        rows = claim.leaf.tokens_out if is_state else self.rows
        half = commit.Half.STATES if is_state else commit.Half.NONE
        width = self.program.row_format.width_bytes
        if by_token:
            return open_row(
                commit.unhex(root), self.rows, element.row, TOKEN_BYTES, 0, TOKEN_BYTES, evidence.row
            )  # fmt: skip
        row_bytes = self.program.hidden * width
        start = element.column * width
        return open_row(
            commit.unhex(root), rows, element.row, row_bytes, start, width, evidence.row, half
        )


def at_fault(ruling: Ruling, kind: LeafKind) -> bool | None:
    """Whether the accused is at fault; None where nobody is: the model, or what it was sent, is no number."""
    if ruling == Ruling.ROW_MALFORMED:
        return True if kind == LeafKind.WHITEN_DIFFERENCE else None
    return {Ruling.HOLDS: True, Ruling.FAILS: False, Ruling.MODEL_MALFORMED: None}[ruling]
