// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

import {ITraceJudge} from "../interfaces/ITraceJudge.sol";
import {ShaTree} from "../libraries/ShaTree.sol";

/// Do these hashes lead to that node? (docs/trust.md §2) Twin: core/dispute/trace/chunks.py.
///
/// Loops are in assembly: they touch the array of hashes, within its bounds, and free memory.
library Chunks {
    uint256 internal constant STEP_LEVELS = 5;

    /// Levels from the leaves to the root.
    function height(uint256 count) internal pure returns (uint256) {
        unchecked {
            return count < 2 ? 0 : Math.log2(count - 1) + 1;
        }
    }

    /// Nodes at `level`, the leaves being level 0. Counts are below 2^64, levels below 64.
    function width(uint256 count, uint256 level) internal pure returns (uint256) {
        unchecked {
            return (count + (1 << level) - 1) >> level;
        }
    }

    /// The top over the run of nodes from `first` on a level of `count`. Hashes are overwritten.
    ///
    /// INVARIANT: run and count fix which siblings are read, and how many are there is compared.
    function climb(
        bytes32[] memory hashes,
        uint256 first,
        uint256 count,
        bytes32[] calldata siblings
    ) internal view returns (bytes32) {
        uint256 length = hashes.length;
        uint256 used;
        if (length == 0 || first + length > count) revert ITraceJudge.SiblingsWrong();
        unchecked {
            while (length != 1) {
                uint256 left = first & 1;
                uint256 right = (first + length) & 1;
                if (first + length == count) right = 0;
                length = _raise(hashes, length, left, right, _at(siblings, used));
                used += left + right;
                first >>= 1;
                count = (count + 1) >> 1;
            }
        }
        if (used > siblings.length) revert ITraceJudge.SiblingsWrong();
        return climb(hashes[0], first, count, siblings[used:]);
    }

    /// The same over one node.
    function climb(bytes32 hash, uint256 index, uint256 count, bytes32[] calldata siblings)
        internal
        view
        returns (bytes32)
    {
        (bytes32 top, bool proven) = ShaTree.climb(hash, index, count, siblings);
        if (!proven) revert ITraceJudge.SiblingsWrong();
        return top;
    }

    /// The node `levels` above nodes that are all below it. The hashes are overwritten.
    function fold(bytes32[] memory hashes, uint256 levels) internal view returns (bytes32) {
        uint256 length = hashes.length;
        for (; levels != 0; --levels) {
            length = _raise(hashes, length, 0, 0, 0);
        }
        if (length != 1) revert ITraceJudge.SiblingsWrong();
        return hashes[0];
    }

    /// H(0x00 ‖ data).
    function leaf(bytes calldata data) internal view returns (bytes32 hash) {
        bool ok;
        assembly ("memory-safe") {
            let place := mload(0x40)
            mstore8(place, 0)
            calldatacopy(add(place, 1), data.offset, data.length)
            ok := staticcall(gas(), 2, place, add(data.length, 1), 0, 32)
            hash := mload(0)
        }
        if (!ok) revert ITraceJudge.HashFailed();
    }

    /// Leaf hashes of consecutive chunks of `chunkBytes`, the last of which may be short.
    function leaves(bytes calldata data, uint256 chunkBytes)
        internal
        view
        returns (bytes32[] memory hashes)
    {
        hashes = new bytes32[]((data.length + chunkBytes - 1) / chunkBytes);
        bool ok = true;
        assembly ("memory-safe") {
            // A chunk's tag overwrites the last byte of the one before it, which is hashed by then.
            let tag := mload(0x40)
            calldatacopy(add(tag, 1), data.offset, data.length)
            let to := add(hashes, 32)
            let size := add(chunkBytes, 1)
            let last := sub(add(tag, data.length), chunkBytes)
            for {} iszero(sgt(tag, last)) { tag := add(tag, chunkBytes) } {
                mstore8(tag, 0)
                ok := and(ok, staticcall(gas(), 2, tag, size, to, 32))
                to := add(to, 32)
            }
            size := sub(add(last, size), tag)
            if gt(size, 1) {
                mstore8(tag, 0)
                ok := and(ok, staticcall(gas(), 2, tag, size, to, 32))
            }
        }
        if (!ok) revert ITraceJudge.HashFailed();
    }

    /// Leaf hashes of chunks in a row, each as long as its byte of `sizes` says.
    function leaves(bytes calldata data, bytes calldata sizes)
        internal
        view
        returns (bytes32[] memory hashes)
    {
        hashes = new bytes32[](sizes.length);
        bool ok;
        assembly ("memory-safe") {
            let place := mload(0x40)
            mstore8(place, 0)
            let from := data.offset
            ok := 1
            for { let i := 0 } lt(i, sizes.length) { i := add(i, 1) } {
                let size := byte(0, calldataload(add(sizes.offset, i)))
                calldatacopy(add(place, 1), from, size)
                ok := and(
                    ok,
                    staticcall(gas(), 2, place, add(size, 1), add(add(hashes, 32), shl(5, i)), 32)
                )
                from := add(from, size)
            }
            // What a size reached beyond the data is of a call that reverts.
            ok := and(ok, eq(from, add(data.offset, data.length)))
        }
        if (!ok) revert ITraceJudge.HashFailed();
    }

    /// Calldata address of sibling number `index`.
    function _at(bytes32[] calldata siblings, uint256 index) private pure returns (uint256 place) {
        assembly ("memory-safe") {
            place := add(siblings.offset, shl(5, index))
        }
    }

    /// One level up: the first `length` hashes, with one more from calldata at `from` before them
    /// if `left`, and one after if `right`. Returns how many there are then, an odd one included.
    function _raise(
        bytes32[] memory hashes,
        uint256 length,
        uint256 left,
        uint256 right,
        uint256 from
    ) private view returns (uint256 made) {
        bool ok = true;
        assembly ("memory-safe") {
            // node = H(0x01 ‖ a ‖ b). A pair's tag overwrites the byte before it, which was read.
            let pair := add(hashes, 31)
            let end := add(pair, shl(5, length))
            let write := add(hashes, 32)
            let first
            if left {
                let place := mload(0x40)
                mstore8(place, 1)
                mstore(add(place, 1), calldataload(from))
                mstore(add(place, 33), mload(write))
                ok := staticcall(gas(), 2, place, 65, 0, 32)
                first := mload(0) // put in its place at last, for the next pair's tag goes there
                from := add(from, 32)
                pair := add(pair, 32)
                write := add(write, 32)
            }
            for {} lt(add(pair, 96), end) { pair := add(pair, 128) } {
                let next := add(pair, 64)
                mstore8(pair, 1)
                ok := and(ok, staticcall(gas(), 2, pair, 65, write, 32))
                mstore8(next, 1)
                ok := and(ok, staticcall(gas(), 2, next, 65, add(write, 32), 32))
                write := add(write, 64)
            }
            if lt(add(pair, 32), end) {
                mstore8(pair, 1)
                ok := and(ok, staticcall(gas(), 2, pair, 65, write, 32))
                pair := add(pair, 64)
                write := add(write, 32)
            }
            if lt(pair, end) {
                switch right
                case 0 { mstore(write, mload(add(pair, 1))) }
                default {
                    let place := mload(0x40)
                    mstore8(place, 1)
                    mstore(add(place, 1), mload(add(pair, 1)))
                    mstore(add(place, 33), calldataload(from))
                    ok := and(ok, staticcall(gas(), 2, place, 65, write, 32))
                }
                write := add(write, 32)
            }
            if left { mstore(add(hashes, 32), first) }
            made := shr(5, sub(write, add(hashes, 32)))
            mstore(hashes, made)
        }
        if (!ok) revert ITraceJudge.HashFailed();
    }
}
