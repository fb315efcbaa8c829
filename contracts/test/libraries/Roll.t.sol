// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Roll} from "../../src/libraries/Roll.sol";
import {Test} from "../Vm.sol";

/// The roll against a plain list, and draws against counting.
contract RollTest is Test {
    using Roll for Roll.Book;

    Roll.Book private roll;
    address[] private plain;

    function setUp() public {
        vm.roll(100);
    }

    function now_() private view returns (uint96) {
        return uint96(vm.getBlockNumber());
    }

    function enter(address holder) private {
        vm.assertEq(roll.enter(holder), plain.length);
        plain.push(holder);
    }

    function strike(uint256 place) private {
        address last = plain[plain.length - 1];
        bool isLast = place == plain.length - 1;
        vm.assertEq(roll.strike(place), isLast ? address(0) : last);
        plain[place] = last;
        plain.pop();
    }

    function assertIs(address[] memory all, uint96 blockNumber) private view {
        vm.assertEq(roll.countAt(blockNumber), all.length);
        for (uint256 i; i < all.length; ++i) {
            vm.assertEq(roll.holderAt(i, blockNumber), all[i]);
        }
    }

    /// What was true at the end of a block stays true for whoever asks about that block.
    function testFuzz_history_equalsAPlainList(uint256 seed) public {
        address[][] memory then = new address[][](12);
        for (uint256 i; i < 40; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            if (plain.length != 0 && random % 3 == 0) strike((random >> 8) % plain.length);
            else enter(address(uint160(i + 1)));
            if (i % 4 == 3 && i / 4 < 10) {
                then[i / 4] = plain;
                skipBlocks(1);
            }
        }
        vm.assertEq(roll.countAt(99), 0);
        for (uint256 i; i < 10; ++i) {
            assertIs(then[i], uint96(100 + i));
        }
        assertIs(plain, now_());
    }

    function test_enterAndStrike_inOneBlock_leaveNoTrace() public {
        enter(address(1));
        strike(0);
        enter(address(2));
        vm.assertEq(roll.holderAt(0, now_()), address(2));
        vm.assertEq(roll.countAt(now_()), 1);
    }

    /// Every place once, none beyond.
    function testFuzz_draw_isAPermutation(uint256 seed, uint8 count) public pure {
        Roll.Urn memory urn = Roll.urn(count, count);
        bool[] memory seen = new bool[](count);
        for (uint256 i; i < count; ++i) {
            uint256 place = Roll.draw(urn, uint256(keccak256(abi.encode(seed, i))));
            vm.assertFalse(seen[place]);
            seen[place] = true;
        }
        vm.assertEq(urn.left, 0);
    }

    /// Over all courses of three draws of five places, every ordered triple comes exactly once.
    function test_draw_isFair() public pure {
        bool[125] memory seen;
        for (uint256 course; course < 60; ++course) {
            Roll.Urn memory urn = Roll.urn(5, 3);
            uint256 triple = Roll.draw(urn, course % 5);
            triple = triple * 5 + Roll.draw(urn, course / 5 % 4);
            triple = triple * 5 + Roll.draw(urn, course / 20);
            vm.assertFalse(seen[triple]);
            seen[triple] = true;
        }
    }
}
