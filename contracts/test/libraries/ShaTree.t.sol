// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ShaTree} from "../../src/libraries/ShaTree.sol";
import {Test} from "../Vm.sol";
import {Trees} from "../fixtures/Trees.sol";

contract ShaTreeHarness {
    function root(bytes32[] memory leaves) external pure returns (bytes32) {
        return ShaTree.root(leaves);
    }

    function leafHash(bytes memory data) external pure returns (bytes32) {
        return ShaTree.leafHash(data);
    }

    function verify(
        bytes32 treeRoot,
        uint256 count,
        uint256 index,
        bytes32 leaf,
        bytes32[] calldata proof
    ) external view returns (bool) {
        return ShaTree.verify(treeRoot, count, index, leaf, proof);
    }
}

contract ShaTreeTest is Test {
    ShaTreeHarness private tree = new ShaTreeHarness();

    struct Claim {
        bytes32 root;
        uint256 count;
        uint256 index;
        bytes32 leaf;
        bytes32[] proof;
    }

    function leavesOf(uint256 count, uint256 seed) private pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](count);
        for (uint256 i; i < count; ++i) {
            leaves[i] = Trees.leaf(abi.encode(seed, i));
        }
    }

    function claimOf(uint256 count, uint256 index, uint256 seed)
        private
        pure
        returns (Claim memory)
    {
        bytes32[] memory leaves = leavesOf(count, seed);
        return Claim(Trees.root(leaves), count, index, leaves[index], Trees.proof(leaves, index));
    }

    function holds(Claim memory c) private view returns (bool) {
        return tree.verify(c.root, c.count, c.index, c.leaf, c.proof);
    }

    function test_leafHash_isTaggedSha256() public view {
        vm.assertEq(tree.leafHash("abc"), sha256(hex"00616263"));
        vm.assertEq(tree.leafHash(""), sha256(hex"00"));
    }

    function test_root_ofNoLeaves_sealsZero() public view {
        vm.assertEq(
            tree.root(new bytes32[](0)), sha256(abi.encodePacked(hex"0200000000", bytes32(0)))
        );
    }

    function test_root_ofOneLeaf_sealsIt() public view {
        bytes32[] memory leaves = leavesOf(1, 0);
        vm.assertEq(tree.root(leaves), sha256(abi.encodePacked(hex"0200000001", leaves[0])));
    }

    function test_root_ofThreeLeaves_movesTheLastUp() public view {
        bytes32[] memory l = leavesOf(3, 0);
        bytes32 pair = sha256(abi.encodePacked(hex"01", l[0], l[1]));
        bytes32 top = sha256(abi.encodePacked(hex"01", pair, l[2]));
        vm.assertEq(tree.root(l), sha256(abi.encodePacked(hex"0200000003", top)));
    }

    function test_root_matchesReference_forEverySize() public view {
        for (uint256 count; count <= 40; ++count) {
            vm.assertEq(tree.root(leavesOf(count, 7)), Trees.root(leavesOf(count, 7)));
        }
    }

    function test_verify_holdsForEveryLeafOfEverySize() public view {
        for (uint256 count = 1; count <= 20; ++count) {
            for (uint256 i; i < count; ++i) {
                vm.assertTrue(holds(claimOf(count, i, 3)));
            }
        }
    }

    function test_verify_ofNothing_fails() public view {
        vm.assertFalse(tree.verify(Trees.root(new bytes32[](0)), 0, 0, 0, new bytes32[](0)));
    }

    function testFuzz_verify_whenAnyBitOfLeafFlips_fails(uint256 count, uint256 index, uint256 bit)
        public
        view
    {
        Claim memory c = anyClaim(count, index);
        c.leaf ^= bytes32(1 << (bit % 256));
        vm.assertFalse(holds(c));
    }

    function testFuzz_verify_whenAnyBitOfRootFlips_fails(uint256 count, uint256 index, uint256 bit)
        public
        view
    {
        Claim memory c = anyClaim(count, index);
        c.root ^= bytes32(1 << (bit % 256));
        vm.assertFalse(holds(c));
    }

    function testFuzz_verify_whenAnyBitOfProofFlips_fails(
        uint256 count,
        uint256 index,
        uint256 which,
        uint256 bit
    ) public view {
        count = bound(count, 2, 50);
        Claim memory c = claimOf(count, index % count, 5);
        c.proof[which % c.proof.length] ^= bytes32(1 << (bit % 256));
        vm.assertFalse(holds(c));
    }

    /// Extra high bits of the index would name the same path in a tree that does not check them.
    function testFuzz_verify_whenAnyBitOfIndexFlips_fails(
        uint256 count,
        uint256 index,
        uint256 bit
    ) public view {
        Claim memory c = anyClaim(count, index);
        c.index ^= 1 << (bit % 256);
        vm.assertFalse(holds(c));
    }

    function testFuzz_verify_whenCountIsAnother_fails(uint256 count, uint256 index, uint256 other)
        public
        view
    {
        Claim memory c = anyClaim(count, index);
        other = other % 2 == 0 ? bound(other, 0, 60) : other;
        if (other == c.count) ++other;
        c.count = other;
        vm.assertFalse(holds(c));
    }

    function testFuzz_verify_whenProofIsLongerOrShorter_fails(
        uint256 count,
        uint256 index,
        bytes32 extra
    ) public view {
        Claim memory c = anyClaim(count, index);
        bytes32[] memory exact = c.proof;
        c.proof = new bytes32[](exact.length + 1);
        for (uint256 i; i < exact.length; ++i) {
            c.proof[i] = exact[i];
        }
        c.proof[exact.length] = extra;
        vm.assertFalse(holds(c));
        if (exact.length == 0) return;
        c.proof = new bytes32[](exact.length - 1);
        for (uint256 i; i < c.proof.length; ++i) {
            c.proof[i] = exact[i];
        }
        vm.assertFalse(holds(c));
    }

    /// An inner node is no leaf: its parent's proof with a smaller count does not verify.
    function test_verify_ofInnerNodeAsLeaf_fails() public view {
        bytes32[] memory l = leavesOf(4, 9);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = sha256(abi.encodePacked(hex"01", l[2], l[3]));
        bytes32 inner = sha256(abi.encodePacked(hex"01", l[0], l[1]));
        vm.assertFalse(tree.verify(Trees.root(l), 4, 0, inner, proof));
        vm.assertFalse(tree.verify(Trees.root(l), 2, 0, inner, proof));
    }

    function test_verify_whenCountExceedsU32_fails() public view {
        bytes32[] memory l = leavesOf(1, 1);
        vm.assertFalse(tree.verify(Trees.root(l), uint256(1) << 32, 0, l[0], new bytes32[](32)));
        // 2³² + 1 leaves would seal as 1.
        vm.assertFalse(
            tree.verify(Trees.root(l), (uint256(1) << 32) + 1, 1 << 32, l[0], new bytes32[](0))
        );
    }

    function anyClaim(uint256 count, uint256 index) private pure returns (Claim memory) {
        count = bound(count, 1, 50);
        return claimOf(count, index % count, 5);
    }
}
