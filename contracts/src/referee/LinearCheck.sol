// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {ExactSum} from "./ExactSum.sol";
import {Leaf} from "./Leaf.sol";
import {Real, Reals} from "./Real.sol";

/// Do copies, products and sums hold? Inputs, embeddings, linear layers and their partial sums, residuals, gates.
///
/// A dot product of more than 256 terms is a tree of partial sums: Linear or Mix over each 256 terms, Sum over the parts, BiasSum where
/// the layer has a bias. Predicates stand in IReferee; twin: core/dispute/referee/linear.py.
library LinearCheck {
    using Decode for Decode.Vector;
    using ExactSum for Real;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant U = -50;

    function copy(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(bytes8(operands[:8]) == bytes8(operands[8:16]));
    }

    function input(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        Leaf.Operands memory o = operands.split(1, Decode.F64, 0, params.word(0), 1);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(o.trace.real(0).sub(o.row.real(0)).m == 0);
    }

    function embed(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        Real memory factor = Leaf.toConstant(params.word(1));
        Leaf.Operands memory o = operands.traceAndModel(1, params.word(0), 1);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return _isProduct(o.trace.real(0), factor, o.model.real(0));
    }

    function linear(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        uint256 n = Leaf.toTerms(params.word(1));
        Leaf.Operands memory o = operands.traceAndModel(1 + n, params.word(0), n);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(o.trace.real(0).holdsGamma(ExactSum.dot(o.model, 0, o.trace, 1, n), n));
    }

    function mix(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        uint256 n = Leaf.toTerms(params.word(0));
        Leaf.Operands memory o = operands.trace(1 + 2 * n);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(o.trace.real(0).holdsGamma(ExactSum.dot(o.trace, 1, o.trace, 1 + n, n), n));
    }

    function squares(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        uint256 n = Leaf.toTerms(params.word(0));
        Leaf.Operands memory o = operands.trace(1 + n);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(o.trace.real(0).holdsGamma(ExactSum.dot(o.trace, 1, o.trace, 1, n), n));
    }

    function sum(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        uint256 n = Leaf.toTerms(params.word(0));
        Leaf.Operands memory o = operands.trace(1 + n);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(o.trace.real(0).holdsGamma(ExactSum.sum(o.trace, 1, n), n));
    }

    function biasSum(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(2);
        uint256 n = params.word(1);
        if (n == 0 || n >= Leaf.MAX_TERMS) revert IReferee.TermsOutOfRange(n);
        Leaf.Operands memory o = operands.traceAndModel(1 + n, params.word(0), 1);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(o.trace.real(0).holdsGamma(ExactSum.sumWith(o.trace, 1, n, o.model), n + 1));
    }

    function product(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(3);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return _isProduct(o.trace.real(0), o.trace.real(1), o.trace.real(2));
    }

    function scale(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(1);
        Real memory factor = Leaf.toConstant(params.word(0));
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return _isProduct(o.trace.real(0), factor, o.trace.real(1));
    }

    function add(bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        params.expectWords(0);
        Leaf.Operands memory o = operands.trace(3);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory y = o.trace.real(0);
        return Leaf.toRuling(y.within(o.trace.real(1).add(o.trace.real(2)), y.magnitude().scaled(U)));
    }

    function _isProduct(Real memory y, Real memory a, Real memory b) private pure returns (IReferee.Ruling) {
        return Leaf.toRuling(y.within(a.mul(b), y.magnitude().scaled(U).add(Reals.eta())));
    }
}
