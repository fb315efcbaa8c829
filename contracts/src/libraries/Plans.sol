// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IMinerRegistry} from "../interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Acceptance, Stage} from "../types/Signed.sol";
import {Eip712Types} from "./Eip712Types.sol";
import {Split} from "./Split.sol";

/// Does a pipeline cover the model once, may its miners work, and did each accept its place?
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

    /// @dev Every operator that passes has an owner, so a share never goes to address(0).
    function checkWorkers(Stage[] calldata plan, IMinerRegistry miners, uint256 minStake)
        internal
        view
    {
        for (uint256 i; i < plan.length; ++i) {
            address operator = plan[i].operator;
            if (!miners.canWork(operator, minStake)) {
                revert ITaskRegistry.MinerCannotWork(operator);
            }
        }
    }

    /// INVARIANT: an acceptance counts for one order, one plan and one place.
    function checkAcceptances(
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata signatures,
        Binding memory binding
    ) internal view {
        bool whole = acceptances.length == plan.length && signatures.length == plan.length;
        if (!whole) revert ITaskRegistry.BadPlan();
        for (uint256 i; i < plan.length; ++i) {
            Acceptance calldata acceptance = acceptances[i];
            if (
                acceptance.orderHash != binding.orderHash
                    || acceptance.planHash != binding.planHash || acceptance.stage != i
            ) {
                revert ITaskRegistry.AcceptanceMismatch(i);
            }
            if (block.timestamp > acceptance.expiry) {
                revert ITaskRegistry.AcceptanceExpired(i, acceptance.expiry);
            }
            bytes32 digest =
                Eip712Types.toDigest(binding.separator, Eip712Types.acceptanceHash(acceptance));
            if (!Eip712Types.isSignedBy(plan[i].operator, digest, signatures[i])) {
                revert ITaskRegistry.BadSignature(plan[i].operator);
            }
        }
    }

    /// Layer units of each stage.
    function unitsOf(Stage[] calldata plan, uint256 layers, uint256 embedUnits, uint256 headUnits)
        internal
        pure
        returns (uint256[] memory units)
    {
        units = new uint256[](plan.length);
        for (uint256 i; i < plan.length; ++i) {
            units[i] =
                Split.unitsOf(plan[i].layerFrom, plan[i].layerTo, layers, embedUnits, headUnits);
        }
    }
}
