// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Exp} from "../../src/referee/Exp.sol";
import {Log} from "../../src/referee/Log.sol";
import {Philox} from "../../src/referee/Philox.sol";
import {Real, Reals} from "../../src/referee/Real.sol";
import {Test} from "../Vm.sol";

/// Do exponential, logarithm and noise have the values and laws of the functions they stand for?
contract TranscendTest is Test {
    using Reals for Real;

    int256 private constant UNIT = 1 << 120;
    // Digits of other people's tables, in Q120.
    int256 private constant E = 0x2B7E151628AED2A6ABF7158809CF4F3;
    int256 private constant LN10 = 0x24D763776AAA2B05BA95B58AE0B4C28;

    function near(int256 a, int256 b, uint256 bits) private pure returns (bool) {
        int256 gap = a > b ? a - b : b - a;
        return gap <= int256(1) << bits;
    }

    function test_exp_ofZeroAndOne_isRight() public pure {
        Real memory one = Exp.expFixed(0);
        vm.assertTrue(one.m == UNIT && one.e == -120);
        Real memory e = Exp.expFixed(UNIT);
        vm.assertTrue(near(e.m << uint256(e.e + 120), E, 12));
    }

    function test_ln_ofTenAndOne_isRight() public pure {
        vm.assertTrue(near(Log.lnFixed(10, 0), LN10, 8));
        vm.assertTrue(Log.lnFixed(1, 0) == 0);
        vm.assertTrue(Log.lnFixed(1 << 100, -100) == 0);
    }

    function test_exp_ofSumIsProduct(int256 x, int256 y) public pure {
        x = int256(bound(uint256(x), 0, 1 << 128)) - (1 << 127);
        y = int256(bound(uint256(y), 0, 1 << 128)) - (1 << 127);
        Real memory product = Exp.expFixed(x).mul(Exp.expFixed(y));
        vm.assertTrue(product.sub(Exp.expFixed(x + y)).magnitude().atMost(product.scaled(-100)));
    }

    function test_ln_undoesExp(int256 x) public pure {
        x = int256(bound(uint256(x), 0, 1 << 133)) - (1 << 132);
        Real memory e = Exp.expFixed(x);
        vm.assertTrue(near(Log.lnFixed(e.m, e.e), x, 18));
    }

    function test_ln_ofProductIsSum(uint120 a, uint120 b) public pure {
        int256 x = int256(uint256(a)) + 1;
        int256 y = int256(uint256(b)) + 1;
        vm.assertTrue(near(Log.lnFixed(x * y, 0), Log.lnFixed(x, 0) + Log.lnFixed(y, 0), 12));
    }

    function test_toFixed_saturates() public pure {
        vm.assertTrue(Exp.toFixed(Real(1, 2000)) == UNIT << 12);
        vm.assertTrue(Exp.toFixed(Real(-1, 13)) == -(UNIT << 12));
        vm.assertTrue(Exp.toFixed(Real(-1, 11)) == -(UNIT << 11));
        vm.assertTrue(Exp.toFixed(Real(-1, -1074)) == 0);
        vm.assertTrue(Exp.toFixed(Real(3, -1)) == 3 << 119);
    }

    /// The known answers that Random123 publishes for philox4x32-10, first words.
    function test_philox_ofZeroes_isTheKnownAnswer() public pure {
        vm.assertEq(Philox.word(0, 0, 0, 0), 0x6627e8d5);
    }

    function test_gumbel_ofTheEndsIsBounded() public pure {
        int256 most = Philox.gumbelOf(type(uint32).max);
        int256 least = Philox.gumbelOf(0);
        vm.assertTrue(most > 22 * UNIT && most < 23 * UNIT); // -ln(-ln(1 - 2^-33)) = 22.87
        vm.assertTrue(least < -3 * UNIT && least > -4 * UNIT); // -ln(33 ln 2) = -3.13
    }

    function test_gumbel_growsWithTheWord(uint32 word) public pure {
        if (word == 0) return;
        vm.assertTrue(Philox.gumbelOf(word) > Philox.gumbelOf(word - 1));
    }
}
