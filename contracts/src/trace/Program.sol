// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITraceJudge} from "../interfaces/ITraceJudge.sol";

/// Which operators does a model consist of? (docs/trust.md §1) Twin: core/dispute/trace/program.py.
///
/// ProgramStore checked the bytes' hash alone: a program that makes no sense reverts. Its numbers
/// have four bytes at most and are read within its bytes: no sum here is near 2^256.
library Programs {
    /// Parsed once a call; `raw` keeps the bytes, the rest says where in them.
    struct Program {
        bytes raw;
        uint256 rowFormat;
        uint256 weightFormat;
        uint256 tableFormat;
        uint256 hidden;
        uint256 query;
        uint256 keys;
        uint256 inner;
        uint256 vocab;
        uint256 context;
        uint256 heads;
        uint256 keyHeads;
        uint256 headDim;
        uint256 partTerms; // of a partial sum, where a reduction has more
        uint256 delta;
        uint256 tables;
        uint256 sigma;
        bytes32 tablesRoot;
        uint256 tolerances; // how many, from TOLERANCES_AT
        uint256 constantsAt;
        uint256[] sectionsAt; // of the byte that counts its tensors
        uint256 layers;
        uint256 layersAt;
    }

    /// {kind, form, a, b, tensor, bias, constant, flag}, a byte each.
    struct Op {
        uint256 kind;
        uint256 form;
        uint256 a;
        uint256 b;
        uint256 tensor;
        uint256 bias;
        uint256 constant_;
        uint256 flag;
    }

    uint256 internal constant EXACT = 253; // what the first pass's last layer makes
    uint256 internal constant INPUT = 254;
    uint256 internal constant NONE = 255;
    uint256 internal constant FROM_ROWS = 0;
    uint256 internal constant FROM_TOKENS = 1;
    uint256 internal constant LEAVE = 2;
    uint256 internal constant HEAD = 3;
    uint256 internal constant PLEADED = 4;
    uint256 internal constant FIRST_LAYER_TYPE = 5;

    uint256 private constant VERSION = 4;
    uint256 private constant PLEA_AT = 74;
    uint256 private constant OWN_BITS_AT = 82;
    uint256 private constant SPAN_AT = 83;
    uint256 private constant HEADER_BYTES = 84;
    uint256 private constant TOLERANCES_AT = 85;
    uint256 private constant TOLERANCE_BYTES = 11;
    uint256 private constant OP_BYTES = 8;

    /// Into `p`, which is as fresh memory is.
    function parse(Program memory p, bytes memory raw) internal pure {
        if (raw.length <= HEADER_BYTES || uint8(raw[0]) != VERSION) {
            revert ITraceJudge.ProgramInvalid();
        }
        p.raw = raw;
        // The header's first 74 bytes in three words: from bytes 0, 32 and 42 on.
        uint256 shape;
        uint256 rest;
        uint256 root;
        assembly ("memory-safe") {
            shape := mload(add(raw, 32))
            rest := mload(add(raw, 64))
            root := mload(add(raw, 74))
        }
        p.rowFormat = uint8(shape >> 240);
        p.weightFormat = uint8(shape >> 232);
        p.tableFormat = uint8(shape >> 224);
        p.hidden = uint32(shape >> 192);
        p.query = uint32(shape >> 160);
        p.keys = uint32(shape >> 128);
        p.inner = uint32(shape >> 96);
        p.vocab = uint32(shape >> 64);
        p.context = uint32(shape >> 32);
        p.heads = uint16(shape >> 16);
        p.keyHeads = uint16(shape);
        p.headDim = rest >> 240;
        p.partTerms = uint16(rest >> 224);
        p.delta = uint32(rest >> 192);
        p.tables = uint8(rest >> 184);
        p.sigma = uint8(rest >> 176);
        p.tablesRoot = bytes32(root);
        unchecked {
            p.tolerances = _read(raw, HEADER_BYTES, 1);
            uint256 offset = TOLERANCES_AT + TOLERANCE_BYTES * p.tolerances;
            p.constantsAt = offset + 1;
            offset += 1 + 8 * _read(raw, offset, 1);
            uint256[] memory starts = p.sectionsAt = new uint256[](_read(raw, offset, 1));
            ++offset;
            uint256 count = starts.length;
            uint256 layers;
            assembly ("memory-safe") {
                // Behind the bytes' end anything is read: it makes a length that is not theirs.
                let place := add(raw, 32)
                let to := add(starts, 32)
                for { let end := add(to, shl(5, count)) } lt(to, end) { to := add(to, 32) } {
                    mstore(to, offset)
                    let tensorsAndOps := mload(add(place, offset))
                    offset := add(offset, add(2, shl(3, byte(1, tensorsAndOps))))
                }
                layers := shr(240, mload(add(place, offset)))
            }
            p.layers = layers;
            p.layersAt = offset + 2;
            if (raw.length != p.layersAt + layers || count <= FIRST_LAYER_TYPE) {
                revert ITraceJudge.ProgramInvalid();
            }
        }
    }

    function tolerance(Program memory p, uint256 entry)
        internal
        pure
        returns (uint256 maxDepth, uint256 minRows, uint256 value)
    {
        unchecked {
            if (entry >= p.tolerances) revert ITraceJudge.ProgramInvalid();
            uint256 offset = TOLERANCES_AT + TOLERANCE_BYTES * entry;
            return
                (_read(p.raw, offset, 1), _read(p.raw, offset + 1, 2), _read(p.raw, offset + 3, 8));
        }
    }

    /// K in 10^-12: a pleaded deviation is above K times the change between the passes.
    function pleaOf(Program memory p) internal pure returns (uint256) {
        return _read(p.raw, PLEA_AT, 8);
    }

    /// A value's own sign counts 2^-ownBits.
    function ownBitsOf(Program memory p) internal pure returns (uint256) {
        return _read(p.raw, OWN_BITS_AT, 1);
    }

    /// How many layers lie between two boundaries that a stage signs; 0: all of its layers.
    function spanOf(Program memory p) internal pure returns (uint256) {
        return _read(p.raw, SPAN_AT, 1);
    }

    function constantOf(Program memory p, uint256 number) internal pure returns (uint256) {
        unchecked {
            return _read(p.raw, p.constantsAt + 8 * number, 8);
        }
    }

    function layerType(Program memory p, uint256 layer) internal pure returns (uint256) {
        unchecked {
            return _read(p.raw, p.layersAt + layer, 1);
        }
    }

    /// Tensors of the part of the model that this type of section reads.
    function tensors(Program memory p, uint256 sectionType) internal pure returns (uint256) {
        unchecked {
            return _read(p.raw, p.sectionsAt[sectionType], 1);
        }
    }

    function ops(Program memory p, uint256 sectionType) internal pure returns (uint256) {
        unchecked {
            return _read(p.raw, p.sectionsAt[sectionType] + 1, 1);
        }
    }

    function op(Program memory p, uint256 sectionType, uint256 number)
        internal
        pure
        returns (Op memory)
    {
        unchecked {
            if (number >= ops(p, sectionType)) revert ITraceJudge.ProgramInvalid();
            uint256 word = _read(p.raw, p.sectionsAt[sectionType] + 2 + OP_BYTES * number, 8);
            return Op(
                word >> 56,
                (word >> 48) & 0xff,
                (word >> 40) & 0xff,
                (word >> 32) & 0xff,
                (word >> 24) & 0xff,
                (word >> 16) & 0xff,
                (word >> 8) & 0xff,
                word & 0xff
            );
        }
    }

    function formOf(Program memory p, uint256 sectionType, uint256 number)
        internal
        pure
        returns (uint256)
    {
        unchecked {
            if (number >= ops(p, sectionType)) revert ITraceJudge.ProgramInvalid();
            return _read(p.raw, p.sectionsAt[sectionType] + 3 + OP_BYTES * number, 1);
        }
    }

    /// Memory address of the first layer's type, a byte each.
    function layerTypesOf(Program memory p) internal pure returns (uint256 place) {
        bytes memory raw = p.raw;
        uint256 offset = p.layersAt;
        assembly ("memory-safe") {
            place := add(add(raw, 32), offset)
        }
    }

    /// Memory address of the first operator's form; each next one is eight bytes on.
    function formsOf(Program memory p, uint256 sectionType) internal pure returns (uint256 place) {
        bytes memory raw = p.raw;
        uint256 offset = p.sectionsAt[sectionType] + 3;
        assembly ("memory-safe") {
            place := add(add(raw, 32), offset)
        }
    }

    /// `count` bytes from `offset`, big-endian.
    function _read(bytes memory raw, uint256 offset, uint256 count)
        private
        pure
        returns (uint256 value)
    {
        bool within;
        assembly ("memory-safe") {
            within := iszero(gt(add(offset, count), mload(raw))) // neither is near 2^256
            value := shr(sub(256, shl(3, count)), mload(add(add(raw, 32), offset)))
        }
        if (!within) revert ITraceJudge.ProgramInvalid();
    }
}
