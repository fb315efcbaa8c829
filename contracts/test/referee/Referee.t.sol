// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../../src/interfaces/IReferee.sol";
import {Decode} from "../../src/referee/Decode.sol";
import {Referee} from "../../src/referee/Referee.sol";
import {Test} from "../Vm.sol";
import {Operands} from "./Operands.sol";

/// Each kind accepts the right result, refuses its neighbours and names malformed bytes' author.
/// Random operands are compared with the Python twin in tests/twins.
contract RefereeTest is Test {
    IReferee private immutable referee = new Referee();

    function ruling(IReferee.Kind kind, bytes memory params, bytes memory operands)
        private
        view
        returns (IReferee.Ruling)
    {
        return referee.check(kind, params, operands, 0);
    }

    function assertHolds(IReferee.Kind kind, bytes memory params, bytes memory operands)
        private
        view
    {
        vm.assertTrue(ruling(kind, params, operands) == IReferee.Ruling.Holds, "should hold");
    }

    function assertFails(IReferee.Kind kind, bytes memory params, bytes memory operands)
        private
        view
    {
        vm.assertTrue(ruling(kind, params, operands) == IReferee.Ruling.Fails, "should fail");
    }

    /// `rest` holds with the result `right`, and fails with its neighbours on either side.
    function assertSharp(IReferee.Kind kind, bytes memory params, uint64 right, bytes memory rest)
        private
        view
    {
        assertHolds(kind, params, bytes.concat(Operands.le64(right), rest));
        assertFails(kind, params, bytes.concat(Operands.le64(right + 1), rest));
        assertFails(kind, params, bytes.concat(Operands.le64(right - 1), rest));
    }

    function n(int256 value) private pure returns (uint64) {
        return Operands.f64(value);
    }

    function f32(int256 value) private pure returns (bytes memory) {
        return Operands.le(Operands.f32(value), 4);
    }

    // --- copies, products, sums ---

    function test_copy_isBitwise() public view {
        assertHolds(IReferee.Kind.Copy, "", Operands.le64(n(3), n(3)));
        assertFails(IReferee.Kind.Copy, "", Operands.le64(n(3), n(3) + 1));
        assertFails(IReferee.Kind.Copy, "", Operands.le64(0, Operands.MINUS_ZERO));
    }

    function test_input_isExact() public view {
        assertSharp(IReferee.Kind.Input, abi.encode(Decode.FP32), n(7), f32(7));
        assertHolds(
            IReferee.Kind.Input,
            abi.encode(Decode.FP32),
            bytes.concat(Operands.le64(0), Operands.le(1 << 31, 4))
        );
    }

    function test_products_areRoundedOnce() public view {
        assertSharp(IReferee.Kind.Product, "", n(6), Operands.le64(n(2), n(3)));
        assertSharp(IReferee.Kind.Scale, abi.encode(n(2)), n(6), Operands.le64(n(3)));
        assertSharp(IReferee.Kind.Embed, abi.encode(Decode.FP32, n(2)), n(6), bytes.concat(f32(3)));
        assertSharp(IReferee.Kind.Add, "", n(6), Operands.le64(n(-3), n(9)));
    }

    /// Halfway the even mantissa is right: 2^53 + 1 is 2^53, and 2^53 + 3 is 2^53 + 4.
    function test_ties_goToEven() public view {
        uint64 large = Operands.f64(1, 53);
        assertSharp(IReferee.Kind.Add, "", large, Operands.le64(large, n(1)));
        assertSharp(IReferee.Kind.Add, "", large + 2, Operands.le64(large, n(3)));
        assertSharp(
            IReferee.Kind.Sum,
            abi.encode(3),
            large + 1,
            Operands.le64(large, n(1), Operands.f64(1, -79))
        );
    }

    /// A sum of -0, or one that cancels, is +0; beyond the largest float64 it is no number.
    function test_zeroIsPositive_andNothingIsInfinite() public view {
        bytes memory rest = Operands.le64(n(3), n(-3));
        assertHolds(IReferee.Kind.Sum, abi.encode(2), bytes.concat(Operands.le64(0), rest));
        assertFails(
            IReferee.Kind.Sum,
            abi.encode(2),
            bytes.concat(Operands.le64(Operands.MINUS_ZERO), rest)
        );
        uint64 largest = Operands.INFINITY - 1;
        assertFails(IReferee.Kind.Add, "", Operands.le64(Operands.INFINITY, largest, largest));
        assertFails(IReferee.Kind.Add, "", Operands.le64(largest, largest, largest));
    }

    function test_linear_ofWholeNumbers_isTheirSum(uint256 seed, uint256 count) public view {
        count = bound(count, 1, 256);
        int256[] memory w = Operands.numbers(count, seed);
        int256[] memory x = Operands.numbers(count, seed ^ 1);
        w[0] = x[0] = 1_000_000;
        int256 y = Operands.dot(w, x);
        vm.assume(y != 0); // zero has no neighbour on its other side
        bytes memory rest = bytes.concat(Operands.le64(x), Operands.le32(w));
        assertSharp(IReferee.Kind.Linear, abi.encode(Decode.FP32, count), n(y), rest);
    }

    function test_sums_ofFewTerms_haveOneResult() public view {
        assertSharp(IReferee.Kind.Sum, abi.encode(2), n(7), Operands.le64(n(3), n(4)));
        assertSharp(
            IReferee.Kind.BiasSum,
            abi.encode(Decode.FP32, 1),
            n(7),
            bytes.concat(Operands.le64(n(3)), f32(4))
        );
        assertSharp(IReferee.Kind.Squares, abi.encode(2), n(25), Operands.le64(n(3), n(4)));
        assertSharp(IReferee.Kind.Mix, abi.encode(1), n(12), Operands.le64(n(3), n(4)));
    }

    // --- norm, attention ---

    function test_normScale_isTheInverseRoot() public view {
        bytes memory params = abi.encode(4, uint64(0)); // mean square 4, so r = 1/2
        assertSharp(IReferee.Kind.NormScale, params, Operands.f64(1, -1), Operands.le64(n(16)));
        assertFails(IReferee.Kind.NormScale, params, Operands.le64(Operands.f64(-1, -1), n(16)));
        assertFails(IReferee.Kind.NormScale, params, Operands.le64(0, n(16)));
        // ε counts: mean square 3 and ε = 1.
        assertHolds(
            IReferee.Kind.NormScale, abi.encode(4, n(1)), Operands.le64(Operands.f64(1, -1), n(12))
        );
    }

    function test_norm_withAndWithoutTheOffset() public view {
        bytes memory rest = bytes.concat(Operands.le64(n(2), n(3)), f32(4));
        assertSharp(IReferee.Kind.Norm, abi.encode(Decode.FP32, 0), n(24), rest);
        assertSharp(IReferee.Kind.Norm, abi.encode(Decode.FP32, 1), n(30), rest);
    }

    function test_rope_turnsEitherWay() public view {
        bytes memory rest = bytes.concat(Operands.le64(n(5), n(2)), f32(3), f32(4));
        assertSharp(IReferee.Kind.Rope, abi.encode(Decode.FP32, 0), n(23), rest);
        assertSharp(IReferee.Kind.Rope, abi.encode(Decode.FP32, 1), n(7), rest);
    }

    function test_score_isScaledAndMaskedByIndex() public view {
        bytes memory rest = Operands.le64(n(3), n(4));
        assertSharp(IReferee.Kind.Score, abi.encode(1, n(2), 5, 5, 0), n(24), rest);
        bytes memory hidden = bytes.concat(Operands.le64(Operands.MINUS_INFINITY), rest);
        assertFails(IReferee.Kind.Score, abi.encode(1, n(2), 5, 5, 0), hidden);
        assertHolds(IReferee.Kind.Score, abi.encode(1, n(2), 5, 6, 0), hidden);
        assertHolds(IReferee.Kind.Score, abi.encode(1, n(2), 5, 3, 2), hidden);
        assertFails(IReferee.Kind.Score, abi.encode(1, n(2), 5, 4, 2), hidden);
        assertFails(
            IReferee.Kind.Score,
            abi.encode(1, n(2), 5, 6, 0),
            bytes.concat(Operands.le64(n(24)), rest)
        );
    }

    function test_stabiliser_isTheScore() public view {
        assertSharp(IReferee.Kind.Stabiliser, "", n(7), Operands.le64(n(7)));
    }

    function test_exp_isOneForTheStabiliserItself() public view {
        assertSharp(IReferee.Kind.Exp, "", n(1), Operands.le64(n(9), n(9)));
        bytes memory masked = Operands.le64(n(9), Operands.MINUS_INFINITY);
        assertHolds(IReferee.Kind.Exp, "", bytes.concat(Operands.le64(0), masked));
        assertFails(
            IReferee.Kind.Exp, "", bytes.concat(Operands.le64(Operands.MINUS_ZERO), masked)
        );
        assertFails(IReferee.Kind.Exp, "", bytes.concat(Operands.le64(1), masked));
        assertFails(IReferee.Kind.Exp, "", Operands.le64(0, Operands.NAN, Operands.MINUS_INFINITY));
        assertFails(IReferee.Kind.Exp, "", Operands.le64(n(-1), n(9), n(9)));
        // A stabiliser below a score.
        assertFails(IReferee.Kind.Exp, "", Operands.le64(n(1), n(9), n(9) + 1));
    }

    function test_probability_needsAPositiveSum() public view {
        assertSharp(IReferee.Kind.Probability, "", Operands.f64(1, -2), Operands.le64(n(2), n(8)));
        assertFails(IReferee.Kind.Probability, "", Operands.le64(n(5), 0, 0));
        assertFails(IReferee.Kind.Probability, "", Operands.le64(n(-1), n(-2), n(2)));
    }

    // --- activations ---

    function test_activations_atZeroAndFarOut() public view {
        IReferee.Kind[2] memory kinds = [IReferee.Kind.Silu, IReferee.Kind.GeluTanh];
        for (uint256 i; i < 2; ++i) {
            assertHolds(kinds[i], "", Operands.le64(0, 0));
            assertSharp(kinds[i], "", n(1000), Operands.le64(n(1000)));
            assertHolds(kinds[i], "", Operands.le64(0, n(-1000)));
            assertFails(kinds[i], "", Operands.le64(n(-1), n(-1000)));
        }
    }

    function test_softcap_isLinearNearZeroAndFlatFarOut() public view {
        bytes memory cap = abi.encode(n(30));
        uint64 tiny = Operands.f64(3, -200);
        assertSharp(IReferee.Kind.Softcap, cap, tiny, Operands.le64(tiny));
        assertSharp(IReferee.Kind.Softcap, cap, n(30), Operands.le64(n(10_000)));
        assertHolds(
            IReferee.Kind.Softcap,
            cap,
            Operands.le64(Operands.MINUS_INFINITY, Operands.MINUS_INFINITY)
        );
        assertFails(IReferee.Kind.Softcap, cap, Operands.le64(n(-30), Operands.MINUS_INFINITY));
        assertFails(IReferee.Kind.Softcap, cap, Operands.le64(Operands.MINUS_INFINITY, n(-30)));
    }

    // --- verdicts ---

    function test_whiten_isTheDeviationInUnitsOfTheScale() public view {
        bytes memory params = abi.encode(Decode.FP32, Decode.FP32);
        assertSharp(
            IReferee.Kind.WhitenDifference,
            params,
            n(3),
            bytes.concat(Operands.le64(n(1)), f32(2), f32(7))
        );
        assertSharp(
            IReferee.Kind.WhitenReference,
            abi.encode(Decode.FP32),
            n(3),
            bytes.concat(Operands.le64(n(6)), f32(2))
        );
        assertSharp(
            IReferee.Kind.WhitenChange,
            abi.encode(Decode.FP32),
            n(-3),
            bytes.concat(Operands.le64(n(1), n(7)), f32(2))
        );
        assertHolds(
            IReferee.Kind.WhitenChange,
            abi.encode(Decode.FP32),
            bytes.concat(Operands.le64(0, n(7), n(7)), f32(2))
        );
        bytes memory flat = bytes.concat(Operands.le64(n(3), n(6)), f32(0));
        vm.assertTrue(
            ruling(IReferee.Kind.WhitenReference, abi.encode(Decode.FP32), flat)
                == IReferee.Ruling.ModelMalformed
        );
        flat = bytes.concat(Operands.le64(n(3), n(6), n(0)), f32(-1));
        vm.assertTrue(
            ruling(IReferee.Kind.WhitenChange, abi.encode(Decode.FP32), flat)
                == IReferee.Ruling.ModelMalformed
        );
    }

    function test_exceeds_isStrict() public view {
        bytes memory half = abi.encode(5e11); // T = 1/2
        assertFails(IReferee.Kind.Exceeds, half, Operands.le64(n(1), n(4)));
        assertHolds(IReferee.Kind.Exceeds, half, Operands.le64(n(1) + 1, n(4)));
        assertHolds(IReferee.Kind.Exceeds, half, Operands.le64(n(1), n(4) - 1));
        assertFails(IReferee.Kind.Exceeds, half, Operands.le64(n(1), n(-4)));
    }

    /// Nothing that underflow alone could have made convicts.
    function test_exceeds_needsEvidence() public view {
        assertHolds(IReferee.Kind.Exceeds, abi.encode(1), Operands.le64(Operands.f64(1, -512), 0));
        assertFails(
            IReferee.Kind.Exceeds, abi.encode(1), Operands.le64(Operands.f64(1, -512) - 1, 0)
        );
    }

    function test_greedy_needsMoreThanTheMargin() public view {
        bytes memory half = abi.encode(500_000);
        assertFails(IReferee.Kind.Greedy, half, Operands.le64(Operands.f64(3, -1), n(1)));
        assertHolds(IReferee.Kind.Greedy, half, Operands.le64(Operands.f64(3, -1) + 1, n(1)));
    }

    /// Same token, same noise: then logits alone decide, over the temperature.
    function test_gumbel_ofOneTokenIsItsLogit() public view {
        // δ = 1 nat at τ = 1/2
        bytes memory half = abi.encode(1_000_000, 500_000, 1, 2, 3, 4, 4, 0, 0);
        bytes memory unused = Operands.le64(0, 0, 0);
        assertFails(
            IReferee.Kind.Gumbel,
            half,
            bytes.concat(Operands.le64(Operands.f64(3, -1), n(1)), unused)
        );
        assertHolds(
            IReferee.Kind.Gumbel,
            half,
            bytes.concat(Operands.le64(Operands.f64(3, -1) + 1, n(1)), unused)
        );
    }

    function test_gumbel_narrowsTopK() public view {
        bytes memory params = abi.encode(1_000_000, 1_000_000, 1, 2, 3, 4, 4, 0, 50);
        bytes memory logits = Operands.le64(n(9), n(1), 0);
        assertHolds(IReferee.Kind.Gumbel, params, bytes.concat(logits, Operands.le64(n(8), n(50))));
        assertFails(
            IReferee.Kind.Gumbel, params, bytes.concat(logits, Operands.le64(n(8) + 1, n(50)))
        );
        assertFails(IReferee.Kind.Gumbel, params, bytes.concat(logits, Operands.le64(n(8), n(51))));
    }

    function test_gumbel_narrowsMinP() public view {
        // ln 2 = 0.693 below the largest
        bytes memory params = abi.encode(0, 1_000_000, 1, 2, 3, 4, 4, 500_000, 0);
        bytes memory unused = Operands.le64(0, 0);
        assertHolds(
            IReferee.Kind.Gumbel,
            params,
            bytes.concat(Operands.le64(n(9), n(1), Operands.f64(1240, -7)), unused)
        ); // 9.688
        assertFails(
            IReferee.Kind.Gumbel,
            params,
            bytes.concat(Operands.le64(n(9), n(1), Operands.f64(1241, -7)), unused)
        ); // 9.695
    }

    function test_outside_needsMoreThanTheMargin() public view {
        bytes memory minP = abi.encode(0, 1_000_000, 500_000);
        assertHolds(IReferee.Kind.OutsideMinP, minP, Operands.le64(n(10), n(9)));
        assertFails(IReferee.Kind.OutsideMinP, minP, Operands.le64(Operands.f64(19, -1), n(9)));
    }

    // --- shakes ---

    int256 private constant HALF = 1 << 23;

    function assertShaken(
        IReferee.Kind kind,
        bytes memory params,
        int256 shake,
        uint64 due,
        bytes memory rest
    ) private view {
        bytes memory operands = bytes.concat(Operands.le64(due), rest);
        vm.assertTrue(referee.check(kind, params, operands, shake) == IReferee.Ruling.Holds);
        operands = bytes.concat(Operands.le64(due + 1), rest);
        vm.assertTrue(referee.check(kind, params, operands, shake) == IReferee.Ruling.Fails);
    }

    function test_shake_isAFactorOfTheValue() public view {
        bytes memory rest = Operands.le64(n(2), n(-3));
        assertShaken(IReferee.Kind.Product, "", HALF, n(-9), rest);
        assertShaken(IReferee.Kind.Product, "", -HALF, n(-3), rest);
        uint64 up = Operands.f64(-6 * ((1 << 24) + 1), -24);
        assertShaken(IReferee.Kind.Product, "", 1, up, rest);
        assertFails(IReferee.Kind.Product, "", bytes.concat(Operands.le64(up), rest));
    }

    function test_shake_ofAWholeNumber_isExact(uint256 value, int256 shake) public view {
        int256 v = int256(bound(value, 1, (1 << 28) - 1));
        shake = int256(bound(uint256(shake), 0, 2 << 15)) - (1 << 15);
        uint64 due = Operands.f64(v * ((1 << 24) + shake), -24);
        assertShaken(IReferee.Kind.Add, "", shake, due, Operands.le64(n(v), 0));
    }

    /// 3/2 of an odd number of 53 bits lies halfway between two of them.
    function test_shake_tiesGoToEven() public view {
        uint64 low = Operands.f64(1 << 52, 0);
        uint64 due = Operands.f64(3 << 51, 0);
        assertShaken(IReferee.Kind.Stabiliser, "", HALF, due + 2, Operands.le64(low + 1));
        assertShaken(IReferee.Kind.Stabiliser, "", HALF, due + 4, Operands.le64(low + 3));
    }

    /// 2^53 + 1 is 2^53 before it is shaken: half as much again is not 3 · 2^52 + 2.
    function test_shake_followsTheFirstRounding() public view {
        bytes memory rest = Operands.le64(Operands.f64(1, 53), n(1));
        assertShaken(IReferee.Kind.Add, "", HALF, Operands.f64(3, 52), rest);
    }

    function test_shake_ofTheSmallest_roundsToIt() public view {
        assertShaken(IReferee.Kind.Add, "", HALF - 1, 1, Operands.le64(1, 0));
        assertShaken(IReferee.Kind.Add, "", HALF, 2, Operands.le64(1, 0)); // halfway
        assertShaken(IReferee.Kind.Add, "", -HALF, 0, Operands.le64(1, 0)); // halfway
    }

    function test_shake_leavesZeroAndMinusInfinity() public view {
        assertShaken(IReferee.Kind.Product, "", 37, 0, Operands.le64(0, n(3)));
        assertShaken(IReferee.Kind.Product, "", -37, 0, Operands.le64(Operands.MINUS_ZERO, n(3)));
        bytes memory masked = Operands.le64(n(9), Operands.MINUS_INFINITY);
        assertShaken(IReferee.Kind.Exp, "", 37, 0, masked);
        uint64 hidden = Operands.MINUS_INFINITY;
        bytes memory rest = Operands.le64(n(3), n(4));
        assertShaken(IReferee.Kind.Score, abi.encode(1, n(2), 5, 6, 0), 37, hidden, rest);
        rest = Operands.le64(hidden);
        assertShaken(IReferee.Kind.Softcap, abi.encode(n(30)), 37, hidden, rest);
    }

    /// A shake beyond the largest float64 leaves no number, and of no number makes none.
    function test_shake_makesNothingInfinite() public view {
        uint64 largest = Operands.INFINITY - 1;
        uint64[3] memory results = [largest, Operands.INFINITY, Operands.NAN];
        for (uint256 i; i < 3; ++i) {
            bytes memory operands = Operands.le64(results[i], largest, 0);
            vm.assertTrue(
                referee.check(IReferee.Kind.Add, "", operands, 1) == IReferee.Ruling.Fails
            );
            operands = Operands.le64(results[i], n(5), 0); // of a Z that is 0
            vm.assertTrue(
                referee.check(IReferee.Kind.Probability, "", operands, 1) == IReferee.Ruling.Fails
            );
        }
    }

    function test_shake_movesNoVerdict() public view {
        bytes memory operands = Operands.le64(n(1), n(4));
        for (int256 shake = -HALF; shake <= HALF; shake += HALF) {
            vm.assertTrue(
                referee.check(IReferee.Kind.Exceeds, abi.encode(5e11), operands, shake)
                    == IReferee.Ruling.Fails
            );
        }
    }

    // --- whose fault ---

    /// A row comes before a model, and a model before a trace.
    function test_malformed_namesWhoCommitted() public view {
        bytes memory params = abi.encode(Decode.FP32, Decode.FP32);
        bytes memory good = Operands.le64(n(3), n(1));
        bytes memory bad = Operands.le64(n(3), Operands.NAN);
        bytes memory infinite = Operands.le(0x7f800000, 4);
        IReferee.Kind kind = IReferee.Kind.WhitenDifference;
        vm.assertTrue(
            ruling(kind, params, bytes.concat(bad, infinite, infinite))
                == IReferee.Ruling.RowMalformed
        );
        vm.assertTrue(
            ruling(kind, params, bytes.concat(bad, infinite, f32(7)))
                == IReferee.Ruling.ModelMalformed
        );
        vm.assertTrue(
            ruling(kind, params, bytes.concat(bad, f32(2), f32(7))) == IReferee.Ruling.Fails
        );
        vm.assertTrue(
            ruling(kind, params, bytes.concat(good, f32(2), f32(7))) == IReferee.Ruling.Holds
        );
    }

    // --- what no program asks for ---

    function test_check_wrongParams_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IReferee.ParamsLength.selector, 32, 0));
        referee.check(IReferee.Kind.Copy, abi.encode(1), Operands.le64(0, 0), 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.FormatUnknown.selector, 4));
        referee.check(IReferee.Kind.Input, abi.encode(4), Operands.le64(0), 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.FlagInvalid.selector, 2));
        referee.check(IReferee.Kind.Norm, abi.encode(Decode.FP32, 2), "", 0);
        vm.expectRevert(
            abi.encodeWithSelector(IReferee.ConstantInvalid.selector, Operands.INFINITY)
        );
        referee.check(IReferee.Kind.Scale, abi.encode(Operands.INFINITY), Operands.le64(0, 0), 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.ConstantInvalid.selector, 0));
        referee.check(IReferee.Kind.Softcap, abi.encode(0), Operands.le64(0, 0), 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.ParamOutOfRange.selector, 0));
        referee.check(IReferee.Kind.NormScale, abi.encode(0, 0), Operands.le64(0, 0), 0);
    }

    function test_check_termsOutOfRange_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IReferee.TermsOutOfRange.selector, 0));
        referee.check(IReferee.Kind.Sum, abi.encode(0), "", 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.TermsOutOfRange.selector, 257));
        referee.check(IReferee.Kind.Sum, abi.encode(257), "", 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.TermsOutOfRange.selector, 256));
        referee.check(IReferee.Kind.BiasSum, abi.encode(Decode.FP32, 256), "", 0);
    }

    function test_check_otherLength_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IReferee.OperandsLength.selector, 17, 16));
        referee.check(IReferee.Kind.Copy, "", bytes.concat(Operands.le64(0, 0), hex"00"), 0);
        vm.expectRevert(abi.encodeWithSelector(IReferee.OperandsLength.selector, 15, 20));
        referee.check(IReferee.Kind.Linear, abi.encode(Decode.FP32, 1), new bytes(15), 0);
    }

    /// Operands of the right length have a ruling whatever they hold: no move can be made to
    /// revert.
    function test_check_neverRevertsForValues(uint256 seed, uint256 kindSeed) public view {
        IReferee.Kind kind = IReferee.Kind(bound(kindSeed, 0, uint256(type(IReferee.Kind).max)));
        (bytes memory params, uint256 length) = shapeOf(kind);
        bytes memory operands = new bytes(length);
        for (uint256 i; i < length; ++i) {
            // Extremes are likelier than chance gives them.
            uint256 r = uint256(keccak256(abi.encode(seed, i / (8 - seed % 8))));
            operands[i] = bytes1(uint8(r % 3 == 0 ? 0x7f : r % 3 == 1 ? 0 : r >> 8));
        }
        ruling(kind, params, operands);
    }

    function shapeOf(IReferee.Kind kind)
        private
        pure
        returns (bytes memory params, uint256 length)
    {
        if (kind == IReferee.Kind.Input) {
            return (abi.encode(Decode.FP32), 12);
        }
        if (kind == IReferee.Kind.Embed) return (abi.encode(Decode.BF16, n(1)), 10);
        if (kind == IReferee.Kind.Linear) return (abi.encode(Decode.FP32, 5), 68);
        if (kind == IReferee.Kind.Sum || kind == IReferee.Kind.Squares) {
            return (abi.encode(5), 48);
        }
        if (kind == IReferee.Kind.BiasSum) return (abi.encode(Decode.FP16, 5), 50);
        if (kind == IReferee.Kind.NormScale) return (abi.encode(640, n(1)), 16);
        if (kind == IReferee.Kind.Norm) return (abi.encode(Decode.FP32, 1), 28);
        if (kind == IReferee.Kind.Rope) return (abi.encode(Decode.F64, 1), 40);
        if (kind == IReferee.Kind.Score) return (abi.encode(5, n(3), 1, 1, 0), 88);
        if (kind == IReferee.Kind.Mix) return (abi.encode(5), 88);
        if (kind == IReferee.Kind.Scale || kind == IReferee.Kind.Softcap) {
            return (abi.encode(n(3)), 16);
        }
        if (kind == IReferee.Kind.WhitenDifference) {
            return (abi.encode(Decode.FP32, Decode.F64), 28);
        }
        if (kind == IReferee.Kind.WhitenReference) return (abi.encode(Decode.F64), 24);
        if (kind == IReferee.Kind.WhitenChange) return (abi.encode(Decode.FP32), 28);
        if (kind == IReferee.Kind.Exceeds || kind == IReferee.Kind.Greedy) {
            return (abi.encode(1e7), 16);
        }
        if (kind == IReferee.Kind.Gumbel) {
            return (abi.encode(1, type(uint32).max, 1, 2, 3, 4, 5, 1, 50), 40);
        }
        if (kind == IReferee.Kind.OutsideMinP) return (abi.encode(1, 1, 1), 16);
        bool three = kind == IReferee.Kind.Exp || kind == IReferee.Kind.Probability
            || kind == IReferee.Kind.Product;
        return ("", three || kind == IReferee.Kind.Add ? 24 : 16);
    }
}
