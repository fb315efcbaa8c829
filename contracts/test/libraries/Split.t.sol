// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Split} from "../../src/libraries/Split.sol";
import {Test} from "../Vm.sol";

contract SplitTest is Test {
    uint16 private constant LAYERS = 70;

    function terms(uint256 tokensIn, uint256 tokensOut, uint256 priceIn, uint256 priceOut) private pure returns (Split.Terms memory) {
        return Split.Terms(tokensIn, tokensOut, priceIn, priceOut, 500, 100);
    }

    /// `total` cut at random places into at most `parts` positive parts.
    function cut(uint256 total, uint256 parts, uint256 seed) private pure returns (uint256[] memory units) {
        units = new uint256[](parts > total ? total : parts);
        uint256 left = total;
        for (uint256 i; i + 1 < units.length; ++i) {
            units[i] = 1 + uint256(keccak256(abi.encode(seed, i))) % (left - (units.length - 1 - i));
            left -= units[i];
        }
        units[units.length - 1] = left;
    }

    function sum(uint256[] memory values) private pure returns (uint256 total) {
        for (uint256 i; i < values.length; ++i) {
            total += values[i];
        }
    }

    function test_unitsOf_countsEmbeddingAndHeadAtTheEnds() public pure {
        vm.assertEq(Split.unitsOf(0, 10, LAYERS, 2, 3), 12);
        vm.assertEq(Split.unitsOf(10, 60, LAYERS, 2, 3), 50);
        vm.assertEq(Split.unitsOf(60, 70, LAYERS, 2, 3), 13);
        vm.assertEq(Split.unitsOf(0, 70, LAYERS, 2, 3), 75);
    }

    function test_cost_floorsOnce() public pure {
        vm.assertEq(Split.cost(1, 1, 0, 999_999_999, 0), 0);
        vm.assertEq(Split.cost(1, 1, 0, 1e9, 0), 1);
        vm.assertEq(Split.cost(3, 2, 5, 1e8, 2e8), 3); // 3 · 1.2 = 3.6
    }

    function test_shares_ofStagesAtFault_areWithheldWhole() public pure {
        uint256[] memory units = new uint256[](3);
        (units[0], units[1], units[2]) = (10, 20, 30);
        Split.Shares memory s = Split.shares(units, terms(1e6, 0, 1e6, 0), 2);
        vm.assertEq(s.gross[1], 20_000);
        vm.assertEq(s.pay[1], 0);
        vm.assertEq(s.withheld, 20_000);
        vm.assertEq(s.matcherFee, 40_000 * 5 / 100);
        vm.assertEq(s.protocolFee, 400);
        vm.assertEq(s.pay[0] + s.pay[2], 40_000 - 2_000 - 400);
    }

    /// INVARIANT of docs/protocol.md §4, over all that an order may say: nothing is made, nothing is lost, refund ≥ 0.
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
        vm.assertEq(s.gross[0], units[0] * 2 * most * price / 1e9);
        vm.assertLt(s.gross[0], uint256(1) << 85);
    }

    function test_shares_ofAPriceTooSmallToPay_areZero() public pure {
        uint256[] memory units = new uint256[](2);
        (units[0], units[1]) = (1, 2);
        Split.Shares memory s = Split.shares(units, terms(1, 1, 1, 1), 0);
        vm.assertEq(sum(s.gross) + sum(s.pay) + s.matcherFee + s.protocolFee, 0);
    }

    /// Dust extraction: any way to reach a total pays every stage the same.
    function testFuzz_sessionTotal_inSteps_paysWhatOneStepPays(uint96 total, uint256 seed, uint256 parts, uint256 bps) public pure {
        uint256[] memory units = cut(75, bound(parts, 1, 64), seed);
        bps = bound(bps, 0, 500);
        uint256[] memory got = new uint256[](units.length);
        uint256 before;
        for (uint256 step; step < 5; ++step) {
            uint256 cumulative = step == 4 ? total : before + uint256(keccak256(abi.encode(seed, "step", step))) % (total - before + 1);
            for (uint256 i; i < units.length; ++i) {
                uint256 earlier = Split.sessionTotal(before, bps, units[i], 75);
                got[i] += Split.sessionTotal(cumulative, bps, units[i], 75) - earlier;
            }
            before = cumulative;
        }
        for (uint256 i; i < units.length; ++i) {
            vm.assertEq(got[i], Split.sessionTotal(total, bps, units[i], 75));
        }
        uint256 net = total - Split.fee(total, bps);
        vm.assertLe(sum(got), net);
        vm.assertLt(net - sum(got), units.length);
    }
}
