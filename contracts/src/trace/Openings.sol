// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITraceJudge, Opening, RowOpening, WeightOpening} from "../interfaces/ITraceJudge.sol";
import {Decode} from "../referee/Decode.sol";
import {Chunks} from "./Chunks.sol";
import {Derive} from "./Derive.sol";
import {Layouts} from "./Layout.sol";

/// Are these the committed operands of a leaf? Twin: core/dispute/trace/evidence.py.
library Openings {
    /// What a root of rows is: alone, or a half of what a last stage signed, H(0x04 ‖ root of
    /// tokens ‖ root of state rows). The last of a half's row siblings is the other half.
    enum Half {
        None,
        Tokens,
        States
    }

    /// Where opened bytes stand under a root of numbered rows.
    struct Spot {
        bytes32 root;
        uint256 rows;
        uint256 row;
        uint256 rowBytes;
        uint256 start;
        uint256 count;
        Half half;
    }

    uint256 internal constant PART_BYTES = 1024;
    uint256 private constant VALUE_BYTES = 8;

    /// The run's values, out of a trace of `chunks` chunks.
    function run(bytes32 root, uint256 chunks, Derive.Run memory r, Opening calldata opening)
        internal
        view
        returns (bytes calldata)
    {
        uint256 begin = r.start / Layouts.CHUNK_VALUES;
        uint256 values =
            ((r.start + r.count - 1) / Layouts.CHUNK_VALUES + 1 - begin) * Layouts.CHUNK_VALUES;
        uint256 left = r.length - begin * Layouts.CHUNK_VALUES; // the run begins within its segment
        // Nothing below is near 2^64.
        unchecked {
            if (left < values) values = left;
            if (opening.data.length != values * VALUE_BYTES) revert ITraceJudge.EvidenceInvalid();
            bytes32[] memory hashes = Chunks.leaves(opening.data, Layouts.CHUNK_BYTES);
            bytes32 top = Chunks.climb(hashes, r.firstChunk + begin, chunks, opening.siblings);
            if (top != root) revert ITraceJudge.EvidenceInvalid();
            uint256 skipped = (r.start - begin * Layouts.CHUNK_VALUES) * VALUE_BYTES;
            return opening.data[skipped:skipped + r.count * VALUE_BYTES];
        }
    }

    /// Bytes of one row under a root of numbered rows, as docs/protocol.md §3 commits to them.
    function row(Spot memory spot, RowOpening calldata opening)
        internal
        view
        returns (bytes calldata)
    {
        uint256 number = spot.start / PART_BYTES;
        uint256 size = spot.rowBytes - number * PART_BYTES;
        if (size > PART_BYTES) size = PART_BYTES;
        uint256 within = spot.start - number * PART_BYTES;
        if (opening.part.length != size || within + spot.count > size) {
            revert ITraceJudge.EvidenceInvalid();
        }
        requirePart(spot, number, opening);
        return opening.part[within:within + spot.count];
    }

    /// Reverts unless the opened bytes, however many, are part `number` of the row.
    function requirePart(Spot memory spot, uint256 number, RowOpening calldata opening)
        internal
        view
    {
        if (spot.row >= spot.rows) revert ITraceJudge.EvidenceInvalid();
        bytes32 hash;
        if (spot.rowBytes > PART_BYTES) {
            uint256 parts = (spot.rowBytes + PART_BYTES - 1) / PART_BYTES;
            bytes32 top =
                Chunks.climb(Chunks.leaf(opening.part), number, parts, opening.partSiblings);
            hash = sha256(abi.encodePacked(bytes1(0x00), uint32(spot.row), top));
        } else {
            if (opening.partSiblings.length != 0) revert ITraceJudge.EvidenceInvalid();
            hash = sha256(abi.encodePacked(bytes1(0x00), uint32(spot.row), opening.part));
        }
        _requireUnder(spot.root, spot.half, spot.rows, spot.row, hash, opening.rowSiblings);
    }

    /// The weights' bytes, given the root of their part of the model.
    function weights(bytes32 partRoot, Derive.Weights memory w, WeightOpening calldata opening)
        internal
        view
        returns (bytes calldata)
    {
        bytes32 hash =
            sha256(abi.encodePacked(bytes1(0x00), opening.name, bytes1(0x00), opening.tensorRoot));
        _requireUnder(partRoot, Half.None, w.tensors, w.tensor, hash, opening.tensorSiblings);
        uint256 width = Decode.widthBytes(Decode.toFormat(w.format));
        return row(
            Spot(
                opening.tensorRoot,
                w.rows,
                w.row,
                w.columns * width,
                w.column * width,
                w.count * width,
                Half.None
            ),
            opening.row
        );
    }

    /// INVARIANT: the root holds the count, and place and count fix the siblings.
    function _requireUnder(
        bytes32 root,
        Half half,
        uint256 count,
        uint256 index,
        bytes32 hash,
        bytes32[] calldata siblings
    ) private view {
        if (count > type(uint32).max || (half != Half.None && siblings.length == 0)) {
            revert ITraceJudge.EvidenceInvalid();
        }
        bytes32 other;
        if (half != Half.None) {
            other = siblings[siblings.length - 1];
            siblings = siblings[:siblings.length - 1];
        }
        bytes32 top = Chunks.climb(hash, index, count, siblings);
        top = sha256(abi.encodePacked(bytes1(0x02), uint32(count), top));
        if (half == Half.Tokens) top = sha256(abi.encodePacked(bytes1(0x04), top, other));
        else if (half == Half.States) top = sha256(abi.encodePacked(bytes1(0x04), other, top));
        if (top != root) revert ITraceJudge.EvidenceInvalid();
    }
}
