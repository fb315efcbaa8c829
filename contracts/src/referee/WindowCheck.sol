// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {Leaf} from "./Leaf.sol";
import {Real, Reals} from "./Real.sol";

/// Is the served output too far from the reference? Whitened deviations and the one comparison that accuses.
///
/// D² = Σ ((y − s)/σ)² and S² = Σ (s/σ)² are trees of Squares and Sum over the elements judged here; σ is the model's scale of each
/// channel. Predicates stand in IReferee; twin: core/dispute/referee/window.py.
library WindowCheck {
    using Decode for Decode.Vector;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant U = -50;
    int256 private constant ETA_EXPONENT = -1074;
    int256 private constant TOLERANCE_UNIT = 1e12;
    uint256 private constant MAX_TOLERANCE = 1 << 50;
    int256 private constant SMALLEST_EVIDENCE_EXPONENT = -512; // below, underflow decides and not the machine

    function whitenDifference(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        Leaf.Operands memory o = operands.split(2, params.word(1), 1, params.word(0), 1);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return _isQuotient(o.trace.real(0), o.row.real(0).sub(o.trace.real(1)), o.model.real(0));
    }

    function whitenReference(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        Leaf.Operands memory o = operands.traceAndModel(2, params.word(0), 1);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return _isQuotient(o.trace.real(0), o.trace.real(1), o.model.real(0));
    }

    function exceeds(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        uint256 tolerance = params.word(0);
        if (tolerance > MAX_TOLERANCE) revert IReferee.ParamOutOfRange(tolerance);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory deviation = o.trace.real(0);
        Real memory measured = o.trace.real(1);
        if (measured.m < 0 || !Real(1, SMALLEST_EVIDENCE_EXPONENT).atMost(deviation)) return IReferee.Ruling.Fails;
        deviation.m *= TOLERANCE_UNIT * TOLERANCE_UNIT;
        measured.m *= int256(tolerance * tolerance);
        return Leaf.toRuling(!deviation.atMost(measured));
    }

    function _isQuotient(Real memory d, Real memory dividend, Real memory sigma) private pure returns (IReferee.Ruling) {
        if (sigma.m <= 0) return IReferee.Ruling.ModelMalformed;
        Real memory found = d.mul(sigma);
        Real memory lost = Reals.one().add(sigma).scaled(ETA_EXPONENT);
        return Leaf.toRuling(found.within(dividend, found.magnitude().scaled(U + 2).add(lost)));
    }
}
