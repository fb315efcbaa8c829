// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {Ack} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {BlacklistToken, CallbackToken} from "./fixtures/Tokens.sol";

/// A token that calls back in every transfer (attack #1), and one that refuses people (#46).
contract ReentrancyTest is Suite {
    using Messages for *;

    CallbackToken private hook;

    function setUp() public override {
        super.setUp();
        hook = new CallbackToken(address(this));
        useToken(hook);
    }

    function useToken(CallbackToken token_) private {
        deploy(token_);
        resetPeople();
    }

    function resetPeople() private {
        delete minerOwners;
        delete operatorKeys;
        delete roots;
        registerModel();
        addMiners(3);
        depositFor(requester, 100 * USD);
    }

    function arm(address target, bytes memory data) private {
        hook.arm(target, data);
    }

    function assertGuarded(string memory what) private view {
        vm.assertTrue(hook.called(), what);
        vm.assertFalse(hook.succeeded(), what);
        vm.assertEq(
            hook.answer(),
            abi.encodeWithSelector(ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector)
        );
    }

    /// All of Escrow that moves tokens or pays out.
    function guardedOfEscrow() private view returns (bytes[] memory calls) {
        address[] memory list = new address[](2);
        (list[0], list[1]) = (vm.addr(operatorKeys[0]), matcher);
        calls = new bytes[](4);
        calls[0] = abi.encodeCall(escrow.deposit, (1));
        calls[1] = abi.encodeCall(escrow.withdraw, ());
        calls[2] = abi.encodeCall(escrow.collect, (list));
        calls[3] = abi.encodeCall(escrow.collectFees, (list));
    }

    /// All of TaskRegistry that moves money.
    function guardedOfTasks(Deal memory deal) private view returns (bytes[] memory calls) {
        calls = new bytes[](8);
        Delivery memory delivery = newDelivery(deal, 1, 1);
        (Ack memory ack, bytes memory sig) = newAck(deal, 1, 1);
        calls[0] = abi.encodeCall(tasks.open, (deal.order));
        calls[1] = abi.encodeCall(tasks.openMatched, (deal.order, deal.orderSig, deal.plan));
        calls[2] = abi.encodeCall(tasks.matchJob, (deal.order, deal.plan));
        calls[3] = abi.encodeCall(tasks.settleAck, (deal.order, ack, sig, deal.plan));
        calls[4] = abi.encodeCall(tasks.finalize, (deal.order, deal.plan));
        calls[5] = abi.encodeCall(tasks.cancel, (deal.order));
        calls[6] = abi.encodeCall(tasks.expire, (deal.order, deal.plan));
        calls[7] = abi.encodeCall(
            tasks.dispute,
            (deal.order, deal.plan, delivery.receipts[0], delivery.sigs[0], noDelegation(), "")
        );
    }

    function assertBooksBalance() private view {
        uint256 books = balanceNano(requester) + escrow.thawOf(requester).amount * NANO
            + creditNano(matcher) + creditNano(treasury) + balanceNano(address(hook))
            + escrow.thawOf(address(hook)).amount * NANO;
        for (uint256 i; i < minerOwners.length; ++i) {
            books += creditNano(minerOwners[i]);
        }
        vm.assertEq(token.balanceOf(address(escrow)) * NANO, books);
    }

    function test_reenterEscrow_fromDeposit() public {
        bytes[] memory calls = guardedOfEscrow();
        for (uint256 i; i < calls.length; ++i) {
            fund(requester, address(escrow), USD);
            arm(address(escrow), calls[i]);
            vm.prank(requester);
            escrow.deposit(USD);
            assertGuarded("deposit");
        }
        assertBooksBalance();
    }

    function test_reenterEscrow_fromWithdraw() public {
        bytes[] memory calls = guardedOfEscrow();
        for (uint256 i; i < calls.length; ++i) {
            vm.prank(requester);
            escrow.requestWithdraw(USD);
            skipTime(WITHDRAW_DELAY_SECONDS);
            arm(address(escrow), calls[i]);
            vm.prank(requester);
            escrow.withdraw();
            assertGuarded("withdraw");
        }
        assertBooksBalance();
    }

    function test_reenterEscrow_fromCollect() public {
        bytes[] memory calls = guardedOfEscrow();
        for (uint256 i; i < calls.length; ++i) {
            settleAck(matchedDeal(1), 1000, 1000);
            arm(address(escrow), calls[i]);
            collect(0);
            assertGuarded("collect");
        }
        assertBooksBalance();
    }

    function test_reenterEscrow_fromCollectFees() public {
        bytes[] memory calls = guardedOfEscrow();
        for (uint256 i; i < calls.length; ++i) {
            settleAck(matchedDeal(1), 100_000, 100_000);
            arm(address(escrow), calls[i]);
            collectFees();
            assertGuarded("collectFees");
        }
        assertBooksBalance();
    }

    function collect(uint256 miner) private {
        address[] memory list = new address[](1);
        list[0] = vm.addr(operatorKeys[miner]);
        escrow.collect(list);
    }

    function collectFees() private {
        address[] memory list = new address[](1);
        list[0] = matcher;
        escrow.collectFees(list);
    }

    /// A job may be paid in the middle of a collection, and nothing of it is lost.
    function test_pay_insideCollect_keepsTheBooks() public {
        settleAck(matchedDeal(1), 100_000, 100_000);
        Deal memory deal = matchedSession(1);
        (Ack memory ack, bytes memory sig) = newAck(deal, 100_000, 100_000);
        bytes memory call = abi.encodeCall(tasks.settleAck, (deal.order, ack, sig, deal.plan));
        uint256 state = vm.snapshotState();
        for (uint256 i; i < 2; ++i) {
            arm(address(tasks), call);
            if (i == 0) collect(0);
            else collectFees();
            vm.assertTrue(hook.succeeded());
            vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
            tasks.expire(deal.order, deal.plan);
            assertBooksBalance();
            (, uint256[] memory pay, uint256 matcherFee, uint256 protocolFee) =
                tasks.split(deal.order, deal.plan, 100_000, 100_000);
            uint256 owed = i == 0 ? pay[0] : matcherFee + openingNano(deal.order);
            uint256 left = creditNano(i == 0 ? minerOwners[0] : matcher);
            vm.assertEq(left, owed + owed % NANO);
            if (i == 1) vm.assertEq(creditNano(treasury), protocolFee + protocolFee % NANO);
            vm.revertToState(state);
            state = vm.snapshotState();
        }
    }

    function test_reenterBoth_fromOpen() public {
        Deal memory deal = newDeal(2);
        bytes[] memory ofEscrow = guardedOfEscrow();
        for (uint256 i; i < ofEscrow.length; ++i) {
            reenterFromOpen(address(escrow), ofEscrow[i]);
        }
        bytes[] memory ofTasks = guardedOfTasks(deal);
        for (uint256 i; i < ofTasks.length; ++i) {
            reenterFromOpen(address(tasks), ofTasks[i]);
        }
    }

    function reenterFromOpen(address target, bytes memory data) private {
        Deal memory deal = newDeal(2);
        fund(requester, address(escrow), unitsOf(maxNanoOf(deal.order)));
        arm(target, data);
        vm.prank(requester);
        tasks.open(deal.order);
        assertGuarded("open");
    }

    function test_reenterTasks_fromTheArbitratorsBond() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = deliver(deal, 1000, 1000);
        bytes[] memory calls = guardedOfTasks(deal);
        uint256 state = vm.snapshotState();
        for (uint256 i; i < calls.length; ++i) {
            fund(requester, address(jury), uint256(BOND) + FEE);
            arm(address(tasks), calls[i]);
            vm.prank(requester);
            callDispute(deal, delivery, 1);
            assertGuarded("dispute");
            vm.revertToState(state);
            state = vm.snapshotState();
        }
    }

    /// What is not guarded may run inside a transfer, and the books still balance.
    function test_reenterUnguarded_keepsTheBooks() public {
        depositFor(address(hook), 10 * USD);
        bytes[] memory calls = new bytes[](2);
        calls[0] = abi.encodeCall(escrow.requestWithdraw, (USD));
        calls[1] = abi.encodeCall(escrow.setSpender, (stranger, uint96(USD), type(uint64).max));
        for (uint256 i; i < 2; ++i) {
            fund(requester, address(escrow), USD);
            arm(address(escrow), calls[i]);
            vm.prank(requester);
            escrow.deposit(USD);
            vm.assertTrue(hook.succeeded());
            assertBooksBalance();
        }
        vm.assertTrue(escrow.isSpender(address(hook), stranger));
    }

    // --- people the token refuses ---

    function blacklisted() private returns (BlacklistToken refusing) {
        refusing = new BlacklistToken(address(this));
        deploy(refusing);
        resetPeople();
    }

    /// A refused stage owner stops no settlement and no pay of others; only its own waits.
    function test_refusedOwner_stopsNobodyElse() public {
        BlacklistToken refusing = blacklisted();
        Deal memory deal = matchedDeal(3);
        refusing.refuse(minerOwners[1]);
        settleAck(deal, 1000, 1000);
        address[] memory list = new address[](3);
        uint256[] memory owed = new uint256[](3);
        for (uint256 i; i < 3; ++i) {
            list[i] = vm.addr(operatorKeys[i]);
            owed[i] = creditNano(minerOwners[i]);
            vm.assertGe(owed[i], NANO);
        }
        escrow.collect(list);
        vm.assertEq(creditNano(minerOwners[0]), owed[0] % NANO);
        vm.assertEq(creditNano(minerOwners[1]), owed[1]);
        vm.assertEq(creditNano(minerOwners[2]), owed[2] % NANO);
        vm.assertEq(token.balanceOf(minerOwners[2]), owed[2] / NANO);
        vm.assertEq(token.balanceOf(minerOwners[1]), 0);
        assertBooksBalance();
    }

    /// A refused matcher keeps no fee from the protocol.
    function test_refusedMatcher_stopsNotTheProtocolsFees() public {
        BlacklistToken refusing = blacklisted();
        settleAck(matchedDeal(1), 100_000, 100_000);
        refusing.refuse(matcher);
        (uint256 ofMatcher, uint256 ofProtocol) = escrow.feesOf(matcher);
        uint256 owed = creditNano(matcher);
        collectFees();
        vm.assertGt(ofMatcher, 0);
        vm.assertEq(creditNano(matcher), owed);
        vm.assertEq(token.balanceOf(treasury), ofProtocol);
        assertBooksBalance();
    }

    /// Nor does a refused fee recipient keep a matcher from its own; the next one gets what waits.
    function test_refusedFeeRecipient_stopsNoMatchersFees() public {
        BlacklistToken refusing = blacklisted();
        settleAck(matchedDeal(1), 100_000, 100_000);
        refusing.refuse(treasury);
        (uint256 ofMatcher, uint256 ofProtocol) = escrow.feesOf(matcher);
        collectFees();
        vm.assertEq(token.balanceOf(matcher), ofMatcher);
        vm.assertGt(ofProtocol, 0);
        assertBooksBalance();
        vm.prank(governor);
        tasks.setFeeRecipient(stranger);
        collectFees();
        vm.assertEq(token.balanceOf(stranger), ofProtocol);
        vm.assertEq(token.balanceOf(matcher), ofMatcher);
        assertBooksBalance();
    }

    /// #46: a refused requester or miner makes no slash, expiry or refund revert.
    function test_refusedPeople_stopNoVerdict() public {
        BlacklistToken refusing = blacklisted();
        Deal memory deal = matchedDeal(3);
        Deal memory other = matchedDeal(2);
        refusing.refuse(requester);
        refusing.refuse(minerOwners[1]);
        equivocation(deal, contradiction(deal, 1));
        vm.assertEq(miners.minerOf(minerOwners[1]).stake, 0);
        vm.assertEq(miners.creditOf(requester), evidenceAmends(deal));
        settleAck(deal, 1000, 1000);
        vm.warp(uint256(other.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        tasks.expire(other.order, other.plan);
        vm.startPrank(requester);
        escrow.requestWithdraw(escrow.balanceOf(requester));
        skipTime(WITHDRAW_DELAY_SECONDS);
        vm.expectRevert("refused");
        escrow.withdraw();
        vm.stopPrank();
    }
}
