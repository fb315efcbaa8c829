// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {Leaf} from "./Leaf.sol";
import {Real, Reals} from "./Real.sol";

/// Do normalised values hold? RMSNorm of rows and of heads, without a square root.
///
/// q = Σ x² is a tree of Squares and Sum; r stands for (q/n + ε)^-½; y = x·r·g. Predicates stand in IReferee; twin:
/// core/dispute/referee/norm.py.
library NormCheck {
    using Decode for Decode.Vector;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant U = -50;
    int256 private constant ETA_EXPONENT = -1074;

    function normScale(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        uint256 n = params.word(0);
        if (n == 0 || n > type(uint32).max) revert IReferee.ParamOutOfRange(n);
        Real memory mean = Leaf.toConstant(params.word(1)).times(int256(n));
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory r = o.trace.real(0);
        Real memory q = o.trace.real(1);
        if (r.m <= 0 || q.m < 0) return IReferee.Ruling.Fails;
        mean = q.add(mean);
        return Leaf.toRuling(r.mul(r).mul(mean).within(Real(int256(n), 0), Real(int256(16 * n), U)));
    }

    function norm(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        Real memory gain = Leaf.toFlag(params.word(1)) ? Reals.one() : Real(0, 0);
        Leaf.Operands memory o = operands.traceAndModel(3, params.word(0), 1);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory y = o.trace.real(0);
        Real memory x = o.trace.real(1);
        Real memory r = o.trace.real(2);
        gain = gain.add(o.model.real(0));
        // What an honest machine may lose where a product of two underflows, in whatever order it multiplies.
        Real memory lost = x.magnitude().add(r.magnitude()).add(gain.magnitude().add(Reals.one()));
        Real memory tolerance = y.magnitude().scaled(U + 2).add(lost.scaled(ETA_EXPONENT));
        return Leaf.toRuling(y.within(x.mul(r).mul(gain), tolerance));
    }
}
