// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";

import {EntryPause} from "../src/EntryPause.sol";
import {MinerRegistry} from "../src/MinerRegistry.sol";
import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Stage} from "../src/types/Signed.sol";
import {StakeFixture} from "./fixtures/StakeFixture.sol";
import {BlacklistToken, CallbackToken, CutToken} from "./fixtures/Tokens.sol";

/// Every function and every error of MinerRegistry, alone.
contract MinerRegistryTest is StakeFixture {
    // --- register ---

    function test_register_whenProven_isActive() public {
        fund(owner, address(miners), 250 * USD);
        bytes memory proof = operatorProof(operatorKey, owner);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.MinerRegistered(owner, operator, 250 * USD);
        vm.prank(owner);
        miners.register(250 * USD, operator, proof);

        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        assertEqState(miner.state, IMinerRegistry.State.Active);
        vm.assertEq(miner.operator, operator);
        vm.assertEq(uint256(miner.stake), 250 * USD);
        vm.assertEq(miners.ownerOf(operator), owner);
        vm.assertEq(token.balanceOf(address(miners)), 250 * USD);
        vm.assertTrue(miners.canWork(operator, 250 * USD));
    }

    function test_register_whenBelowMinimum_reverts() public {
        fund(owner, address(miners), MIN_STAKE);
        bytes memory proof = operatorProof(operatorKey, owner);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.StakeTooLow.selector, MIN_STAKE - 1, MIN_STAKE)
        );
        vm.prank(owner);
        miners.register(MIN_STAKE - 1, operator, proof);
    }

    function test_register_whenActive_reverts() public {
        registerMiner(MIN_STAKE);
        bytes memory proof = operatorProof(operatorKey, owner);
        vm.expectRevert(
            abi.encodeWithSelector(
                IMinerRegistry.InvalidState.selector, IMinerRegistry.State.Active
            )
        );
        vm.prank(owner);
        miners.register(MIN_STAKE, operator, proof);
    }

    function test_register_whenOperatorBelongsToAnother_reverts() public {
        registerMiner(MIN_STAKE);
        bytes memory proof = operatorProof(operatorKey, stranger); // even with a valid proof
        fund(stranger, address(miners), MIN_STAKE);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.OperatorTaken.selector, operator, owner)
        );
        vm.prank(stranger);
        miners.register(MIN_STAKE, operator, proof);
    }

    function test_register_whenProofIsForAnotherOwner_reverts() public {
        bytes memory stolen = operatorProof(operatorKey, owner);
        expectProofRefused(stranger, operator, stolen);
    }

    function test_register_whenProofIsByAnotherKey_reverts() public {
        (, uint256 otherKey) = makeKey("other");
        bytes memory proof = operatorProof(otherKey, owner);
        expectProofRefused(owner, operator, proof);
    }

    function test_register_whenProofIsEmptyOrCompactOrForZero_reverts() public {
        expectProofRefused(owner, operator, "");
        expectProofRefused(owner, operator, new bytes(64));
        expectProofRefused(owner, address(0), new bytes(65));
    }

    function test_register_whenChainIdChanged_oldProofIsRefused() public {
        bytes memory proof = operatorProof(operatorKey, owner);
        vm.chainId(5);
        expectProofRefused(owner, operator, proof);
    }

    /// The other form of the same signature (n − s, flipped v) must not pass.
    function test_register_whenSignatureIsHighS_reverts() public {
        bytes memory proof = operatorProof(operatorKey, owner);
        uint256 s;
        assembly ("memory-safe") {
            s := mload(add(proof, 64))
        }
        s = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141 - s;
        assembly ("memory-safe") {
            mstore(add(proof, 64), s)
        }
        proof[64] = proof[64] == 0x1b ? bytes1(0x1c) : bytes1(0x1b);
        expectProofRefused(owner, operator, proof);
    }

    function expectProofRefused(address owner_, address operator_, bytes memory proof) private {
        fund(owner_, address(miners), MIN_STAKE);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.OperatorProofInvalid.selector, operator_)
        );
        vm.prank(owner_);
        miners.register(MIN_STAKE, operator_, proof);
    }

    function test_register_whenTokenKeepsACut_reverts() public {
        deploy(new CutToken(address(this)));
        fund(owner, address(miners), MIN_STAKE);
        bytes memory proof = operatorProof(operatorKey, owner);
        vm.expectRevert(
            abi.encodeWithSelector(
                IMinerRegistry.TokenShortfall.selector, MIN_STAKE * 99 / 100, MIN_STAKE
            )
        );
        vm.prank(owner);
        miners.register(MIN_STAKE, operator, proof);
    }

    function test_register_afterFullExit_keepsMachinesAndStrikes() public {
        registerMiner(MIN_STAKE * 2);
        addMachine();
        slash(1000);
        leaveCompletely();
        assertEqState(minerState(), IMinerRegistry.State.Exited);

        (address second, uint256 secondKey) = makeKey("second");
        registerMiner(owner, secondKey, MIN_STAKE);
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        vm.assertEq(miner.operator, second);
        vm.assertEq(uint256(miner.strikes), 1);
        vm.assertEq(uint256(miner.machines), 1);
        vm.assertEq(miners.ownerOf(operator), owner); // old receipts still find their owner
        vm.assertFalse(miners.canWork(operator, 0));
        vm.assertTrue(miners.canWork(second, 0));
    }

    // --- stake ---

    function test_addStake_grows() public {
        registerMiner(MIN_STAKE);
        fund(owner, address(miners), 5);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.StakeAdded(owner, 5, MIN_STAKE + 5);
        vm.prank(owner);
        miners.addStake(5);
        vm.assertEq(uint256(miners.minerOf(owner).stake), MIN_STAKE + 5);
    }

    function test_addStake_whenZero_reverts() public {
        registerMiner(MIN_STAKE);
        vm.expectRevert(IMinerRegistry.AmountZero.selector);
        vm.prank(owner);
        miners.addStake(0);
    }

    /// Every owner function acts on the caller's own account, which is None.
    function test_addStake_whenStranger_touchesNobody() public {
        registerMiner(MIN_STAKE);
        fund(stranger, address(miners), 5);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.InvalidState.selector, IMinerRegistry.State.None)
        );
        vm.prank(stranger);
        miners.addStake(5);
    }

    // --- machines ---

    function addMachine() private returns (uint16) {
        vm.prank(owner);
        return miners.registerMachine("RTX4", 24_576, 1_008_000, keccak256("endpoint"));
    }

    function test_registerMachine_storesAll() public {
        registerMiner(MIN_STAKE);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.MachineRegistered(
            owner, 0, "RTX4", 24_576, 1_008_000, keccak256("endpoint")
        );
        addMachine();
        IMinerRegistry.Machine memory machine = miners.machineOf(owner, 0);
        vm.assertEq(uint256(uint32(machine.class)), uint256(uint32(bytes4("RTX4"))));
        vm.assertEq(uint256(machine.vramMiB), 24_576);
        vm.assertEq(uint256(machine.bandwidthMBps), 1_008_000);
        vm.assertEq(uint256(machine.since), vm.getBlockTimestamp());
        vm.assertEq(machine.endpointHash, keccak256("endpoint"));
        vm.assertTrue(machine.state == IMinerRegistry.MachineState.Active);
    }

    function test_registerMachine_whenFull_revertsAndReusesRetiredPlaces() public {
        registerMiner(MIN_STAKE);
        for (uint16 i; i < 64; ++i) {
            vm.assertEq(uint256(addMachine()), i);
        }
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.TooManyMachines.selector, 64));
        addMachine();
        vm.prank(owner);
        miners.retireMachine(0);
        vm.assertEq(uint256(addMachine()), 0); // the worst place for the search
        vm.assertEq(uint256(miners.minerOf(owner).machines), 64);
    }

    function testFuzz_machines_countEqualsActivePlaces(uint256 seed) public {
        registerMiner(MIN_STAKE);
        for (uint256 step; step < 40; ++step) {
            uint16 index = uint16(uint256(keccak256(abi.encode(seed, step))) % 12);
            if (miners.machineOf(owner, index).state == IMinerRegistry.MachineState.Active) {
                vm.prank(owner);
                miners.retireMachine(index);
            } else {
                addMachine();
            }
        }
        uint256 active;
        for (uint16 i; i < 64; ++i) {
            if (miners.machineOf(owner, i).state == IMinerRegistry.MachineState.Active) ++active;
        }
        vm.assertEq(uint256(miners.minerOf(owner).machines), active);
    }

    function test_machine_whenUnknownOrRetired_reverts() public {
        registerMiner(MIN_STAKE);
        addMachine();
        vm.startPrank(owner);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.MachineRetired(owner, 0);
        miners.retireMachine(0);
        for (uint16 index; index < 2; ++index) {
            vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.MachineUnknown.selector, index));
            miners.retireMachine(index);
        }
        vm.stopPrank();
    }

    // --- operator keys ---

    function test_rotateOperator_endsTheOldKeysWorkButNotItsReceipts() public {
        registerMiner(MIN_STAKE);
        (address second, uint256 secondKey) = makeKey("second");
        bytes memory proof = operatorProof(secondKey, owner);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.OperatorRotated(owner, operator, second);
        vm.prank(owner);
        miners.rotateOperator(second, proof);
        vm.assertFalse(miners.canWork(operator, 0));
        vm.assertTrue(miners.canWork(second, 0));
        vm.assertEq(miners.ownerOf(operator), owner);

        bytes memory back = operatorProof(operatorKey, owner);
        vm.prank(owner);
        miners.rotateOperator(operator, back);
        vm.assertTrue(miners.canWork(operator, 0));
    }

    function test_rotateOperator_whenTakenOrUnproven_reverts() public {
        registerMiner(MIN_STAKE);
        (address second, uint256 secondKey) = makeKey("second");
        registerMiner(stranger, secondKey, MIN_STAKE);
        bytes memory proof = operatorProof(secondKey, owner);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.OperatorTaken.selector, second, stranger)
        );
        vm.prank(owner);
        miners.rotateOperator(second, proof);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.OperatorProofInvalid.selector, challenger)
        );
        vm.prank(owner);
        miners.rotateOperator(challenger, proof);
    }

    function test_canWork_needsTheOrdersStakeAndTheNetworksMinimum() public {
        registerMiner(MIN_STAKE + 1);
        vm.assertTrue(miners.canWork(operator, MIN_STAKE + 1));
        vm.assertFalse(miners.canWork(operator, MIN_STAKE + 2));
        vm.assertFalse(miners.canWork(stranger, 0));
        vm.assertFalse(miners.canWork(owner, 0));
        vm.assertFalse(miners.canWork(address(0), 0));
    }

    // --- who may work, after every change ---

    /// `canWork` by its definition, from what `minerOf` says.
    function mayWork(address operator_, uint256 minStake) private view returns (bool) {
        IMinerRegistry.Miner memory miner = miners.minerOf(miners.ownerOf(operator_));
        return miner.state == IMinerRegistry.State.Active && miner.operator == operator_
            && miner.jailUntil == 0 && miner.openDisputes == 0 && miner.stake >= MIN_STAKE
            && miner.stake >= minStake;
    }

    /// The operator may work with all that its miner has, and no more.
    function assertStakes(address operator_, uint256 stake) private view {
        vm.assertEq(uint256(miners.minerOf(owner).stake), stake);
        vm.assertTrue(miners.canWork(operator_, 0));
        vm.assertTrue(miners.canWork(operator_, stake));
        vm.assertFalse(miners.canWork(operator_, stake + 1));
    }

    function assertCannotWork(address operator_) private view {
        vm.assertFalse(miners.canWork(operator_, 0));
        vm.assertFalse(miners.canWork(operator_, 1));
    }

    function test_canWork_followsTheStake() public {
        registerMiner(3 * MIN_STAKE);
        assertStakes(operator, 3 * MIN_STAKE);
        fund(owner, address(miners), 5);
        vm.prank(owner);
        miners.addStake(5);
        assertStakes(operator, 3 * MIN_STAKE + 5);
        requestExit(MIN_STAKE + 5);
        assertStakes(operator, 2 * MIN_STAKE);
        vm.prank(owner);
        miners.cancelExit();
        assertStakes(operator, 3 * MIN_STAKE + 5);
        requestExit(2 * MIN_STAKE + 5);
        assertStakes(operator, MIN_STAKE);
        skipTime(UNBOND_SECONDS);
        vm.prank(owner);
        miners.withdraw();
        assertStakes(operator, MIN_STAKE);
        requestExit(MIN_STAKE);
        assertCannotWork(operator);
        vm.prank(owner);
        miners.cancelExit();
        assertStakes(operator, MIN_STAKE);
        leaveCompletely();
        assertCannotWork(operator);
        registerMiner(4 * MIN_STAKE);
        assertStakes(operator, 4 * MIN_STAKE);
    }

    function test_canWork_followsDisputesAndJail() public {
        registerMiner(2 * MIN_STAKE);
        uint32 first = accuse();
        assertCannotWork(operator);
        uint32 second = accuse();
        close(first, 0);
        assertCannotWork(operator);
        close(second, 0);
        assertStakes(operator, 2 * MIN_STAKE);
        slash(1000);
        assertCannotWork(operator);
        skipTime(JAIL_SECONDS);
        assertCannotWork(operator);
        first = accuse();
        vm.prank(owner);
        miners.unjail();
        assertCannotWork(operator); // out of jail, but accused
        close(first, 0);
        assertStakes(operator, 2 * MIN_STAKE * 9 / 10);
        slash(10_000);
        skipTime(JAIL_SECONDS);
        fund(owner, address(miners), MIN_STAKE);
        vm.startPrank(owner);
        miners.addStake(MIN_STAKE - 1);
        assertCannotWork(operator);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.StakeTooLow.selector, MIN_STAKE - 1, MIN_STAKE)
        );
        miners.unjail();
        miners.addStake(1);
        assertCannotWork(operator); // still in jail
        miners.unjail();
        vm.stopPrank();
        assertStakes(operator, MIN_STAKE);
    }

    /// A key that was rotated away stays so, whatever its miner does; the new one has its place.
    function test_canWork_isOfTheCurrentKey() public {
        registerMiner(2 * MIN_STAKE);
        (address second, uint256 secondKey) = makeKey("second");
        bytes memory proof = operatorProof(secondKey, owner);
        uint32 number = accuse();
        vm.prank(owner);
        miners.rotateOperator(second, proof);
        assertCannotWork(operator);
        assertCannotWork(second); // a new key is no way out of a dispute
        close(number, 0);
        assertCannotWork(operator);
        assertStakes(second, 2 * MIN_STAKE);
        fund(owner, address(miners), 1);
        vm.prank(owner);
        miners.addStake(1);
        assertCannotWork(operator);
        assertStakes(second, 2 * MIN_STAKE + 1);
        proof = operatorProof(secondKey, owner);
        vm.prank(owner);
        miners.rotateOperator(second, proof); // to itself
        assertStakes(second, 2 * MIN_STAKE + 1);
        bytes memory back = operatorProof(operatorKey, owner);
        vm.startPrank(owner);
        miners.rotateOperator(operator, back);
        assertCannotWork(second);
        assertStakes(operator, 2 * MIN_STAKE + 1);
        miners.rotateOperator(second, proof);
        vm.stopPrank();
        assertCannotWork(operator);
        assertStakes(second, 2 * MIN_STAKE + 1);
        leaveCompletely();
        registerMiner(MIN_STAKE);
        assertStakes(operator, MIN_STAKE);
        assertCannotWork(second);
    }

    function planOf(address one, address two) private pure returns (Stage[] memory plan) {
        plan = new Stage[](2);
        (plan[0].operator, plan[1].operator) = (one, two);
    }

    function test_operatorsOf_areAllThatTheOwnerEverNamed() public {
        vm.assertEq(miners.operatorsOf(owner).length, 0);
        registerMiner(MIN_STAKE);
        (address second, uint256 secondKey) = makeKey("second");
        bytes memory proof = operatorProof(secondKey, owner);
        bytes memory back = operatorProof(operatorKey, owner);
        vm.startPrank(owner);
        miners.rotateOperator(second, proof);
        miners.rotateOperator(operator, back); // one that it has
        vm.stopPrank();
        address[] memory named = miners.operatorsOf(owner);
        vm.assertEq(named.length, 2);
        vm.assertEq(named[0], operator);
        vm.assertEq(named[1], second);
        vm.assertEq(miners.operatorsOf(stranger).length, 0);
    }

    function test_requireWorkers_namesTheFirstThatCannot() public {
        registerMiner(MIN_STAKE);
        (address second, uint256 secondKey) = makeKey("second");
        registerMiner(stranger, secondKey, 2 * MIN_STAKE);
        miners.requireWorkers(planOf(operator, second), MIN_STAKE, address(jury));
        miners.requireWorkers(new Stage[](0), MIN_STAKE, address(jury));
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, operator));
        miners.requireWorkers(planOf(second, operator), MIN_STAKE + 1, address(jury));
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.ArbitratorUnknown.selector, stranger));
        miners.requireWorkers(planOf(operator, second), MIN_STAKE, stranger);
        accuse();
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, operator));
        miners.requireWorkers(planOf(operator, second), 0, address(jury));
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, address(0)));
        miners.requireWorkers(planOf(second, address(0)), 0, address(jury));
    }

    uint256[3] private keys;
    uint32[] private accusations;

    /// Whatever a miner does and is done to, its three keys may work exactly by the definition.
    function testFuzz_canWork_isItsDefinition(uint256 seed) public {
        for (uint256 i; i < 3; ++i) {
            (, keys[i]) = makeKey(string.concat("key ", vm.toString(i)));
        }
        fund(owner, address(miners), 1000 * MIN_STAKE);
        for (uint256 i; i < 40; ++i) {
            seed = uint256(keccak256(abi.encode(seed)));
            try this.act(seed) {} catch {}
            checkDefinition(seed >> 128);
        }
    }

    function checkDefinition(uint256 minStake) private view {
        uint256 stake = miners.minerOf(owner).stake;
        uint256[6] memory asks = [0, 1, MIN_STAKE, stake, stake + 1, minStake % (4 * MIN_STAKE)];
        for (uint256 k; k < 3; ++k) {
            address one = vm.addr(keys[k]);
            for (uint256 i; i < asks.length; ++i) {
                vm.assertEq(miners.canWork(one, asks[i]), mayWork(one, asks[i]));
            }
        }
    }

    /// One move of the owner or of an arbitrator, which may revert.
    function act(uint256 seed) external {
        uint256 move = seed % 11;
        uint256 amount = 1 + (seed >> 16) % (2 * MIN_STAKE);
        uint256 key = keys[(seed >> 8) % 3];
        if (seed >> 64 & 3 == 0) skipTime((seed >> 72) % UNBOND_SECONDS);
        if (move == 6) {
            accusations.push(accuse());
            return;
        }
        if (move == 7 || move == 8) {
            uint32 number = accusations[(seed >> 24) % accusations.length];
            close(number, move == 7 ? 0 : uint16(1 + (seed >> 40) % 10_000));
            return;
        }
        bytes memory proof = operatorProof(key, owner);
        uint256 stake = miners.minerOf(owner).stake;
        vm.startPrank(owner);
        if (move == 0) miners.register(MIN_STAKE + amount, vm.addr(key), proof);
        if (move == 1) miners.addStake(amount);
        if (move == 2) miners.requestExit(seed >> 80 & 1 == 0 ? stake : amount);
        if (move == 3) miners.cancelExit();
        if (move == 4) miners.withdraw();
        if (move == 5) miners.unjail();
        if (move == 9 || move == 10) miners.rotateOperator(vm.addr(key), proof);
        vm.stopPrank();
    }

    // --- exit ---

    function requestExit(uint256 amount) private {
        vm.prank(owner);
        miners.requestExit(amount);
    }

    function leaveCompletely() private {
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        if (miner.stake != 0) requestExit(miner.stake);
        skipTime(UNBOND_SECONDS);
        vm.startPrank(owner);
        if (miners.minerOf(owner).jailUntil != 0) miners.unjail();
        miners.withdraw();
        vm.stopPrank();
    }

    function test_requestExit_whenPart_staysActive() public {
        registerMiner(MIN_STAKE + 7);
        uint256 leaveAt = vm.getBlockTimestamp() + UNBOND_SECONDS;
        vm.expectEmit(address(miners));
        emit IMinerRegistry.ExitRequested(owner, 7, leaveAt);
        requestExit(7);
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        assertEqState(miner.state, IMinerRegistry.State.Active);
        vm.assertEq(uint256(miner.stake), MIN_STAKE);
        vm.assertEq(uint256(miner.leaving), 7);
        vm.assertEq(uint256(miner.leaveAt), leaveAt);
        vm.assertTrue(miners.canWork(operator, 0));
    }

    function test_requestExit_whenAll_coolsDown() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        assertEqState(minerState(), IMinerRegistry.State.Cooldown);
        vm.assertFalse(miners.canWork(operator, 0));
    }

    function test_requestExit_whenAmountWrong_reverts() public {
        registerMiner(MIN_STAKE);
        vm.expectRevert(IMinerRegistry.AmountZero.selector);
        requestExit(0);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.ExitTooLarge.selector, MIN_STAKE + 1, MIN_STAKE)
        );
        requestExit(MIN_STAKE + 1);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.StakeTooLow.selector, MIN_STAKE - 1, MIN_STAKE)
        );
        requestExit(1);
    }

    function test_withdraw_atItsSecondAndNotBefore() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        uint256 leaveAt = vm.getBlockTimestamp() + UNBOND_SECONDS;
        vm.warp(leaveAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.ExitNotReady.selector, leaveAt));
        vm.prank(owner);
        miners.withdraw();
        vm.warp(leaveAt);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Withdrawn(owner, MIN_STAKE);
        vm.prank(owner);
        miners.withdraw();
        vm.assertEq(token.balanceOf(owner), MIN_STAKE);
        assertEqState(minerState(), IMinerRegistry.State.Exited);
    }

    function test_withdraw_whenNothingLeaves_reverts() public {
        registerMiner(MIN_STAKE);
        vm.expectRevert(IMinerRegistry.NothingLeaving.selector);
        vm.prank(owner);
        miners.withdraw();
    }

    function test_withdraw_whenFrozen_waitsForTheDispute() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        uint32 number = accuse();
        skipTime(UNBOND_SECONDS * 10);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.HasOpenDisputes.selector, 1));
        vm.prank(owner);
        miners.withdraw();
        close(number, 0);
        vm.prank(owner);
        miners.withdraw();
        vm.assertEq(token.balanceOf(owner), MIN_STAKE);
    }

    function test_cancelExit_restoresAll() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.ExitCancelled(owner, MIN_STAKE);
        vm.prank(owner);
        miners.cancelExit();
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        assertEqState(miner.state, IMinerRegistry.State.Active);
        vm.assertEq(uint256(miner.stake), MIN_STAKE);
        vm.assertEq(uint256(miner.leaving), 0);
        vm.assertEq(uint256(miner.leaveAt), 0);
    }

    function test_cancelExit_whenNothingLeaves_reverts() public {
        registerMiner(MIN_STAKE);
        vm.expectRevert(IMinerRegistry.NothingLeaving.selector);
        vm.prank(owner);
        miners.cancelExit();
    }

    /// After a slash the rest may leave but not work below the minimum.
    function test_cancelExit_whenRestIsBelowMinimum_reverts() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        slash(1000);
        vm.expectRevert(
            abi.encodeWithSelector(
                IMinerRegistry.StakeTooLow.selector, MIN_STAKE * 9 / 10, MIN_STAKE
            )
        );
        vm.prank(owner);
        miners.cancelExit();
    }

    // --- jail ---

    function test_unjail_afterItsTimeWithEnoughStake() public {
        registerMiner(MIN_STAKE * 2);
        slash(1000);
        uint256 until = vm.getBlockTimestamp() + JAIL_SECONDS;
        vm.assertFalse(miners.canWork(operator, 0));
        vm.warp(until - 1);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.MinerJailed.selector, until));
        vm.prank(owner);
        miners.unjail();
        vm.warp(until);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Unjailed(owner);
        vm.prank(owner);
        miners.unjail();
        vm.assertTrue(miners.canWork(operator, 0));
    }

    function test_unjail_whenNotJailed_reverts() public {
        registerMiner(MIN_STAKE);
        vm.expectRevert(IMinerRegistry.NotJailed.selector);
        vm.prank(owner);
        miners.unjail();
    }

    function test_unjail_whenStakeTooLow_needsATopUp() public {
        registerMiner(MIN_STAKE);
        slash(10_000);
        skipTime(JAIL_SECONDS);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.StakeTooLow.selector, 0, MIN_STAKE));
        vm.prank(owner);
        miners.unjail();
        fund(owner, address(miners), MIN_STAKE);
        vm.startPrank(owner);
        miners.addStake(MIN_STAKE);
        miners.unjail();
        vm.stopPrank();
        vm.assertTrue(miners.canWork(operator, 0));
    }

    function test_withdraw_whenJailed_waits() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        skipTime(UNBOND_SECONDS);
        slash(1000);
        vm.expectRevert(
            abi.encodeWithSelector(
                IMinerRegistry.MinerJailed.selector, vm.getBlockTimestamp() + JAIL_SECONDS
            )
        );
        vm.prank(owner);
        miners.withdraw();
    }

    /// Who is slashed below the minimum can still take out the rest without putting in more.
    function test_exit_whenSlashedBelowMinimum_needsNoNewMoney() public {
        registerMiner(MIN_STAKE);
        slash(2000);
        leaveCompletely();
        vm.assertEq(token.balanceOf(owner), MIN_STAKE * 8 / 10);
    }

    function test_exit_whenSlashedToNothingInCooldown_endsInExited() public {
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        slash(10_000);
        leaveCompletely();
        assertEqState(minerState(), IMinerRegistry.State.Exited);
        registerMiner(MIN_STAKE); // and may come back
    }

    // --- arbitrators ---

    function test_disputes_whenStranger_revert() public {
        registerMiner(MIN_STAKE);
        vm.prank(address(jury)); // on the list, and yet not TaskRegistry
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.NotTaskRegistry.selector, address(jury))
        );
        miners.openDispute(owner, address(jury), challenger, requester, 1);

        uint32 number = accuse();
        address[4] memory others = [stranger, address(jury), address(tasks), owner];
        for (uint256 i; i < others.length; ++i) {
            vm.prank(others[i]);
            vm.expectRevert(
                abi.encodeWithSelector(IMinerRegistry.NotArbitrator.selector, others[i])
            );
            miners.closeDispute(owner, number, 10_000, 0);
        }
    }

    function test_aDispute_isClosedOnce() public {
        registerMiner(MIN_STAKE);
        bytes memory refused =
            abi.encodeWithSelector(IMinerRegistry.NotArbitrator.selector, arbitrator);
        uint16[2] memory bps = [uint16(0), 1000];
        for (uint256 i; i < bps.length; ++i) {
            uint32 number = accuse();
            close(number, bps[i]);
            vm.startPrank(arbitrator);
            vm.expectRevert(refused);
            miners.closeDispute(owner, number, 10_000, 0);
            vm.expectRevert(refused);
            miners.closeDispute(owner, number + 1, 10_000, 0); // that never was
            vm.stopPrank();
        }
    }

    function test_disputes_countAndFreeze() public {
        registerMiner(MIN_STAKE);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Frozen(owner, 0, arbitrator, challenger, requester, 7);
        uint32 first = accuse(challenger, requester, 7);
        uint32 second = accuse();
        vm.assertEq(second, first + 1);
        IMinerRegistry.Dispute memory d = miners.disputeOf(owner, first);
        vm.assertEq(d.arbitrator, arbitrator);
        vm.assertEq(uint256(d.atStake), MIN_STAKE);
        vm.assertEq(d.challenger, challenger);
        vm.assertEq(d.victim, requester);
        vm.assertEq(uint256(d.toVictim), 7);
        vm.assertFalse(miners.canWork(operator, 0));
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Released(owner, second);
        close(second, 0);
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 1);
        vm.assertFalse(miners.canWork(operator, 0));
        close(first, 0);
        vm.assertTrue(miners.canWork(operator, 0));
        vm.assertEq(uint256(miners.poolOf(owner).served), 2);
    }

    function test_slash_splitsTwentyThirtyFifty() public {
        registerMiner(MIN_STAKE);
        uint32 number = accuse();
        (uint256 fifth, uint256 half) = (MIN_STAKE / 5, MIN_STAKE / 2);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Slashed(owner, number, MIN_STAKE, half);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Jailed(owner, vm.getBlockTimestamp() + JAIL_SECONDS);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.Shared(owner, number, challenger, requester, fifth, half - fifth);
        uint256 amount = close(number, 10_000);
        vm.assertEq(amount, MIN_STAKE);
        vm.assertEq(miners.creditOf(challenger), MIN_STAKE / 5);
        vm.assertEq(miners.creditOf(requester), MIN_STAKE * 3 / 10);
        vm.assertEq(miners.creditOf(BURN), MIN_STAKE / 2);
    }

    function test_slash_whenCapped_burnsTheRest() public {
        registerMiner(MIN_STAKE);
        uint32 number = accuse(challenger, requester, 5);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.PoolBurned(owner, MIN_STAKE / 2 - 8);
        close(number, 10_000, 3);
        vm.assertEq(miners.creditOf(challenger), 3);
        vm.assertEq(miners.creditOf(requester), 5);
        vm.assertEq(miners.creditOf(BURN), MIN_STAKE - 8);
    }

    function test_slash_takesFromLeavingToo() public {
        registerMiner(MIN_STAKE * 4);
        requestExit(MIN_STAKE * 3);
        vm.assertEq(slash(5000), MIN_STAKE * 2);
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        vm.assertEq(uint256(miner.stake), MIN_STAKE / 2);
        vm.assertEq(uint256(miner.leaving), MIN_STAKE * 3 / 2);
    }

    function test_slash_whenUnknownOrGone_takesNothingAndJailsNobody() public {
        vm.assertEq(slash(10_000), 0);
        assertEqState(minerState(), IMinerRegistry.State.None);
        registerMiner(MIN_STAKE);
        requestExit(MIN_STAKE);
        leaveCompletely();
        vm.assertEq(slash(10_000), 0);
        vm.assertEq(uint256(miners.minerOf(owner).jailUntil), 0);
        registerMiner(MIN_STAKE);
        vm.assertTrue(miners.canWork(operator, 0));
    }

    function test_slash_whenBpsAboveAll_takesAll() public {
        registerMiner(MIN_STAKE);
        vm.assertEq(slash(type(uint16).max), MIN_STAKE);
    }

    function test_slash_whenNobodyToReward_burns() public {
        registerMiner(MIN_STAKE);
        close(accuse(address(0), address(0), MIN_STAKE), 10_000);
        vm.assertEq(miners.creditOf(BURN), MIN_STAKE);
        vm.assertEq(miners.creditOf(address(0)), 0);
    }

    function test_slash_countsStrikesUpToTheirByte() public {
        registerMiner(MIN_STAKE);
        for (uint256 i; i < 300; ++i) {
            slash(1);
        }
        vm.assertEq(uint256(miners.minerOf(owner).strikes), 255);
    }

    function test_slash_whenRecipientsAreBlacklisted_doesNotRevert() public {
        BlacklistToken bad = new BlacklistToken(address(this));
        deploy(bad);
        registerMiner(MIN_STAKE);
        bad.refuse(challenger);
        bad.refuse(requester);
        bad.refuse(BURN);
        vm.assertEq(slash(10_000), MIN_STAKE);
        vm.expectRevert(bytes("refused")); // only the refused one's own call fails
        vm.prank(challenger);
        miners.withdrawCredit();
    }

    function testFuzz_slash_conservesMoneyAndNeverReverts(
        uint96 stake,
        uint96 leaving,
        uint16 bps,
        uint256 cap
    ) public {
        stake = uint96(bound(stake, MIN_STAKE, 1e18));
        leaving = uint96(bound(leaving, 0, 1e18));
        registerMiner(uint256(stake) + leaving);
        if (leaving != 0) requestExit(leaving);
        uint256 amount = close(accuse(challenger, requester, cap), bps, cap);
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        uint256 credits =
            miners.creditOf(challenger) + miners.creditOf(requester) + miners.creditOf(BURN);
        vm.assertEq(credits, amount);
        vm.assertEq(uint256(miner.stake) + miner.leaving + amount, uint256(stake) + leaving);
        vm.assertGe(miners.creditOf(BURN), (amount + 1) / 2);
        vm.assertLe(miners.creditOf(challenger), cap);
        vm.assertLe(miners.creditOf(requester), cap);
        vm.assertEq(token.balanceOf(address(miners)), uint256(stake) + leaving);
    }

    /// Slashed again and again down to single units: the books always add up.
    function testFuzz_slash_ofTinyStakes_losesNoUnit(uint16[24] calldata bps) public {
        registerMiner(MIN_STAKE);
        slash(9999);
        slash(9990);
        for (uint256 i; i < bps.length; ++i) {
            slash(bps[i]);
            IMinerRegistry.Miner memory miner = miners.minerOf(owner);
            uint256 credits =
                miners.creditOf(challenger) + miners.creditOf(requester) + miners.creditOf(BURN);
            vm.assertEq(uint256(miner.stake) + miner.leaving + credits, MIN_STAKE);
        }
    }

    // --- credits ---

    function test_withdrawCredit_paysOnce() public {
        registerMiner(MIN_STAKE);
        slash(10_000);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.CreditWithdrawn(requester, MIN_STAKE * 3 / 10);
        vm.prank(requester);
        vm.assertEq(miners.withdrawCredit(), MIN_STAKE * 3 / 10);
        vm.expectRevert(IMinerRegistry.NoCredit.selector);
        vm.prank(requester);
        miners.withdrawCredit();
        vm.assertEq(token.balanceOf(requester), MIN_STAKE * 3 / 10);
    }

    // --- reentrancy ---

    function test_reentrancy_intoEveryGuardedFunction_fails() public {
        CallbackToken bad = new CallbackToken(address(this));
        deploy(bad);
        registerMiner(MIN_STAKE * 2);
        slash(1000);
        bytes[] memory calls = new bytes[](4);
        calls[0] = abi.encodeCall(miners.withdraw, ());
        calls[1] = abi.encodeCall(miners.withdrawCredit, ());
        calls[2] = abi.encodeCall(miners.addStake, (1));
        calls[3] = abi.encodeCall(miners.register, (1, operator, ""));
        for (uint256 i; i < calls.length; ++i) {
            fund(owner, address(miners), 1);
            bad.arm(address(miners), calls[i]);
            vm.prank(owner);
            miners.addStake(1);
            vm.assertTrue(bad.called());
            vm.assertFalse(bad.succeeded());
            vm.assertEq(bad.answer(), abi.encodeWithSignature("ReentrancyGuardReentrantCall()"));
        }
    }

    // --- governance ---

    function test_addArbitrator_waitsForTheDelay() public {
        vm.startPrank(governor);
        uint256 readyAt = vm.getBlockTimestamp() + ARBITRATOR_DELAY_SECONDS;
        address candidate = address(new Referee(40 hours));
        vm.expectEmit(address(miners));
        emit IMinerRegistry.ArbitratorProposed(candidate, readyAt);
        miners.proposeArbitrator(candidate);
        vm.warp(readyAt - 1);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.ArbitratorNotReady.selector, readyAt)
        );
        miners.addArbitrator(candidate);
        vm.warp(readyAt);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.ArbitratorAdded(candidate);
        miners.addArbitrator(candidate);
        vm.assertTrue(miners.isArbitrator(candidate));
        vm.stopPrank();
    }

    function test_addArbitrator_whenNeverProposed_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.ArbitratorNotReady.selector, 0));
        vm.prank(governor);
        miners.addArbitrator(stranger);
    }

    /// INVARIANT: unbonding outlasts any dispute, whoever arbitrates.
    function test_addArbitrator_whenItsDisputesAreTooLong_reverts() public {
        address slow = address(new Referee(40 hours + 1));
        vm.startPrank(governor);
        miners.proposeArbitrator(slow);
        skipTime(ARBITRATOR_DELAY_SECONDS);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.UnbondTooShort.selector, 40 hours, 40 hours + 1)
        );
        miners.addArbitrator(slow);
        vm.stopPrank();
    }

    /// A bare key cannot become arbitrator: no trusted signer.
    function test_addArbitrator_whenPlainKey_reverts() public {
        vm.startPrank(governor);
        miners.proposeArbitrator(stranger);
        skipTime(ARBITRATOR_DELAY_SECONDS);
        vm.expectRevert();
        miners.addArbitrator(stranger);
        vm.stopPrank();
    }

    /// It comes back as any other does: after a proposal, and the whole delay.
    function test_removeArbitrator_takesItFromTheList_andItWaitsAgain() public {
        address candidate = address(new Referee(40 hours));
        vm.startPrank(governor);
        miners.proposeArbitrator(candidate);
        skipTime(ARBITRATOR_DELAY_SECONDS);
        miners.addArbitrator(candidate);
        vm.expectEmit(address(miners));
        emit IMinerRegistry.ArbitratorRemoved(candidate);
        miners.removeArbitrator(candidate);
        vm.assertFalse(miners.isArbitrator(candidate));
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.ArbitratorNotReady.selector, 0));
        miners.addArbitrator(candidate);
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.ArbitratorUnknown.selector, candidate)
        );
        miners.removeArbitrator(candidate);
        miners.proposeArbitrator(candidate);
        skipTime(ARBITRATOR_DELAY_SECONDS);
        miners.addArbitrator(candidate);
        vm.assertTrue(miners.isArbitrator(candidate));
        vm.stopPrank();
    }

    function test_governance_whenStranger_reverts() public {
        bytes memory refused =
            abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, stranger);
        vm.startPrank(stranger);
        vm.expectRevert(refused);
        miners.proposeArbitrator(stranger);
        vm.expectRevert(refused);
        miners.addArbitrator(stranger);
        vm.expectRevert(refused);
        miners.removeArbitrator(stranger);
        vm.stopPrank();
    }

    function test_constructor_whenUnbondTooShort_reverts() public {
        MinerRegistry.Params memory p = minerParams(address(jury));
        uint256 need = MAX_JOB_SECONDS + MAX_WINDOW_SECONDS + MAX_DISPUTE_SECONDS;
        p.unbondSeconds = need - 1;
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.UnbondTooShort.selector, need - 1, need)
        );
        new MinerRegistry(p);
        p.unbondSeconds = need;
        new MinerRegistry(p);
    }

    /// Who trusts no new arbitrator is out before an order can name it.
    function test_constructor_whenArbitratorDelayTooShort_reverts() public {
        MinerRegistry.Params memory p = minerParams(address(jury));
        uint256 need = UNBOND_SECONDS + MAX_JOB_SECONDS;
        p.arbitratorDelaySeconds = need - 1;
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.ArbitratorDelayTooShort.selector, need - 1, need)
        );
        new MinerRegistry(p);
        p.arbitratorDelaySeconds = need;
        new MinerRegistry(p);
    }

    function test_constructor_setsEverything() public view {
        vm.assertTrue(miners.isArbitrator(address(jury)));
        vm.assertFalse(miners.isArbitrator(address(tasks)));
        vm.assertFalse(miners.isArbitrator(governor));
        vm.assertEq(address(miners.token()), address(token));
        vm.assertEq(miners.taskRegistry(), address(tasks));
        vm.assertEq(miners.minStake(), MIN_STAKE);
        vm.assertEq(miners.unbondSeconds(), UNBOND_SECONDS);
        vm.assertEq(miners.jailSeconds(), JAIL_SECONDS);
        vm.assertEq(miners.maxDisputeSeconds(), MAX_DISPUTE_SECONDS);
        vm.assertEq(miners.owner(), governor);
        vm.assertEq(miners.guardian(), guardian);
    }

    // --- pause ---

    function test_pause_stopsEntriesOnly() public {
        registerMiner(MIN_STAKE * 2);
        slash(1000);
        vm.prank(guardian);
        miners.pauseEntries(7 days);
        bytes memory paused = abi.encodeWithSelector(
            EntryPause.EntriesPaused.selector, vm.getBlockTimestamp() + 7 days
        );
        vm.startPrank(stranger);
        vm.expectRevert(paused);
        miners.register(MIN_STAKE, operator, "");
        vm.stopPrank();
        // every way out and every clock still runs
        skipTime(JAIL_SECONDS);
        vm.startPrank(owner);
        miners.unjail();
        miners.requestExit(miners.minerOf(owner).stake);
        miners.cancelExit();
        vm.stopPrank();
        vm.prank(requester);
        miners.withdrawCredit();
    }
}

contract Referee {
    uint256 public maxDisputeSeconds;

    constructor(uint256 seconds_) {
        maxDisputeSeconds = seconds_;
    }
}
