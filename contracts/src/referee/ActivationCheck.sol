// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {Exp} from "./Exp.sol";
import {Leaf} from "./Leaf.sol";
import {Real, Reals} from "./Real.sol";

/// Do activations hold? SiLU, GELU in its tanh form, and soft-capped scores and logits.
///
/// All three are x times a logistic function, and are compared after multiplying its denominator out. Predicates stand in IReferee; twin:
/// core/dispute/referee/activation.py.
library ActivationCheck {
    using Decode for Decode.Vector;
    using Exp for Real;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant TRANSCENDENTAL = -40;
    int256 private constant Q120 = -120;
    int256 private constant TWO_ROOT = 0x19884533D436508D0FCB3C500BAB8E2; // ⌊2 √(2/π) · 2^120⌋
    int256 private constant CUBIC = (44_715 << 120) / int256(1_000_000);
    int256 private constant LINEAR_BELOW = -60; // below 2^-60, tanh z differs from z by less than 2^-120 of it

    function silu(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory g = o.trace.real(1);
        return _isGated(o.trace.real(0), g, g);
    }

    /// ½ g (1 + tanh(x/2)) is the form that models are published with.
    function geluTanh(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory g = o.trace.real(1);
        return _isGated(o.trace.real(0), g, geluArgument(g));
    }

    /// 2 √(2/π) (g + 0.044715 g³).
    function geluArgument(Real memory g) internal pure returns (Real memory) {
        Real memory cubed = g.mul(g).mul(g).mul(Real(CUBIC, Q120));
        return g.add(cubed).mul(Real(TWO_ROOT, Q120));
    }

    function softcap(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        Real memory cap = Leaf.toConstant(params.word(0));
        if (cap.m <= 0) revert IReferee.ConstantInvalid(params.word(0));
        operands.expectBytes(16);
        if (bytes8(operands[8:]) == Decode.MINUS_INFINITY) {
            return Leaf.toRuling(bytes8(operands[:8]) == Decode.MINUS_INFINITY);
        }
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory y = o.trace.real(0);
        Real memory x = o.trace.real(1);
        Real memory tolerance = _tolerance(y, x);
        if (isLinear(x, cap)) return Leaf.toRuling(y.within(x, tolerance));
        Real memory e = capDecay(x, cap);
        Real memory capped = cap.mul(Reals.one().sub(e));
        if (x.m < 0) capped = capped.neg();
        e = Reals.one().add(e);
        return Leaf.toRuling(y.mul(e).within(capped, tolerance.mul(e)));
    }

    /// Is x so small against the cap that it stays as it is?
    function isLinear(Real memory x, Real memory cap) internal pure returns (bool) {
        return x.m == 0 || x.top() - cap.top() < LINEAR_BELOW;
    }

    /// e^(−2|x| / cap).
    function capDecay(Real memory x, Real memory cap) internal pure returns (Real memory) {
        return Exp.expFixed(-Exp.quotientFixed(x.magnitude().scaled(1), cap));
    }

    /// y = g / (1 + e^-x) within the tolerance, with the exponential of −|x| so that nothing overflows.
    function _isGated(Real memory y, Real memory g, Real memory x) private pure returns (IReferee.Ruling) {
        Real memory e = x.decay();
        Real memory whole = Reals.one().add(e);
        return Leaf.toRuling(y.mul(whole).within(x.m < 0 ? g.mul(e) : g, _tolerance(y, g).mul(whole)));
    }

    function _tolerance(Real memory y, Real memory x) private pure returns (Real memory) {
        return x.magnitude().add(y.magnitude()).scaled(TRANSCENDENTAL).add(Reals.eta());
    }
}
