// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Claim, ITraceJudge} from "../interfaces/ITraceJudge.sol";
import {Layouts, Place} from "./Layout.sol";
import {Programs} from "./Program.sol";
import {Shake} from "./Shake.sol";

/// Which leaf does the value at a place stand or fall by? (docs/trust.md §1)
///
/// The operator program and the place say all of it. Twin: core/dispute/trace/derive.py.
library Derive {
    using Layouts for Layouts.Layout;
    using Programs for Programs.Program;

    /// `count` neighbours of a segment of `length` values, whose first chunk is `firstChunk`.
    struct Run {
        uint256 firstChunk;
        uint256 length;
        uint256 start;
        uint256 count;
    }

    /// `count` neighbours in a tensor's row. `part` counts embed, layers, head; or is TABLES.
    struct Weights {
        bool used;
        uint256 part;
        uint256 tensors;
        uint256 tensor;
        uint256 rows;
        uint256 columns;
        uint256 row;
        uint256 column;
        uint256 count;
        uint256 format;
    }

    /// One number of a position's signed row; `isOut` of what was sent, or of a state row.
    struct RowElement {
        bool used;
        bool isOut;
        uint256 row;
        uint256 column;
    }

    struct Leaf {
        IReferee.Kind kind;
        bytes params;
        Run[] runs;
        Weights weights;
        RowElement row;
        bool byToken; // the weights' row is the token id of the signed row
        uint256 padding; // zeros after the runs
        int256 shake; // of the value, in 2^-24
    }

    /// What a served token is judged by, and what a deviation is.
    struct Choice {
        uint256 tolerance;
        uint256 how;
        uint256 preferred;
        uint256 served;
        uint256 step;
        uint256 temperature;
        uint256 minP;
        uint256 topK;
        uint256 key0; // of what was pleaded, the seed
        uint256 key1;
        uint256 named; // a token of a list, or NOBODY
    }

    uint256 internal constant TABLES = type(uint256).max;
    uint256 internal constant NOBODY = type(uint256).max;

    // Why a served token cannot be the one that was due.
    uint256 internal constant AHEAD = 1; // another, which every filter lets pass, is ahead of it
    uint256 internal constant OUTSIDE_MIN_P = 2; // a token is so likely that min-p leaves it out
    uint256 internal constant OUTSIDE_TOP_K = 3; // as many tokens are ahead as top-k lets pass
    /// No token but a deviation, over a second pass that is shaken by the accused's seed.
    uint256 internal constant PLEADED = 4;

    /// Longest list of tokens, and largest top-k: a list has to fit a transaction twice.
    uint256 internal constant MAX_LISTED = 256;

    uint256 private constant MICRO = 1e6;

    /// What `trial` and `part` work on.
    struct Scene {
        Layouts.Layout frame;
        Choice choice;
        Place place;
        Programs.Op op;
        uint256 sectionType;
        uint256 inner; // the section within its pass
        uint256 position;
        uint256 column;
        bool exists; // else nothing of the rest is set
    }

    /// The layout of a claim's trace into `l`, which has its program. That of a token has no
    /// layers and one position: a signed state row enters, and the head follows.
    function lay(Layouts.Layout memory l, Claim calldata claim) internal pure {
        uint256 how = claim.how;
        if (how != 0 && how != PLEADED) {
            return l.make(claim.layerTo, claim.layerTo, 1, 0, Programs.HEAD);
        }
        uint256 ending = how == 0 ? Programs.LEAVE : Programs.PLEADED;
        l.make(claim.layerFrom, claim.layerTo, claim.positions, claim.windowFrom, ending);
    }

    /// Puts `place` into `s`, which has its layout and its choice.
    function set(Scene memory s, Place memory place) internal pure {
        Layouts.Layout memory l = s.frame;
        s.exists = l.contains(place);
        if (!s.exists) return;
        s.place = place;
        s.sectionType = l.typeOf(place.section);
        s.inner = l.innerOf(place.section);
        s.op = l.program.op(s.sectionType, place.op);
        uint256 form = s.op.form;
        bool scalar = form == Layouts.SCALAR || form == Layouts.WINDOW_SCALAR;
        s.column = scalar ? 0 : place.index;
        if (form == Layouts.SCALAR) {
            s.position = place.index;
        } else if (form == Layouts.WINDOW) {
            s.position = l.windowFrom + place.row;
        } else if (form == Layouts.WINDOW_SCALAR) {
            s.position = l.windowFrom + place.index;
        } else {
            s.position = place.row;
        }
    }

    /// Partial sums that the value is judged by; 0 if it is judged at once.
    function parts(Scene memory s) internal pure returns (uint256) {
        uint256 n = _terms(s);
        uint256 each = s.frame.program.partTerms;
        return n > each || (n != 0 && s.op.bias != Programs.NONE) ? (n + each - 1) / each : 0;
    }

    /// The leaf of the whole value: of one element, or of how `parts_` partial sums add up.
    function whole(Scene memory s, uint256 parts_, uint256 witness)
        internal
        pure
        returns (Leaf memory leaf)
    {
        leaf.shake = _shake(s);
        if (parts_ == 0) {
            _fill(s, leaf, witness, 0, _terms(s));
            return leaf;
        }
        if (s.op.bias == Programs.NONE) {
            leaf.kind = IReferee.Kind.Sum;
            leaf.params = abi.encode(parts_);
            return leaf;
        }
        leaf.kind = IReferee.Kind.BiasSum;
        leaf.params = abi.encode(s.frame.program.weightFormat, parts_);
        leaf.weights = _vector(s, s.op.bias, _length(s, s.op.form), s.place.index);
    }

    /// The leaf of partial sum number `number`.
    function part(Scene memory s, uint256 number) internal pure returns (Leaf memory leaf) {
        uint256 each = s.frame.program.partTerms;
        uint256 left = _terms(s) - each * number;
        _fill(s, leaf, 0, each * number, left < each ? left : each);
    }

    /// A second pass is shaken, but where it only says again what another value is.
    function _shake(Scene memory s) private pure returns (int256) {
        Layouts.Layout memory l = s.frame;
        bool shaken = s.place.section >= l.again && s.sectionType != Programs.PLEADED
            && !_is(s, IReferee.Kind.Copy) && !_is(s, IReferee.Kind.Stabiliser);
        if (!shaken) return 0;
        return
            Shake.units(s.choice.key0, l.program.ownBitsOf(), s.place, l.shapeOf(s.op.form).length);
    }

    // --- sizes ---

    function _is(Scene memory s, IReferee.Kind kind) private pure returns (bool) {
        return s.op.kind == uint256(kind);
    }

    /// Terms of a reduction; 0 for operators of one element.
    function _terms(Scene memory s) private pure returns (uint256) {
        if (_is(s, IReferee.Kind.Linear)) return _length(s, _form(s, s.op.a));
        if (_is(s, IReferee.Kind.Squares)) return _group(s, s.op);
        if (_is(s, IReferee.Kind.Mix)) return s.frame.positions;
        if (!_is(s, IReferee.Kind.Sum)) return 0;
        return
            s.op.form == Layouts.TOTAL ? s.frame.positions - s.frame.windowFrom : s.frame.positions;
    }

    function _form(Scene memory s, uint256 source) private pure returns (uint256) {
        if (source == Programs.INPUT || source == Programs.EXACT) return Layouts.HIDDEN;
        return s.frame.program.formOf(s.sectionType, source);
    }

    /// Numbers that a position has in this form.
    function _length(Scene memory s, uint256 form) private pure returns (uint256) {
        if (form == Layouts.SCALAR || form == Layouts.WINDOW_SCALAR || form == Layouts.TOTAL) {
            return 1;
        }
        return s.frame.shapeOf(form).length;
    }

    /// How many neighbours of its operand one of this operator's values covers.
    function _group(Scene memory s, Programs.Op memory op) private pure returns (uint256) {
        return _length(s, _form(s, op.a)) / _length(s, op.form);
    }

    // --- operands of the trace ---

    function _segment(Scene memory s, uint256 source, uint256 row, uint256 segment)
        private
        pure
        returns (Run memory r)
    {
        uint256 section = s.place.section;
        uint256 op = source;
        if (source == Programs.INPUT || source == Programs.EXACT) {
            section = source == Programs.INPUT ? section - 1 : s.frame.layerTo - s.frame.layerFrom;
            op = s.frame.program.ops(s.frame.typeOf(section)) - 1;
        }
        Layouts.Shape memory shape = s.frame.shapeOf(_form(s, source));
        r.length = shape.length;
        r.firstChunk = s.frame.baseOf(section, op) + (row * shape.segments + segment)
            * Layouts.segmentChunks(shape.length);
    }

    /// `count` of an operand's numbers for one position, from `column` on.
    function _run(Scene memory s, uint256 source, uint256 position, uint256 column, uint256 count)
        private
        pure
        returns (Run memory r)
    {
        uint256 form = _form(s, source);
        uint256 row = position;
        uint256 start = column;
        if (form == Layouts.SCALAR) (row, start) = (0, position);
        else if (form == Layouts.WINDOW_SCALAR) (row, start) = (0, position - s.frame.windowFrom);
        else if (form == Layouts.WINDOW) row = position - s.frame.windowFrom;
        else if (form == Layouts.TOTAL || form == Layouts.LOGITS) row = 0;
        r = _segment(s, source, row, 0);
        r.start = start;
        r.count = count;
    }

    /// `count` of what belongs to one query and head, from `key` on.
    function _attended(
        Scene memory s,
        uint256 source,
        uint256 row,
        uint256 head,
        uint256 key,
        uint256 count
    ) private pure returns (Run memory r) {
        r = _segment(s, source, row, head);
        r.start = key;
        r.count = count;
    }

    /// The operand's number at the same place.
    function _same(Scene memory s, uint256 source) private pure returns (Run memory) {
        if (_form(s, source) == Layouts.SCORES) {
            return _attended(s, source, s.place.row, s.place.segment, s.place.index, 1);
        }
        return _run(s, source, s.position, s.column, 1);
    }

    // --- leaves ---

    function _fill(Scene memory s, Leaf memory leaf, uint256 witness, uint256 start, uint256 n)
        private
        pure
    {
        if (s.op.kind > uint256(IReferee.Kind.Greedy)) revert ITraceJudge.ProgramInvalid();
        leaf.kind = IReferee.Kind(s.op.kind);
        if (leaf.kind <= IReferee.Kind.Embed) _enter(s, leaf);
        else if (leaf.kind <= IReferee.Kind.Squares) _reduction(s, leaf, start, n);
        else if (leaf.kind <= IReferee.Kind.Rope) _norms(s, leaf);
        else if (leaf.kind <= IReferee.Kind.Mix) _attention(s, leaf, witness, start, n);
        else if (leaf.kind <= IReferee.Kind.Softcap) _elements(s, leaf);
        else _verdicts(s, leaf);
    }

    function _enter(Scene memory s, Leaf memory leaf) private pure {
        if (leaf.kind == IReferee.Kind.Copy) {
            leaf.runs = new Run[](1);
            leaf.runs[0] = _run(s, s.op.a, s.place.index, s.place.segment, 1);
            return;
        }
        leaf.row = RowElement(true, false, s.position, s.column);
        if (leaf.kind == IReferee.Kind.Input) {
            leaf.row.isOut = s.frame.ending == Programs.HEAD;
            leaf.params = abi.encode(s.frame.program.rowFormat);
            return;
        }
        leaf.row.column = 0;
        leaf.byToken = true;
        leaf.params = abi.encode(s.frame.program.weightFormat, _constant(s));
        leaf.weights =
            _matrix(s, s.op.tensor, s.frame.program.vocab, s.frame.program.hidden, 0, s.column);
    }

    function _reduction(Scene memory s, Leaf memory leaf, uint256 start, uint256 n) private pure {
        leaf.runs = new Run[](1);
        if (leaf.kind == IReferee.Kind.Linear) {
            leaf.params = abi.encode(s.frame.program.weightFormat, n);
            leaf.runs[0] = _run(s, s.op.a, s.position, start, n);
            leaf.weights = _matrix(
                s,
                s.op.tensor,
                _length(s, s.op.form),
                _length(s, _form(s, s.op.a)),
                s.column,
                start
            );
            leaf.weights.count = n;
            return;
        }
        leaf.params = abi.encode(n);
        if (leaf.kind == IReferee.Kind.Squares) {
            leaf.runs[0] = _run(s, s.op.a, s.position, s.column * _group(s, s.op) + start, n);
        } else if (leaf.kind != IReferee.Kind.Sum) {
            revert ITraceJudge.ProgramInvalid();
        } else if (s.op.form == Layouts.TOTAL) {
            leaf.runs[0] = _attended(s, s.op.a, 0, 0, start, n);
        } else {
            leaf.runs[0] = _attended(s, s.op.a, s.place.row, s.place.index, start, n);
        }
    }

    function _norms(Scene memory s, Leaf memory leaf) private pure {
        if (leaf.kind == IReferee.Kind.NormScale) {
            Programs.Op memory q = s.frame.program.op(s.sectionType, s.op.a);
            leaf.params = abi.encode(_group(s, q), _constant(s));
            leaf.runs = new Run[](1);
            leaf.runs[0] = _run(s, s.op.a, s.position, s.column, 1);
            return;
        }
        leaf.runs = new Run[](2);
        leaf.runs[0] = _run(s, s.op.a, s.position, s.column, 1);
        if (leaf.kind == IReferee.Kind.Norm) {
            uint256 group = _length(s, _form(s, s.op.a)) / _length(s, _form(s, s.op.b));
            leaf.params = abi.encode(s.frame.program.weightFormat, s.op.flag);
            leaf.runs[1] = _run(s, s.op.b, s.position, s.column / group, 1);
            leaf.weights = _vector(s, s.op.tensor, group, s.column % group);
            return;
        }
        // Rotary: a number and its partner half a head away, by one pair (cos, sin).
        uint256 half = s.frame.program.headDim / 2;
        bool second = s.column % s.frame.program.headDim >= half;
        leaf.params = abi.encode(s.frame.program.tableFormat, second ? 0 : 1);
        leaf.runs[1] = _run(s, s.op.a, s.position, second ? s.column - half : s.column + half, 1);
        leaf.weights = _table(
            s, s.op.tensor, s.frame.program.context, 2 * half, s.position, 2 * (s.column % half)
        );
        leaf.weights.count = 2;
    }

    function _attention(
        Scene memory s,
        Leaf memory leaf,
        uint256 witness,
        uint256 start,
        uint256 n
    ) private pure {
        Place memory place = s.place;
        uint256 d = s.frame.program.headDim;
        uint256 share = s.frame.program.heads / s.frame.program.keyHeads;
        leaf.runs = new Run[](leaf.kind == IReferee.Kind.Stabiliser ? 1 : 2);
        if (leaf.kind == IReferee.Kind.Score) {
            uint256 window = s.op.bias == Programs.NONE ? 0 : s.frame.program.constantOf(s.op.bias);
            leaf.params = abi.encode(d, _constant(s), place.row, place.index, window);
            leaf.runs[0] = _run(s, s.op.a, place.row, place.segment * d, d);
            leaf.runs[1] = _run(s, s.op.b, place.index, place.segment / share * d, d);
        } else if (leaf.kind == IReferee.Kind.Stabiliser) {
            leaf.runs[0] = _attended(s, s.op.a, place.row, place.index, witness, 1);
        } else if (leaf.kind == IReferee.Kind.Exp) {
            leaf.runs[0] = _run(s, s.op.a, place.row, place.segment, 1);
            leaf.runs[1] = _attended(s, s.op.b, place.row, place.segment, place.index, 1);
        } else if (leaf.kind == IReferee.Kind.Probability) {
            leaf.runs[0] = _attended(s, s.op.a, place.row, place.segment, place.index, 1);
            leaf.runs[1] = _run(s, s.op.b, place.row, place.segment, 1);
        } else {
            leaf.params = abi.encode(n);
            uint256 head = place.index / d;
            leaf.runs[0] = _attended(s, s.op.a, place.row, head, start, n);
            leaf.runs[1] = _attended(s, s.op.b, 0, head / share * d + place.index % d, start, n);
        }
    }

    function _elements(Scene memory s, Leaf memory leaf) private pure {
        bool two = leaf.kind == IReferee.Kind.Product || leaf.kind == IReferee.Kind.Add;
        leaf.runs = new Run[](two ? 2 : 1);
        leaf.runs[0] = _same(s, s.op.a);
        if (two) leaf.runs[1] = _same(s, s.op.b);
        if (leaf.kind == IReferee.Kind.Scale || leaf.kind == IReferee.Kind.Softcap) {
            leaf.params = abi.encode(_constant(s));
        }
    }

    function _verdicts(Scene memory s, Leaf memory leaf) private pure {
        if (leaf.kind <= IReferee.Kind.WhitenChange) {
            bool difference = leaf.kind == IReferee.Kind.WhitenDifference;
            bool change = leaf.kind == IReferee.Kind.WhitenChange;
            leaf.runs = new Run[](change ? 2 : 1);
            leaf.runs[0] = _run(s, s.op.a, s.position, s.column, 1);
            if (change) leaf.runs[1] = _run(s, s.op.b, s.position, s.column, 1);
            leaf.weights = _table(
                s,
                s.frame.program.sigma,
                s.frame.program.layers + 1,
                s.frame.program.hidden,
                s.frame.layerTo,
                s.column
            );
            leaf.params = difference
                ? abi.encode(s.frame.program.rowFormat, s.frame.program.tableFormat)
                : abi.encode(s.frame.program.tableFormat);
            if (difference) leaf.row = RowElement(true, true, s.position, s.column);
            return;
        }
        leaf.runs = new Run[](2);
        if (leaf.kind == IReferee.Kind.Exceeds) {
            leaf.params =
                abi.encode(s.op.flag == 0 ? s.choice.tolerance : s.frame.program.pleaOf());
            leaf.runs[0] = _run(s, s.op.a, 0, 0, 1);
            leaf.runs[1] = _run(s, s.op.b, 0, 0, 1);
            return;
        }
        if (leaf.kind != IReferee.Kind.Greedy) revert ITraceJudge.ProgramInvalid();
        _chosen(s, leaf);
    }

    /// A token's verdict. With min-p the accused may name, by the place's index, a token that keeps
    /// the preferred one out; with top-k a list of them, of which the accuser names one.
    function _chosen(Scene memory s, Leaf memory leaf) private pure {
        Choice memory c = s.choice;
        uint256 delta = deltaOf(s.frame.program.delta, c.temperature);
        leaf.runs[0] = _run(s, s.op.a, 0, c.preferred, 1);
        leaf.runs[1] = _run(s, s.op.a, 0, c.served, 1);
        if (c.how != AHEAD) {
            leaf.kind = IReferee.Kind.OutsideMinP;
            bool byList = c.how == OUTSIDE_TOP_K;
            if (byList && c.named != NOBODY) leaf.runs[0] = _run(s, s.op.a, 0, c.named, 1);
            // A min-p of one: who is ahead at all.
            leaf.params = abi.encode(delta, c.temperature, byList ? MICRO : c.minP);
            return;
        }
        leaf.params = abi.encode(delta);
        if (c.temperature == 0) return;
        leaf.kind = IReferee.Kind.Gumbel;
        bool listed = c.named != NOBODY;
        leaf.padding = 3;
        if (c.minP != 0 || listed) {
            Run[] memory runs = new Run[](4);
            runs[0] = leaf.runs[0];
            runs[1] = leaf.runs[1];
            runs[2] = _run(s, s.op.a, 0, s.place.index, 1);
            runs[3] = listed ? _run(s, s.op.a, 0, c.named, 1) : runs[0];
            leaf.runs = runs;
            leaf.padding = 1;
        }
        leaf.params = abi.encodePacked(
            delta,
            c.temperature,
            c.key0,
            c.key1,
            c.step,
            c.preferred,
            c.served,
            c.minP,
            listed ? c.topK : 0
        );
    }

    /// δ in scores: that of logits times max(1, 1/τ), rounded up.
    function deltaOf(uint256 delta, uint256 temperature) internal pure returns (uint256) {
        if (temperature == 0 || temperature >= MICRO) return delta;
        return (delta * MICRO + temperature - 1) / temperature;
    }

    // --- weights ---

    function _matrix(
        Scene memory s,
        uint256 tensor,
        uint256 rows,
        uint256 columns,
        uint256 row,
        uint256 column
    ) private pure returns (Weights memory w) {
        uint256 depth = s.frame.layerTo - s.frame.layerFrom;
        w.used = true;
        if (s.inner != 0) {
            w.part = s.inner <= depth ? s.frame.layerFrom + s.inner : s.frame.program.layers + 1;
        }
        w.tensors = s.frame.program.tensors(s.sectionType);
        w.tensor = tensor;
        w.rows = rows;
        w.columns = columns;
        w.row = row;
        w.column = column;
        w.count = 1;
        w.format = s.frame.program.weightFormat;
    }

    function _vector(Scene memory s, uint256 tensor, uint256 length, uint256 column)
        private
        pure
        returns (Weights memory)
    {
        return _matrix(s, tensor, 1, length, 0, column);
    }

    function _table(
        Scene memory s,
        uint256 tensor,
        uint256 rows,
        uint256 columns,
        uint256 row,
        uint256 column
    ) private pure returns (Weights memory w) {
        w = _matrix(s, tensor, rows, columns, row, column);
        w.part = TABLES;
        w.tensors = s.frame.program.tables;
        w.format = s.frame.program.tableFormat;
    }

    function _constant(Scene memory s) private pure returns (uint256) {
        return s.frame.program.constantOf(s.op.constant_);
    }
}
