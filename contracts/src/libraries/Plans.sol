// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Stage} from "../types/Signed.sol";

/// Does a pipeline cover the model once, and how many layer units has each stage?
library Plans {
    /// Loops over stages are bounded, and masks of stages fit uint64.
    uint256 internal constant MAX_STAGES = 64;

    /// What every signed message about a job must carry.
    struct Binding {
        bytes32 orderHash;
        bytes32 planHash;
        bytes32 separator;
    }

    /// INVARIANT: the stages cover [0, layers) in order: no gap, no overlap, no empty stage.
    function checkTiling(Stage[] calldata plan, uint16 layers) internal pure {
        if (plan.length == 0) revert ITaskRegistry.BadPlan();
        if (plan.length > MAX_STAGES) revert ITaskRegistry.TooManyStages(plan.length, MAX_STAGES);
        uint16 covered;
        for (uint256 i; i < plan.length; ++i) {
            uint16 from = plan[i].layerFrom;
            if (from != covered) revert ITaskRegistry.LayerGap(covered, from);
            covered = plan[i].layerTo;
            if (covered <= from) revert ITaskRegistry.BadPlan();
        }
        if (covered != layers) revert ITaskRegistry.LayersUncovered(covered, layers);
    }

    /// Layer units of each stage of a plan that `checkTiling` found whole.
    function unitsOf(Stage[] calldata plan, uint256 embedUnits, uint256 headUnits)
        internal
        pure
        returns (uint256[] memory units)
    {
        units = new uint256[](plan.length);
        for (uint256 i; i < plan.length; ++i) {
            units[i] = plan[i].layerTo - plan[i].layerFrom;
        }
        units[0] += embedUnits;
        units[plan.length - 1] += headUnits;
    }
}
