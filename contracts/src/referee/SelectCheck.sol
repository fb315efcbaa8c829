// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {Leaf} from "./Leaf.sol";
import {Log} from "./Log.sol";
import {Philox} from "./Philox.sol";
import {Real, Reals} from "./Real.sol";

/// Was another token ahead of a greedy or seeded choice, within the filters before it?
///
/// A score is a logit divided by the temperature, plus the token's noise (docs/protocol.md §5).
/// Margins δ and temperature τ are in 10^-6; inequalities are multiplied by 10^12·τ. Filters are
/// narrowed by δ for the preferred token and widened by δ for the served one. Twin:
/// core/dispute/referee/selection.py.
library SelectCheck {
    using Decode for Decode.Vector;
    using Leaf for bytes;
    using Reals for Real;

    int256 private constant MICRO = 1e6;
    int256 private constant Q120 = -120;

    // Words of a Gumbel leaf's parameters.
    uint256 private constant DELTA = 0;
    uint256 private constant TAU = 1;
    uint256 private constant KEY0 = 2;
    uint256 private constant KEY1 = 3;
    uint256 private constant STEP = 4;
    uint256 private constant PREFERRED = 5;
    uint256 private constant SERVED = 6;
    uint256 private constant MIN_P = 7;
    uint256 private constant TOP_K = 8;

    function greedy(bytes calldata params, bytes calldata operands)
        internal
        pure
        returns (IReferee.Ruling)
    {
        params.expectWords(1);
        int256 delta = _small(params.word(0));
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(_exceeds(o.trace.real(0).sub(o.trace.real(1)).times(MICRO), delta));
    }

    function gumbelMax(bytes calldata params, bytes calldata operands)
        internal
        pure
        returns (IReferee.Ruling)
    {
        params.expectWords(9);
        for (uint256 i; i < 9; ++i) {
            _small(params.word(i));
        }
        int256 tau = _temperature(params.word(TAU));
        int256 margin = int256(params.word(DELTA)) * tau;
        Leaf.Operands memory o = operands.trace(5);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        Real memory preferred = o.trace.real(0);
        if (!_exceeds(_scores(preferred.sub(o.trace.real(1)), _noiseAhead(params), tau), margin)) {
            return IReferee.Ruling.Fails;
        }
        uint256 minP = params.word(MIN_P);
        if (
            minP != 0
                && !_exceeds(_scores(preferred.sub(o.trace.real(2)), _depth(minP), tau), margin)
        ) return IReferee.Ruling.Fails;
        uint256 topK = params.word(TOP_K);
        if (topK == 0) return IReferee.Ruling.Holds;
        bool above = Real(margin, 0).atMost(_scores(preferred.sub(o.trace.real(3)), 0, tau));
        return Leaf.toRuling(above && o.trace.real(4).atMost(Real(int256(topK), 0)));
    }

    function outsideMinP(bytes calldata params, bytes calldata operands)
        internal
        pure
        returns (IReferee.Ruling)
    {
        params.expectWords(3);
        int256 tau = _temperature(params.word(1));
        int256 margin = _small(params.word(0)) * tau;
        int256 minP = _small(params.word(2));
        if (minP == 0) revert IReferee.ParamOutOfRange(0);
        Leaf.Operands memory o = operands.trace(2);
        if (o.flaw != IReferee.Ruling.Holds) return o.flaw;
        return Leaf.toRuling(
            _exceeds(
                _scores(o.trace.real(0).sub(o.trace.real(1)), -_depth(uint256(minP)), tau), margin
            )
        );
    }

    function _noiseAhead(bytes calldata params) private pure returns (int256) {
        (uint256 key0, uint256 key1, uint256 step) =
            (params.word(KEY0), params.word(KEY1), params.word(STEP));
        return Philox.gumbel(key0, key1, step, params.word(PREFERRED))
            - Philox.gumbel(key0, key1, step, params.word(SERVED));
    }

    /// −ln(p) in Q120 for p in 10^-6.
    function _depth(uint256 minP) private pure returns (int256) {
        return Log.lnFixed(MICRO, 0) - Log.lnFixed(int256(minP), 0);
    }

    /// Difference of scores times 10^12·τ, from a difference of logits and one of noise.
    function _scores(Real memory logits, int256 noise, int256 tau)
        private
        pure
        returns (Real memory)
    {
        return logits.times(MICRO * MICRO).add(Real(noise, Q120).times(tau * MICRO));
    }

    function _exceeds(Real memory value, int256 margin) private pure returns (bool) {
        return !value.atMost(Real(margin, 0));
    }

    function _temperature(uint256 word) private pure returns (int256) {
        if (word == 0) revert IReferee.ParamOutOfRange(0);
        return _small(word);
    }

    function _small(uint256 word) private pure returns (int256) {
        if (word > type(uint32).max) revert IReferee.ParamOutOfRange(word);
        return int256(word);
    }
}
