// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Which root do these leaves have, and is a leaf at its place under it (docs/protocol.md §3)?
///
/// leaf = H(0x00 ‖ bytes), node = H(0x01 ‖ left ‖ right), an unpaired last node moves up unchanged,
/// root = H(0x02 ‖ u32be count ‖ top). H is SHA-256.
library ShaTree {
    function leafHash(bytes memory leaf) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x00), leaf));
    }

    /// Root over leaf hashes; they are overwritten. For no leaves the top is zero.
    function root(bytes32[] memory leafHashes) internal pure returns (bytes32) {
        uint256 width = leafHashes.length;
        while (width > 1) {
            uint256 pairs = width / 2;
            for (uint256 i; i < pairs; ++i) {
                leafHashes[i] = _node(leafHashes[2 * i], leafHashes[2 * i + 1]);
            }
            if (width % 2 == 1) leafHashes[pairs] = leafHashes[width - 1];
            width = pairs + (width % 2);
        }
        return seal(leafHashes.length, leafHashes.length == 0 ? bytes32(0) : leafHashes[0]);
    }

    /// Is `leaf` the `index`-th of `count` under `treeRoot`? `proof` lists siblings upwards.
    ///
    /// INVARIANT: index and count fix the path, the proof has exactly its length, the root holds
    /// the count: no other index, node or shape verifies.
    function verify(
        bytes32 treeRoot,
        uint256 count,
        uint256 index,
        bytes32 leaf,
        bytes32[] calldata proof
    ) internal view returns (bool) {
        if (count > type(uint32).max) return false;
        (bytes32 top, bool proven) = climb(leaf, index, count, proof);
        return proven && seal(count, top) == treeRoot;
    }

    /// The top over node `index` of `count`; proven if `siblings`, upwards, are exactly its own.
    function climb(bytes32 node, uint256 index, uint256 count, bytes32[] calldata siblings)
        internal
        view
        returns (bytes32 top, bool proven)
    {
        if (index >= count) return (0, false);
        assembly ("memory-safe") {
            // A parent is H(0x01 ‖ a ‖ b), in the 65 bytes from `tag`. A node stands at `here`,
            // in its half of the pair, whose address is a multiple of 64.
            let pair := and(add(mload(0x40), 95), not(63))
            let tag := sub(pair, 1)
            mstore8(tag, 1)
            let from := siblings.offset
            let last := sub(count, 1)
            let here := add(pair, shl(5, and(index, 1)))
            mstore(here, node)
            proven := 1
            // While the last node of the level is another one, there is a sibling.
            for {} xor(index, last) {} {
                mstore(xor(here, 32), calldataload(from))
                from := add(from, 32)
                index := shr(1, index)
                last := shr(1, last)
                here := add(pair, shl(5, and(index, 1)))
                proven := and(proven, staticcall(gas(), 2, tag, 65, here, 32))
            }
            // The last node has one to its left, or moves up: then no other has its parent.
            for {} last {} {
                let odd := and(last, 1)
                last := shr(1, last)
                let to := add(pair, shl(5, and(last, 1)))
                switch odd
                case 0 { mstore(to, mload(here)) }
                default {
                    mstore(pair, calldataload(from))
                    from := add(from, 32)
                    proven := and(proven, staticcall(gas(), 2, tag, 65, to, 32))
                }
                here := to
            }
            top := mload(here)
            proven := and(proven, eq(sub(from, siblings.offset), shl(5, siblings.length)))
        }
    }

    function _node(bytes32 left, bytes32 right) private pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x01), left, right));
    }

    /// A tree's root, by its number of leaves and the top over them.
    function seal(uint256 count, bytes32 top) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x02), uint32(count), top));
    }
}
