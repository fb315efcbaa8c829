// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {ExactSum} from "./ExactSum.sol";
import {Exp} from "./Exp.sol";
import {Leaf} from "./Leaf.sol";
import {Real, Reals} from "./Real.sol";

/// Do attention's elements hold? Rotation, scores and their mask, and the three parts of a softmax.
///
/// A softmax is a stabiliser M, e_j = exp(s_j − M), Z = Σ e (a tree of Sum) and p_j = e_j / Z. Predicates stand in IReferee; twin:
/// core/dispute/referee/attention.py.
library AttentionCheck {
    using Decode for Decode.Vector;
    using ExactSum for Real;
    using Exp for Real;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant U = -50;
    int256 private constant TRANSCENDENTAL = -40;
    int256 private constant ETA_EXPONENT = -1074;
    int256 private constant SMALLEST_NORMAL_EXPONENT = -1022; // math libraries may flush a subnormal exponential to zero
    int256 private constant LOWEST_ABOVE_STABILISER = -60;
    bytes8 private constant MINUS_ZERO = 0x0000000000000080;

    function rope(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        bool minus = Leaf.toFlag(params.word(1));
        Leaf.Operands memory o = operands.traceAndModel(3, params.word(0), 2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory first = o.trace.real(1).mul(o.model.real(0));
        Real memory second = o.trace.real(2).mul(o.model.real(1));
        Real memory tolerance = first.magnitude().add(second.magnitude()).times(3).scaled(U).add(Reals.eta().times(3));
        return Leaf.toRuling(o.trace.real(0).within(minus ? first.sub(second) : first.add(second), tolerance));
    }

    function score(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(5);
        uint256 n = Leaf.toTerms(params.word(0));
        Real memory factor = Leaf.toConstant(params.word(1));
        operands.expectBytes(8 * (1 + 2 * n));
        if (!isVisible(params.word(2), params.word(3), params.word(4))) {
            return Leaf.toRuling(bytes8(operands[:8]) == Decode.MINUS_INFINITY);
        }
        Leaf.Operands memory o = operands.trace(1 + 2 * n);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        ExactSum.Sum memory found = ExactSum.dot(o.trace, 1, o.trace, 1 + n, n);
        return Leaf.toRuling(o.trace.real(0).holdsGamma(found, n + 2, factor));
    }

    /// May the token at `query` look at the one at `key`? Causal, and at most `window` positions wide if that is not 0.
    function isVisible(uint256 query, uint256 key, uint256 window) internal pure returns (bool) {
        return key <= query && (window == 0 || query - key < window);
    }

    function stabiliser(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory above = o.trace.real(1).sub(o.trace.real(0));
        return Leaf.toRuling(Real(LOWEST_ABOVE_STABILISER, 0).atMost(above) && above.atMost(Reals.one()));
    }

    function exponential(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        operands.expectBytes(24);
        if (bytes8(operands[16:]) == Decode.MINUS_INFINITY) {
            bytes8 e = bytes8(operands[:8]);
            return Leaf.toRuling(Leaf.trace(operands[:16], 2).trace.finite && (e == 0 || e == MINUS_ZERO));
        }
        Leaf.Operands memory o = operands.trace(3);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory found = o.trace.real(0);
        if (found.m < 0) return IReferee.Ruling.Fails;
        Real memory tolerance = found.scaled(TRANSCENDENTAL).add(Real(1, SMALLEST_NORMAL_EXPONENT));
        return Leaf.toRuling(found.within(o.trace.real(2).sub(o.trace.real(1)).exp(), tolerance));
    }

    function probability(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(3);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory p = o.trace.real(0);
        Real memory e = o.trace.real(1);
        Real memory z = o.trace.real(2);
        if (p.m < 0 || e.m < 0 || z.m <= 0) return IReferee.Ruling.Fails;
        Real memory tolerance = e.scaled(U + 2).add(Reals.one().add(z).scaled(ETA_EXPONENT));
        return Leaf.toRuling(p.mul(z).within(e, tolerance));
    }
}
