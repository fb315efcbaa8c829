"""Which leaf does the value at a place stand or fall by? (`docs/trust.md` §1)

From the operator program and a place alone: the referee's kind and parameters, the operands' places
in the trace, the weights, the element of a signed row. No party says any of it. Twin:
contracts/src/trace/Derive.sol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from core.dispute.referee import Format, LeafKind
from core.dispute.trace.layout import TABLES_PART, Place, TraceLayout
from core.dispute.trace.program import NONE, Form, Op
from core.dispute.trace.shake import shake_at


class Boundary(IntEnum):
    """Which signed rows: those that entered, that left (ids of a last stage), or state rows.

    INNER: the roots of the boundaries inside a stage, one row.
    """

    IN = 0
    OUT = 1
    STATES = 2
    INNER = 3


@dataclass(frozen=True)
class TraceRun:
    """`count` neighbours in one segment of the trace, from `place` on."""

    place: Place
    count: int


@dataclass(frozen=True)
class Weights:
    """`count` neighbours in one row of a tensor.

    `part` is a layer's number, the number of layers for the head, −1 for the embedding, −2 for
    tables.
    """

    part: int
    tensors: int  # of that part
    tensor: int
    rows: int
    columns: int
    row: int
    column: int
    count: int
    format: Format


@dataclass(frozen=True)
class RowElement:
    """One number of a signed row; `row` counts under the rows' own root."""

    boundary: Boundary
    row: int
    column: int


@dataclass(frozen=True)
class DerivedLeaf:
    """What the referee is asked, with operands still to be opened.

    The result comes first: `y`, or a stated partial sum.
    """

    kind: LeafKind
    params: tuple[int, ...]
    runs: tuple[TraceRun, ...] = ()
    weights: Weights | None = None
    row: RowElement | None = None
    by_token: bool = False  # the weights' row is the token id of the signed row `row`
    padding: int = 0  # zeros after the runs: operands that filters would need
    shake: int = 0  # see Leaf


@dataclass(frozen=True)
class Trial:
    """A place on trial: judged at once (`parts` is 0), or by partial sums and how they add up."""

    place: Place
    parts: int
    whole: DerivedLeaf


#: In a claim instead of a reason: a deviation that the accused pleaded against.
PLEADED_CLAIM = 4


class How(IntEnum):
    """Why a served token cannot be the one that was due."""

    AHEAD = 1  # another, which every filter lets pass, is ahead of it
    OUTSIDE_MIN_P = 2  # min-p leaves it out, by a token that is so much likelier
    OUTSIDE_TOP_K = 3  # top-k leaves it out, by as many tokens that are ahead


@dataclass(frozen=True)
class Choice:
    """What a served token is judged by: everything but the logits.

    `listed` is the hash of the tokens that OUTSIDE_TOP_K names.
    """

    preferred: int
    served: int
    step: int
    temperature_micro: int
    key: tuple[int, int]
    how: How = How.AHEAD
    min_p_micro: int = 0
    top_k: int = 0
    listed: bytes = bytes(32)


#: Longest list of tokens, and largest top-k that is judged: a list has to fit a transaction twice.
MAX_LISTED = 256
_CERTAIN = 10**6  # a min-p of one: who is ahead at all


def delta_of(delta_micro: int, temperature_micro: int) -> int:
    """δ in scores: that of logits, spread by a temperature below one, rounded up."""
    if not 0 < temperature_micro < 10**6:
        return delta_micro
    return -(-delta_micro * 10**6 // temperature_micro)


class Derivation:
    """Derives trials from a layout.

    `choice` if the trace ends in logits, `tolerance` in 10^-12 if in a deviation.

    `first_out` is the position of the first row that the stage signed as its work: a last stage has
    none of the prompt but the last.
    """

    def __init__(
        self,
        layout: TraceLayout,
        tolerance: int = 0,
        choice: Choice | None = None,
        first_out: int = 0,
    ) -> None:
        self._at = layout
        self._p = layout.program
        self._tolerance = tolerance
        self._choice = choice
        self._first_out = first_out
        self._out = Boundary.STATES if self._p.ends_at(layout.layer_to) else Boundary.OUT

    def trial(self, place: Place, witness: int = 0, named: int | None = None) -> Trial:
        """How the value at `place` is judged.

        `witness` is the key that a stabiliser's author points at, `named` a token of a list. Raises
        IndexError if there is no such place.
        """
        if not self._at.contains(place):
            raise IndexError(f"no such place: {place}")
        op = self._at.op(place.section, place.op)
        parts = self._parts(place.section, op)
        if parts:
            return Trial(
                place, parts, self._shaken(op, place, self._sum_of_parts(op, place, parts))
            )
        if op.kind == LeafKind.GREEDY:
            return Trial(place, 0, self._chosen(op, place, named))
        leaf = self._leaf(op, place, witness, 0, self._terms(place.section, op))
        return Trial(place, 0, self._shaken(op, place, leaf))

    def _shaken(self, op: Op, place: Place, leaf: DerivedLeaf) -> DerivedLeaf:
        """The leaf of a whole value, in a plea's second pass with the shake of its place."""
        seed = self._at.plea
        if seed is None or not self._at.is_shaken(place.section, place.op):
            return leaf
        length = self._at.shape(op.form).length
        return replace(leaf, shake=shake_at(seed, self._p.plea.own_bits, place, length))

    def part(self, place: Place, part: int) -> DerivedLeaf:
        """The leaf of partial sum number `part` of the value at `place`.

        Raises IndexError for another number.
        """
        op = self._at.op(place.section, place.op)
        if not 0 <= part < self._parts(place.section, op):
            raise IndexError(f"no partial sum {part}")
        start, each = part * self._p.part_terms, self._p.part_terms
        terms = min(each, self._terms(place.section, op) - start)
        return self._leaf(op, place, 0, start, terms)

    # --- sizes ---

    def _terms(self, section: int, op: Op) -> int:
        """Terms of a reduction; 0 for operators of one element."""
        if op.kind == LeafKind.LINEAR:
            return self._width(section, op.a)
        if op.kind == LeafKind.SQUARES:
            return self._at.group(section, op)
        if op.kind == LeafKind.MIX:
            return self._at.positions
        if op.kind == LeafKind.SUM:
            return self._at.window_rows if op.form == Form.TOTAL else self._at.positions
        return 0

    def _parts(self, section: int, op: Op) -> int:
        terms = self._terms(section, op)
        each = self._p.part_terms
        return -(-terms // each) if terms > each or op.bias != NONE else 0

    def _width(self, section: int, source: int) -> int:
        """Numbers a position has in an operand."""
        return self._at.length(self._at.operand_form(section, source))

    # --- places of operands ---

    def _position(self, form: Form, place: Place) -> int:
        if form == Form.SCALAR:
            return place.item
        if form == Form.WINDOW:
            return self._at.window_from + place.row
        if form == Form.WINDOW_SCALAR:
            return self._at.window_from + place.item
        return place.row

    def _run(
        self, section: int, source: int, position: int, column: int, count: int = 1
    ) -> TraceRun:
        """`count` of an operand's numbers for one position, from `column` on."""
        where, op = self._at.source(section, source)
        form = self._at.op(where, op).form
        if form == Form.SCALAR:
            return TraceRun(Place(where, op, 0, 0, position), count)
        if form == Form.WINDOW_SCALAR:
            return TraceRun(Place(where, op, 0, 0, position - self._at.window_from), count)
        if form == Form.WINDOW:
            return TraceRun(Place(where, op, position - self._at.window_from, 0, column), count)
        if form in (Form.TOTAL, Form.LOGITS):
            return TraceRun(Place(where, op, 0, 0, column), count)
        return TraceRun(Place(where, op, position, 0, column), count)

    # --- leaves ---

    def _sum_of_parts(self, op: Op, place: Place, parts: int) -> DerivedLeaf:
        if op.bias == NONE:
            return DerivedLeaf(LeafKind.SUM, (parts,))
        bias = self._vector(place.section, op.bias, self._at.length(op.form), place.item)
        return DerivedLeaf(LeafKind.BIAS_SUM, (self._p.weight_format, parts), weights=bias)

    def _leaf(self, op: Op, place: Place, witness: int, start: int, n: int) -> DerivedLeaf:
        section, row, segment, item = place.section, place.row, place.segment, place.item
        position = self._position(op.form, place)
        column = 0 if op.form in (Form.SCALAR, Form.WINDOW_SCALAR) else item
        kind, weight_format = op.kind, self._p.weight_format

        def of(source: int, column: int = column, count: int = 1) -> TraceRun:
            return self._run(section, source, position, column, count)

        def score(source: int) -> TraceRun:
            return TraceRun(Place(section, source, row, segment, item), 1)

        def same(source: int) -> TraceRun:
            """The operand's number at the same place."""
            is_score = self._at.operand_form(section, source) == Form.SCORES
            return score(source) if is_score else of(source)

        match kind:
            case LeafKind.INPUT:
                state = self._at.state_row
                element = RowElement(Boundary.IN, position, column)
                if state is not None:
                    element = RowElement(Boundary.STATES, state, column)
                return DerivedLeaf(kind, (self._p.row_format,), row=element)
            case LeafKind.EMBED:
                size = self._p.vocab, self._p.hidden
                weights = self._matrix(section, op.tensor, *size, 0, column)
                token = RowElement(Boundary.IN, position, 0)
                params = (weight_format, self._constant(op))
                return DerivedLeaf(kind, params, weights=weights, row=token, by_token=True)
            case LeafKind.LINEAR:
                size = self._at.length(op.form), self._width(section, op.a)
                weights = self._matrix(section, op.tensor, *size, column, start, n)
                return DerivedLeaf(kind, (weight_format, n), (of(op.a, start, n),), weights)
            case LeafKind.SQUARES:
                first = column * self._at.group(section, op) + start
                return DerivedLeaf(kind, (n,), (of(op.a, first, n),))
            case LeafKind.SUM:
                first_term = Place(section, op.a, row, item, start)
                if op.form == Form.TOTAL:
                    first_term = Place(section, op.a, 0, 0, start)
                return DerivedLeaf(kind, (n,), (TraceRun(first_term, n),))
            case LeafKind.NORM_SCALE:
                group = self._at.group(section, self._at.op(section, op.a))
                return DerivedLeaf(kind, (group, self._constant(op)), (of(op.a),))
            case LeafKind.NORM:
                group = self._width(section, op.a) // self._width(section, op.b)
                gain = self._vector(section, op.tensor, group, column % group)
                runs = (of(op.a), of(op.b, column // group))
                return DerivedLeaf(kind, (weight_format, op.flag), runs, gain)
            case LeafKind.ROPE:
                return self._rope(op, section, position, column)
            case LeafKind.COPY:
                return DerivedLeaf(kind, (), (self._run(section, op.a, item, segment),))
            case LeafKind.SCORE:
                return self._score(op, place)
            case LeafKind.STABILISER:
                named = TraceRun(Place(section, op.a, row, item, witness), 1)
                return DerivedLeaf(kind, (), (named,))
            case LeafKind.EXP:
                return DerivedLeaf(kind, (), (of(op.a, segment), score(op.b)))
            case LeafKind.PROBABILITY:
                return DerivedLeaf(kind, (), (score(op.a), of(op.b, segment)))
            case LeafKind.MIX:
                return self._mix(op, section, place, start, n)
            case LeafKind.SILU | LeafKind.GELU_TANH:
                return DerivedLeaf(kind, (), (same(op.a),))
            case LeafKind.PRODUCT | LeafKind.ADD:
                return DerivedLeaf(kind, (), (same(op.a), same(op.b)))
            case LeafKind.SCALE | LeafKind.SOFTCAP:
                return DerivedLeaf(kind, (self._constant(op),), (same(op.a),))
            case LeafKind.WHITEN_DIFFERENCE:
                served = RowElement(self._out, position - self._first_out, column)
                params = (self._p.row_format, self._p.table_format)
                return DerivedLeaf(kind, params, (of(op.a),), self._sigma(column), served)
            case LeafKind.WHITEN_REFERENCE:
                sigma = self._sigma(column)
                return DerivedLeaf(kind, (sigma.format,), (of(op.a),), sigma)
            case LeafKind.WHITEN_CHANGE:
                sigma = self._sigma(column)
                return DerivedLeaf(kind, (sigma.format,), (of(op.a), of(op.b)), sigma)
            case LeafKind.EXCEEDS:
                runs = (self._run(section, op.a, 0, 0), self._run(section, op.b, 0, 0))
                most = self._p.plea.parts_per_trillion if op.flag else self._tolerance
                return DerivedLeaf(kind, (most,), runs)
            case _:
                raise ValueError(f"{kind.name} in an operator program")

    def _rope(self, op: Op, section: int, position: int, column: int) -> DerivedLeaf:
        """x_i cos − x_{i+d/2} sin in a head's first half, x_i cos + x_{i−d/2} sin in the second."""
        half = self._p.head_dim // 2
        second = column % self._p.head_dim >= half
        other = column - half if second else column + half
        runs = tuple(self._run(section, op.a, position, at) for at in (column, other))
        size, angle = (self._p.context, 2 * half), column % half
        table = self._table(op.tensor, *size, position, 2 * angle, 2)
        return DerivedLeaf(LeafKind.ROPE, (self._p.table_format, 0 if second else 1), runs, table)

    def _score(self, op: Op, place: Place) -> DerivedLeaf:
        d, share = self._p.head_dim, self._p.heads // self._p.key_heads
        runs = (
            self._run(place.section, op.a, place.row, place.segment * d, d),
            self._run(place.section, op.b, place.item, place.segment // share * d, d),
        )
        window = 0 if op.bias == NONE else self._p.constants[op.bias]
        params = (d, self._constant(op), place.row, place.item, window)
        return DerivedLeaf(LeafKind.SCORE, params, runs)

    def _mix(self, op: Op, section: int, place: Place, start: int, n: int) -> DerivedLeaf:
        d, share = self._p.head_dim, self._p.heads // self._p.key_heads
        head, inside = divmod(place.item, d)
        where, turned = self._at.source(section, op.b)
        runs = (
            TraceRun(Place(section, op.a, place.row, head, start), n),
            TraceRun(Place(where, turned, 0, head // share * d + inside, start), n),
        )
        return DerivedLeaf(LeafKind.MIX, (n,), runs)

    def _chosen(self, op: Op, place: Place, named: int | None) -> DerivedLeaf:
        """A token's verdict.

        Where min-p is on, the accused may name a token by `place.item` that keeps the preferred one
        out; where top-k is, a list of them, of which the accuser names one that is not ahead.
        Without them the filter passes.
        """
        choice = self._choice
        if choice is None:
            raise ValueError("a token is judged by a choice")
        tau, likelier = choice.temperature_micro, choice.preferred if named is None else named
        delta = delta_of(self._p.delta_micro, tau)

        def logits(*tokens: int) -> tuple[TraceRun, ...]:
            return tuple(self._run(place.section, op.a, 0, token) for token in tokens)

        pair = logits(choice.preferred, choice.served)
        if choice.how == How.OUTSIDE_MIN_P:
            return DerivedLeaf(LeafKind.OUTSIDE_MIN_P, (delta, tau, choice.min_p_micro), pair)
        if choice.how == How.OUTSIDE_TOP_K:
            pair = logits(likelier, choice.served)
            return DerivedLeaf(LeafKind.OUTSIDE_MIN_P, (delta, tau, _CERTAIN), pair)
        if tau == 0:
            return DerivedLeaf(LeafKind.GREEDY, (delta,), pair)
        draw = (*choice.key, choice.step, choice.preferred, choice.served)
        params = (delta, tau, *draw, choice.min_p_micro, 0 if named is None else choice.top_k)
        if not choice.min_p_micro and named is None:
            return DerivedLeaf(LeafKind.GUMBEL, params, pair, padding=3)
        filters = logits(place.item, likelier)
        return DerivedLeaf(LeafKind.GUMBEL, params, (*pair, *filters), padding=1)

    # --- weights ---

    def _matrix(
        self, section: int, tensor: int, rows: int, columns: int, row: int, at: int, count: int = 1
    ) -> Weights:
        part, tensors = self._at.part(section), self._at.section(section).tensors
        form = self._p.weight_format
        return Weights(part, tensors, tensor, rows, columns, row, at, count, form)

    def _table(
        self, tensor: int, rows: int, columns: int, row: int, column: int, count: int
    ) -> Weights:
        of, form = (TABLES_PART, self._p.tables), self._p.table_format
        return Weights(*of, tensor, rows, columns, row, column, count, form)

    def _vector(self, section: int, tensor: int, length: int, column: int) -> Weights:
        return self._matrix(section, tensor, 1, length, 0, column)

    def _sigma(self, column: int) -> Weights:
        size = len(self._p.layer_types) + 1, self._p.hidden
        return self._table(self._p.sigma, *size, self._at.layer_to, column, 1)

    def _constant(self, op: Op) -> int:
        return self._p.constants[op.constant]
