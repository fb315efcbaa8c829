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
            Stage calldata stage = plan[i];
            uint16 from = stage.layerFrom;
            if (from != covered) revert ITaskRegistry.LayerGap(covered, from);
            covered = stage.layerTo;
            if (covered <= from) revert ITaskRegistry.BadPlan();
        }
        if (covered != layers) revert ITaskRegistry.LayersUncovered(covered, layers);
    }

    /// A model's size in layer units.
    struct Shape {
        uint256 layers;
        uint256 embedUnits;
        uint256 headUnits;
    }

    /// Layer units of a stage of a plan that `checkTiling` found whole: its layers, at the ends the
    /// embedding's or the head's too.
    function unitsOf(Stage calldata stage, Shape memory shape)
        internal
        pure
        returns (uint256 units)
    {
        (uint256 from, uint256 to) = (stage.layerFrom, stage.layerTo);
        // SAFETY: a layer range is not empty, and units are 16 and 8 bits.
        unchecked {
            units = to - from;
            if (from == 0) units += shape.embedUnits;
            if (to == shape.layers) units += shape.headUnits;
        }
    }
}
