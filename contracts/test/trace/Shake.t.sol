// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Place} from "../../src/trace/Layout.sol";
import {Shake} from "../../src/trace/Shake.sol";
import {Test} from "../Vm.sol";

contract ShakeTest is Test {
    function unitsOf(uint256 seed, uint256 ownBits, Place memory place, uint256 length)
        external
        pure
        returns (int256)
    {
        return Shake.units(seed, ownBits, place, length);
    }

    function check(
        uint256 seed,
        uint256 ownBits,
        Place memory place,
        uint256 length,
        int256 expected
    ) private pure {
        vm.assertTrue(Shake.units(seed, ownBits, place, length) == expected);
    }

    /// Computed once by a program of a dozen lines that shares nothing with ours.
    function test_units_areTheSameElsewhere() public pure {
        check(132, 24, Place(300, 242, 17177, 1, 30), 32, 2);
        check(77, 24, Place(48002, 240, 124873, 50, 327), 511, 0);
        check(21, 24, Place(48002, 199, 3970, 8, 10), 32, 2);
        check(227, 9, Place(300, 242, 101609, 54, 0), 1, -32768);
        check(132, 24, Place(7, 18, 35643, 63, 1777), 8191, 2);
        check(172, 9, Place(300, 197, 91989, 52, 237), 512, 32765);
        check(136, 24, Place(48002, 83, 85561, 13, 216), 512, 4);
        check(34, 9, Place(7, 246, 126748, 11, 11), 31, -32768);
        check(22, 9, Place(7, 150, 111972, 53, 7), 32, 32767);
        check(158, 24, Place(48002, 169, 73157, 30, 590), 8192, 12);
        check(134, 24, Place(7, 16, 51743, 52, 9), 31, 1);
        check(192, 24, Place(300, 160, 94423, 17, 0), 1, 1);
        check(154, 9, Place(48002, 52, 71119, 55, 3893), 8192, 32757);
        check(161, 9, Place(48002, 155, 88842, 1, 425), 512, 32763);
        check(180, 24, Place(48002, 68, 15749, 42, 7639), 8192, -12);
        check(189, 9, Place(48002, 250, 5815, 7, 21), 512, 32773);
        check(160, 9, Place(300, 163, 46509, 46, 6070), 28672, 32757);
        check(158, 9, Place(300, 193, 27491, 3, 134), 512, -32763);
        check(52, 24, Place(7, 167, 49124, 55, 99), 512, -2);
        check(172, 9, Place(48002, 114, 114931, 21, 654), 8191, 32765);
        check(97, 24, Place(300, 115, 31698, 4, 17354), 28672, -20);
        check(215, 9, Place(300, 174, 22422, 44, 8), 32, 32767);
        check(209, 9, Place(300, 177, 109289, 37, 429), 512, 32765);
        check(113, 24, Place(7, 102, 1222, 61, 7116), 8192, 12);
    }

    /// The sign of level `level`, by its definition.
    function signOf(uint8 seed, uint16 level, Place memory p) private pure returns (int256) {
        uint32 number = p.index / level;
        bytes32 signs = sha256(
            abi.encodePacked(seed, level, p.section, p.op, p.row, p.segment, uint32(number / 256))
        );
        return uint256(signs) & (1 << (number % 256)) == 0 ? -1 : int256(1);
    }

    function test_units_haveALevelForEachTwiceAsLong(uint8 seed, Place memory p, uint256 length)
        public
        pure
    {
        length = bound(length, 1, 40_000);
        p.index = uint32(bound(p.index, 0, length - 1));
        int256 expected = signOf(seed, 1, p);
        if (length >= 32) expected += signOf(seed, 16, p);
        if (length >= 512) expected += 4 * signOf(seed, 256, p);
        if (length >= 8192) expected += 16 * signOf(seed, 4096, p);
        check(seed, 24, p, length, expected);
        check(seed, 9, p, length, expected + 32_767 * signOf(seed, 1, p));
    }

    function test_units_dependOnAllOfThePlace() public pure {
        Place[6] memory places = [
            Place(7, 3, 5, 2, 0),
            Place(8, 3, 5, 2, 0),
            Place(7, 4, 5, 2, 0),
            Place(7, 3, 6, 2, 0),
            Place(7, 3, 5, 3, 0),
            Place(7, 3, 5, 2, 256)
        ];
        for (uint256 i = 1; i < places.length; ++i) {
            bool differs;
            for (uint8 seed; seed < 40 && !differs; ++seed) {
                differs =
                    Shake.units(seed, 24, places[0], 1) != Shake.units(seed, 24, places[i], 1);
            }
            vm.assertTrue(differs);
        }
    }

    function test_units_ofMoreBitsThanTheUnit_revert() public {
        vm.expectRevert(abi.encodeWithSignature("Panic(uint256)", 0x11));
        this.unitsOf(1, 25, Place(7, 3, 5, 2, 0), 1);
    }
}
