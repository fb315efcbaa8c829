// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Decode} from "../../src/referee/Decode.sol";
import {ExactSum} from "../../src/referee/ExactSum.sol";
import {Real} from "../../src/referee/Real.sol";
import {Test} from "../Vm.sol";
import {Operands} from "./Operands.sol";

contract ExactSumHarness {
    function dot(bytes calldata a, uint256 format, bytes calldata b, uint256 n)
        external
        pure
        returns (Real memory)
    {
        return ExactSum.dot(Decode.vector(a, format), 0, Decode.vector(b, Decode.F64), 0, n);
    }

    function sum(bytes calldata a, uint256 n) external pure returns (Real memory) {
        return ExactSum.sum(Decode.vector(a, Decode.F64), 0, n);
    }

    function sumWith(bytes calldata a, uint256 n, bytes calldata last, uint256 format)
        external
        pure
        returns (Real memory)
    {
        return ExactSum.sumWith(Decode.vector(a, Decode.F64), 0, n, Decode.vector(last, format));
    }
}

contract ExactSumTest is Test {
    ExactSumHarness private immutable harness = new ExactSumHarness();

    /// `found` is the whole number `want`.
    function assertWhole(Real memory found, int256 want) private pure {
        vm.assertTrue(found.e <= 0 && found.m == want << uint256(-found.e));
    }

    function test_dot_ofWholeNumbers_isTheirs(uint256 seed, uint256 n) public view {
        n = bound(n, 1, 256);
        int256[] memory a = Operands.numbers(n, seed);
        int256[] memory b = Operands.numbers(n, seed ^ 1);
        Real memory found = harness.dot(Operands.le32(a), Decode.FP32, Operands.le64(b), n);
        assertWhole(found, Operands.dot(a, b));
        found = harness.dot(Operands.le64(a), Decode.F64, Operands.le64(b), n);
        assertWhole(found, Operands.dot(a, b));
    }

    function test_sum_ofWholeNumbers_isTheirs(uint256 seed, uint256 n, int24 last) public view {
        n = bound(n, 1, 255);
        int256[] memory a = Operands.numbers(n, seed);
        int256 total;
        for (uint256 i; i < n; ++i) {
            total += a[i];
        }
        assertWhole(harness.sum(Operands.le64(a), n), total);
        bytes memory bias =
            Operands.le(Operands.f32(last == type(int24).min ? int256(0) : last), 4);
        int256 added = last == type(int24).min ? int256(0) : last;
        assertWhole(harness.sumWith(Operands.le64(a), n, bias, Decode.FP32), total + added);
    }

    /// 1 + 2^-k − 1 keeps 2^-k's last bit while it is on the grid, 80 bits below 1's unit of 2^-52.
    function test_sum_keepsWhatLiesOnTheGrid(uint256 k) public view {
        k = bound(k, 1, 200);
        bytes memory values =
            Operands.le64(Operands.f64(1), Operands.f64(1, -int256(k)), Operands.f64(-1));
        Real memory total = harness.sum(values, 3);
        vm.assertTrue(total.e == -132);
        vm.assertTrue(total.m == (k <= 132 ? int256(1) << (132 - k) : int256(0)));
    }

    function test_sum_ofSubnormals_isExact() public view {
        Real memory found = harness.sum(Operands.le64(5, 7, 0x8000000000000001), 3);
        vm.assertTrue(found.m == 11 && found.e == -1074);
    }

    function test_dot_ofZeroes_isZeroAtTheFloor() public view {
        Real memory found =
            harness.dot(Operands.le(0, 4), Decode.FP32, Operands.le64(Operands.f64(3)), 1);
        vm.assertTrue(found.m == 0 && found.e == -1074);
    }

    /// The widest spread there is: the smallest falls below the grid, and nothing overflows.
    function test_dot_ofExtremes_doesNotOverflow() public view {
        uint64 largest = 0x7fefffffffffffff;
        bytes memory wide;
        for (uint256 i; i < 256; ++i) {
            wide = bytes.concat(wide, Operands.le64(largest));
        }
        Real memory found = harness.dot(wide, Decode.F64, wide, 256);
        int256 m = (1 << 53) - 1;
        vm.assertTrue(found.m == (256 * m * m) << 80 && found.e == 2 * 971 - 80);
        bytes memory spread = Operands.le64(largest, 1);
        found = harness.dot(spread, Decode.F64, spread, 2);
        vm.assertTrue(found.m == (m * m) << 80);
    }
}
