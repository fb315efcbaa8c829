"""Where does each value of a trace stand? (`docs/trust.md` §2)

All values are one row of 64-byte chunks, eight float64 each: section after section, operator after
operator, row by row, segment by segment; a segment begins with a chunk of its own. Twin:
contracts/src/trace/Layout.sol.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from core.dispute.referee import LeafKind
from core.dispute.trace.program import (
    EXACT,
    FIRST_LAYER_TYPE,
    FROM_ROWS,
    FROM_TOKENS,
    HEAD,
    INPUT,
    LEAVE,
    PLEADED,
    Form,
    Op,
    Program,
    Section,
)

#: Parts of the model that hold tensors, beside its layers.
EMBED_PART, TABLES_PART = -1, -2
CHUNK_VALUES = 8
VALUE_BYTES = 8
#: Windows are summed in one leaf. Chunk numbers stay below 2^40, and below 2^41 where a plea makes
#: them twice as many: nine rounds of 32.
MAX_WINDOW_ROWS = 256
MAX_POSITIONS = 2**17
MAX_CHUNKS = 2**40
#: Values that only repeat others', and so are not shaken.
UNSHAKEN = frozenset({LeafKind.COPY, LeafKind.STABILISER})


class Shape(NamedTuple):
    rows: int
    segments: int
    length: int

    @property
    def segment_chunks(self) -> int:
        return -(-self.length // CHUNK_VALUES)

    @property
    def chunks(self) -> int:
        return self.rows * self.segments * self.segment_chunks


class Place(NamedTuple):
    """One value: operator `op` of section number `section`, and where in what it makes."""

    section: int
    op: int
    row: int = 0
    segment: int = 0
    item: int = 0


@dataclass(frozen=True)
class TraceLayout:
    """What a stage's layers, a number of positions and a window make of a program.

    A pleaded trace has every section but the last twice: once as ever, once shaken (`shake.py`).
    That of a token has no layers: a signed state row enters, and the head follows.
    """

    program: Program
    layer_from: int
    layer_to: int
    positions: int
    window_from: int
    plea: int | None = None  # the seed that the accused named
    state_row: int | None = None  # of a token: the row of its position among the state rows

    @classmethod
    def of_token(cls, program: Program, state_row: int) -> TraceLayout:
        """The trace that a served token is judged by: one row through final norm and head."""
        end = len(program.layer_types)
        return cls(program, end, end, 1, 0, state_row=state_row)

    @property
    def depth(self) -> int:
        return self.layer_to - self.layer_from

    @property
    def once(self) -> int:
        """Sections of one pass: one to enter, one a layer."""
        return self.depth + 1

    @property
    def window_rows(self) -> int:
        return self.positions - self.window_from

    @cached_property
    def section_types(self) -> tuple[int, ...]:
        """Number of each section in the program: those of each pass, one to end."""
        layers = self.program.layer_types[self.layer_from : self.layer_to]
        first = FROM_TOKENS if self.layer_from == 0 else FROM_ROWS
        once = (first, *(FIRST_LAYER_TYPE + kind for kind in layers))
        if self.plea is not None:
            return (*once, *once, PLEADED)
        return (*once, LEAVE if self.state_row is None else HEAD)

    def section(self, number: int) -> Section:
        return self.program.sections[self.section_types[number]]

    def part(self, section: int) -> int:
        """The part of the model whose tensors a section reads, as in `Weights.part`."""
        if section == len(self.section_types) - 1:
            return len(self.program.layer_types)
        inner = section % self.once
        return self.layer_from + inner - 1 if inner else EMBED_PART

    def is_shaken(self, section: int, op: int) -> bool:
        """Whether an operator's values are shaken: in a plea's second pass, all but repetitions."""
        again = self.plea is not None and self.once <= section < 2 * self.once
        return again and self.op(section, op).kind not in UNSHAKEN

    def op(self, section: int, op: int) -> Op:
        return self.section(section).ops[op]

    @property
    def verdicts(self) -> tuple[Place, ...]:
        """Where the trace's comparisons stand: all of them must hold."""
        last = len(self.section_types) - 1
        ops = enumerate(self.section(last).ops)
        return tuple(Place(last, number) for number, op in ops if op.form == Form.VERDICT)

    def source(self, section: int, source: int) -> tuple[int, int]:
        """Section and operator of an operand."""
        if source not in (EXACT, INPUT):
            return section, source
        where = self.depth if source == EXACT else section - 1
        return where, len(self.section(where).ops) - 1

    def operand_form(self, section: int, source: int) -> Form:
        """Form of an operand; what a section leaves is a row of D a position."""
        return self.op(*self.source(section, source)).form

    def length(self, form: Form) -> int:
        """Numbers a position has in this form."""
        if form in (Form.SCALAR, Form.WINDOW_SCALAR, Form.TOTAL):
            return 1
        return self.shape(form).length

    def group(self, section: int, op: Op) -> int:
        """How many neighbours of its operand one of this operator's values covers."""
        return self.length(self.operand_form(section, op.a)) // self.length(op.form)

    def shape(self, form: Form) -> Shape:
        p, n, w = self.program, self.positions, self.window_rows
        return {
            Form.HIDDEN: Shape(n, 1, p.hidden),
            Form.QUERY: Shape(n, 1, p.query),
            Form.KEYS: Shape(n, 1, p.keys),
            Form.INNER: Shape(n, 1, p.inner),
            Form.SCALAR: Shape(1, 1, n),
            Form.PER_HEAD: Shape(n, 1, p.heads),
            Form.PER_KEY_HEAD: Shape(n, 1, p.key_heads),
            Form.SCORES: Shape(n, p.heads, n),
            Form.TURNED: Shape(1, p.keys, n),
            Form.WINDOW: Shape(w, 1, p.hidden),
            Form.WINDOW_SCALAR: Shape(1, 1, w),
            Form.TOTAL: Shape(1, 1, 1),
            Form.LOGITS: Shape(1, 1, p.vocab),
            Form.VERDICT: Shape(0, 0, 0),
        }[form]

    @cached_property
    def bases(self) -> tuple[tuple[int, ...], ...]:
        """First chunk of each operator of each section."""
        found, at = [], 0
        for number in range(len(self.section_types)):
            starts = []
            for op in self.section(number).ops:
                starts.append(at)
                at += self.shape(op.form).chunks
            found.append(tuple(starts))
        return tuple(found)

    @cached_property
    def chunks(self) -> int:
        """How many chunks the trace has."""
        last = len(self.section_types) - 1
        ops = self.section(last).ops
        return self.bases[last][-1] + self.shape(ops[-1].form).chunks

    def contains(self, place: Place) -> bool:
        """Whether there is such a value, or such a verdict."""
        section, op, row, segment, item = place
        if section >= len(self.section_types) or op >= len(self.section(section).ops):
            return False
        form = self.op(section, op).form
        if form == Form.VERDICT:
            # Of a token, `item` is what the accused holds against it: see Derivation.
            items = 1 if self.state_row is None else self.program.vocab
            return row == segment == 0 and item < items
        shape = self.shape(form)
        return row < shape.rows and segment < shape.segments and item < shape.length

    def first_chunk(self, place: Place) -> int:
        """First chunk of the segment that holds `place`."""
        shape = self.shape(self.op(place.section, place.op).form)
        base = self.bases[place.section][place.op]
        return base + (place.row * shape.segments + place.segment) * shape.segment_chunks

    def chunk_bytes(self, chunk: int) -> int:
        """Length of a chunk: 64 unless it ends a segment."""
        return VALUE_BYTES * len(self.places(chunk))

    def places(self, chunk: int) -> list[Place]:
        """The values of a chunk."""
        section, op, offset = self._op_of(chunk)
        shape = self.shape(self.op(section, op).form)
        line, part = divmod(offset, shape.segment_chunks)
        row, segment = divmod(line, shape.segments)
        start = part * CHUNK_VALUES
        stop = min(start + CHUNK_VALUES, shape.length)
        return [Place(section, op, row, segment, i) for i in range(start, stop)]

    def _op_of(self, chunk: int) -> tuple[int, int, int]:
        """Section, operator, and chunk counted from the operator's first."""
        if not 0 <= chunk < self.chunks:
            raise IndexError(f"chunk {chunk} of {self.chunks}")
        section = max(i for i, starts in enumerate(self.bases) if starts and starts[0] <= chunk)
        starts = self.bases[section]
        op = max(
            i
            for i, start in enumerate(starts)
            if start <= chunk and self.shape(self.op(section, i).form).chunks
        )
        return section, op, chunk - starts[op]
