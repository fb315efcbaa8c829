// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {StakeFixture} from "../fixtures/StakeFixture.sol";

/// The pool of a miner's slashes, against straws in any order.
contract PoolAttacks is StakeFixture {
    uint256 private constant STAKE = 100 * MIN_STAKE;
    uint256 private constant CASES = 12;

    function straw(uint256 i) private pure returns (address) {
        return address(uint160(0x5000 + i));
    }

    function setUp() public override {
        super.setUp();
        registerMiner(STAKE);
    }

    function paid(uint256 number) private view returns (uint256) {
        return miners.creditOf(straw(2 * number)) + miners.creditOf(straw(2 * number + 1));
    }

    function open(uint256 number, uint256 victimCap) private {
        vm.assertEq(uint256(accuse(straw(2 * number), straw(2 * number + 1), victimCap)), number);
    }

    /// Many disputes, convicted or not in any order: the oldest that convicts gets what it would
    /// have had alone, nobody more than its caps, and all together half of what was taken.
    function testFuzz_theOldestThatConvicts_getsWhatItWouldHaveHadAlone(
        uint256 seed,
        uint16[CASES] calldata shares,
        uint64[CASES] calldata caps
    ) public {
        uint256[] memory order = new uint256[](CASES);
        for (uint256 i; i < CASES; ++i) {
            open(i, caps[i]);
            order[i] = i;
        }
        uint256 slashed;
        uint256 oldest = CASES;
        for (uint256 left = CASES; left != 0; --left) {
            uint256 at = uint256(keccak256(abi.encode(seed, left))) % left;
            uint256 number = order[at];
            order[at] = order[left - 1];
            uint16 bps = shares[number] % 3 == 0 ? 0 : uint16(bound(shares[number], 1, 10_000));
            slashed += close(uint32(number), bps, caps[number]);
            if (bps != 0 && number < oldest) oldest = number;
            fund(owner, address(miners), 7);
            vm.prank(owner);
            miners.addStake(7); // what comes in later is nobody's claim
        }
        miners.serve(owner, CASES);

        uint256 total;
        for (uint256 i; i < CASES; ++i) {
            vm.assertLe(miners.creditOf(straw(2 * i)), caps[i]);
            vm.assertLe(miners.creditOf(straw(2 * i + 1)), caps[i]);
            total += paid(i);
        }
        vm.assertLe(total, slashed / 2);
        vm.assertEq(total + miners.creditOf(BURN), slashed);
        if (oldest != CASES) {
            uint256 base = STAKE * bound(shares[oldest], 1, 10_000) / 10_000;
            uint256 first = base / 5 < caps[oldest] ? base / 5 : caps[oldest];
            uint256 second = base * 3 / 10 < caps[oldest] ? base * 3 / 10 : caps[oldest];
            // A slash rounds stake and leaving down, each by less than a unit.
            vm.assertApproxEqAbs(paid(oldest), first + second, 2);
        }
        IMinerRegistry.Pool memory pool = miners.poolOf(owner);
        vm.assertEq(uint256(pool.units), 0);
        vm.assertEq(uint256(pool.served), CASES);
    }

    /// A hundred straws convict the miner while an old dispute is open. They make nobody's closing
    /// dear, and are served by later closings or by anybody.
    function test_aLongQueue_costsNobodyMuch() public {
        uint256 straws = 100;
        open(0, 10);
        for (uint256 i = 1; i <= straws; ++i) {
            open(i, 1);
            close(uint32(i), 1000, 1);
        }
        vm.assertEq(miners.creditOf(straw(2)), 0);
        vm.prank(arbitrator);
        miners.closeDispute(owner, 0, 10_000, 10);
        vm.assertLt(vm.snapshotGasLastCall("MinerRegistry", "closeDispute, 100 wait"), 250_000);
        vm.assertEq(paid(0), 20);
        vm.assertEq(paid(2), 2);
        vm.assertEq(paid(3), 0);
        vm.assertEq(uint256(miners.poolOf(owner).served), 3);
        vm.assertGt(uint256(miners.poolOf(owner).units), 0);

        slash(1); // another dispute, which serves two more
        vm.assertEq(uint256(miners.poolOf(owner).served), 5);
        vm.prank(stranger);
        miners.serve(owner, type(uint256).max);
        vm.assertEq(uint256(miners.poolOf(owner).served), straws + 2);
        vm.assertEq(uint256(miners.poolOf(owner).units), 0);
    }

    /// What is left when all disputes are over burns, and does not wait for the next straw.
    function test_whatIsLeft_burnsBeforeTheNextDispute() public {
        open(0, 1);
        close(0, 10_000, 1);
        vm.assertEq(miners.creditOf(BURN), STAKE - 2);
        open(1, type(uint256).max);
        close(1, 10_000, type(uint256).max);
        vm.assertEq(paid(1), 0);
    }

    /// Younger disputes that stay open keep nothing from an older one.
    function test_anOlderDispute_neverWaitsForYoungerOnes() public {
        open(0, MIN_STAKE);
        open(1, MIN_STAKE);
        open(2, MIN_STAKE);
        close(1, 10_000);
        vm.assertEq(paid(1), 0);
        close(0, 0);
        vm.assertEq(paid(1), STAKE / 5 + MIN_STAKE);
        vm.assertGt(uint256(miners.poolOf(owner).units), 0);
        close(2, 0);
        vm.assertEq(uint256(miners.poolOf(owner).units), 0);
        vm.assertEq(miners.creditOf(BURN), STAKE - paid(1));
    }
}
