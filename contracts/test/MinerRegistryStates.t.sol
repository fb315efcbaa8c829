// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {StakeFixture} from "./fixtures/StakeFixture.sol";

/// MinerRegistry as a state machine: every function in every state, and random walks in time.
contract MinerRegistryStatesTest is StakeFixture {
    IMinerRegistry.State private constant NONE = IMinerRegistry.State.None;
    IMinerRegistry.State private constant ACTIVE = IMinerRegistry.State.Active;
    IMinerRegistry.State private constant COOLDOWN = IMinerRegistry.State.Cooldown;
    IMinerRegistry.State private constant EXITED = IMinerRegistry.State.Exited;

    uint256 private constant STAKE = 4 * MIN_STAKE;

    /// The miner in `state`, past every clock; jailed by a slash of a tenth if asked.
    function bring(IMinerRegistry.State state, bool jailed) private {
        fund(owner, address(miners), STAKE * 2);
        if (state == NONE) return;
        bytes memory proof = operatorProof(operatorKey, owner);
        vm.startPrank(owner);
        miners.register(STAKE, operator, proof);
        miners.registerMachine("A", 1, 1, 0);
        if (state != ACTIVE) miners.requestExit(STAKE);
        skipTime(UNBOND_SECONDS);
        if (state == EXITED) miners.withdraw();
        vm.stopPrank();
        if (jailed) slash(1000);
        skipTime(JAIL_SECONDS);
        assertEqState(minerState(), state);
    }

    function expectCall(address caller, bytes memory data, bytes memory revertData) private {
        uint256 snapshot = vm.snapshotState();
        vm.prank(caller);
        (bool ok, bytes memory answer) = address(miners).call(data);
        if (revertData.length == 0) {
            vm.assertTrue(ok);
        } else {
            vm.assertFalse(ok);
            vm.assertEq(answer, revertData);
        }
        vm.revertToState(snapshot);
    }

    function legal() private pure returns (bytes memory) {
        return "";
    }

    function wrongState(IMinerRegistry.State have) private pure returns (bytes memory) {
        return abi.encodeWithSelector(IMinerRegistry.InvalidState.selector, have);
    }

    /// `wanted` is what every owner function answers, in the order of the calls below.
    function checkOwner(bytes[9] memory wanted) private {
        bytes memory proof = operatorProof(operatorKey, owner);
        expectCall(owner, abi.encodeCall(miners.register, (MIN_STAKE, operator, proof)), wanted[0]);
        expectCall(owner, abi.encodeCall(miners.registerMachine, ("B", 1, 1, 0)), wanted[1]);
        expectCall(owner, abi.encodeCall(miners.retireMachine, (0)), wanted[2]);
        expectCall(owner, abi.encodeCall(miners.addStake, (1)), wanted[3]);
        expectCall(owner, abi.encodeCall(miners.requestExit, (MIN_STAKE)), wanted[4]);
        expectCall(owner, abi.encodeCall(miners.cancelExit, ()), wanted[5]);
        expectCall(owner, abi.encodeCall(miners.withdraw, ()), wanted[6]);
        expectCall(owner, abi.encodeCall(miners.rotateOperator, (operator, proof)), wanted[7]);
        expectCall(owner, abi.encodeCall(miners.unjail, ()), wanted[8]);
    }

    /// A dispute may be opened and closed in every state, and takes what there is.
    function checkDisputes() private {
        expectCall(
            address(tasks),
            abi.encodeCall(miners.openDispute, (owner, arbitrator, challenger, requester, 1)),
            legal()
        );
        uint256 snapshot = vm.snapshotState();
        uint32 number = accuse();
        expectCall(
            arbitrator, abi.encodeCall(miners.closeDispute, (owner, number, 5000, 1)), legal()
        );
        expectCall(stranger, abi.encodeCall(miners.serve, (owner, 100)), legal());
        vm.revertToState(snapshot);
    }

    function test_none_allowsItsMovesAlone() public {
        bring(NONE, false);
        bytes memory no = wrongState(NONE);
        bytes memory unknown = abi.encodeWithSelector(IMinerRegistry.MachineUnknown.selector, 0);
        bytes memory free = abi.encodeWithSelector(IMinerRegistry.NotJailed.selector);
        checkOwner([legal(), no, unknown, no, no, no, no, no, free]);
        checkDisputes();
    }

    function test_active_allowsItsMovesAlone() public {
        bring(ACTIVE, false);
        bytes memory nothing = abi.encodeWithSelector(IMinerRegistry.NothingLeaving.selector);
        bytes memory free = abi.encodeWithSelector(IMinerRegistry.NotJailed.selector);
        bytes memory ok = legal();
        checkOwner([wrongState(ACTIVE), ok, ok, ok, ok, nothing, nothing, ok, free]);
        checkDisputes();
    }

    function test_activeAndJailed_allowsItsMovesAlone() public {
        bring(ACTIVE, true);
        bytes memory nothing = abi.encodeWithSelector(IMinerRegistry.NothingLeaving.selector);
        bytes memory ok = legal();
        checkOwner([wrongState(ACTIVE), ok, ok, ok, ok, nothing, nothing, ok, ok]);
        checkDisputes();
        vm.assertFalse(miners.canWork(operator, 0));
    }

    function test_cooldown_allowsItsMovesAlone() public {
        bring(COOLDOWN, false);
        bytes memory no = wrongState(COOLDOWN);
        bytes memory free = abi.encodeWithSelector(IMinerRegistry.NotJailed.selector);
        bytes memory ok = legal();
        checkOwner([no, no, ok, no, no, ok, ok, no, free]);
        checkDisputes();
    }

    function test_matrix_cooldownAndJailed() public {
        bring(COOLDOWN, true);
        bytes memory no = wrongState(COOLDOWN);
        bytes memory jailed =
            abi.encodeWithSelector(IMinerRegistry.MinerJailed.selector, vm.getBlockTimestamp());
        bytes memory ok = legal();
        checkOwner([no, no, ok, no, no, ok, jailed, no, ok]);
        checkDisputes();
    }

    function test_exited_allowsItsMovesAlone() public {
        bring(EXITED, false);
        bytes memory no = wrongState(EXITED);
        bytes memory free = abi.encodeWithSelector(IMinerRegistry.NotJailed.selector);
        bytes memory ok = legal();
        checkOwner([ok, no, ok, no, no, no, no, no, free]);
        checkDisputes();
    }

    /// #13: nothing leaves within the unbonding time of its request, and each unit was asked for.
    function testFuzz_exit_noSequenceShortensAClock(uint256 seed) public {
        bring(ACTIVE, false);
        uint256 lastRequest;
        for (uint256 i; i < 30; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            skipTime(random % 4 days);
            IMinerRegistry.Miner memory before = miners.minerOf(owner);
            vm.prank(owner);
            if (random % 4 == 0) {
                try miners.withdraw() returns (uint256 amount) {
                    vm.assertEq(amount, before.leaving);
                    vm.assertGe(vm.getBlockTimestamp(), lastRequest + UNBOND_SECONDS);
                } catch {
                    vm.assertTrue(
                        before.leaving == 0
                            || vm.getBlockTimestamp() < lastRequest + UNBOND_SECONDS
                    );
                }
            } else if (random % 4 == 1) {
                try miners.cancelExit() {
                    IMinerRegistry.Miner memory restored = miners.minerOf(owner);
                    vm.assertEq(uint256(restored.stake), uint256(before.stake) + before.leaving);
                } catch {}
            } else {
                uint256 amount = random % 8 == 2 ? before.stake : 1 + random % MIN_STAKE;
                try miners.requestExit(amount) {
                    lastRequest = vm.getBlockTimestamp();
                    vm.assertGe(uint256(miners.minerOf(owner).leaveAt), before.leaveAt);
                } catch {}
            }
        }
        IMinerRegistry.Miner memory end = miners.minerOf(owner);
        vm.assertEq(uint256(end.stake) + end.leaving, token.balanceOf(address(miners)));
    }

    /// #12: the stake behind a receipt is here as long as the receipt can be disputed.
    function testFuzz_stakeOutlastsEveryDisputableReceipt(uint32 waitBefore, uint32 signedBefore)
        public
    {
        bring(ACTIVE, false);
        skipTime(bound(waitBefore, 0, 30 days));
        // Before the exit was asked for.
        uint256 signedAt = vm.getBlockTimestamp() - bound(signedBefore, 0, 1 days);
        vm.prank(owner);
        miners.requestExit(STAKE);
        vm.warp(signedAt + MAX_JOB_SECONDS + MAX_WINDOW_SECONDS);
        vm.prank(owner);
        (bool left,) = address(miners).call(abi.encodeCall(miners.withdraw, ()));
        vm.assertFalse(left);
        uint32 number = accuse(); // the last moment at which a dispute may open
        skipTime(365 days);
        vm.assertEq(close(number, 10_000), STAKE);
    }
}
