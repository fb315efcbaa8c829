// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JuryArbitrator} from "../src/arbitration/JuryArbitrator.sol";
import {IArbitrator} from "../src/interfaces/IArbitrator.sol";
import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {CreditBook} from "../src/libraries/CreditBook.sol";
import {AuditorDelegation, Order, Stage} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";

/// dispute, resolve, convict.
contract TaskRegistryGuiltTest is Suite {
    using Messages for *;

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;

    function delivered(uint256 stages)
        private
        returns (Deal memory deal, Delivery memory delivery)
    {
        deal = matchedDeal(stages);
        delivery = deliver(deal, IN, OUT);
    }

    function disputeBy(address who, Deal memory deal, Delivery memory delivery, uint256 stage)
        private
    {
        fund(who, address(jury), uint256(BOND) + FEE);
        vm.prank(who);
        callDispute(deal, delivery, stage);
    }

    function expectRevertOnDispute(
        Deal memory deal,
        Delivery memory delivery,
        uint256 stage,
        bytes memory reason
    ) private {
        vm.prank(requester);
        vm.expectRevert(reason);
        callDispute(deal, delivery, stage);
    }

    // --- dispute: what it does ---

    /// The jury is told all of the dispute of `stage`.
    function expectOpened(
        Deal memory deal,
        Delivery memory delivery,
        uint256 stage,
        address challenger,
        address[] memory parties
    ) private {
        address[] memory operators = new address[](deal.plan.length);
        for (uint256 i; i < operators.length; ++i) {
            operators[i] = deal.plan[i].operator;
        }
        IArbitrator.DisputeRef memory ref = IArbitrator.DisputeRef({
            job: deal.id,
            stage: uint16(stage),
            right: challenger == requester
                ? IArbitrator.Right.Requester
                : IArbitrator.Right.Auditor,
            number: 0,
            accused: minerOwners[stage],
            operator: deal.plan[stage].operator,
            challenger: challenger,
            requester: requester,
            receiptHash: delivery.receipts[stage].hash(),
            requestsRoot: delivery.receipts[stage].requestsRoot,
            modelId: modelId,
            operators: operators,
            parties: parties
        });
        vm.expectCall(address(jury), abi.encodeCall(jury.open, (ref)));
    }

    function test_dispute_freezesAndTellsTheArbitratorAll() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        fund(auditor, address(jury), uint256(BOND) + FEE);
        address[] memory parties = new address[](5);
        (parties[0], parties[1], parties[2], parties[3]) = (requester, auditor, matcher, auditor);
        expectOpened(deal, delivery, 1, auditor, parties);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobDisputed(
            deal.id,
            1,
            auditor,
            IArbitrator.Right.Auditor,
            delivery.receipts[1].hash(),
            address(jury)
        );
        vm.prank(auditor);
        callDispute(deal, delivery, 1);
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(uint256(job.state), uint256(ITaskRegistry.State.Disputed));
        vm.assertEq(job.openDisputes, 1);
        vm.assertEq(job.faultMask, 0);
        vm.assertEq(uint256(miners.minerOf(minerOwners[1]).openDisputes), 1);
        IMinerRegistry.Dispute memory d = miners.disputeOf(minerOwners[1], 0);
        vm.assertEq(d.arbitrator, address(jury));
        vm.assertEq(d.challenger, auditor);
        vm.assertEq(d.victim, requester);
        vm.assertEq(uint256(d.atStake), STAKE);
        vm.assertEq(uint256(d.toVictim), maxNanoOf(deal.order) / NANO);
    }

    function test_dispute_withoutMatcherAndAuditor_namesTheRest() public {
        Order memory order = newOrder();
        dropMatcher(order);
        order.auditor = address(0);
        Deal memory deal = dealOf(order, evenPlan(1));
        openMatched(deal);
        Delivery memory delivery = deliver(deal, IN, OUT);
        address[] memory parties = new address[](5);
        (parties[0], parties[1]) = (requester, requester);
        expectOpened(deal, delivery, 0, requester, parties);
        dispute(deal, delivery, 0);
        vm.prank(address(0));
        vm.expectRevert();
        callDispute(deal, delivery, 0);
    }

    function test_dispute_ofEveryStage_countsEach() public {
        (Deal memory deal, Delivery memory delivery) = delivered(3);
        for (uint256 i; i < 3; ++i) {
            disputeBy(i == 1 ? auditor : requester, deal, delivery, i);
            vm.assertEq(jobOf(deal).openDisputes, i + 1);
        }
        assertState(deal, ITaskRegistry.State.Disputed);
        skipTime(1 days + 1);
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.WrongState.selector, ITaskRegistry.State.Disputed)
        );
        finalize(deal);
        resolve(deal, delivery, 0, true);
        resolve(deal, delivery, 2, false);
        assertState(deal, ITaskRegistry.State.Disputed);
        vm.prank(address(jury));
        tasks.resolve(deal.id, 1, delivery.receipts[1].hash(), IArbitrator.Right.Auditor, true);
        assertState(deal, ITaskRegistry.State.Delivered);
        vm.assertEq(jobOf(deal).faultMask, 3);
        finalize(deal);
    }

    /// A receipt over a part of the requests, never delivered, is as much the stage's word.
    function test_dispute_ofAPartialReceipt() public {
        Deal memory deal = matchedDeal(2);
        deliver(deal, IN, OUT);
        Delivery memory partial_ = newDelivery(deal, 10, 10);
        partial_.receipts[1].requests = 1;
        signReceipt(deal, partial_, 1);
        dispute(deal, partial_, 1);
    }

    // --- dispute: who may ---

    function delegationTo(address who, uint64 expiry, bytes32 orderHash)
        private
        view
        returns (AuditorDelegation memory delegation, bytes memory sig)
    {
        delegation = AuditorDelegation(orderHash, who, expiry);
        sig = sign(requesterKey, digest(delegation.hash()));
    }

    function test_dispute_byAStranger_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        address[3] memory others = [stranger, matcher, minerOwners[0]];
        for (uint256 i; i < others.length; ++i) {
            vm.prank(others[i]);
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, others[i]));
            callDispute(deal, delivery, 1);
        }
    }

    function test_dispute_byADelegate_aroundItsExpiry() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        uint64 t = uint64(vm.getBlockTimestamp());
        fund(stranger, address(jury), uint256(BOND) + FEE);
        (AuditorDelegation memory delegation, bytes memory sig) =
            delegationTo(stranger, t - 1, deal.orderHash);
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, stranger));
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
        (delegation, sig) = delegationTo(stranger, t, deal.orderHash);
        vm.prank(stranger);
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
    }

    function test_dispute_withADelegationForAnother_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        uint64 until = uint64(vm.getBlockTimestamp() + 1);
        (AuditorDelegation memory delegation, bytes memory sig) =
            delegationTo(matcher, until, deal.orderHash);
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, stranger));
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
        (delegation, sig) = delegationTo(stranger, until, newOrder().hash());
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, stranger));
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
        (delegation, sig) = delegationTo(stranger, until, deal.orderHash);
        sig = sign(operatorKeys[0], digest(delegation.hash()));
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester));
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
    }

    // --- dispute: what and when ---

    /// Each right once for a receipt, whatever came of it.
    function test_dispute_twice_reverts_evenAfterARuling() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        bytes memory reason =
            abi.encodeWithSelector(ITaskRegistry.StageAlreadyDisputed.selector, 1);
        address[2] memory parties = [requester, auditor];
        for (uint256 i; i < parties.length; ++i) {
            disputeBy(parties[i], deal, delivery, 1);
            vm.prank(parties[i]);
            vm.expectRevert(reason);
            callDispute(deal, delivery, 1);
        }
        resolve(deal, delivery, 1, false);
        expectRevertOnDispute(deal, delivery, 1, reason);
    }

    /// Another receipt of the stage is another lie.
    function test_dispute_ofAnotherReceipt() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        dispute(deal, delivery, 1);
        Delivery memory other = newDelivery(deal, 10, 10);
        dispute(deal, other, 1);
        vm.assertEq(uint256(jobOf(deal).openDisputes), 2);
        resolve(deal, other, 1, false);
        assertState(deal, ITaskRegistry.State.Disputed);
        resolve(deal, delivery, 1, false);
        assertState(deal, ITaskRegistry.State.Delivered);
    }

    /// A delegate has the auditor's right, and not one of its own.
    function test_dispute_byTwoDelegates_isOneRight() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        disputeBy(auditor, deal, delivery, 1);
        (AuditorDelegation memory delegation, bytes memory sig) =
            delegationTo(stranger, uint64(vm.getBlockTimestamp()), deal.orderHash);
        fund(stranger, address(jury), uint256(BOND) + FEE);
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.StageAlreadyDisputed.selector, 1));
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
    }

    function test_dispute_ofAStageAtFault_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        bytes memory reason = abi.encodeWithSelector(ITaskRegistry.StageAlreadyAtFault.selector, 1);
        uint256 state = vm.snapshotState();
        equivocation(deal, contradiction(deal, 1));
        expectRevertOnDispute(deal, delivery, 1, reason);
        vm.revertToState(state);
        dispute(deal, delivery, 1);
        resolve(deal, delivery, 1, true);
        expectRevertOnDispute(deal, newDelivery(deal, 10, 10), 1, reason);
    }

    function test_dispute_opensWithinTheWindow() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        uint256 finalAt = jobOf(deal).finalAt;
        vm.warp(finalAt + 1);
        expectRevertOnDispute(
            deal, delivery, 1, abi.encodeWithSelector(ITaskRegistry.WindowClosed.selector, finalAt)
        );
        vm.warp(finalAt);
        dispute(deal, delivery, 1);
    }

    function test_dispute_afterAck_aroundTheWindow_touchesNoPayment() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        settleAck(deal, IN, OUT);
        uint256 balance = balanceNano(requester);
        uint256 credit = creditNano(minerOwners[1]);
        uint256 finalAt = jobOf(deal).finalAt;
        vm.warp(finalAt + 1);
        expectRevertOnDispute(
            deal, delivery, 1, abi.encodeWithSelector(ITaskRegistry.WindowClosed.selector, finalAt)
        );
        vm.warp(finalAt);
        dispute(deal, delivery, 1);
        assertState(deal, ITaskRegistry.State.Settled);
        vm.assertEq(jobOf(deal).openDisputes, 1);
        resolve(deal, delivery, 1, true);
        assertState(deal, ITaskRegistry.State.Settled);
        vm.assertEq(jobOf(deal).openDisputes, 0);
        vm.assertEq(jobOf(deal).faultMask, 2);
        vm.assertEq(balanceNano(requester), balance);
        vm.assertEq(creditNano(minerOwners[1]), credit);
    }

    function test_dispute_afterFinalize_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        uint256 finalAt = jobOf(deal).finalAt;
        vm.warp(finalAt + 1);
        finalize(deal);
        expectRevertOnDispute(
            deal, delivery, 1, abi.encodeWithSelector(ITaskRegistry.WindowClosed.selector, finalAt)
        );
    }

    function test_dispute_checksTheReceipt() public {
        (Deal memory deal,) = delivered(2);
        Delivery memory d = newDelivery(deal, IN, OUT);
        d.receipts[1].stage = 2;
        signReceipt(deal, d, 1);
        expectRevertOnDispute(
            deal, d, 1, abi.encodeWithSelector(ITaskRegistry.StageOutOfRange.selector, 2, 2)
        );
        d.receipts[1].stage = 0;
        signReceipt(deal, d, 1);
        expectRevertOnDispute(
            deal, d, 1, abi.encodeWithSelector(ITaskRegistry.ReceiptMismatch.selector, 0)
        );
        d = newDelivery(deal, IN, OUT);
        d.receipts[1].orderHash = "other";
        signReceipt(deal, d, 1);
        expectRevertOnDispute(
            deal, d, 1, abi.encodeWithSelector(ITaskRegistry.ReceiptMismatch.selector, 1)
        );
        d = newDelivery(deal, IN, OUT);
        d.receipts[1].tokensIn += 1; // not signed
        expectRevertOnDispute(
            deal,
            d,
            1,
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[1].operator)
        );
    }

    function test_dispute_withAnotherPlan_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        Stage[] memory other = evenPlan(1);
        vm.prank(requester);
        expectNoJob();
        tasks.dispute(
            deal.order, other, delivery.receipts[0], delivery.sigs[0], noDelegation(), ""
        );
    }

    // --- resolve ---

    /// The caller resolves the requester's dispute of `stage`.
    function resolveBy(Deal memory deal, Delivery memory delivery, uint16 stage) private {
        bytes32 hash = delivery.receipts[1].hash();
        tasks.resolve(deal.id, stage, hash, IArbitrator.Right.Requester, true);
    }

    function test_resolve_isTheArbitratorsAlone() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        bytes memory none = abi.encodeWithSelector(ITaskRegistry.NoOpenDispute.selector, 1);
        address[6] memory others =
            [address(this), address(0), address(tasks), requester, matcher, minerOwners[1]];
        for (uint256 round; round < 2; ++round) {
            for (uint256 i; i < others.length; ++i) {
                vm.prank(others[i]);
                vm.expectRevert(none);
                resolveBy(deal, delivery, 1);
            }
            if (round == 0) dispute(deal, delivery, 1);
        }
        vm.assertEq(jobOf(deal).openDisputes, 1);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobResolved(
            deal.id, 1, IArbitrator.Right.Requester, delivery.receipts[1].hash(), true
        );
        resolve(deal, delivery, 1, true);
    }

    /// Another arbitrator of the list decides its own disputes alone.
    function test_resolve_byAnotherListedArbitrator_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        dispute(deal, delivery, 1);
        address second = address(
            new JuryArbitrator(
                token, address(tasks), IMinerRegistry(address(miners)), juryParams()
            )
        );
        vm.prank(governor);
        miners.proposeArbitrator(second);
        skipTime(UNBOND_SECONDS + MAX_JOB_SECONDS);
        vm.prank(governor);
        miners.addArbitrator(second);
        vm.assertTrue(miners.isArbitrator(second));
        vm.prank(second);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NoOpenDispute.selector, 1));
        resolveBy(deal, delivery, 1);
        resolve(deal, delivery, 1, true);
        vm.assertEq(jobOf(deal).faultMask, 2);
    }

    /// A job keeps the arbitrator that it named: neither liar nor accuser gets away by its removal.
    function test_resolve_byAnArbitratorThatWasRemoved() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        vm.prank(governor);
        miners.removeArbitrator(address(jury));
        dispute(deal, delivery, 1);
        resolve(deal, delivery, 1, true);
        vm.assertEq(jobOf(deal).faultMask, 2);
    }

    /// No new job names it, however it is opened; a job that waits for its stages is taken back.
    function test_open_withARemovedArbitrator_reverts() public {
        Deal memory waiting = dealOf(newOrder(), evenPlan(2));
        openUnmatched(waiting);
        vm.prank(governor);
        miners.removeArbitrator(address(jury));
        bytes memory unknown =
            abi.encodeWithSelector(ITaskRegistry.ArbitratorUnknown.selector, address(jury));
        vm.prank(matcher);
        vm.expectRevert(unknown);
        tasks.matchJob(waiting.order, waiting.plan);
        vm.prank(requester);
        tasks.cancel(waiting.order);
        vm.assertEq(uint8(jobOf(waiting).state), uint8(ITaskRegistry.State.Cancelled));

        Order memory order = newOrder();
        order.nonce = waiting.order.nonce + 1;
        Deal memory deal = dealOf(order, evenPlan(2));
        vm.prank(matcher);
        vm.expectRevert(unknown);
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
        vm.prank(requester);
        vm.expectRevert(unknown);
        tasks.open(deal.order);
    }

    function test_resolve_withoutOpenDispute_reverts() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        dispute(deal, delivery, 1);
        uint16[4] memory wrong = [0, 2, 64, type(uint16).max];
        vm.startPrank(address(jury));
        for (uint256 i; i < wrong.length; ++i) {
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NoOpenDispute.selector, wrong[i]));
            resolveBy(deal, delivery, wrong[i]);
        }
        bytes memory none = abi.encodeWithSelector(ITaskRegistry.NoOpenDispute.selector, 1);
        bytes32 hash = delivery.receipts[1].hash();
        vm.expectRevert(none);
        tasks.resolve(deal.id, 1, hash, IArbitrator.Right.Auditor, true);
        vm.expectRevert(none);
        tasks.resolve(deal.id, 1, keccak256("other"), IArbitrator.Right.Requester, true);
        vm.stopPrank();
        resolve(deal, delivery, 1, false);
        vm.prank(address(jury));
        vm.expectRevert(none);
        resolveBy(deal, delivery, 1);
        vm.assertEq(jobOf(deal).faultMask, 0);
    }

    // --- equivocation ---

    /// Proven while a jury sits: guilty at once, and the ruling still closes its dispute.
    function test_equivocation_whileDisputed_convictsAtOnce() public {
        (Deal memory deal, Delivery memory delivery) = delivered(2);
        dispute(deal, delivery, 1);
        equivocation(deal, contradiction(deal, 1));
        resolve(deal, delivery, 1, false);
        vm.assertEq(jobOf(deal).faultMask, 2);
        skipTime(1 days + 1);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[1]), 0);
    }

    /// Attack #20: who slashes itself through an accomplice loses half at least to the burn.
    function test_selfSlash_losesHalf() public {
        Deal memory deal = matchedDeal(1);
        equivocation(deal, contradiction(deal, 0));
        vm.assertEq(miners.creditOf(requester), evidenceAmends(deal));
        vm.assertEq(miners.minerOf(minerOwners[0]).stake, 0);
        vm.assertGe(miners.creditOf(CreditBook.BURN_ADDRESS), STAKE / 2);
    }

    /// Attack #12: leaving stake answers for what was signed before.
    function test_leavingMiner_isStillSlashed() public {
        Deal memory deal = matchedDeal(2);
        vm.prank(minerOwners[1]);
        miners.requestExit(STAKE);
        vm.warp(deal.order.deadline);
        deliver(deal, IN, OUT);
        skipTime(1 days);
        equivocation(deal, contradiction(deal, 1));
        vm.assertEq(miners.creditOf(requester), evidenceAmends(deal));
    }

    function test_rotatedOperator_isStillSlashed() public {
        Deal memory deal = matchedDeal(2);
        (address fresh, uint256 freshKey) = makeKey("fresh operator");
        bytes memory proof =
            sign(freshKey, digest(Messages.hashOperatorProof(minerOwners[1], fresh)));
        vm.prank(minerOwners[1]);
        miners.rotateOperator(fresh, proof);
        equivocation(deal, contradiction(deal, 1));
        vm.assertEq(miners.minerOf(minerOwners[1]).stake, 0);
    }

    /// The ERC-1271 wallet that delegated may change its mind until the moment of use.
    function test_dispute_byADelegateOfAContract_asksIt() public {
        (, Deal memory deal) = matchedDealOfAContract();
        Delivery memory delivery = deliver(deal, IN, OUT);
        (AuditorDelegation memory delegation, bytes memory sig) =
            delegationTo(stranger, uint64(vm.getBlockTimestamp() + 1), deal.orderHash);
        fund(stranger, address(jury), uint256(BOND) + FEE);
        vm.prank(stranger);
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
    }
}
