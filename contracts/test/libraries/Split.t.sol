// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Split} from "../../src/libraries/Split.sol";
import {Test} from "../Vm.sol";

contract SplitTest is Test {
    function terms(uint256 tokensIn, uint256 tokensOut, uint256 priceIn, uint256 priceOut)
        private
        pure
        returns (Split.Terms memory)
    {
        return Split.Terms(0, 0, tokensIn, tokensOut, priceIn, priceOut, 500, 100);
    }

    /// `total` cut at random places into at most `parts` positive parts.
    function cut(uint256 total, uint256 parts, uint256 seed)
        private
        pure
        returns (uint256[] memory units)
    {
        units = new uint256[](parts > total ? total : parts);
        uint256 left = total;
        for (uint256 i; i + 1 < units.length; ++i) {
            units[i] =
                1 + uint256(keccak256(abi.encode(seed, i))) % (left - (units.length - 1 - i));
            left -= units[i];
        }
        units[units.length - 1] = left;
    }

    function sum(uint256[] memory values) private pure returns (uint256 total) {
        for (uint256 i; i < values.length; ++i) {
            total += values[i];
        }
    }

    function test_cost_isExact() public pure {
        vm.assertEq(Split.cost(1, 1, 0, 999_999_999, 0), 999_999_999);
        vm.assertEq(Split.cost(3, 2, 5, 1e8, 2e8), 36e8);
    }

    function test_shares_ofStagesAtFault_areWithheldWhole() public pure {
        uint256[] memory units = new uint256[](3);
        (units[0], units[1], units[2]) = (10, 20, 30);
        Split.Shares memory s = Split.shares(units, terms(1e6, 0, 1e6, 0), 2);
        vm.assertEq(s.gross[1], 20_000e9);
        vm.assertEq(s.pay[1], 0);
        vm.assertEq(s.withheld, 20_000e9);
        vm.assertEq(s.matcherFee, 2_000e9);
        vm.assertEq(s.protocolFee, 400e9);
        vm.assertEq(s.pay[0] + s.pay[2], 37_600e9);
    }

    /// INVARIANT of docs/protocol.md §4: nothing is made, nothing is lost, refund ≥ 0.
    function testFuzz_shares_conserve_andNeverExceedTheLock(
        uint32[4] memory counts,
        uint64[2] memory prices,
        uint256[2] memory bps,
        uint256 parts,
        uint256 seed,
        uint64 faultMask
    ) public pure {
        uint256[] memory units = cut(75, bound(parts, 1, 64), seed);
        Split.Terms memory t = Split.Terms({
            paidIn: 0,
            paidOut: 0,
            tokensIn: counts[0] < counts[1] ? counts[0] : counts[1],
            tokensOut: counts[2] < counts[3] ? counts[2] : counts[3],
            priceIn: prices[0],
            priceOut: prices[1],
            matcherFeeBps: bound(bps[0], 0, 500),
            protocolFeeBps: bound(bps[1], 0, 100)
        });
        uint256 maxIn = counts[0] < counts[1] ? counts[1] : counts[0];
        uint256 maxOut = counts[2] < counts[3] ? counts[3] : counts[2];
        Split.Shares memory s = Split.shares(units, t, faultMask);
        uint256 gross = sum(s.gross);
        vm.assertEq(sum(s.pay) + s.matcherFee + s.protocolFee + s.withheld, gross);
        vm.assertEq(gross, Split.cost(75, t.tokensIn, t.tokensOut, t.priceIn, t.priceOut));
        vm.assertLe(gross, Split.cost(75, maxIn, maxOut, t.priceIn, t.priceOut));
        for (uint256 i; i < units.length; ++i) {
            if (faultMask >> i & 1 == 1) vm.assertEq(s.pay[i], 0);
            else vm.assertGe(s.pay[i] * 100, s.gross[i] * 94);
        }
    }

    function test_shares_atTheLargestNumbers_doNotOverflow() public pure {
        uint256[] memory units = new uint256[](1);
        units[0] = uint256(type(uint16).max) + 2 * uint256(type(uint8).max);
        uint256 most = type(uint32).max;
        uint256 price = type(uint64).max;
        Split.Shares memory s = Split.shares(units, terms(most, most, price, price), 0);
        vm.assertEq(s.gross[0], units[0] * 2 * most * price);
        vm.assertLt(s.gross[0], uint256(1) << 115);
    }

    /// A fair price of less than a unit a stage is not 0, and fees do not round it away.
    function test_shares_belowAUnit_areShares() public pure {
        uint256[] memory units = new uint256[](2);
        (units[0], units[1]) = (1, 2);
        Split.Shares memory s = Split.shares(units, terms(1, 1, 100, 200), 0);
        vm.assertEq(s.gross[0], 300);
        vm.assertEq(s.gross[1], 600);
        vm.assertEq(s.pay[0], 282);
        vm.assertEq(s.pay[1], 564);
        vm.assertEq(s.matcherFee, 45);
        vm.assertEq(s.protocolFee, 9);
    }

    /// Fees and what is left never fall as the gross grows, so no later Ack owes less.
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

    struct Got {
        uint256[] pay;
        uint256 matcherFee;
        uint256 protocolFee;
        uint256 gross;
    }

    /// Dust extraction: any way to reach a total pays everybody the same as one step.
    function testFuzz_shares_inSteps_payWhatOneStepPays(
        uint32[2] memory totals,
        uint64[2] memory prices,
        uint256[2] memory bps,
        uint256 parts,
        uint256 seed
    ) public pure {
        uint256[] memory units = cut(75, bound(parts, 1, 64), seed);
        Split.Terms memory t = Split.Terms(
            0,
            0,
            totals[0],
            totals[1],
            prices[0],
            prices[1] % 1e6,
            bound(bps[0], 0, 500),
            bound(bps[1], 0, 100)
        );
        Split.Shares memory one = Split.shares(units, t, 0);
        Got memory got = Got(new uint256[](units.length), 0, 0, 0);
        for (uint256 step; step < 5; ++step) {
            (t.tokensIn, t.tokensOut) = (totals[0], totals[1]);
            if (step < 4) {
                t.tokensIn = t.paidIn + uint256(keccak256(abi.encode(seed, "in", step)))
                    % (totals[0] - t.paidIn + 1);
                t.tokensOut = t.paidOut + uint256(keccak256(abi.encode(seed, "out", step)))
                    % (totals[1] - t.paidOut + 1);
            }
            add(got, Split.shares(units, t, 0));
            (t.paidIn, t.paidOut) = (t.tokensIn, t.tokensOut);
        }
        for (uint256 i; i < units.length; ++i) {
            vm.assertEq(got.pay[i], one.pay[i]);
        }
        vm.assertEq(got.matcherFee, one.matcherFee);
        vm.assertEq(got.protocolFee, one.protocolFee);
        vm.assertEq(got.gross, sum(one.gross));
    }

    function add(Got memory got, Split.Shares memory step) private pure {
        for (uint256 i; i < got.pay.length; ++i) {
            got.pay[i] += step.pay[i];
        }
        got.matcherFee += step.matcherFee;
        got.protocolFee += step.protocolFee;
        got.gross += sum(step.gross);
    }

    /// A stage found at fault between two steps keeps what it had and gets nothing more.
    function test_shares_ofAStageAtFaultMeanwhile_areOnlyTheStepWithheld() public pure {
        uint256[] memory units = new uint256[](2);
        (units[0], units[1]) = (10, 20);
        Split.Terms memory t = Split.Terms(1e6, 0, 3e6, 0, 1e6, 0, 200, 50);
        Split.Shares memory s = Split.shares(units, t, 2);
        vm.assertEq(s.gross[1], 40_000e9);
        vm.assertEq(s.withheld, 40_000e9);
        vm.assertEq(s.pay[1], 0);
        vm.assertEq(s.pay[0] + s.matcherFee + s.protocolFee, 20_000e9);
    }
}
