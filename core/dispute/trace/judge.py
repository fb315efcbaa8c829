"""What does an accuser claim, and which leaf do opened bytes make of it?

Twin: contracts/src/trace/TraceJudge.sol; what the contract rules on such a leaf is in
`tests/twins/game`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from core.dispute.referee import Leaf, LeafKind
from core.dispute.trace.derive import (
    MAX_LISTED,
    Boundary,
    Choice,
    Derivation,
    DerivedLeaf,
    How,
    RowElement,
    TraceRun,
    delta_of,
)
from core.dispute.trace.evidence import (
    TOKEN_BYTES,
    Evidence,
    EvidenceError,
    open_row,
    open_run,
    open_weights,
)
from core.dispute.trace.layout import (
    MAX_CHUNKS,
    MAX_POSITIONS,
    MAX_WINDOW_ROWS,
    TABLES_PART,
    VALUE_BYTES,
    Place,
    TraceLayout,
)
from core.dispute.trace.program import Form, Program
from core.protocol import commit
from core.protocol.types import RequestLeaf

#: Of which an accused names one.
MAX_SEEDS = 256


class ClaimError(ValueError):
    """A claim that no trace can be about; the contract reverts on it."""


@dataclass(frozen=True)
class Claim:
    """What an accuser says: by this trace of these rows of a request, the stage was too far off."""

    leaf: RequestLeaf
    layer_from: int
    layer_to: int
    positions: int
    window_from: int
    tolerance_entry: int
    trace_root: bytes
    choice: Choice | None = None  # a token is accused, not a deviation
    plea: int | None = None  # seed of the accused's; the trace has a second, shaken pass


@dataclass(frozen=True)
class Case:
    """A claim with the program and the registered roots it is judged by.

    `part_roots` are those of the embedding, of layers 0 … L−1, and of the head.
    """

    program: Program
    part_roots: tuple[bytes, ...]
    claim: Claim

    @cached_property
    def layout(self) -> TraceLayout:
        c = self.claim
        if c.choice is not None:
            return TraceLayout.of_token(self.program, c.positions - c.leaf.tokens_in)
        spans = c.layer_from, c.layer_to, c.positions, c.window_from
        return TraceLayout(self.program, *spans, c.plea)

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
        """Position of the first row that the stage signed as its work.

        A last stage signs only those that a token was drawn from.
        """
        ends = self.program.ends_at(self.claim.layer_to)
        return self.claim.leaf.tokens_in - 1 if ends else 0

    def check_claim(self) -> None:
        """Raises ClaimError unless the claim's rows, layers and tolerance exist."""
        claim, layers = self.claim, len(self.program.layer_types)
        if not 0 <= claim.layer_from < claim.layer_to <= layers:
            raise ClaimError("layers that the model has not")
        most = min(self.rows, MAX_POSITIONS, self.program.context)
        if claim.leaf.tokens_out == 0 or not 1 <= claim.positions <= most:
            raise ClaimError(f"{claim.positions} positions of {self.rows} rows")
        if claim.choice is None:
            self._check_window()
        else:
            self._check_choice(claim.choice)
        if claim.plea is not None and (claim.choice or not 0 <= claim.plea < MAX_SEEDS):
            raise ClaimError("no such plea")
        most = MAX_CHUNKS if claim.plea is None else 2 * MAX_CHUNKS
        if self.layout.chunks > most:
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

    def _check_choice(self, choice: Choice) -> None:
        claim, vocab = self.claim, self.program.vocab
        if not self.program.ends_at(claim.layer_to) or claim.positions < claim.leaf.tokens_in:
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

    def opened(
        self, place: Place, evidence: Evidence, stated: bytes, part: int | None = None
    ) -> Leaf | None:
        """The leaf of the value at `place` with its opened operands, as the referee gets it.

        With `part`, that of a partial sum of those stated. None where no leaf is looked at. Raises
        EvidenceError where the contract reverts.
        """
        if part is not None:
            first = stated[part * VALUE_BYTES : (part + 1) * VALUE_BYTES]
            return self.open_leaf(self.derivation.part(place, part), first, evidence)
        if self.layout.op(place.section, place.op).kind == LeafKind.GREEDY:
            return None
        if not 0 <= evidence.witness < self.claim.positions:
            raise EvidenceError(f"witness {evidence.witness} of {self.claim.positions} positions")
        leaf = self.derivation.trial(place, evidence.witness).whole
        return self.open_leaf(leaf, self.open_value(place, evidence) + stated, evidence)

    def open_value(self, place: Place, evidence: Evidence) -> bytes:
        """The value at `place` as it was opened; nothing of a verdict. Raises EvidenceError."""
        if self.layout.op(place.section, place.op).form == Form.VERDICT:
            return b""
        return open_run(self.layout, self.claim.trace_root, TraceRun(place, 1), evidence.result)

    def open_leaf(self, leaf: DerivedLeaf, first: bytes, evidence: Evidence) -> Leaf | None:
        """The leaf with its operands behind `first`, each opened under its root.

        None where the weights' row is a token that the model has not. Raises EvidenceError.
        """
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
                return None
            in_tables = want.part == TABLES_PART
            root = self.program.tables_root if in_tables else self.part_roots[want.part + 1]
            data += open_weights(root, want, evidence.weights)
        return Leaf(leaf.kind, leaf.params, data + row, leaf.shake)

    def _row(self, element: RowElement, by_token: bool, evidence: Evidence) -> bytes:
        leaf, is_state = self.claim.leaf, element.boundary == Boundary.STATES
        root = commit.unhex(leaf.in_root if element.boundary == Boundary.IN else leaf.out_root)
        rows = leaf.tokens_out if is_state else self.rows
        half = commit.Half.STATES if is_state else commit.Half.NONE
        width = TOKEN_BYTES if by_token else self.program.row_format.width_bytes
        row_bytes = width if by_token else width * self.program.hidden
        start = 0 if by_token else width * element.column
        return open_row(root, rows, element.row, row_bytes, start, width, evidence.row, half)
