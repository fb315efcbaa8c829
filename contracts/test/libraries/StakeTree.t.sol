// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Sortition} from "../../src/libraries/Sortition.sol";
import {StakeTree} from "../../src/libraries/StakeTree.sol";
import {Test} from "../Vm.sol";

/// The tree against a plain array, and draws against the weights.
contract StakeTreeTest is Test {
    using StakeTree for StakeTree.Tree;

    StakeTree.Tree private tree;
    uint96[1024] private plain;

    function setUp() public {
        vm.roll(100);
    }

    function now_() private view returns (uint96) {
        return uint96(vm.getBlockNumber());
    }

    function set(uint256 slot, uint96 weight) private {
        tree.set(slot, weight);
        plain[slot] = weight;
    }

    function plainTotal() private view returns (uint256 total) {
        for (uint256 i; i < 1024; ++i) {
            total += plain[i];
        }
    }

    function plainStart(uint256 slot) private view returns (uint256 start) {
        for (uint256 i; i < slot; ++i) {
            start += plain[i];
        }
    }

    function testFuzz_sums_equalAPlainArray(uint256 seed) public {
        for (uint256 i; i < 12; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            set(random % 1024, i % 5 == 4 ? 0 : uint96(random >> 160));
            if (i % 3 == 0) skipBlocks(1);
        }
        uint256 total = plainTotal();
        vm.assertEq(tree.totalAt(now_()), total);
        uint256 point = seed % total;
        StakeTree.Span memory found = tree.find(point, now_());
        vm.assertEq(found.start, plainStart(found.slot));
        vm.assertEq(found.weight, plain[found.slot]);
        vm.assertTrue(found.start <= point && point < found.start + found.weight);
        StakeTree.Span memory same = tree.spanAt(found.slot, now_());
        vm.assertEq(abi.encode(same), abi.encode(found));
    }

    function test_edges_firstAndLastSlotAndFullWeight() public {
        set(0, type(uint96).max);
        set(1023, type(uint96).max);
        vm.assertEq(tree.find(0, now_()).slot, 0);
        vm.assertEq(tree.find(type(uint96).max, now_()).slot, 1023);
        vm.assertEq(tree.find(2 * uint256(type(uint96).max) - 1, now_()).slot, 1023);
        vm.assertEq(tree.totalAt(now_()), 2 * uint256(type(uint96).max));
    }

    /// What was true at the end of a block stays true for whoever asks about that block.
    function test_past_isNotMovedByLaterChanges() public {
        set(3, 10);
        set(700, 20);
        uint96 then = now_();
        skipBlocks(1);
        set(3, 0);
        set(700, 1);
        set(5, 99);
        vm.assertEq(tree.totalAt(then), 30);
        vm.assertEq(tree.find(9, then).slot, 3);
        vm.assertEq(tree.find(10, then).slot, 700);
        vm.assertEq(tree.weightAt(5, then), 0);
        vm.assertEq(tree.totalAt(now_()), 100);
        vm.assertEq(tree.totalAt(then - 1), 0);
    }

    function test_slots_areReusedAndRemembered() public {
        address a = makeAddr("a");
        address b = makeAddr("b");
        vm.assertEq(tree.assign(a), 0);
        vm.assertEq(tree.assign(b), 1);
        uint96 then = now_();
        skipBlocks(1);
        tree.vacate(0);
        vm.assertEq(tree.holderAt(0, now_()), address(0));
        vm.assertEq(tree.assign(b), 0);
        vm.assertEq(tree.holderAt(0, then), a);
        vm.assertEq(tree.holderAt(0, now_()), b);
    }

    function test_isFull_after1024() public {
        for (uint256 i; i < 1024; ++i) {
            vm.assertFalse(tree.isFull());
            tree.assign(address(1));
        }
        vm.assertTrue(tree.isFull());
        tree.vacate(512);
        vm.assertFalse(tree.isFull());
    }

    // --- draws ---

    function drawAll(uint256 seed, uint256[] memory excluded, uint256 count)
        private
        view
        returns (uint256[] memory slots)
    {
        uint256 total = tree.totalAt(now_());
        Sortition.Cuts memory cuts = Sortition.noCuts(excluded.length + count);
        for (uint256 i; i < excluded.length; ++i) {
            Sortition.cut(cuts, tree.spanAt(excluded[i], now_()));
        }
        slots = new uint256[](count);
        for (uint256 i; i < count; ++i) {
            slots[i] =
                Sortition.draw(tree, now_(), total, cuts, uint256(keccak256(abi.encode(seed, i))));
        }
    }

    function testFuzz_draw_neverTwiceNeverExcluded(uint256 seed) public {
        for (uint256 i; i < 10; ++i) {
            set(
                i * 100 + (seed >> i) % 50,
                uint96(1 + uint256(keccak256(abi.encode(seed, i))) % 1000)
            );
        }
        uint256[] memory excluded = new uint256[](3);
        uint256 taken;
        for (uint256 i; i < 1024 && taken < 3; ++i) {
            if (plain[i] != 0 && (seed >> (i % 200)) % 2 == 0) excluded[taken++] = i;
        }
        vm.assume(taken == 3);
        uint256[] memory slots = drawAll(seed, excluded, 7); // all that remain
        for (uint256 i; i < 7; ++i) {
            vm.assertGt(plain[slots[i]], 0);
            for (uint256 j; j < i; ++j) {
                vm.assertNotEq(slots[i], slots[j]);
            }
            for (uint256 j; j < 3; ++j) {
                vm.assertNotEq(slots[i], excluded[j]);
            }
        }
    }

    /// Every point of what remains belongs to one slot, in the right amount, over the whole line.
    function testFuzz_draw_isExactlyProportional(uint8[6] calldata weights, uint8 excludedIndex)
        public
    {
        uint256[] memory excluded = new uint256[](1);
        excluded[0] = uint256(excludedIndex) % 6 * 170;
        for (uint256 i; i < 6; ++i) {
            set(i * 170, uint96(weights[i]) % 24 + 1);
        }
        uint256 total = tree.totalAt(now_());
        uint256 rest = total - plain[excluded[0]];
        uint256[1024] memory hits;
        for (uint256 random; random < rest; random += 1) {
            Sortition.Cuts memory cuts = Sortition.noCuts(2);
            Sortition.cut(cuts, tree.spanAt(excluded[0], now_()));
            ++hits[Sortition.draw(tree, now_(), total, cuts, random)];
        }
        for (uint256 i; i < 6; ++i) {
            vm.assertEq(hits[i * 170], i * 170 == excluded[0] ? 0 : plain[i * 170]);
        }
    }
}
