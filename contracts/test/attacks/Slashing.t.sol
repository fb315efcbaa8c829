// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {Order} from "../../src/types/Signed.sol";
import {Court} from "../fixtures/Court.sol";

/// An arbitrator that takes what it can from whomever it likes.
contract Robber {
    address private immutable _miners;

    constructor(address miners) {
        _miners = miners;
    }

    function maxDisputeSeconds() external pure returns (uint256) {
        return 1;
    }

    function rob(address owner, address straw) external {
        bytes[5] memory ways = [
            abi.encodeWithSignature("freeze(address)", owner),
            abi.encodeWithSignature(
                "slash(address,uint16,address,uint256,address)", owner, 10_000, straw, 1e30, straw
            ),
            abi.encodeWithSignature(
                "openDispute(address,address,address,address,uint256)",
                owner,
                address(this),
                straw,
                straw,
                1e30
            ),
            abi.encodeWithSignature(
                "closeDispute(address,uint32,uint16,uint256)", owner, 0, 10_000, 1e30
            ),
            abi.encodeWithSignature("serve(address,uint256)", owner, 10)
        ];
        for (uint256 i; i < ways.length; ++i) {
            (bool ok,) = _miners.call(ways[i]);
            ok; // what it has done is looked at afterwards
        }
    }
}

/// Ways to game a slash, each of which the contracts close.
contract SlashingAttacks is Court {
    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;

    address private straw;
    uint256 private strawKey;

    function setUp() public override {
        super.setUp();
        (straw, strawKey) = makeKey("straw");
        depositFor(straw, 100 * USD);
    }

    /// A job of one stage, miner 0, ordered by the miner's straw.
    function strawDeal() private returns (Deal memory deal) {
        Order memory order = newOrder();
        (order.requester, order.auditor) = (straw, straw);
        deal = dealOf(order, evenPlan(1));
        deal.orderSig = sign(strawKey, digest(deal.orderHash));
        openMatched(deal);
    }

    function disputeBy(address who, Deal memory deal, Delivery memory delivery, uint256 stage)
        private
    {
        uint256 cost = uint256(BOND) + FEE;
        fund(who, address(jury), cost);
        vm.prank(who);
        callDispute(deal, delivery, stage);
    }

    // --- self-conviction ---

    /// A guilty miner is accused, and convicts itself first in a job of its straw.
    function test_selfConviction_leavesTheOlderAccuserWhatItWouldHaveHadAlone() public {
        Deal memory deal = matchedDeal(2);
        Deal memory own = strawDeal();
        Delivery memory delivery = deliver(deal, IN, OUT);
        Delivery memory ownDelivery = deliver(own, IN, OUT);

        DisputeId honest = openDispute(deal, delivery, 0);
        disputeBy(straw, own, ownDelivery, 0);
        DisputeId feigned = disputeIdOf(own, ownDelivery, 0);
        rule(feigned, IJuryArbitrator.Vote.Fault);
        rule(honest, IJuryArbitrator.Vote.Fault);

        uint256 alone = STAKE / 5 + maxNanoOf(deal.order) / NANO;
        vm.assertEq(miners.creditOf(requester), alone);
        vm.assertLe(miners.creditOf(straw), STAKE / 2 - alone);
    }

    /// The same by two signed receipts that contradict each other, which need no arbitrator.
    function test_selfConviction_byEquivocation_waitsForTheOlderAccuser() public {
        Deal memory deal = matchedDeal(2);
        Deal memory own = strawDeal();
        Delivery memory delivery = deliver(deal, IN, OUT);

        DisputeId honest = openDispute(deal, delivery, 0);
        equivocation(own, contradiction(own, 0));
        rule(honest, IJuryArbitrator.Vote.Fault);

        uint256 alone = STAKE / 5 + maxNanoOf(deal.order) / NANO;
        vm.assertEq(miners.creditOf(requester), alone);
        vm.assertLe(miners.creditOf(straw), STAKE / 2 - alone);
    }

    /// Nobody is paid more than its job locked and ten bonds, whoever is behind it.
    function test_selfConviction_isHeldToTheCaps() public {
        Deal memory own = strawDeal();
        Delivery memory delivery = deliver(own, IN, OUT);
        disputeBy(straw, own, delivery, 0);
        rule(disputeIdOf(own, delivery, 0), IJuryArbitrator.Vote.Fault);
        vm.assertEq(miners.creditOf(straw), STAKE / 5 + maxNanoOf(own.order) / NANO);
    }

    /// Whoever steals a serving key signs two receipts with it in a job that it orders itself. The
    /// stake is lost, but not to the thief: it gets what the job locked, here nothing.
    function test_aStolenOperatorKey_bringsNothingInAFreeJob() public {
        Order memory order = newOrder();
        (order.requester, order.auditor) = (straw, straw);
        makeFree(order);
        Deal memory own = dealOf(order, evenPlan(1));
        own.orderSig = sign(strawKey, digest(own.orderHash));
        openMatched(own);
        equivocation(own, contradiction(own, 0));
        vm.assertEq(miners.minerOf(minerOwners[0]).stake, 0);
        vm.assertEq(miners.creditOf(straw), 0);
    }

    /// And twice what it locked in any other: no least stake is added to it.
    function test_aStolenOperatorKey_bringsNoMoreThanTheJobsLockAShare() public {
        Deal memory own = strawDeal();
        equivocation(own, contradiction(own, 0));
        vm.assertEq(miners.creditOf(straw), evidenceAmends(own));
        vm.assertLt(evidenceAmends(own), MIN_STAKE);
    }

    // --- one dispute a stage ---

    function test_aSilentAuditor_leavesTheRequesterItsDispute() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = deliver(deal, IN, OUT);
        disputeBy(auditor, deal, delivery, 0);
        disputeBy(requester, deal, delivery, 0);
        vm.assertEq(jobOf(deal).openDisputes, 2);
    }

    function test_aSessionsStage_isDisputedAgainForAnotherReceipt() public {
        Deal memory deal = matchedSession(2);
        settleAck(deal, IN, OUT);
        Delivery memory first = newDelivery(deal, IN, OUT);
        DisputeId id = openDispute(deal, first, 0);
        letLapse(id);
        Delivery memory second = newDelivery(deal, IN, OUT - 1);
        disputeBy(requester, deal, second, 0);
        vm.assertEq(jobOf(deal).openDisputes, 1);
    }

    // --- the owner's arbitrator ---

    function test_anArbitratorOfTheOwner_cannotTouchAMinerThatTookNoOrderOfIt() public {
        Robber robber = new Robber(address(miners));
        vm.prank(governor);
        miners.proposeArbitrator(address(robber));
        skipTime(30 days);
        vm.prank(governor);
        miners.addArbitrator(address(robber));

        robber.rob(minerOwners[0], straw);
        IMinerRegistry.Miner memory miner = miners.minerOf(minerOwners[0]);
        vm.assertEq(miner.stake, STAKE);
        vm.assertEq(miner.openDisputes, 0);
        vm.assertEq(miners.creditOf(straw), 0);
    }

    // --- freezing a competitor ---

    /// A thousand times the least stake cannot be frozen for the bond of the least stake.
    function test_freezing_costsAShareOfTheStakeForEachDispute() public {
        uint256 stake = 100_000 * USD;
        fund(minerOwners[0], address(miners), stake - STAKE);
        vm.prank(minerOwners[0]);
        miners.addStake(stake - STAKE);
        for (uint256 i; i < 3; ++i) {
            Deal memory deal = matchedDeal(1);
            Delivery memory delivery = deliver(deal, IN, OUT);
            fund(requester, address(jury), stake / 200 + FEE);
            uint256 before = token.balanceOf(requester);
            vm.prank(requester);
            callDispute(deal, delivery, 0);
            vm.assertEq(before - token.balanceOf(requester), stake / 200 + FEE);
            rule(disputeIdOf(deal, delivery, 0), IJuryArbitrator.Vote.NoFault);
            vm.assertEq(jury.creditOf(minerOwners[0]), (i + 1) * stake / 400);
        }
    }

    function test_aFrozenMiner_takesNoNewJob() public {
        Deal memory deal = matchedDeal(1);
        Deal memory next = newDeal(1);
        Delivery memory delivery = deliver(deal, IN, OUT);
        DisputeId id = openDispute(deal, delivery, 0);
        address operator = next.plan[0].operator;
        vm.prank(matcher);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, operator));
        tasks.openMatched(next.order, next.orderSig, next.plan);
        rule(id, IJuryArbitrator.Vote.NoFault);
        vm.assertTrue(miners.canWork(operator, MIN_STAKE));
    }

    // --- exits ---

    /// Stake that was leaving when a job was matched is not counted for it, at any second; and
    /// what was counted is there until the last dispute of the job could be over.
    function test_anExit_neverTakesTheStakeThatAMatchCounted() public {
        address owner = minerOwners[0];
        address operator = vm.addr(operatorKeys[0]);
        vm.prank(owner);
        miners.requestExit(STAKE - MIN_STAKE);
        uint256 leaveAt = vm.getBlockTimestamp() + UNBOND_SECONDS;
        int256[4] memory offsets = [-int256(UNBOND_SECONDS), -1, int256(0), 1];
        for (uint256 i; i < offsets.length; ++i) {
            vm.warp(uint256(int256(leaveAt) + offsets[i]));
            vm.assertTrue(miners.canWork(operator, MIN_STAKE));
            vm.assertFalse(miners.canWork(operator, MIN_STAKE + 1));
        }

        // Taken back, it counts, and no clock of the old request lets it out.
        vm.prank(owner);
        miners.cancelExit();
        vm.assertTrue(miners.canWork(operator, STAKE));
        Order memory order = newOrder();
        (order.minStake, order.deadline) =
        (uint128(STAKE), uint64(vm.getBlockTimestamp() + MAX_JOB_SECONDS));
        order.window = MAX_WINDOW_SECONDS;
        Deal memory deal = dealOf(order, evenPlan(1));
        openMatched(deal);
        uint256 lastMoment = order.deadline + order.window;
        vm.prank(owner);
        miners.requestExit(STAKE);
        vm.assertFalse(miners.canWork(operator, 0));

        vm.warp(order.deadline);
        Delivery memory delivery = deliver(deal, IN, OUT);
        for (uint256 back = 2; back != 0; --back) {
            vm.warp(lastMoment - back + 1);
            vm.prank(owner);
            vm.expectRevert();
            miners.withdraw();
        }
        DisputeId id = openDispute(deal, delivery, 0);
        skipTime(UNBOND_SECONDS);
        vm.prank(owner);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.HasOpenDisputes.selector, 1));
        miners.withdraw();
        rule(id, IJuryArbitrator.Vote.Fault);
        IMinerRegistry.Miner memory miner = miners.minerOf(owner);
        vm.assertEq(miner.stake + miner.leaving, 0);
    }
}
