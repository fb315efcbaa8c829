// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {ActivationCheck} from "./ActivationCheck.sol";
import {AttentionCheck} from "./AttentionCheck.sol";
import {LinearCheck} from "./LinearCheck.sol";
import {NormCheck} from "./NormCheck.sol";
import {Verdicts} from "./Verdicts.sol";
import {WindowCheck} from "./WindowCheck.sol";

/// Does this leaf hold? One predicate for each operator kind, and no state: whoever asks gets the same answer for ever.
contract Referee is IReferee {
    /// @inheritdoc IReferee
    function check(Kind kind, bytes calldata params, bytes calldata operands) external pure returns (Ruling) {
        if (kind <= Kind.Squares) return _sums(kind, params, operands);
        if (kind <= Kind.Probability) return _attention(kind, params, operands);
        if (kind <= Kind.Softcap) return _elements(kind, params, operands);
        if (kind == Kind.WhitenDifference) return WindowCheck.whitenDifference(params, operands);
        if (kind == Kind.WhitenReference) return WindowCheck.whitenReference(params, operands);
        return Verdicts.rule(kind, params, operands);
    }

    function _sums(Kind kind, bytes calldata params, bytes calldata operands) private pure returns (Ruling) {
        if (kind == Kind.Linear) return LinearCheck.linear(params, operands);
        if (kind == Kind.Sum) return LinearCheck.sum(params, operands);
        if (kind == Kind.BiasSum) return LinearCheck.biasSum(params, operands);
        if (kind == Kind.Squares) return LinearCheck.squares(params, operands);
        if (kind == Kind.Copy) return LinearCheck.copy(params, operands);
        if (kind == Kind.Input) return LinearCheck.input(params, operands);
        return LinearCheck.embed(params, operands);
    }

    function _attention(Kind kind, bytes calldata params, bytes calldata operands) private pure returns (Ruling) {
        if (kind == Kind.NormScale) return NormCheck.normScale(params, operands);
        if (kind == Kind.Norm) return NormCheck.norm(params, operands);
        if (kind == Kind.Rope) return AttentionCheck.rope(params, operands);
        if (kind == Kind.Score) return AttentionCheck.score(params, operands);
        if (kind == Kind.Stabiliser) return AttentionCheck.stabiliser(params, operands);
        if (kind == Kind.Exp) return AttentionCheck.exponential(params, operands);
        return AttentionCheck.probability(params, operands);
    }

    function _elements(Kind kind, bytes calldata params, bytes calldata operands) private pure returns (Ruling) {
        if (kind == Kind.Mix) return LinearCheck.mix(params, operands);
        if (kind == Kind.Silu) return ActivationCheck.silu(params, operands);
        if (kind == Kind.GeluTanh) return ActivationCheck.geluTanh(params, operands);
        if (kind == Kind.Product) return LinearCheck.product(params, operands);
        if (kind == Kind.Add) return LinearCheck.add(params, operands);
        if (kind == Kind.Scale) return LinearCheck.scale(params, operands);
        return ActivationCheck.softcap(params, operands);
    }
}
