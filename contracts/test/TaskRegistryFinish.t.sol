// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {SenderNotKey} from "../src/libraries/Senders.sol";
import {IEscrow} from "../src/interfaces/IEscrow.sol";
import {IEvidence} from "../src/interfaces/IEvidence.sol";
import {Eip712Types} from "../src/libraries/Eip712Types.sol";
import {Split} from "../src/libraries/Split.sol";
import {Ack, Order, Stage, StageReceipt} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {ContractWallet} from "./fixtures/Wallets.sol";

/// How a job ends: settleAck, deliver, finalize, cancel, expire.
contract TaskRegistryFinishTest is Suite {
    using Messages for *;

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;

    function expectRevertOnAck(
        Deal memory deal,
        Ack memory ack,
        bytes memory sig,
        bytes memory reason
    ) private {
        vm.prank(matcher);
        vm.expectRevert(reason);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    /// Every account of the deal got its due, the requester the rest, and escrow holds what it
    /// owes.
    function assertPaid(Deal memory deal, uint32 tokensIn, uint32 tokensOut, uint256 faultMask)
        private
        view
    {
        (uint256[] memory gross, uint256[] memory pay,,) =
            tasks.split(deal.order, deal.plan, tokensIn, tokensOut);
        uint256 spent = openingNano(deal.order);
        uint256 fees = spent;
        for (uint256 i; i < pay.length; ++i) {
            bool guilty = faultMask >> i & 1 == 1;
            vm.assertEq(creditNano(minerOwners[i]), guilty ? 0 : pay[i]);
            if (guilty) continue;
            spent += gross[i];
            fees += gross[i] - pay[i];
        }
        vm.assertEq(creditNano(matcher) + creditNano(treasury), fees);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - spent);
        vm.assertEq(token.balanceOf(address(escrow)), 100 * USD);
        assertState(deal, ITaskRegistry.State.Settled);
    }

    // --- settleAck in Matched ---

    function testFuzz_settleAck_paysAndRefunds(uint8 stages, uint32 tokensIn, uint32 tokensOut)
        public
    {
        Deal memory deal = matchedDeal(bound(stages, 1, 8));
        tokensIn = uint32(bound(tokensIn, 0, deal.order.maxTokensIn));
        tokensOut = uint32(bound(tokensOut, 0, deal.order.maxTokensOut));
        settleAck(deal, tokensIn, tokensOut);
        assertPaid(deal, tokensIn, tokensOut, 0);
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(job.tokensIn, tokensIn);
        vm.assertEq(job.tokensOut, tokensOut);
        vm.assertEq(job.finalAt, vm.getBlockTimestamp() + deal.order.window);
    }

    function test_settleAck_reportsPaidAndRefunded() public {
        Deal memory deal = matchedDeal(2);
        uint256 amount = maxNanoOf(deal.order);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.expectEmit(address(tasks));
        uint256 paid = gross[0] + gross[1] + openingNano(deal.order);
        emit ITaskRegistry.JobSettled(deal.id, paid, amount - paid, 0);
        expectPaid(deal, IN, OUT, amount - paid);
        vm.prank(matcher);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    /// Escrow is told once, and all, of what a job pays.
    function expectPaid(Deal memory deal, uint32 tokensIn, uint32 tokensOut, uint256 refund)
        private
    {
        (, uint256[] memory pay, uint256 matcherFee, uint256 protocolFee) =
            tasks.split(deal.order, deal.plan, tokensIn, tokensOut);
        for (uint256 i; i < pay.length; ++i) {
            pay[i] = Split.shareOf(deal.plan[i].operator, pay[i]);
        }
        IEscrow.Bill memory bill = IEscrow.Bill({
            job: deal.id,
            requester: requester,
            isSpenders: false,
            matcher: matcher,
            matcherNano: matcherFee + openingNano(deal.order),
            protocolNano: protocolFee,
            refundNano: refund
        });
        vm.expectCall(address(escrow), abi.encodeCall(escrow.pay, (bill, pay)));
    }

    /// In Matched an Ack that its matcher does not bring is counted alone: whatever it says and
    /// whoever brings it, the work that was done can still be delivered, or acknowledged.
    function test_settleAck_byAnotherThanTheMatcher_isCountedAlone() public {
        Deal memory deal = matchedDeal(3);
        (Ack memory ack, bytes memory sig) = newAck(deal, 1, 0);
        address[4] memory others = [requester, stranger, minerOwners[0], deal.plan[1].operator];
        for (uint256 i; i < others.length; ++i) {
            uint256 state = vm.snapshotState();
            vm.expectEmit(address(tasks));
            emit ITaskRegistry.JobAcknowledged(deal.id, 1, 0);
            vm.prank(others[i]);
            tasks.settleAck(deal.order, ack, sig, deal.plan);
            assertState(deal, ITaskRegistry.State.Matched);
            vm.assertEq(jobOf(deal).finalAt, vm.getBlockTimestamp() + deal.order.window);
            vm.prank(others[i]);
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.AckStale.selector, 1, 0));
            tasks.settleAck(deal.order, ack, sig, deal.plan);
            if (i % 2 == 0) deliver(deal, IN, OUT);
            settleAck(deal, IN, OUT);
            assertPaid(deal, IN, OUT, 0);
            vm.revertToState(state);
        }
    }

    function test_settleAck_ofNothing_byAnotherThanTheMatcher_reverts() public {
        Deal memory deal = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, 0, 0);
        vm.prank(requester);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.AckStale.selector, 0, 0));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        settleAck(deal, 0, 0);
        assertPaid(deal, 0, 0, 0);
    }

    /// The matcher is silent: a stage's Ack pays when the job ends.
    function test_expire_ofABatchWithAnAck_paysIt() public {
        Deal memory deal = matchedDeal(3);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.prank(deal.plan[2].operator);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        uint256 until = uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS;
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.DeadlineNotPassed.selector, until));
        tasks.expire(deal.order, deal.plan);
        vm.warp(until + 1);
        vm.prank(stranger);
        tasks.expire(deal.order, deal.plan);
        assertPaid(deal, IN, OUT, 0);
    }

    /// The matcher brings a smaller Ack than a stage did: nothing that was counted is lost.
    function test_settleAck_byTheMatcher_takesNothingBack() public {
        Deal memory deal = matchedDeal(3);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, 1);
        vm.prank(deal.plan[2].operator);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        settleAck(deal, 1, OUT);
        assertPaid(deal, IN, OUT, 0);
    }

    function test_deliver_ofLessThanAnAckCounted_paysTheAck() public {
        Deal memory deal = matchedDeal(3);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.prank(stranger);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        deliver(deal, IN - 1, 1);
        vm.assertEq(jobOf(deal).tokensIn, IN);
        vm.assertEq(jobOf(deal).tokensOut, OUT);
        skipTime(deal.order.window + 1);
        finalize(deal);
        assertPaid(deal, IN, OUT, 0);
    }

    /// A dispute that an Ack let begin freezes what is delivered after it.
    function test_deliver_whileADisputeIsOpen_isDisputed() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        (Ack memory ack, bytes memory sig) = newAck(deal, 1, 1);
        vm.prank(requester);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        dispute(deal, delivery, 1);
        assertState(deal, ITaskRegistry.State.Matched);
        deliver(deal, delivery);
        assertState(deal, ITaskRegistry.State.Disputed);
        resolve(deal, delivery, 1, true);
        assertState(deal, ITaskRegistry.State.Delivered);
        skipTime(deal.order.window + 1);
        finalize(deal);
        assertPaid(deal, IN, OUT, 2);
    }

    function test_settleAck_withoutMatcher_isCountedAlone() public {
        Order memory order = newOrder();
        dropMatcher(order);
        Deal memory deal = dealOf(order, evenPlan(2));
        openMatched(deal);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.prank(requester);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        assertState(deal, ITaskRegistry.State.Matched);
        vm.warp(uint256(order.deadline) + CLOSE_DELAY_SECONDS + 1);
        tasks.expire(deal.order, deal.plan);
        assertPaid(deal, IN, OUT, 0);
        vm.assertEq(creditNano(address(0)), 0);
    }

    function test_settleAck_overCap_reverts() public {
        Deal memory deal = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, deal.order.maxTokensIn + 1, OUT);
        expectRevertOnAck(
            deal,
            ack,
            sig,
            abi.encodeWithSelector(ITaskRegistry.OverCap.selector, 1_000_001, 1_000_000)
        );
        (ack, sig) = newAck(deal, IN, deal.order.maxTokensOut + 1);
        expectRevertOnAck(
            deal,
            ack,
            sig,
            abi.encodeWithSelector(ITaskRegistry.OverCap.selector, 500_001, 500_000)
        );
    }

    /// Attack #4: an Ack of one job, or for another plan, settles nothing else.
    function test_settleAck_ofAnotherJobOrPlan_reverts() public {
        Deal memory deal = matchedDeal(2);
        Deal memory other = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(other, IN, OUT);
        expectRevertOnAck(
            deal, ack, sig, abi.encodeWithSelector(ITaskRegistry.AckMismatch.selector)
        );
        (ack,) = newAck(deal, IN, OUT);
        ack.planHash = evenPlan(3).hash();
        sig = sign(requesterKey, digest(ack.hash()));
        expectRevertOnAck(
            deal, ack, sig, abi.encodeWithSelector(ITaskRegistry.AckMismatch.selector)
        );
    }

    function test_settleAck_withAnotherPlan_reverts() public {
        Deal memory deal = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        Stage[] memory other = evenPlan(3);
        vm.prank(matcher);
        expectNoJob();
        tasks.settleAck(deal.order, ack, sig, other);
        // Not with an Ack of that plan either.
        Deal memory wrong = dealOf(deal.order, other);
        (ack, sig) = newAck(wrong, IN, OUT);
        vm.prank(matcher);
        expectNoJob();
        tasks.settleAck(deal.order, ack, sig, other);
    }

    function testFuzz_settleAck_withMutatedSignature_reverts(uint256 bit) public {
        Deal memory deal = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        bit %= 520;
        sig[bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        expectRevertOnAck(
            deal, ack, sig, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester)
        );
    }

    function test_settleAck_onAnotherChain_isAnotherJob() public {
        Deal memory deal = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.chainId(777);
        expectRevertOnAck(
            deal,
            ack,
            sig,
            abi.encodeWithSelector(ITaskRegistry.WrongState.selector, ITaskRegistry.State.None)
        );
    }

    /// Attack #10: a contract's Ack counts at the moment it is brought, or not at all.
    function test_settleAck_ofAContractRequester_asksIt() public {
        (ContractWallet wallet, Deal memory deal) = matchedDealOfAContract();
        wallet.setSigner(stranger);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        expectRevertOnAck(
            deal,
            ack,
            sig,
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, address(wallet))
        );
        wallet.setSigner(requester);
        settleAck(deal, IN, OUT);
    }

    /// However late: disputes end by deadline + window, before which no stake can have left.
    function test_settleAck_afterTheDeadline_opensNoLaterWindow() public {
        Deal memory deal = matchedDeal(2);
        vm.warp(uint256(deal.order.deadline) + 30 days);
        settleAck(deal, IN, OUT);
        vm.assertEq(jobOf(deal).finalAt, uint256(deal.order.deadline) + deal.order.window);
    }

    // --- settleAck in Delivered ---

    function test_settleAck_inDelivered_cutsTheWindowShort() public {
        Deal memory deal = matchedDeal(3);
        deliver(deal, IN, OUT);
        uint256 finalAt = jobOf(deal).finalAt;
        skipTime(1 hours);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.prank(stranger);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        assertPaid(deal, IN, OUT, 0);
        vm.assertEq(jobOf(deal).finalAt, finalAt);
    }

    function test_settleAck_inDelivered_needsTheDeliveredCountsAlone() public {
        Deal memory deal = matchedDeal(3);
        deliver(deal, IN, OUT);
        bytes memory mismatch =
            abi.encodeWithSelector(ITaskRegistry.TokenCountMismatch.selector, 0);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN - 1, OUT);
        expectRevertOnAck(deal, ack, sig, mismatch);
        (ack, sig) = newAck(deal, IN, OUT - 1);
        expectRevertOnAck(deal, ack, sig, mismatch);
        (ack,) = newAck(deal, IN, OUT);
        ack.resultRoot = "other";
        sig = sign(requesterKey, digest(ack.hash()));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        assertPaid(deal, IN, OUT, 0);
    }

    // --- deliver ---

    function test_deliver_startsTheWindow() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        uint256 finalAt = vm.getBlockTimestamp() + deal.order.window;
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobDelivered(deal.id, boundaryRoot(deal.id, 3), IN, OUT, finalAt);
        vm.prank(stranger, stranger);
        tasks.deliver(deal.order, deal.plan, delivery.receipts, delivery.sigs);
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(uint256(job.state), uint256(ITaskRegistry.State.Delivered));
        vm.assertEq(job.finalAt, finalAt);
        vm.assertEq(job.tokensIn, IN);
        vm.assertEq(job.tokensOut, OUT);
        vm.assertEq(lockedNano(deal), maxNanoOf(deal.order)); // counts are not paid yet
        vm.assertEq(balanceNano(requester) + lockedNano(deal), 100 * USD * NANO);
    }

    function test_deliver_aroundTheDeadline() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        uint256 last = uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS; // see TaskRegistryLate
        vm.warp(last + 1);
        refuseDelivery(
            deal, delivery, abi.encodeWithSelector(ITaskRegistry.DeadlinePassed.selector, last)
        );
        vm.warp(deal.order.deadline);
        deliver(deal, delivery);
        vm.assertEq(jobOf(deal).finalAt, uint256(deal.order.deadline) + deal.order.window);
    }

    /// Attack: receipts that no transaction shows, of stages that show them to nobody.
    function test_deliver_throughAContractOrDelegatedCode_reverts() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory d = newDelivery(deal, IN, OUT);
        bytes memory refusal = abi.encodeWithSelector(SenderNotKey.selector, address(this));
        vm.expectRevert(refusal);
        tasks.deliver(deal.order, deal.plan, d.receipts, d.sigs);
        vm.etch(stranger, abi.encodePacked(hex"ef0100", address(1)));
        refuseDelivery(deal, d, abi.encodeWithSelector(SenderNotKey.selector, stranger));
    }

    function expectReceiptFault(
        Deal memory deal,
        Delivery memory delivery,
        uint256 stage,
        bytes memory reason
    ) private {
        signReceipt(deal, delivery, stage);
        refuseDelivery(deal, delivery, reason);
    }

    function test_deliver_checksWhatAReceiptIsAbout() public {
        Deal memory deal = matchedDeal(3);
        bytes memory reason = abi.encodeWithSelector(ITaskRegistry.ReceiptMismatch.selector, 1);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].orderHash = "other";
        expectReceiptFault(deal, delivery, 1, reason);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].planHash = "other";
        expectReceiptFault(deal, delivery, 1, reason);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].stage = 2;
        expectReceiptFault(deal, delivery, 1, reason);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].layerFrom -= 1;
        expectReceiptFault(deal, delivery, 1, reason);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].layerTo += 1;
        expectReceiptFault(deal, delivery, 1, reason);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].startedAt = 1 << 63;
        expectReceiptFault(deal, delivery, 1, reason);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].signedAt = type(uint64).max;
        expectReceiptFault(deal, delivery, 1, reason);
    }

    /// No tool decodes such bytes, so nobody could audit what was paid by them.
    function testFuzz_deliver_withBitsThatNoTimeHas_reverts(bool isEnd, uint256 bit) public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        uint64 marker = 0x5EC0_4D5A_B0DE_C0DE;
        StageReceipt memory receipt = delivery.receipts[1];
        receipt.startedAt = isEnd ? 0 : marker;
        receipt.signedAt = isEnd ? marker : 0;
        bytes32 marked = bytes32(uint256(marker));
        bytes32 wild = marked | bytes32(1 << bound(bit, 64, 255));
        bytes memory words = abi.encodePacked(
            Eip712Types.STAGE_RECEIPT_TYPEHASH, replaced(abi.encode(receipt), marked, wild)
        );
        delivery.sigs[1] = sign(deal.keys[1], digest(keccak256(words)));
        bytes memory call = abi.encodeCall(
            tasks.deliver, (deal.order, deal.plan, delivery.receipts, delivery.sigs)
        );
        bytes memory body = new bytes(call.length - 4);
        for (uint256 i; i < body.length; ++i) {
            body[i] = call[i + 4];
        }
        vm.prank(stranger, stranger);
        (bool done, bytes memory reason) = address(tasks)
            .call(abi.encodePacked(tasks.deliver.selector, replaced(body, marked, wild)));
        vm.assertFalse(done);
        vm.assertEq(reason, abi.encodeWithSelector(ITaskRegistry.ReceiptMismatch.selector, 1));
    }

    /// `data` with another word in the one place of a word.
    function replaced(bytes memory data, bytes32 from, bytes32 to)
        private
        pure
        returns (bytes memory)
    {
        uint256 found;
        for (uint256 offset = 32; offset <= data.length; offset += 32) {
            bytes32 word;
            assembly ("memory-safe") {
                word := mload(add(data, offset))
            }
            if (word != from) continue;
            ++found;
            assembly ("memory-safe") {
                mstore(add(data, offset), to)
            }
        }
        vm.assertEq(found, 1);
        return data;
    }

    function testFuzz_deliver_withMutatedSignature_reverts(uint256 bit, uint256 stage) public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        stage %= 3;
        bit %= 520;
        delivery.sigs[stage][bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        refuseDelivery(
            deal,
            delivery,
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[stage].operator)
        );
    }

    /// Attack #25: an altered activation breaks the chain between two neighbours.
    function test_deliver_whenTheChainBreaks_reverts() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[2].inputRoot = "other";
        expectReceiptFault(
            deal, delivery, 2, abi.encodeWithSelector(ITaskRegistry.ReceiptChainBroken.selector, 2)
        );
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[0].outputRoot = "other";
        expectReceiptFault(
            deal, delivery, 0, abi.encodeWithSelector(ITaskRegistry.ReceiptChainBroken.selector, 1)
        );
    }

    /// Attack #27: no stage counts otherwise than the others.
    function test_deliver_whenCountsDiffer_reverts() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[1].tokensIn += 1;
        expectReceiptFault(
            deal, delivery, 1, abi.encodeWithSelector(ITaskRegistry.TokenCountMismatch.selector, 1)
        );
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[2].tokensOut -= 1;
        expectReceiptFault(
            deal, delivery, 2, abi.encodeWithSelector(ITaskRegistry.TokenCountMismatch.selector, 2)
        );
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[2].requests -= 1;
        expectReceiptFault(
            deal,
            delivery,
            2,
            abi.encodeWithSelector(ITaskRegistry.RequestCountMismatch.selector, 2)
        );
    }

    function test_deliver_overCap_reverts() public {
        Deal memory deal = matchedDeal(2);
        refuseDelivery(
            deal,
            newDelivery(deal, 1_000_001, OUT),
            abi.encodeWithSelector(ITaskRegistry.OverCap.selector, 1_000_001, 1_000_000)
        );
        refuseDelivery(
            deal,
            newDelivery(deal, IN, 500_001),
            abi.encodeWithSelector(ITaskRegistry.OverCap.selector, 500_001, 500_000)
        );
        deliver(deal, 1_000_000, 500_000);
    }

    /// A requester cannot deliver early receipts over a part of the batch.
    function test_deliver_ofAPartOfTheRequests_reverts() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        for (uint256 i; i < 2; ++i) {
            delivery.receipts[i].requests = 99;
            signReceipt(deal, delivery, i);
        }
        refuseDelivery(
            deal, delivery, abi.encodeWithSelector(ITaskRegistry.RequestCountMismatch.selector, 0)
        );
    }

    function test_deliver_ofTooFewReceipts_reverts() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        Delivery memory short = newDelivery(newDeal(2), IN, OUT);
        bytes memory reason = abi.encodeWithSelector(ITaskRegistry.BadPlan.selector);
        refuseDelivery(deal, Delivery(short.receipts, delivery.sigs), reason);
        refuseDelivery(deal, Delivery(delivery.receipts, short.sigs), reason);
    }

    function test_deliver_withAnotherPlan_reverts() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        Stage[] memory other = evenPlan(2);
        expectNoJob();
        vm.prank(stranger, stranger);
        tasks.deliver(deal.order, other, delivery.receipts, delivery.sigs);
    }

    // --- finalize ---

    function test_finalize_waitsForTheWindow() public {
        Deal memory deal = matchedDeal(3);
        deliver(deal, IN, OUT);
        uint256 finalAt = jobOf(deal).finalAt;
        vm.warp(finalAt);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.WindowOpen.selector, finalAt));
        finalize(deal);
        vm.warp(finalAt + 1);
        vm.prank(stranger);
        finalize(deal);
        assertPaid(deal, IN, OUT, 0);
    }

    function testFuzz_finalize_withholdsTheGuiltyStages(uint256 stages, uint256 mask) public {
        stages = bound(stages, 1, 8);
        mask = bound(mask, 0, (1 << stages) - 1);
        Deal memory deal = matchedDeal(stages);
        Delivery memory delivery = deliver(deal, IN, OUT);
        for (uint256 i; i < stages; ++i) {
            if (mask >> i & 1 == 0) continue;
            dispute(deal, delivery, i);
            resolve(deal, delivery, uint16(i), true);
        }
        skipTime(1 days + 1);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        uint256 withheld;
        uint256 paid = openingNano(deal.order);
        for (uint256 i; i < stages; ++i) {
            if (mask >> i & 1 == 1) withheld += gross[i];
            else paid += gross[i];
        }
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobSettled(deal.id, paid, maxNanoOf(deal.order) - paid, withheld);
        finalize(deal);
        vm.assertEq(jobOf(deal).faultMask, mask);
        assertPaid(deal, IN, OUT, mask);
    }

    function test_finalize_withAnotherPlan_reverts() public {
        Deal memory deal = matchedDeal(3);
        deliver(deal, IN, OUT);
        skipTime(1 days + 1);
        Stage[] memory other = evenPlan(2);
        expectNoJob();
        tasks.finalize(deal.order, other);
    }

    // --- cancel, expire ---

    function test_cancel_refundsAll() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        uint256 amount = maxNanoOf(deal.order);
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, stranger));
        tasks.cancel(deal.order);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobCancelled(deal.id, requester, amount);
        vm.prank(requester);
        tasks.cancel(deal.order);
        assertState(deal, ITaskRegistry.State.Cancelled);
        uint256 pulled = unitsOf(amount) * NANO;
        vm.assertEq(balanceNano(requester), 100 * USD * NANO + pulled);
    }

    function test_expire_aroundTheDeadline() public {
        Deal memory deal = matchedDeal(2);
        uint256 fee = openingNano(deal.order);
        uint256 amount = maxNanoOf(deal.order) - fee;
        uint256 until = uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS;
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.DeadlineNotPassed.selector, until));
        tasks.expire(deal.order, deal.plan);
        vm.warp(until + 1);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobExpired(deal.id, requester, fee, amount);
        vm.prank(stranger);
        tasks.expire(deal.order, deal.plan);
        assertState(deal, ITaskRegistry.State.Expired);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - fee);
        vm.assertEq(creditNano(matcher), fee);
    }

    /// An Ack and an expiry do not race: until the delay is over only the Ack counts.
    function test_ack_afterTheDeadline_hasADelayToItself() public {
        Deal memory deal = matchedDeal(2);
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        vm.assertFalse(succeeds(abi.encodeCall(tasks.expire, (deal.order, deal.plan))));
        vm.prank(matcher);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        assertState(deal, ITaskRegistry.State.Settled);
    }

    /// A job that waits for a plan is found by none, and has no delay.
    function test_expire_ofAWaitingJob_takesNoPlan() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        uint256 amount = maxNanoOf(deal.order);
        uint256 pulled = unitsOf(amount) * NANO;
        bytes memory early =
            abi.encodeWithSelector(ITaskRegistry.DeadlineNotPassed.selector, deal.order.deadline);
        vm.warp(deal.order.deadline);
        vm.expectRevert(early);
        tasks.expire(deal.order, new Stage[](0));
        vm.warp(deal.order.deadline + 1);
        expectNoJob();
        tasks.expire(deal.order, deal.plan);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobExpired(deal.id, requester, 0, amount);
        vm.prank(stranger);
        tasks.expire(deal.order, new Stage[](0));
        assertState(deal, ITaskRegistry.State.Expired);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO + pulled);
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.WrongState.selector, ITaskRegistry.State.Expired)
        );
        tasks.expire(deal.order, new Stage[](0));
    }

    // --- another plan finds no job ---

    /// Whatever is called with a plan that the job was not matched with.
    function expectNoJobWith(Deal memory deal, Stage[] memory plan) private {
        Deal memory other = dealOf(deal.order, plan);
        for (uint256 i; i < plan.length; ++i) {
            other.keys[i] = keyOf(plan[i].operator);
        }
        Delivery memory delivery = newDelivery(other, IN, OUT);
        (Ack memory ack, bytes memory sig) = newAck(other, IN, OUT);
        vm.prank(matcher);
        expectNoJob();
        tasks.settleAck(other.order, ack, sig, plan);
        expectNoJob();
        vm.prank(stranger, stranger);
        tasks.deliver(other.order, plan, delivery.receipts, delivery.sigs);
        expectNoJob();
        tasks.finalize(other.order, plan);
        vm.prank(requester);
        expectNoJob();
        callDispute(other, delivery, 0);
        Contradiction memory c = contradiction(other, 0);
        expectNoJob();
        equivocation(other, c);
        vm.prank(address(desk));
        expectNoJob();
        tasks.convict(other.order, plan, 0, IEvidence.Kind.Equivocation);
        expectNoJob();
        tasks.expire(other.order, other.plan);
        vm.prank(requester);
        expectNoJob();
        tasks.requestClose(other.order, other.planHash);
    }

    function keyOf(address operator) private view returns (uint256 key) {
        for (uint256 i; vm.addr(key = operatorKeys[i]) != operator; ++i) {}
    }

    /// A job of each state in which a plan could be brought to it.
    function dealsByState() private returns (Deal[5] memory deals) {
        deals[0] = newDeal(2);
        openUnmatched(deals[0]);
        deals[1] = matchedDeal(2);
        deals[2] = matchedDeal(2);
        deliver(deals[2], IN, OUT);
        deals[3] = matchedDeal(2);
        settleAck(deals[3], IN, OUT);
        deals[4] = matchedSession(2);
        settleAck(deals[4], IN, OUT);
    }

    function test_calls_withAnotherPlan_findNoJob() public {
        Deal[5] memory deals = dealsByState();
        for (uint256 i; i < deals.length; ++i) {
            ITaskRegistry.State state = stateOf(deals[i]);
            expectNoJobWith(deals[i], evenPlan(3));
            Stage[] memory moved = evenPlan(2);
            (moved[0].layerTo, moved[1].layerFrom) = (34, 34);
            expectNoJobWith(deals[i], moved);
            Stage[] memory swapped = evenPlan(2);
            (swapped[0].operator, swapped[1].operator) = (swapped[1].operator, swapped[0].operator);
            expectNoJobWith(deals[i], swapped);
            // A job that waits is not found by the plan that it may get.
            if (i == 0) expectNoJobWith(deals[i], evenPlan(2));
            assertState(deals[i], state);
        }
    }

    /// Nor do calls for a waiting job find one that has a plan.
    function test_calls_withoutPlan_findNoMatchedJob() public {
        Deal[5] memory deals = dealsByState();
        for (uint256 i = 1; i < deals.length; ++i) {
            vm.warp(uint256(deals[i].order.deadline) - 1);
            vm.prank(requester);
            expectNoJob();
            tasks.requestClose(deals[i].order, 0);
            vm.warp(uint256(deals[i].order.deadline) + CLOSE_DELAY_SECONDS + 1);
            expectNoJob();
            tasks.expire(deals[i].order, new Stage[](0));
            vm.prank(requester);
            expectNoJob();
            tasks.cancel(deals[i].order);
            vm.prank(matcher);
            expectNoJob();
            tasks.matchJob(deals[i].order, deals[i].plan);
        }
    }

    /// An order of which a word differs is another order, which has opened no job.
    function test_calls_withAnotherOrder_findNoJob() public {
        Deal memory deal = matchedDeal(2);
        (Ack memory ack, bytes memory sig) = newAck(deal, IN, OUT);
        deal.order.priceIn += 1;
        vm.prank(matcher);
        expectNoJob();
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        expectNoJob();
        tasks.expire(deal.order, deal.plan);
    }

    /// No second lets a job be delivered and expire; between the two lies the delay.
    function testFuzz_deliverOrExpire_neverBoth(uint16 offset) public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        uint256 from = deal.order.deadline;
        uint256 moment = from + bound(offset, 0, CLOSE_DELAY_SECONDS + 8) - 4;
        vm.warp(moment);
        uint256 state = vm.snapshotState();
        bool delivers = succeeds(
            abi.encodeCall(
                tasks.deliver, (deal.order, deal.plan, delivery.receipts, delivery.sigs)
            )
        );
        vm.revertToState(state);
        bool expires = succeeds(abi.encodeCall(tasks.expire, (deal.order, deal.plan)));
        vm.assertEq(delivers, moment <= from + CLOSE_DELAY_SECONDS);
        vm.assertEq(expires, moment > from + CLOSE_DELAY_SECONDS);
    }

    function succeeds(bytes memory data) private returns (bool success) {
        vm.prank(stranger, stranger);
        (success,) = address(tasks).call(data);
    }

    // --- money of an open job is out of reach ---

    /// Attack #29: after the match, the requester cannot draw what the job locked.
    function test_requester_cannotDrainALockedJob() public {
        Deal memory deal = matchedDeal(2);
        uint256 free = balanceNano(requester);
        vm.prank(requester);
        vm.expectRevert(
            abi.encodeWithSelector(
                IEscrow.InsufficientBalance.selector, requester, free, 100 * USD * NANO
            )
        );
        escrow.requestWithdraw(100 * USD);
        vm.prank(requester);
        escrow.requestWithdraw(free / NANO);
        settleAck(deal, IN, OUT);
    }
}
