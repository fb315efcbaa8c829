// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";

import {EntryPause} from "../src/EntryPause.sol";
import {Test} from "./Vm.sol";

contract Door is EntryPause {
    constructor(address owner_, address guardian_) EntryPause(owner_, guardian_) {}

    function enter() external view whenEntriesOpen returns (bool) {
        return true;
    }
}

contract EntryPauseTest is Test {
    address private governor = makeAddr("governor");
    address private guardian = makeAddr("guardian");
    Door private door = new Door(governor, guardian);

    function setUp() public {
        vm.warp(1_800_000_000);
    }

    function pause(uint256 seconds_) private {
        vm.prank(guardian);
        door.pauseEntries(seconds_);
    }

    function test_pause_endsByItself() public {
        uint256 until = vm.getBlockTimestamp() + 7 days;
        vm.expectEmit(address(door));
        emit EntryPause.EntriesPausedUntil(until);
        pause(7 days);
        vm.warp(until - 1);
        vm.expectRevert(abi.encodeWithSelector(EntryPause.EntriesPaused.selector, until));
        door.enter();
        vm.warp(until);
        vm.assertTrue(door.enter());
    }

    function test_pause_whenTooLong_reverts() public {
        vm.expectRevert(
            abi.encodeWithSelector(EntryPause.PauseTooLong.selector, 7 days + 1, 7 days)
        );
        pause(7 days + 1);
    }

    function test_pause_whenStranger_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(EntryPause.NotGuardian.selector, address(this)));
        door.pauseEntries(1);
        vm.expectRevert(abi.encodeWithSelector(EntryPause.NotGuardian.selector, address(this)));
        door.resumeEntries();
    }

    function test_pause_restsThirtyDays() public {
        pause(2 days);
        uint256 next = vm.getBlockTimestamp() + 32 days;
        vm.warp(next - 1);
        vm.expectRevert(abi.encodeWithSelector(EntryPause.PauseNotAllowedBefore.selector, next));
        pause(1);
        vm.warp(next);
        pause(1);
    }

    function test_resume_opensAtOnceButDoesNotShortenTheRest() public {
        uint256 start = vm.getBlockTimestamp();
        pause(7 days);
        skipTime(1 hours);
        vm.prank(guardian);
        door.resumeEntries();
        vm.assertTrue(door.enter());
        vm.warp(start + 37 days - 1);
        vm.expectRevert(
            abi.encodeWithSelector(EntryPause.PauseNotAllowedBefore.selector, start + 37 days)
        );
        pause(1);
    }

    function test_resume_whenOpen_changesNothing() public {
        vm.prank(guardian);
        door.resumeEntries();
        vm.assertTrue(door.enter());
        vm.assertEq(uint256(door.pausedUntil()), 0);
    }

    function test_setGuardian_ownerOnlyAndInheritsTheRest() public {
        vm.expectRevert(
            abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, guardian)
        );
        vm.prank(guardian);
        door.setGuardian(guardian);
        pause(1);
        uint256 next = door.nextPauseAt();
        address second = makeAddr("second");
        vm.prank(governor);
        door.setGuardian(second);
        vm.expectRevert(abi.encodeWithSelector(EntryPause.PauseNotAllowedBefore.selector, next));
        vm.prank(second);
        door.pauseEntries(1);
    }

    /// Whatever the guardian tries, entries are closed at most 7 days of any 37.
    function testFuzz_pause_isBounded(uint32[16] calldata waits, uint32[16] calldata lengths)
        public
    {
        uint256 start = vm.getBlockTimestamp();
        uint256 closed;
        for (uint256 i; i < waits.length; ++i) {
            skipTime(bound(waits[i], 0, 40 days));
            uint256 length = bound(lengths[i], 0, 7 days);
            vm.prank(guardian);
            try door.pauseEntries(length) {
                closed += length;
            } catch {}
        }
        uint256 windows = (vm.getBlockTimestamp() - start) / 30 days + 1;
        vm.assertLe(closed, windows * 7 days);
    }
}
