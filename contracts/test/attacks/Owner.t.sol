// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {TimelockController} from "@openzeppelin/contracts/governance/TimelockController.sol";

import {EntryPause} from "../../src/EntryPause.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {Order} from "../../src/types/Signed.sol";
import {Suite} from "../fixtures/Suite.sol";
import {Robber} from "./Slashing.t.sol";

/// What may an owner do to those who trust its network? Propose, and wait until they are gone.
contract OwnerAttacks is Suite {
    uint256 private constant ARBITRATOR_DELAY_SECONDS = UNBOND_SECONDS + MAX_JOB_SECONDS;
    uint256 private constant TIMELOCK_SECONDS = 2 days;
    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;

    address private council = makeAddr("council");

    // --- a new arbitrator ---

    /// Every miner has a job of the longest kind when an owner proposes an arbitrator that takes
    /// what it can. All leave at the proposal, or as late as a fuzzer likes within the longest job.
    /// All have their whole stake before an order can name the newcomer.
    function test_everyMinerThatLeavesAtTheProposal_keepsItsStake(uint256 seed) public {
        Deal memory deal = longestDeal();
        address robber = propose();
        uint256 proposedAt = vm.getBlockTimestamp();
        for (uint256 i; i < minerOwners.length; ++i) {
            uint256 late = i == 0 ? 0 : uint256(keccak256(abi.encode(seed, i))) % MAX_JOB_SECONDS;
            vm.warp(proposedAt + late);
            vm.prank(minerOwners[i]);
            miners.requestExit(STAKE);
        }
        vm.warp(deal.order.deadline);
        deliver(deal, IN, OUT);
        skipTime(deal.order.window + 1);
        finalize(deal);

        vm.warp(proposedAt + ARBITRATOR_DELAY_SECONDS);
        for (uint256 i; i < minerOwners.length; ++i) {
            vm.prank(minerOwners[i]);
            vm.assertEq(miners.withdraw(), STAKE);
            vm.assertEq(token.balanceOf(minerOwners[i]), STAKE);
        }
        vm.prank(governor);
        miners.addArbitrator(robber);
        for (uint256 i; i < minerOwners.length; ++i) {
            Robber(robber).rob(minerOwners[i], stranger);
        }
        vm.assertEq(miners.creditOf(stranger), 0);
        vm.assertEq(token.balanceOf(address(miners)), 0);
    }

    /// A second before the delay is over, no order can name it; a miner that left takes none then.
    function test_noOrderNamesANewArbitrator_whileWhoLeftHasStake() public {
        address robber = propose();
        address operator = vm.addr(operatorKeys[0]);
        vm.prank(minerOwners[0]);
        miners.requestExit(STAKE);
        skipTime(ARBITRATOR_DELAY_SECONDS - 1);
        vm.prank(governor);
        vm.expectRevert();
        miners.addArbitrator(robber);
        Order memory order = newOrder();
        order.arbitrator = robber;
        Deal memory deal = dealOf(order, evenPlan(1));
        vm.prank(matcher);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.ArbitratorUnknown.selector, robber));
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);

        skipTime(1);
        vm.prank(governor);
        miners.addArbitrator(robber);
        vm.prank(matcher);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, operator));
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
    }

    // --- an owner that is a timelock ---

    function test_aTimelock_proposesAfterItsDelay_andTheRegistrysComesOnTop() public {
        TimelockController lock = handOver();
        address robber = address(new Robber(address(miners)));
        bytes memory propose_ = abi.encodeCall(miners.proposeArbitrator, (robber));
        schedule(lock, address(miners), propose_);

        skipTime(TIMELOCK_SECONDS - 1);
        vm.expectRevert();
        lock.execute(address(miners), 0, propose_, 0, 0);
        vm.assertEq(miners.arbitratorReadyAt(robber), 0);

        skipTime(1);
        lock.execute(address(miners), 0, propose_, 0, 0); // anyone may
        uint256 readyAt = vm.getBlockTimestamp() + ARBITRATOR_DELAY_SECONDS;
        vm.assertEq(miners.arbitratorReadyAt(robber), readyAt);

        bytes memory add = abi.encodeCall(miners.addArbitrator, (robber));
        schedule(lock, address(miners), add);
        skipTime(TIMELOCK_SECONDS);
        vm.expectRevert(
            abi.encodeWithSelector(IMinerRegistry.ArbitratorNotReady.selector, readyAt)
        );
        lock.execute(address(miners), 0, add, 0, 0);
        vm.warp(readyAt);
        lock.execute(address(miners), 0, add, 0, 0);
        vm.assertTrue(miners.isArbitrator(robber));
    }

    /// Not the former owner, not the timelock's own council, not the guardian, not a stranger; and
    /// the council cannot shorten the delay but by waiting for it.
    function test_nothingBypassesTheTimelock() public {
        TimelockController lock = handOver();
        bytes[] memory calls = new bytes[](3);
        calls[0] = abi.encodeCall(miners.proposeArbitrator, (stranger));
        calls[1] = abi.encodeCall(EntryPause.setGuardian, (stranger));
        calls[2] = abi.encodeCall(Ownable2Step.transferOwnership, (stranger));
        address[4] memory who = [governor, council, guardian, stranger];
        for (uint256 i; i < who.length; ++i) {
            for (uint256 j; j < calls.length; ++j) {
                refuse(who[i], address(miners), calls[j]);
                refuse(
                    who[i],
                    address(lock),
                    abi.encodeCall(
                        lock.execute, (address(miners), 0, calls[j], bytes32(0), bytes32(0))
                    )
                );
                if (who[i] == council) continue;
                refuse(
                    who[i],
                    address(lock),
                    abi.encodeCall(
                        lock.schedule,
                        (address(miners), 0, calls[j], bytes32(0), bytes32(0), TIMELOCK_SECONDS)
                    )
                );
            }
            refuse(who[i], address(lock), abi.encodeCall(lock.updateDelay, (0)));
            bytes32 role = lock.PROPOSER_ROLE();
            refuse(who[i], address(lock), abi.encodeCall(lock.grantRole, (role, stranger)));
        }
        vm.prank(council);
        vm.expectRevert(
            abi.encodeWithSelector(
                TimelockController.TimelockInsufficientDelay.selector,
                TIMELOCK_SECONDS - 1,
                TIMELOCK_SECONDS
            )
        );
        lock.schedule(address(miners), 0, calls[0], 0, 0, TIMELOCK_SECONDS - 1);
        vm.assertEq(miners.owner(), address(lock));
        vm.assertEq(miners.guardian(), guardian);
        vm.assertEq(miners.arbitratorReadyAt(stranger), 0);
    }

    /// What the timelock sets, fees included, it sets no faster; a fee only ever falls.
    function test_aTimelock_cannotRaiseTheFee() public {
        TimelockController lock = handOver();
        bytes memory raise = abi.encodeCall(tasks.lowerProtocolFee, (PROTOCOL_FEE_BPS + 1));
        schedule(lock, address(tasks), raise);
        skipTime(TIMELOCK_SECONDS);
        vm.expectRevert();
        lock.execute(address(tasks), 0, raise, 0, 0);
        bytes memory lower = abi.encodeCall(tasks.lowerProtocolFee, (PROTOCOL_FEE_BPS - 1));
        schedule(lock, address(tasks), lower);
        skipTime(TIMELOCK_SECONDS);
        lock.execute(address(tasks), 0, lower, 0, 0);
        vm.assertEq(uint256(tasks.params().protocolFeeBps), PROTOCOL_FEE_BPS - 1);
    }

    // --- scenes ---

    /// A job of all miners with the latest deadline and the longest window, matched just now.
    function longestDeal() private returns (Deal memory deal) {
        Order memory order = newOrder();
        order.deadline = uint64(vm.getBlockTimestamp() + MAX_JOB_SECONDS);
        order.window = MAX_WINDOW_SECONDS;
        deal = dealOf(order, evenPlan(minerOwners.length));
        openMatched(deal);
    }

    function propose() private returns (address robber) {
        robber = address(new Robber(address(miners)));
        vm.prank(governor);
        miners.proposeArbitrator(robber);
    }

    /// Both registries are the timelock's, in the two steps of a person's handover.
    function handOver() private returns (TimelockController lock) {
        address[] memory proposers = new address[](1);
        proposers[0] = council;
        lock = new TimelockController(TIMELOCK_SECONDS, proposers, new address[](1), address(0));
        address[2] memory owned = [address(miners), address(tasks)];
        for (uint256 i; i < owned.length; ++i) {
            vm.prank(governor);
            Ownable2Step(owned[i]).transferOwnership(address(lock));
            vm.assertEq(Ownable(owned[i]).owner(), governor); // until it accepts
            schedule(lock, owned[i], abi.encodeCall(Ownable2Step.acceptOwnership, ()));
        }
        skipTime(TIMELOCK_SECONDS);
        for (uint256 i; i < owned.length; ++i) {
            lock.execute(owned[i], 0, abi.encodeCall(Ownable2Step.acceptOwnership, ()), 0, 0);
            vm.assertEq(Ownable(owned[i]).owner(), address(lock));
        }
    }

    function schedule(TimelockController lock, address target, bytes memory data) private {
        vm.prank(council);
        lock.schedule(target, 0, data, 0, 0, TIMELOCK_SECONDS);
    }

    function refuse(address who, address target, bytes memory data) private {
        vm.prank(who);
        (bool done,) = target.call(data);
        vm.assertFalse(done);
    }
}
