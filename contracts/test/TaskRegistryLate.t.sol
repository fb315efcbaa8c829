// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Ack} from "../src/types/Signed.sol";
import {Suite} from "./fixtures/Suite.sol";

/// After the deadline stages are paid for the requests of a batch that all of them finished.
/// forge-config: default.isolate = true
contract TaskRegistryLateTest is Suite {
    uint32 private constant IN = 600_000;
    uint32 private constant OUT = 200_000;

    /// Receipts of all stages over `requests` requests of the order.
    function part(Deal memory deal, uint32 requests, uint32 tokensIn, uint32 tokensOut)
        private
        view
        returns (Delivery memory d)
    {
        d = newDelivery(deal, tokensIn, tokensOut);
        for (uint256 i; i < d.receipts.length; ++i) {
            d.receipts[i].requests = requests;
            signReceipt(deal, d, i);
        }
    }

    function late(uint256 stages) private returns (Deal memory deal) {
        deal = matchedDeal(stages);
        vm.warp(deal.order.deadline + 1);
    }

    function lastSecond(Deal memory deal) private pure returns (uint256) {
        return uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS;
    }

    function stale(uint32 tokensIn, uint32 tokensOut) private pure returns (bytes memory) {
        return abi.encodeWithSelector(ITaskRegistry.AckStale.selector, tokensIn, tokensOut);
    }

    function bringAck(Deal memory deal, address by, uint32 tokensIn, uint32 tokensOut) private {
        (Ack memory ack, bytes memory sig) = newAck(deal, tokensIn, tokensOut);
        vm.prank(by);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    // --- money ---

    function test_aPart_isPaidAfterItsWindow_andTheRestReturns() public {
        Deal memory deal = late(3);
        deliver(deal, part(deal, 2, IN, OUT));
        vm.snapshotGasLastCall("TaskRegistry", "deliver a part K=3");
        assertState(deal, ITaskRegistry.State.Delivered);
        vm.assertEq(jobOf(deal).finalAt, lastSecond(deal) + deal.order.window);
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.WindowOpen.selector, jobOf(deal).finalAt)
        );
        finalize(deal);
        vm.warp(uint256(jobOf(deal).finalAt) + 1);
        finalize(deal);
        uint256 paid = creditNano(matcher) + creditNano(treasury);
        for (uint256 i; i < 3; ++i) {
            vm.assertGt(creditNano(minerOwners[i]), 0);
            paid += creditNano(minerOwners[i]);
        }
        vm.assertEq(lockedNano(deal), 0);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - paid);
    }

    /// Nobody is paid less because a smaller part was shown first.
    function test_more_replacesAPart() public {
        Deal memory deal = late(2);
        deliver(deal, part(deal, 1, IN / 2, OUT / 2));
        vm.assertEq(jobOf(deal).finalAt, lastSecond(deal) + deal.order.window);
        vm.warp(lastSecond(deal));
        deliver(deal, part(deal, 2, IN, OUT));
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(job.tokensIn, IN);
        vm.assertEq(job.tokensOut, OUT);
        vm.assertEq(job.finalAt, lastSecond(deal) + deal.order.window);
    }

    function test_noMore_reverts() public {
        Deal memory deal = late(2);
        deliver(deal, part(deal, 2, IN, OUT));
        skipTime(10);
        refuseDelivery(deal, part(deal, 2, IN, OUT), stale(IN, OUT));
        refuseDelivery(deal, part(deal, 1, IN / 2, OUT), stale(IN, OUT));
    }

    function test_whatAcksCounted_isNoMore() public {
        Deal memory deal = matchedDeal(2);
        bringAck(deal, stranger, IN, OUT);
        vm.warp(deal.order.deadline + 1);
        refuseDelivery(deal, part(deal, 2, IN, OUT), stale(IN, OUT));
        deliver(deal, part(deal, 2, IN, OUT + 1));
        vm.assertEq(jobOf(deal).tokensOut, OUT + 1);
    }

    function test_afterADeliveryInTime_nothingIsShownAgain() public {
        Deal memory deal = matchedDeal(2);
        vm.warp(deal.order.deadline);
        deliver(deal, IN, OUT);
        Delivery memory again = part(deal, deal.order.requests, IN, OUT + 1);
        refuseDelivery(
            deal,
            again,
            abi.encodeWithSelector(
                ITaskRegistry.WrongState.selector, ITaskRegistry.State.Delivered
            )
        );
        vm.warp(deal.order.deadline + 1);
        refuseDelivery(deal, part(deal, 2, IN, OUT), stale(IN, OUT));
    }

    // --- seconds ---

    function test_theFirstAndTheLastSecond() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory d = part(deal, 2, IN, OUT);
        vm.warp(deal.order.deadline);
        refuseDelivery(
            deal, d, abi.encodeWithSelector(ITaskRegistry.RequestCountMismatch.selector, 0)
        );
        vm.warp(lastSecond(deal) + 1);
        refuseDelivery(
            deal,
            d,
            abi.encodeWithSelector(ITaskRegistry.DeadlinePassed.selector, lastSecond(deal))
        );
        vm.warp(lastSecond(deal));
        deliver(deal, d);
        vm.warp(lastSecond(deal) + 1);
        vm.expectRevert(
            abi.encodeWithSelector(
                ITaskRegistry.WrongState.selector, ITaskRegistry.State.Delivered
            )
        );
        tasks.expire(deal.order, deal.plan);
    }

    /// All stages over the same requests: the links say so, and their number does.
    function test_anotherNumberOfRequests_reverts() public {
        Deal memory deal = late(2);
        Delivery memory d = part(deal, 2, IN, OUT);
        d.receipts[1].requests = 3;
        signReceipt(deal, d, 1);
        refuseDelivery(
            deal, d, abi.encodeWithSelector(ITaskRegistry.RequestCountMismatch.selector, 1)
        );
    }

    function test_ofASession_reverts() public {
        Deal memory deal = matchedSession(2);
        vm.warp(deal.order.deadline + 1);
        refuseDelivery(
            deal, part(deal, 2, IN, OUT), abi.encodeWithSelector(ITaskRegistry.NotBatch.selector)
        );
    }

    // --- Acks and disputes beside it ---

    /// A requester, or a stage of its, cannot end the job between a small part and a larger one.
    function test_anAckOfAPart_endsNothing() public {
        Deal memory deal = late(2);
        deliver(deal, part(deal, 1, IN / 2, OUT / 2));
        uint256 finalAt = jobOf(deal).finalAt;
        (Ack memory ack, bytes memory sig) = newAck(deal, IN / 2, OUT / 2);
        vm.expectRevert(stale(IN / 2, OUT / 2));
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        bringAck(deal, stranger, IN / 2, OUT / 2 + 1);
        assertState(deal, ITaskRegistry.State.Delivered);
        vm.assertEq(jobOf(deal).finalAt, finalAt);
        vm.assertEq(jobOf(deal).tokensOut, OUT / 2 + 1);
        deliver(deal, part(deal, 2, IN, OUT));
        vm.assertEq(jobOf(deal).tokensIn, IN);
    }

    function test_anAckByTheMatcher_endsIt_andPaysTheMost() public {
        Deal memory deal = late(2);
        deliver(deal, part(deal, 2, IN, OUT));
        bringAck(deal, matcher, IN / 2, OUT + 5);
        assertState(deal, ITaskRegistry.State.Settled);
        vm.assertEq(jobOf(deal).tokensIn, IN);
        vm.assertEq(jobOf(deal).tokensOut, OUT + 5);
    }

    function test_aDispute_freezesIt_andMoreIsStillCounted() public {
        Deal memory deal = late(2);
        Delivery memory d = part(deal, 1, IN / 2, OUT / 2);
        deliver(deal, d);
        dispute(deal, d, 1);
        assertState(deal, ITaskRegistry.State.Disputed);
        deliver(deal, part(deal, 2, IN, OUT));
        assertState(deal, ITaskRegistry.State.Disputed);
        vm.assertEq(jobOf(deal).tokensIn, IN);
        resolve(deal, d, 1, true);
        vm.warp(uint256(jobOf(deal).finalAt) + 1);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[1]), 0);
        vm.assertGt(creditNano(minerOwners[0]), 0);
    }

    function test_anEndedJob_reverts() public {
        Deal memory deal = matchedDeal(2);
        settleAck(deal, IN, OUT);
        vm.warp(deal.order.deadline + 1);
        refuseDelivery(
            deal,
            part(deal, 2, IN, OUT + 1),
            abi.encodeWithSelector(ITaskRegistry.WrongState.selector, ITaskRegistry.State.Settled)
        );
    }
}
