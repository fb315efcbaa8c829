// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {SelectCheck} from "./SelectCheck.sol";
import {WindowCheck} from "./WindowCheck.sol";

/// Does the comparison at a trace's end hold? The same for a plain trace and a canonical one: both end in numbers that are compared exactly.
library Verdicts {
    /// `kind` is Exceeds or one behind it.
    function rule(IReferee.Kind kind, bytes calldata params, bytes calldata operands) internal pure returns (IReferee.Ruling) {
        if (kind == IReferee.Kind.Exceeds) return WindowCheck.exceeds(params, operands);
        if (kind == IReferee.Kind.Count) return SelectCheck.count(params, operands);
        if (kind == IReferee.Kind.Maximum) return SelectCheck.maximum(params, operands);
        if (kind == IReferee.Kind.Greedy) return SelectCheck.greedy(params, operands);
        if (kind == IReferee.Kind.Gumbel) return SelectCheck.gumbelMax(params, operands);
        if (kind == IReferee.Kind.OutsideMinP) return SelectCheck.outsideMinP(params, operands);
        return SelectCheck.outsideTopK(params, operands);
    }
}
