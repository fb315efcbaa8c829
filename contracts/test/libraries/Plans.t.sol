// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {Plans} from "../../src/libraries/Plans.sol";
import {Stage} from "../../src/types/Signed.sol";
import {Test} from "../Vm.sol";

contract PlansHarness {
    function checkTiling(Stage[] calldata plan, uint16 layers) external pure {
        Plans.checkTiling(plan, layers);
    }

    function unitsOf(Stage[] calldata plan, Plans.Shape calldata shape)
        external
        pure
        returns (uint256[] memory units)
    {
        units = new uint256[](plan.length);
        for (uint256 i; i < plan.length; ++i) {
            units[i] = Plans.unitsOf(plan[i], shape);
        }
    }
}

/// Tilings and units. Workers need a registry: TaskRegistryOpen.t.sol.
contract PlansTest is Test {
    PlansHarness private plans = new PlansHarness();

    /// A random exact tiling of [0, layers).
    function tiling(uint16 layers, uint256 count, uint256 seed)
        private
        pure
        returns (Stage[] memory plan)
    {
        plan = new Stage[](count > layers ? layers : count);
        uint16 from;
        for (uint256 i; i < plan.length; ++i) {
            uint256 most = layers - from - (plan.length - 1 - i);
            uint16 length = i + 1 == plan.length
                ? uint16(most)
                : uint16(1 + uint256(keccak256(abi.encode(seed, i))) % most);
            plan[i] = Stage(address(uint160(i + 1)), from, from + length);
            from += length;
        }
    }

    function testFuzz_exactTiling_passes_andItsUnitsAddUp(
        uint16 layers,
        uint256 count,
        uint256 seed
    ) public view {
        layers = uint16(bound(layers, 1, type(uint16).max));
        Stage[] memory plan = tiling(layers, bound(count, 1, 64), seed);
        plans.checkTiling(plan, layers);
        uint256[] memory units = plans.unitsOf(plan, Plans.Shape(layers, 2, 3));
        uint256 total;
        for (uint256 i; i < units.length; ++i) {
            total += units[i];
        }
        vm.assertEq(total, uint256(layers) + 5);
    }

    /// A bound moved by one: a gap, an overlap, an empty stage or an end that is not the model's.
    function testFuzz_tilingWithOneBoundMoved_reverts(
        uint16 layers,
        uint256 count,
        uint256 seed,
        uint256 which,
        bool up
    ) public {
        layers = uint16(bound(layers, 2, type(uint16).max - 1));
        Stage[] memory plan = tiling(layers, bound(count, 1, 64), seed);
        uint256 stage = (which >> 1) % plan.length;
        bool upper = which % 2 == 1;
        uint16 value = upper ? plan[stage].layerTo : plan[stage].layerFrom;
        if (value == 0) up = true;
        value = up ? value + 1 : value - 1;
        if (upper) plan[stage].layerTo = value;
        else plan[stage].layerFrom = value;
        vm.expectRevert();
        plans.checkTiling(plan, layers);
    }

    function testFuzz_randomBounds_passOnlyIfTheyTile(uint8[6] memory bounds, uint8 layers)
        public
        view
    {
        Stage[] memory plan = new Stage[](3);
        bool exact = true;
        uint16 covered;
        for (uint256 i; i < 3; ++i) {
            plan[i] = Stage(address(1), bounds[2 * i] % 4, bounds[2 * i + 1] % 8);
            exact = exact && plan[i].layerFrom == covered && plan[i].layerTo > covered;
            covered = plan[i].layerTo;
        }
        exact = exact && covered == layers % 8;
        try plans.checkTiling(plan, layers % 8) {
            vm.assertTrue(exact);
        } catch {
            vm.assertFalse(exact);
        }
    }

    function test_unitsOf_countsEmbeddingAndHeadAtTheEnds() public view {
        Stage[] memory plan = new Stage[](3);
        (plan[0].layerTo, plan[1].layerFrom) = (10, 10);
        (plan[1].layerTo, plan[2].layerFrom, plan[2].layerTo) = (60, 60, 70);
        uint256[] memory units = plans.unitsOf(plan, Plans.Shape(70, 2, 3));
        vm.assertEq(units.length, 3);
        vm.assertEq(units[0], 12);
        vm.assertEq(units[1], 50);
        vm.assertEq(units[2], 13);
        units = plans.unitsOf(tiling(70, 1, 0), Plans.Shape(70, 2, 3));
        vm.assertEq(units.length, 1);
        vm.assertEq(units[0], 75);
    }

    function test_noStages_reverts() public {
        vm.expectRevert(ITaskRegistry.BadPlan.selector);
        plans.checkTiling(new Stage[](0), 1);
    }

    function test_64Stages_pass_65Revert() public {
        plans.checkTiling(tiling(65, 64, 1), 65);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.TooManyStages.selector, 65, 64));
        plans.checkTiling(tiling(65, 65, 1), 65);
    }

    function test_gapOverlapEmptyShortAndLong_nameWhatIsWrong() public {
        Stage[] memory plan = tiling(10, 2, 4);
        uint16 cut = plan[0].layerTo;
        plan[1].layerFrom = cut + 1;
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.LayerGap.selector, cut, cut + 1));
        plans.checkTiling(plan, 10);
        plan[1].layerFrom = cut - 1;
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.LayerGap.selector, cut, cut - 1));
        plans.checkTiling(plan, 10);
        plan[1].layerFrom = cut;
        plan[1].layerTo = cut;
        vm.expectRevert(ITaskRegistry.BadPlan.selector);
        plans.checkTiling(plan, 10);
        plan[1].layerTo = cut + 1;
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.LayersUncovered.selector, cut + 1, 10)
        );
        plans.checkTiling(plan, 10);
        plan[1].layerTo = 11;
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.LayersUncovered.selector, 11, 10));
        plans.checkTiling(plan, 10);
        plan[0].layerFrom = 1;
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.LayerGap.selector, 0, 1));
        plans.checkTiling(plan, 10);
    }
}
