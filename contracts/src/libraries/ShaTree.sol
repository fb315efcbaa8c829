// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// The SHA-256 tree of docs/protocol.md §3: which root do these leaves have, and is this leaf at that place under it.
///
/// leaf = H(0x00 ‖ bytes), node = H(0x01 ‖ left ‖ right), an unpaired last node moves up unchanged,
/// root = H(0x02 ‖ u32be count ‖ top). SHA-256 because workers hash activations five to nine times faster with it than with Keccak.
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
        return _seal(leafHashes.length, leafHashes.length == 0 ? bytes32(0) : leafHashes[0]);
    }

    /// Is `leaf` the `index`-th of `count` leaves under `treeRoot`? `proof` lists siblings from the leaf up.
    ///
    /// INVARIANT: index and count alone fix the path, and the proof must have exactly its length; count is inside the root. So
    /// neither a longer index, nor a node passed off as a leaf, nor a tree of another shape verifies.
    function verify(bytes32 treeRoot, uint256 count, uint256 index, bytes32 leaf, bytes32[] calldata proof) internal pure returns (bool) {
        if (index >= count || count > type(uint32).max) return false;
        bytes32 node = leaf;
        uint256 used;
        for (uint256 width = count; width > 1; width = width / 2 + (width % 2)) {
            bool unpaired = index == width - 1 && width % 2 == 1;
            if (!unpaired) {
                if (used == proof.length) return false;
                node = index % 2 == 0 ? _node(node, proof[used]) : _node(proof[used], node);
                ++used;
            }
            index /= 2;
        }
        return used == proof.length && _seal(count, node) == treeRoot;
    }

    function _node(bytes32 left, bytes32 right) private pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x01), left, right));
    }

    function _seal(uint256 count, bytes32 top) private pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x02), uint32(count), top));
    }
}
