// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {Leaf} from "./Leaf.sol";
import {Real, Reals} from "./Real.sol";
import {SelectCheck} from "./SelectCheck.sol";

/// Does the comparison at a trace's end hold? Twins: core/dispute/referee/window.py, selection.py.
library Verdicts {
    using Decode for Decode.Vector;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant TOLERANCE_UNIT = 1e12;
    uint256 private constant MAX_TOLERANCE = 1 << 50;
    int256 private constant SMALLEST_EVIDENCE_EXPONENT = -512; // below, underflow decides

    /// `kind` is Exceeds or one behind it.
    function rule(IReferee.Kind kind, bytes calldata params, bytes calldata operands)
        internal
        pure
        returns (IReferee.Ruling)
    {
        if (kind == IReferee.Kind.Exceeds) return _exceeds(params, operands);
        if (kind == IReferee.Kind.Greedy) return SelectCheck.greedy(params, operands);
        if (kind == IReferee.Kind.Gumbel) return SelectCheck.gumbelMax(params, operands);
        return SelectCheck.outsideMinP(params, operands);
    }

    /// Is the served output too far off? D² = Σ ((y − s)/σ)², S² = Σ (s/σ)², σ by channel.
    function _exceeds(bytes calldata params, bytes calldata operands)
        private
        pure
        returns (IReferee.Ruling)
    {
        params.expectWords(1);
        uint256 tolerance = params.word(0);
        if (tolerance > MAX_TOLERANCE) revert IReferee.ParamOutOfRange(tolerance);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory deviation = o.trace.real(0);
        Real memory measured = o.trace.real(1);
        if (measured.m < 0 || !Real(1, SMALLEST_EVIDENCE_EXPONENT).atMost(deviation)) {
            return IReferee.Ruling.Fails;
        }
        deviation.m *= TOLERANCE_UNIT * TOLERANCE_UNIT;
        measured.m *= int256(tolerance * tolerance);
        return Leaf.toRuling(!deviation.atMost(measured));
    }
}
