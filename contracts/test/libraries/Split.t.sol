// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Plans} from "../../src/libraries/Plans.sol";
import {Split} from "../../src/libraries/Split.sol";
import {Stage} from "../../src/types/Signed.sol";
import {Test} from "../Vm.sol";

contract SplitHarness {
    function shares(Stage[] calldata plan, Split.Terms calldata terms)
        external
        pure
        returns (Split.Shares memory)
    {
        Plans.Shape memory shape = Plans.Shape(plan[plan.length - 1].layerTo, 2, 3);
        return Split.shares(plan, shape, terms);
    }
}

contract SplitTest is Test {
    SplitHarness private split = new SplitHarness();

    /// `total` layers cut at random places into at most `parts` stages.
    function cut(uint16 total, uint256 parts, uint256 seed)
        private
        pure
        returns (Stage[] memory plan)
    {
        plan = new Stage[](parts > total ? total : parts);
        uint16 from;
        for (uint256 i; i < plan.length; ++i) {
            uint256 most = total - from - (plan.length - 1 - i);
            uint256 length =
                i + 1 == plan.length ? most : 1 + uint256(keccak256(abi.encode(seed, i))) % most;
            plan[i] = Stage(address(uint160(i + 1)), from, from + uint16(length));
            from += uint16(length);
        }
    }

    function stages(uint16 one, uint16 two, uint16 three)
        private
        pure
        returns (Stage[] memory plan)
    {
        plan = new Stage[](3);
        plan[0] = Stage(address(1), 0, one);
        plan[1] = Stage(address(2), one, one + two);
        plan[2] = Stage(address(3), one + two, one + two + three);
    }

    function test_perUnit_isExact() public pure {
        vm.assertEq(Split.perUnit(1, 0, 999_999_999, 0), 999_999_999);
        vm.assertEq(Split.perUnit(2, 5, 1e8, 2e8), 12e8);
    }

    function testFuzz_shareOf_keepsBoth(address operator, uint96 nano) public pure {
        uint256 share = Split.shareOf(operator, nano);
        vm.assertEq(Split.operatorOf(share), operator);
        vm.assertEq(Split.nanoOf(share), nano);
    }

    function test_shares_ofStagesAtFault_areWithheldWhole() public view {
        Split.Shares memory s = split.shares(stages(8, 20, 27), Split.Terms(1e12, 500, 100, 2));
        vm.assertEq(s.pay[1], Split.shareOf(address(2), 0));
        vm.assertEq(s.withheld, 20_000e9);
        vm.assertEq(s.matcherFee, 2_000e9);
        vm.assertEq(s.protocolFee, 400e9);
        vm.assertEq(s.pay[0], Split.shareOf(address(1), 9_400e9));
        vm.assertEq(s.pay[2], Split.shareOf(address(3), 28_200e9));
    }

    /// INVARIANT of docs/protocol.md §4: nothing is made, nothing is lost.
    function testFuzz_shares_conserve(
        uint96 nanoPerUnit,
        uint256[2] memory bps,
        uint256 parts,
        uint256 seed,
        uint64 faultMask
    ) public view {
        Stage[] memory plan = cut(70, bound(parts, 1, 64), seed);
        Split.Terms memory t = Split.Terms(
            nanoPerUnit / 128, bound(bps[0], 0, 500), bound(bps[1], 0, 100), faultMask
        );
        Split.Shares memory s = split.shares(plan, t);
        uint256 sum = s.matcherFee + s.protocolFee + s.withheld;
        for (uint256 i; i < plan.length; ++i) {
            uint256 units = plan[i].layerTo - plan[i].layerFrom;
            if (i == 0) units += 2;
            if (i + 1 == plan.length) units += 3;
            uint256 pay = Split.nanoOf(s.pay[i]);
            sum += pay;
            vm.assertEq(Split.operatorOf(s.pay[i]), plan[i].operator);
            if (faultMask >> i & 1 == 1) vm.assertEq(pay, 0);
            else vm.assertGe(pay * 100, units * t.nanoPerUnit * 94);
        }
        vm.assertEq(sum, 75 * t.nanoPerUnit);
    }

    /// A fair price of less than a unit a stage is not 0, and fees do not round it away.
    function test_shares_belowAUnit_areShares() public view {
        Stage[] memory plan = new Stage[](2);
        plan[0] = Stage(address(1), 0, 1);
        plan[1] = Stage(address(2), 1, 2);
        Split.Shares memory s = split.shares(plan, Split.Terms(300, 500, 100, 0));
        vm.assertEq(Split.nanoOf(s.pay[0]), 846);
        vm.assertEq(Split.nanoOf(s.pay[1]), 1128);
        vm.assertEq(s.matcherFee, 105);
        vm.assertEq(s.protocolFee, 21);
    }

    /// Fees and what is left never fall as the gross grows: nobody earns less by more work.
    function testFuzz_feesOf_neverFall(
        uint96 gross,
        uint8 more,
        uint256 matcherBps,
        uint256 protocolBps
    ) public pure {
        matcherBps = bound(matcherBps, 0, 500);
        protocolBps = bound(protocolBps, 0, 100);
        (uint256 m, uint256 p) = Split.feesOf(gross, matcherBps, protocolBps);
        (uint256 m2, uint256 p2) = Split.feesOf(uint256(gross) + more, matcherBps, protocolBps);
        vm.assertGe(m2, m);
        vm.assertGe(p2, p);
        vm.assertGe(uint256(gross) + more - m2 - p2, uint256(gross) - m - p);
        vm.assertEq(m + p, uint256(gross) * (matcherBps + protocolBps) / 1e4);
        vm.assertLe(uint256(gross) * matcherBps / 1e4, m + 1); // within a unit of its own floor
        vm.assertLe(m, uint256(gross) * matcherBps / 1e4);
    }

    function test_feesOf_whereTwoFloorsWouldFall() public pure {
        (uint256 m, uint256 p) = Split.feesOf(99, 500, 100);
        vm.assertEq(99 - m - p, 94);
        (m, p) = Split.feesOf(100, 500, 100);
        vm.assertEq(100 - m - p, 94);
        vm.assertEq(m, 5);
        vm.assertEq(p, 1);
        (m, p) = Split.feesOf(1e6, 0, 0);
        vm.assertEq(m + p, 0);
    }
}
