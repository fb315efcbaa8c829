// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITraceJudge} from "../interfaces/ITraceJudge.sol";
import {Programs} from "./Program.sol";

/// One value of a trace: operator `op` of section number `section`, and where in what it makes.
struct Place {
    uint16 section;
    uint8 op;
    uint32 row;
    uint32 segment;
    uint32 index;
}

/// A place in one word: 15 bytes, in front.
library Places {
    function packed(Place calldata place) internal pure returns (bytes32) {
        return
            bytes32(
                abi.encodePacked(place.section, place.op, place.row, place.segment, place.index)
            );
    }

    /// Of what follows the place nothing is looked at.
    function unpacked(bytes32 word) internal pure returns (Place memory) {
        uint256 n = uint256(word) >> 136;
        return Place(uint16(n >> 104), uint8(n >> 96), uint32(n >> 64), uint32(n >> 32), uint32(n));
    }
}

/// Where does each value of a trace stand? (docs/trust.md §2) Twin: core/dispute/trace/layout.py.
library Layouts {
    using Programs for Programs.Program;

    struct Layout {
        Programs.Program program;
        uint256 layerFrom;
        uint256 layerTo;
        uint256 positions;
        uint256 windowFrom;
        uint256 ending; // type of the last section: LEAVE, HEAD or PLEADED
        uint256 again; // section at which a pleaded trace's second pass begins, or NEVER
        uint256 passChunks; // of one of two passes
        uint256[] formChunks; // of one operator of each form
        uint256 entryChunks; // of the section that enters
        uint256[] typeChunks; // of one section of each type of layer
        uint256 chunks; // of all of the trace
    }

    struct Shape {
        uint256 rows;
        uint256 segments;
        uint256 length;
    }

    uint256 internal constant HIDDEN = 0;
    uint256 internal constant QUERY = 1;
    uint256 internal constant KEYS = 2;
    uint256 internal constant INNER = 3;
    uint256 internal constant SCALAR = 4;
    uint256 internal constant PER_HEAD = 5;
    uint256 internal constant PER_KEY_HEAD = 6;
    uint256 internal constant SCORES = 7;
    uint256 internal constant TURNED = 8;
    uint256 internal constant WINDOW = 9;
    uint256 internal constant WINDOW_SCALAR = 10;
    uint256 internal constant TOTAL = 11;
    uint256 internal constant LOGITS = 12;
    uint256 internal constant VERDICT = 13;
    uint256 private constant FORMS = 16; // of which the last two are none
    /// Where a word of four operators may have no bits: the upper halves of their forms.
    uint256 private constant NO_FORMS =
        0xf000000000000000f000000000000000f000000000000000f000000000000000;

    uint256 internal constant VALUE_BYTES = 8;
    uint256 internal constant CHUNK_VALUES = 8;
    uint256 internal constant CHUNK_BYTES = 64;
    uint256 internal constant MAX_WINDOW_ROWS = 256;
    uint256 internal constant MAX_POSITIONS = 1 << 17;
    /// Of a trace of one pass; of two it may have twice as many, so that it can be restated.
    uint256 internal constant MAX_CHUNKS = 1 << 40;
    uint256 private constant NEVER = type(uint256).max;

    /// Into `l`, which has its program.
    function make(
        Layout memory l,
        uint256 layerFrom,
        uint256 layerTo,
        uint256 positions,
        uint256 windowFrom,
        uint256 ending
    ) internal pure {
        Programs.Program memory p = l.program;
        l.layerFrom = layerFrom;
        l.layerTo = layerTo;
        l.positions = positions;
        l.windowFrom = windowFrom;
        l.ending = ending;
        l.again = NEVER;
        l.formChunks = _formChunks(p, positions, positions - windowFrom);
        uint256[] memory each = l.typeChunks = new uint256[](p.sectionsAt.length);
        uint256 entry = _typeOf(l, 0);
        l.entryChunks = _chunksBefore(l, entry, p.ops(entry));
        for (uint256 t = Programs.FIRST_LAYER_TYPE; t < each.length; ++t) {
            each[t] = _chunksBefore(l, t, p.ops(t));
        }
        uint256 last = layerTo - layerFrom + 1;
        l.chunks = baseOf(l, last, p.ops(ending));
        if (ending != Programs.PLEADED) return;
        l.passChunks = baseOf(l, last, 0);
        l.chunks += l.passChunks;
        l.again = last;
    }

    /// As many as `shapeOf` says. Program numbers and positions are below 2^32: no overflow.
    function _formChunks(Programs.Program memory p, uint256 n, uint256 window)
        private
        pure
        returns (uint256[] memory each)
    {
        each = new uint256[](FORMS);
        unchecked {
            each[HIDDEN] = n * segmentChunks(p.hidden);
            each[QUERY] = n * segmentChunks(p.query);
            each[KEYS] = n * segmentChunks(p.keys);
            each[INNER] = n * segmentChunks(p.inner);
            each[SCALAR] = segmentChunks(n);
            each[PER_HEAD] = n * segmentChunks(p.heads);
            each[PER_KEY_HEAD] = n * segmentChunks(p.keyHeads);
            each[SCORES] = n * p.heads * segmentChunks(n);
            each[TURNED] = p.keys * segmentChunks(n);
            each[WINDOW] = window * segmentChunks(p.hidden);
            each[WINDOW_SCALAR] = segmentChunks(window);
            each[TOTAL] = 1;
            each[LOGITS] = segmentChunks(p.vocab);
        }
    }

    /// How many sections there are: one to enter and one a layer, twice if pleaded; one to end.
    function sections(Layout memory l) internal pure returns (uint256) {
        uint256 pass = l.layerTo - l.layerFrom + 1;
        return l.again == NEVER ? pass + 1 : 2 * pass + 1;
    }

    /// The section of the first pass that section number `section` is again; else itself. What
    /// ends a trace stands behind one pass.
    function innerOf(Layout memory l, uint256 section) internal pure returns (uint256) {
        unchecked {
            return section < l.again ? section : section - l.again;
        }
    }

    /// Type of section number `section`.
    function typeOf(Layout memory l, uint256 section) internal pure returns (uint256) {
        return _typeOf(l, innerOf(l, section));
    }

    function _typeOf(Layout memory l, uint256 section) private pure returns (uint256) {
        if (section == 0) return l.layerFrom == 0 ? Programs.FROM_TOKENS : Programs.FROM_ROWS;
        uint256 depth = l.layerTo - l.layerFrom;
        if (section > depth + 1) revert ITraceJudge.PlaceUnknown();
        if (section > depth) return l.ending;
        return Programs.FIRST_LAYER_TYPE + l.program.layerType(l.layerFrom + section - 1);
    }

    function shapeOf(Layout memory l, uint256 form) internal pure returns (Shape memory) {
        uint256 n = l.positions;
        if (form == HIDDEN) return Shape(n, 1, l.program.hidden);
        if (form == QUERY) return Shape(n, 1, l.program.query);
        if (form == KEYS) return Shape(n, 1, l.program.keys);
        if (form == INNER) return Shape(n, 1, l.program.inner);
        if (form == SCALAR) return Shape(1, 1, n);
        if (form == PER_HEAD) return Shape(n, 1, l.program.heads);
        if (form == PER_KEY_HEAD) return Shape(n, 1, l.program.keyHeads);
        if (form == SCORES) return Shape(n, l.program.heads, n);
        if (form == TURNED) return Shape(1, l.program.keys, n);
        if (form == WINDOW) return Shape(n - l.windowFrom, 1, l.program.hidden);
        if (form == WINDOW_SCALAR) return Shape(1, 1, n - l.windowFrom);
        if (form == LOGITS) return Shape(1, 1, l.program.vocab);
        if (form == VERDICT) return Shape(0, 0, 0);
        if (form != TOTAL) revert ITraceJudge.ProgramInvalid();
        return Shape(1, 1, 1);
    }

    /// First chunk of operator `op` of section number `section`.
    function baseOf(Layout memory l, uint256 section, uint256 op)
        internal
        pure
        returns (uint256 base)
    {
        if (section >= l.again) base = l.passChunks;
        section = innerOf(l, section);
        base += _chunksBefore(l, _typeOf(l, section), op);
        if (section != 0) base += l.entryChunks;
        uint256[] memory each = l.typeChunks;
        uint256 types = l.program.layerTypesOf();
        uint256 layer = l.layerFrom;
        uint256 end = section == 0 ? layer : layer + section - 1;
        if (end > l.layerTo) revert ITraceJudge.PlaceUnknown();
        bool known = true;
        assembly ("memory-safe") {
            for {} lt(layer, end) { layer := add(layer, 1) } {
                let kind := add(byte(0, mload(add(types, layer))), 5) // FIRST_LAYER_TYPE
                known := and(known, lt(kind, mload(each)))
                base := add(base, mload(add(add(each, 32), shl(5, and(kind, 0xff)))))
            }
        }
        if (!known) revert ITraceJudge.ProgramInvalid();
    }

    /// Is there such a value, or such a verdict?
    function contains(Layout memory l, Place memory place) internal pure returns (bool) {
        if (place.section >= sections(l)) return false;
        uint256 sectionType = typeOf(l, place.section);
        if (place.op >= l.program.ops(sectionType)) return false;
        uint256 form = l.program.formOf(sectionType, place.op);
        // Of a token, `index` is what the accused holds against it: see Derive.
        if (form == VERDICT) {
            return place.row == 0 && place.segment == 0
                && place.index < (l.ending == Programs.HEAD ? l.program.vocab : 1);
        }
        Shape memory shape = shapeOf(l, form);
        return
            place.row < shape.rows && place.segment < shape.segments && place.index < shape.length;
    }

    function segmentChunks(uint256 length) internal pure returns (uint256) {
        unchecked {
            return (length + CHUNK_VALUES - 1) / CHUNK_VALUES; // lengths are below 2^33
        }
    }

    function _chunksBefore(Layout memory l, uint256 sectionType, uint256 op)
        private
        pure
        returns (uint256 total)
    {
        uint256 forms = l.program.formsOf(sectionType);
        uint256[] memory each = l.formChunks;
        uint256 seen;
        assembly ("memory-safe") {
            // One byte in eight is an operator's form; `each` has a form's chunks. A word is four.
            let end := add(forms, shl(3, op))
            each := add(each, 32)
            for {} lt(add(forms, 24), end) { forms := add(forms, 32) } {
                let w := mload(forms)
                seen := or(seen, w)
                total := add(total, mload(add(each, and(shr(243, w), 480))))
                total := add(total, mload(add(each, and(shr(179, w), 480))))
                total := add(total, mload(add(each, and(shr(115, w), 480))))
                total := add(total, mload(add(each, and(shr(51, w), 480))))
            }
            for {} lt(forms, end) { forms := add(forms, 8) } {
                let w := shl(192, shr(192, mload(forms)))
                seen := or(seen, w)
                total := add(total, mload(add(each, and(shr(243, w), 480))))
            }
        }
        if (seen & NO_FORMS != 0) revert ITraceJudge.ProgramInvalid();
    }
}
