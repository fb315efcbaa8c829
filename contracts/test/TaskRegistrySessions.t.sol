// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Ack, Order, Stage} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {ContractWallet} from "./fixtures/Wallets.sol";

/// Sessions: open orders, whose Acks are cumulative vouchers.
contract TaskRegistrySessionsTest is Suite {
    using Messages for *;

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;

    /// A stranger brings it: in a session anyone may.
    function bring(Deal memory deal, uint32 tokensIn, uint32 tokensOut) private {
        (Ack memory ack, bytes memory sig) = newAck(deal, tokensIn, tokensOut);
        vm.prank(stranger);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    function expectRevertOnAck(
        Deal memory deal,
        uint32 tokensIn,
        uint32 tokensOut,
        bytes memory reason
    ) private {
        (Ack memory ack, bytes memory sig) = newAck(deal, tokensIn, tokensOut);
        vm.expectRevert(reason);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    function stale(uint32 tokensIn, uint32 tokensOut) private pure returns (bytes memory) {
        return abi.encodeWithSelector(ITaskRegistry.AckStale.selector, tokensIn, tokensOut);
    }

    function wrongState(ITaskRegistry.State have) private pure returns (bytes memory) {
        return abi.encodeWithSelector(ITaskRegistry.WrongState.selector, have);
    }

    function requestClose(Deal memory deal) private {
        vm.prank(deal.order.requester);
        tasks.requestClose(deal.order, deal.planHash);
    }

    function end(Deal memory deal) private {
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        vm.prank(stranger);
        tasks.expire(deal.order, deal.plan);
    }

    /// Nobody has anything of it yet, and these are its counts.
    function assertCounted(Deal memory deal, uint32 tokensIn, uint32 tokensOut) private view {
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(job.tokensIn, tokensIn);
        vm.assertEq(job.tokensOut, tokensOut);
        vm.assertEq(uint256(job.state), uint256(ITaskRegistry.State.Matched));
        for (uint256 i; i < deal.plan.length; ++i) {
            vm.assertEq(creditNano(minerOwners[i]), 0);
        }
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - maxNanoOf(deal.order));
    }

    /// The session ends with these counts: refund = maxAmount − Σ paid.
    function assertPays(Deal memory deal, uint32 tokensIn, uint32 tokensOut) private {
        if (stateOf(deal) == ITaskRegistry.State.Matched) end(deal);
        assertState(deal, ITaskRegistry.State.Settled);
        (uint256[] memory gross, uint256[] memory pay, uint256 matcherFee, uint256 protocolFee) =
            tasks.split(deal.order, deal.plan, tokensIn, tokensOut);
        uint256 spent = openingNano(deal.order);
        for (uint256 i; i < pay.length; ++i) {
            vm.assertEq(creditNano(minerOwners[i]), pay[i]);
            spent += gross[i];
        }
        vm.assertEq(creditNano(matcher), matcherFee + openingNano(deal.order));
        vm.assertEq(creditNano(treasury), protocolFee);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - spent);
        vm.assertEq(token.balanceOf(address(escrow)), 100 * USD);
    }

    // --- what is a session ---

    function test_session_isAnOrderWithoutRoots() public {
        requestClose(matchedSession(2));
        for (uint256 i; i < 3; ++i) {
            Order memory order = newOrder();
            if (i == 0) order.inputRoot = 0;
            if (i == 1) order.samplingRoot = 0;
            Deal memory deal = dealOf(order, evenPlan(2));
            openMatched(deal);
            vm.prank(requester);
            vm.expectRevert(ITaskRegistry.NotSession.selector);
            tasks.requestClose(deal.order, deal.planHash);
            deliver(deal, IN, OUT);
            assertState(deal, ITaskRegistry.State.Delivered);
        }
    }

    function test_session_afterOpen_worksToo() public {
        Deal memory deal = dealOf(sessionOrder(), evenPlan(2));
        openUnmatched(deal);
        matchJob(deal);
        bring(deal, IN, OUT);
        assertState(deal, ITaskRegistry.State.Matched);
    }

    // --- Acks ---

    function test_ack_isCountedAndPaysAtTheEnd() public {
        Deal memory deal = matchedSession(3);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobAcknowledged(deal.id, 1000, 500);
        bring(deal, 1000, 500);
        assertCounted(deal, 1000, 500);
        vm.assertEq(jobOf(deal).finalAt, vm.getBlockTimestamp() + deal.order.window);
        assertPays(deal, 1000, 500);
    }

    function test_ack_tellsTheMostOfEachCount() public {
        Deal memory deal = matchedSession(2);
        bring(deal, 1000, 500);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobAcknowledged(deal.id, 3000, 500);
        bring(deal, 3000, 1);
    }

    /// Any Acks on the way pay what the last one alone does, to the nano unit.
    function testFuzz_acks_inAnySteps_payWhatOneDoes(
        uint8 stages,
        uint32[6] memory ins,
        uint32[6] memory outs,
        uint32[2] memory prices
    ) public {
        Order memory order = sessionOrder();
        (order.priceIn, order.priceOut) =
        (uint64(bound(prices[0], 1, 1e9)), uint64(bound(prices[1], 1, 1e9)));
        (order.maxTokensIn, order.maxTokensOut) = (300_000, 300_000);
        Deal memory deal = dealOf(order, evenPlan(bound(stages, 1, 8)));
        openMatched(deal);
        uint32 tokensIn;
        uint32 tokensOut = 1;
        bring(deal, 0, 1);
        for (uint256 i; i < ins.length; ++i) {
            uint32 moreIn = uint32(bound(ins[i], 0, 50_000));
            uint32 moreOut = uint32(bound(outs[i], 0, 50_000 - 1));
            if (moreIn == 0 && moreOut == 0) continue;
            (tokensIn, tokensOut) = (tokensIn + moreIn, tokensOut + moreOut);
            bring(deal, tokensIn, tokensOut);
            assertCounted(deal, tokensIn, tokensOut);
        }
        assertPays(deal, tokensIn, tokensOut);
    }

    function test_ack_ofNoMoreThanCounted_reverts() public {
        Deal memory deal = matchedSession(2);
        expectRevertOnAck(deal, 0, 0, stale(0, 0));
        bring(deal, 1000, 500);
        expectRevertOnAck(deal, 1000, 500, stale(1000, 500));
        expectRevertOnAck(deal, 999, 500, stale(1000, 500));
        expectRevertOnAck(deal, 1000, 499, stale(1000, 500));
        bring(deal, 1000, 501);
        bring(deal, 1001, 501);
        assertPays(deal, 1001, 501);
    }

    /// Acks that do not cover each other pay the most that any of them said of each count.
    function test_acks_thatDoNotCoverEachOther_payTheMostOfEachCount() public {
        Deal memory deal = matchedSession(3);
        bring(deal, 10_000, 1);
        bring(deal, 1, 500);
        expectRevertOnAck(deal, 9_999, 499, stale(10_000, 500));
        assertPays(deal, 10_000, 500);
    }

    /// A requester that pays itself one token more of one count makes no Ack in hand worthless.
    function test_ack_inHand_isWorthItsFaceAfterAnAckOfTheRequestersOwn() public {
        Deal memory deal = matchedSession(3);
        (Ack memory held, bytes memory sig) = newAck(deal, IN, OUT);
        (Ack memory spoiler, bytes memory spoilerSig) = newAck(deal, IN + 1, 0);
        vm.prank(requester);
        tasks.settleAck(deal.order, spoiler, spoilerSig, deal.plan);
        tasks.settleAck(deal.order, held, sig, deal.plan);
        assertPays(deal, IN + 1, OUT);
    }

    /// An early small Ack, whoever brings it: the rest still pays.
    function test_ack_earlyAndSmall_takesNothingFromALaterOne() public {
        Deal memory deal = matchedSession(3);
        (Ack memory last, bytes memory sig) = newAck(deal, IN, OUT);
        (Ack memory early, bytes memory earlySig) = newAck(deal, 1, 0);
        vm.prank(requester);
        tasks.settleAck(deal.order, early, earlySig, deal.plan);
        requestClose(deal);
        skipTime(CLOSE_DELAY_SECONDS);
        tasks.settleAck(deal.order, last, sig, deal.plan);
        vm.expectRevert(stale(IN, OUT));
        tasks.settleAck(deal.order, early, earlySig, deal.plan);
        assertPays(deal, IN, OUT);
    }

    function test_ack_overCap_reverts() public {
        Deal memory deal = matchedSession(2);
        expectRevertOnAck(
            deal,
            1_000_001,
            OUT,
            abi.encodeWithSelector(ITaskRegistry.OverCap.selector, 1_000_001, 1_000_000)
        );
        expectRevertOnAck(
            deal,
            IN,
            500_001,
            abi.encodeWithSelector(ITaskRegistry.OverCap.selector, 500_001, 500_000)
        );
        bring(deal, 1_000_000, 500_000);
        assertPays(deal, 1_000_000, 500_000);
    }

    /// Replays: of another session, of the same order over another plan, on another chain.
    function test_ack_ofAnotherSessionPlanOrChain_reverts() public {
        Deal memory deal = matchedSession(2);
        Deal memory other = matchedSession(2);
        (Ack memory ack, bytes memory sig) = newAck(other, IN, OUT);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.AckMismatch.selector));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        (ack,) = newAck(deal, IN, OUT);
        ack.planHash = evenPlan(3).hash();
        sig = sign(requesterKey, digest(ack.hash()));
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.AckMismatch.selector));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        (ack, sig) = newAck(deal, IN, OUT);
        vm.chainId(777);
        vm.expectRevert(wrongState(ITaskRegistry.State.None));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    function testFuzz_ack_withMutatedSignature_reverts(uint256 bit) public {
        Deal memory deal = matchedSession(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        bit %= 520;
        sig[bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    /// A contract may change its mind about a signature, so its sessions need a spender's key.
    function test_session_ofAContractRequester_isOpenedByASpendersKeyAlone() public {
        ContractWallet wallet = new ContractWallet(requester);
        depositFor(address(wallet), 10 * USD);
        Order memory order = sessionOrder();
        order.requester = address(wallet);
        Deal memory deal = dealOf(order, evenPlan(2));
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, address(wallet))
        );
        openMatched(deal);
        wallet.run(
            address(escrow),
            abi.encodeCall(
                escrow.setSpender,
                (requester, uint96(10 * USD), uint64(vm.getBlockTimestamp() + 1))
            )
        );
        openMatched(deal);
        skipTime(2); // the spender has expired: its Acks for its own jobs still count
        bring(deal, 1000, 1000);
        vm.assertEq(jobOf(deal).tokensOut, 1000);
    }

    /// An account that lets code speak for it (EIP-7702) cannot disown what its key signed.
    function test_ack_ofAnAccountThatBecameAContract_stillPays() public {
        Deal memory deal = matchedSession(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        ContractWallet refusing = new ContractWallet(stranger);
        vm.etch(requester, address(refusing).code);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        assertPays(deal, IN, OUT);
    }

    /// The protocol's fee falls before the end: that of the end counts, and all else is as before.
    function test_ack_beforeTheFeeFell_paysTheFeeOfTheEnd() public {
        Deal memory deal = matchedSession(3);
        bring(deal, IN, OUT);
        vm.prank(governor);
        tasks.lowerProtocolFee(0);
        assertPays(deal, IN, OUT);
        vm.assertEq(creditNano(treasury), 0);
    }

    // --- a stage at fault ---

    /// A stage found at fault before the end has nothing of the session: its share goes back.
    function test_end_withoutAStageAtFault_paysTheOthersAndGivesItsShareBack() public {
        Deal memory deal = matchedSession(3);
        bring(deal, 1000, 500);
        equivocation(deal, contradiction(deal, 1));
        bring(deal, IN, OUT);
        (uint256[] memory gross, uint256[] memory pay,,) =
            tasks.split(deal.order, deal.plan, IN, OUT);
        uint256 paid = gross[0] + gross[2] + openingNano(deal.order);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobSettled(deal.id, paid, maxNanoOf(deal.order) - paid, gross[1]);
        end(deal);
        vm.assertEq(creditNano(minerOwners[0]), pay[0]);
        vm.assertEq(creditNano(minerOwners[1]), 0);
        vm.assertEq(creditNano(minerOwners[2]), pay[2]);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - paid);
    }

    /// Whenever the conviction came between the Acks.
    function testFuzz_end_afterAConviction_isTheSameWheneverItCame(
        uint32[4] memory ins,
        uint32[4] memory outs,
        uint256 guiltyAfter
    ) public {
        Deal memory deal = matchedSession(3);
        guiltyAfter %= 5;
        uint32 tokensIn;
        uint32 tokensOut;
        for (uint256 i; i < 4; ++i) {
            if (i == guiltyAfter) equivocation(deal, contradiction(deal, 2));
            tokensIn += 1 + ins[i] % 200_000;
            tokensOut += outs[i] % 100_000;
            bring(deal, tokensIn, tokensOut);
        }
        if (guiltyAfter == 4) equivocation(deal, contradiction(deal, 2));
        end(deal);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, tokensIn, tokensOut);
        uint256 spent = gross[0] + gross[1] + openingNano(deal.order);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - spent);
        vm.assertEq(creditNano(minerOwners[2]), 0);
    }

    // --- the end ---

    function test_expire_aroundTheDeadlineAndTheDelay() public {
        Deal memory deal = matchedSession(2);
        uint256 until = uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS;
        bring(deal, 1000, 500);
        for (uint256 moment = until - 1; moment <= until; ++moment) {
            vm.warp(moment);
            vm.expectRevert(
                abi.encodeWithSelector(ITaskRegistry.DeadlineNotPassed.selector, until)
            );
            tasks.expire(deal.order, deal.plan);
        }
        bring(deal, 2000, 500); // the last second in which nobody can have ended it
        vm.warp(until + 1);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, 2000, 500);
        uint256 paid = gross[0] + gross[1] + openingNano(deal.order);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobSettled(deal.id, paid, maxNanoOf(deal.order) - paid, 0);
        vm.prank(stranger);
        tasks.expire(deal.order, deal.plan);
        assertPays(deal, 2000, 500);
    }

    function test_expire_withoutAnAck_isExpired() public {
        Deal memory deal = matchedSession(2);
        uint256 fee = openingNano(deal.order);
        uint256 amount = maxNanoOf(deal.order) - fee;
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobExpired(deal.id, requester, fee, amount);
        tasks.expire(deal.order, deal.plan);
        assertState(deal, ITaskRegistry.State.Expired);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - fee);
    }

    /// Nobody worked yet: no delay to wait for.
    function test_expire_ofAnUnmatchedSession_isAtItsDeadline() public {
        Deal memory deal = dealOf(sessionOrder(), evenPlan(2));
        openUnmatched(deal);
        vm.warp(deal.order.deadline + 1);
        tasks.expire(deal.order, new Stage[](0));
        assertState(deal, ITaskRegistry.State.Expired);
    }

    function test_ack_afterTheEnd_reverts() public {
        Deal memory deal = matchedSession(2);
        bring(deal, 1000, 500);
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        uint256 state = vm.snapshotState();
        bring(deal, 2000, 500); // late, but nobody has ended it
        vm.revertToState(state);
        tasks.expire(deal.order, deal.plan);
        expectRevertOnAck(deal, IN, OUT, wrongState(ITaskRegistry.State.Settled));
    }

    function test_requestClose_makesNowTheDeadline() public {
        Deal memory deal = matchedSession(2);
        uint256 closedAt = vm.getBlockTimestamp();
        uint256 until = closedAt + CLOSE_DELAY_SECONDS;
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobClosing(deal.id, until);
        requestClose(deal);
        vm.assertEq(jobOf(deal).deadline, closedAt);
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.DeadlineNotPassed.selector, until));
        tasks.expire(deal.order, deal.plan);
        bring(deal, IN, OUT);
        vm.assertEq(jobOf(deal).finalAt, closedAt + deal.order.window);
        vm.warp(until + 1);
        tasks.expire(deal.order, deal.plan);
        assertPays(deal, IN, OUT);
    }

    /// The delay runs once: asking again neither restarts nor shortens it.
    function test_requestClose_again_reverts() public {
        Deal memory deal = matchedSession(2);
        requestClose(deal);
        bytes memory reason =
            abi.encodeWithSelector(ITaskRegistry.DeadlinePassed.selector, vm.getBlockTimestamp());
        for (uint256 i; i < 2; ++i) {
            vm.prank(requester);
            vm.expectRevert(reason);
            tasks.requestClose(deal.order, deal.planHash);
            skipTime(1);
        }
    }

    function test_requestClose_aroundTheDeadline() public {
        Deal memory deal = matchedSession(2);
        for (uint256 i; i < 2; ++i) {
            vm.warp(deal.order.deadline + i);
            vm.prank(requester);
            vm.expectRevert(
                abi.encodeWithSelector(ITaskRegistry.DeadlinePassed.selector, deal.order.deadline)
            );
            tasks.requestClose(deal.order, deal.planHash);
        }
        vm.warp(deal.order.deadline - 1);
        requestClose(deal);
        vm.assertEq(jobOf(deal).deadline, deal.order.deadline - 1);
    }

    function test_requestClose_isThePartiesAlone() public {
        Deal memory deal = matchedSession(2);
        address[3] memory others = [stranger, minerOwners[0], deal.plan[1].operator];
        for (uint256 i; i < 3; ++i) {
            vm.prank(others[i]);
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, others[i]));
            tasks.requestClose(deal.order, deal.planHash);
        }
        vm.prank(matcher);
        tasks.requestClose(deal.order, deal.planHash);
    }

    function test_requestClose_ofABatch_reverts() public {
        Deal memory deal = matchedDeal(2);
        vm.prank(requester);
        vm.expectRevert(ITaskRegistry.NotSession.selector);
        tasks.requestClose(deal.order, deal.planHash);
    }

    function test_deliver_ofASession_reverts() public {
        Deal memory deal = matchedSession(2);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        vm.expectRevert(ITaskRegistry.NotBatch.selector);
        vm.prank(stranger, stranger);
        tasks.deliver(deal.order, deal.plan, delivery.receipts, delivery.sigs);
    }

    // --- disputes ---

    function test_dispute_needsACountedAck() public {
        Deal memory deal = matchedSession(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        vm.prank(requester);
        vm.expectRevert(wrongState(ITaskRegistry.State.Matched));
        callDispute(deal, delivery, 1);
        bring(deal, 1000, 500);
        dispute(deal, delivery, 1);
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(uint256(job.state), uint256(ITaskRegistry.State.Matched));
        vm.assertEq(job.openDisputes, 1);
        bring(deal, 2000, 500); // the session goes on
        assertCounted(deal, 2000, 500);
        resolve(deal, delivery, 1, true);
        assertState(deal, ITaskRegistry.State.Matched);
        vm.assertEq(jobOf(deal).faultMask, 2);
    }

    /// The window begins anew with every Ack, and ends a window after the deadline at the latest.
    function test_dispute_opensWithinTheWindow() public {
        Deal memory deal = matchedSession(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        bring(deal, 1000, 500);
        skipTime(3 hours);
        bring(deal, 2000, 500);
        uint256 finalAt = vm.getBlockTimestamp() + deal.order.window;
        vm.assertEq(jobOf(deal).finalAt, finalAt);
        vm.warp(finalAt - 1);
        dispute(deal, delivery, 0);
        vm.warp(finalAt);
        dispute(deal, delivery, 1);
        vm.warp(finalAt + 1);
        vm.prank(requester);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.WindowClosed.selector, finalAt));
        callDispute(deal, delivery, 2);
    }

    /// A stale Ack cannot be brought again to keep the window open.
    function test_dispute_windowIsNotMovedByAnOldAck() public {
        Deal memory deal = matchedSession(2);
        bring(deal, 1000, 500);
        uint256 finalAt = jobOf(deal).finalAt;
        skipTime(1 hours);
        expectRevertOnAck(deal, 1000, 500, stale(1000, 500));
        vm.assertEq(jobOf(deal).finalAt, finalAt);
    }

    function test_dispute_afterTheEnd_isAboutStakeAlone() public {
        Deal memory deal = matchedSession(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        bring(deal, IN, OUT);
        requestClose(deal);
        skipTime(CLOSE_DELAY_SECONDS + 1);
        tasks.expire(deal.order, deal.plan);
        dispute(deal, delivery, 1);
        assertState(deal, ITaskRegistry.State.Settled);
        resolve(deal, delivery, 1, true);
        assertState(deal, ITaskRegistry.State.Settled);
        assertPays(deal, IN, OUT);
    }

    function testFuzz_finalAt_isNeverLaterThanAWindowAfterTheDeadline(uint256 moment, bool closes)
        public
    {
        Deal memory deal = matchedSession(2);
        bring(deal, 1, 1);
        if (closes) {
            skipTime(1 hours);
            requestClose(deal);
        }
        vm.warp(bound(moment, vm.getBlockTimestamp(), uint256(deal.order.deadline) + 30 days));
        uint256 before = jobOf(deal).finalAt;
        bring(deal, 2, 2);
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertGe(job.finalAt, before);
        vm.assertLe(job.finalAt, uint256(job.deadline) + deal.order.window);
        vm.assertLe(job.deadline, deal.order.deadline);
    }
}
