// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {IArbitrator} from "../src/interfaces/IArbitrator.sol";
import {IEscrow} from "../src/interfaces/IEscrow.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {DisputeId, JobId} from "../src/types/Ids.sol";
import {Ack, AuditorDelegation, Order} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {ContractWallet} from "./fixtures/Wallets.sol";

/// Keys that may sign orders for an account, and how much of its money they may bind.
contract EscrowSpendersTest is Suite {
    using Messages for *;

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;
    uint64 private constant NEVER = type(uint64).max;

    address private spender;
    uint256 private spenderKey;
    address private other;
    uint256 private otherKey;

    function setUp() public override {
        super.setUp();
        (spender, spenderKey) = makeKey("spender");
        (other, otherKey) = makeKey("other spender");
        allow(spender, 10 * USD, NEVER);
    }

    function allow(address who, uint256 limit, uint64 expiry) private {
        vm.prank(requester);
        escrow.setSpender(who, uint96(limit), expiry);
    }

    function used(address who) private view returns (uint256) {
        return escrow.spenderOf(requester, who).usedNano;
    }

    /// Signed by `key` in the requester's place, not brought yet.
    function signedBy(uint256 key, Order memory order) private view returns (Deal memory deal) {
        deal = dealOf(order, evenPlan(2));
        deal.orderSig = sign(key, JobId.unwrap(deal.id));
    }

    function ackBy(uint256 key, Deal memory deal, uint32 tokensIn, uint32 tokensOut) private {
        (Ack memory ack,) = newAck(deal, tokensIn, tokensOut);
        bytes memory sig = sign(key, digest(ack.hash()));
        vm.prank(matcher);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
    }

    function expectRevertOnOpen(Deal memory deal, bytes memory reason) private {
        vm.prank(matcher);
        vm.expectRevert(reason);
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
    }

    // --- setting ---

    function test_setSpender_isReadable() public {
        vm.expectEmit(address(escrow));
        emit IEscrow.SpenderSet(requester, other, 3 * USD, 1_900_000_000);
        allow(other, 3 * USD, 1_900_000_000);
        IEscrow.Spender memory s = escrow.spenderOf(requester, other);
        vm.assertEq(uint256(s.limit), 3 * USD);
        vm.assertEq(uint256(s.usedNano), 0);
        vm.assertEq(uint256(s.expiry), 1_900_000_000);
        vm.assertTrue(escrow.isSpender(requester, other));
        vm.assertFalse(escrow.isSpender(other, requester));
        vm.assertFalse(escrow.isSpender(requester, stranger));
        vm.assertFalse(escrow.isSpender(requester, address(0)));
    }

    /// A key with a limit of zero opens nothing, also not what costs nothing.
    function test_setSpender_toALimitOfZero_takesThePermissionBack() public {
        Order memory free = newOrder();
        makeFree(free);
        Deal memory deal = signedBy(spenderKey, free);
        allow(spender, 0, NEVER);
        vm.assertFalse(escrow.isSpender(requester, spender));
        expectRevertOnOpen(
            deal, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester)
        );
        allow(spender, 1, NEVER);
        openMatched(deal);
        vm.assertEq(escrow.jobSpenderOf(deal.id), spender);
    }

    function test_setSpender_ofNobodyOrOneself_reverts() public {
        address[2] memory wrong = [address(0), requester];
        for (uint256 i; i < 2; ++i) {
            vm.prank(requester);
            vm.expectRevert(abi.encodeWithSelector(IEscrow.SpenderInvalid.selector, wrong[i]));
            escrow.setSpender(wrong[i], 1, NEVER);
        }
    }

    // --- orders ---

    function test_order_bySpender_locksTheRequestersMoney() public {
        Deal memory deal = signedBy(spenderKey, newOrder());
        uint256 amount = maxNanoOf(deal.order);
        vm.expectEmit(address(escrow));
        emit IEscrow.SpenderLocked(requester, spender, deal.id, amount);
        openMatched(deal);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - amount);
        vm.assertEq(used(spender), amount);
        vm.assertEq(escrow.jobSpenderOf(deal.id), spender);
        vm.assertEq(lockedNano(deal), amount);
        vm.assertTrue(jobOf(deal).isSpenders);
        vm.assertEq(escrow.jobSpenderOf(matchedDeal(2).id), address(0));
    }

    function test_order_byAStranger_reverts() public {
        bytes memory reason =
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester);
        expectRevertOnOpen(signedBy(otherKey, newOrder()), reason);
        Deal memory deal = newDeal(2);
        deal.orderSig = "";
        expectRevertOnOpen(deal, reason);
        vm.prank(stranger); // somebody else's spender is not this requester's
        escrow.setSpender(other, 1, NEVER);
        expectRevertOnOpen(signedBy(otherKey, newOrder()), reason);
    }

    function test_order_countsUntilTheExpiry() public {
        uint64 expiry = uint64(vm.getBlockTimestamp() + 5 minutes);
        allow(spender, 10 * USD, expiry);
        Deal memory deal = signedBy(spenderKey, newOrder());
        vm.warp(expiry + 1);
        expectRevertOnOpen(
            deal, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester)
        );
        vm.warp(expiry);
        openMatched(deal);
        deal = signedBy(spenderKey, newOrder());
        vm.warp(expiry - 1);
        openMatched(deal);
    }

    /// Locks count, what comes back counts no more, what was paid counts for good.
    function test_limit_countsLocksAndPaymentsButNotRefunds() public {
        Deal memory deal = signedBy(spenderKey, newOrder());
        uint256 amount = maxNanoOf(deal.order);
        uint256 limit = unitsOf(2 * amount);
        allow(spender, limit - 1, NEVER);
        openMatched(deal);
        Deal memory next = signedBy(spenderKey, newOrder());
        bytes memory over = abi.encodeWithSelector(
            IEscrow.SpenderOverLimit.selector, spender, 2 * amount, (limit - 1) * NANO
        );
        expectRevertOnOpen(next, over);
        allow(spender, limit, NEVER);
        openMatched(next);
        settleAck(deal, IN, OUT);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        uint256 spent = gross[0] + gross[1] + openingNano(deal.order);
        vm.assertEq(used(spender), spent + amount);
        vm.warp(uint256(next.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        tasks.expire(next.order, next.plan);
        spent += openingNano(next.order);
        vm.assertEq(used(spender), spent);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - spent);
    }

    /// What a stage at fault is not paid comes back with the session's end.
    function test_limit_countsNoWithheldShare() public {
        Deal memory deal = signedBy(spenderKey, sessionOrder());
        openMatched(deal);
        ackBy(spenderKey, deal, 1000, 500);
        equivocation(deal, contradiction(deal, 1));
        ackBy(spenderKey, deal, IN, OUT);
        vm.assertEq(used(spender), maxNanoOf(deal.order));
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        tasks.expire(deal.order, deal.plan);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        vm.assertEq(used(spender), gross[0] + openingNano(deal.order));
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - used(spender));
    }

    /// The share that a batch withholds comes back with its end.
    function test_limit_countsNoWithheldShareOfABatch() public {
        Deal memory deal = signedBy(spenderKey, newOrder());
        openMatched(deal);
        equivocation(deal, contradiction(deal, 1));
        ackBy(spenderKey, deal, IN, OUT);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        vm.assertEq(used(spender), gross[0] + openingNano(deal.order));
    }

    /// What a key uses is counted in 96 bits of nano units; an order that takes more is refused.
    function test_limit_ofMoreThanItsWordHolds_reverts() public {
        Order memory order = newOrder();
        (order.maxTokensIn, order.maxTokensOut) = (type(uint32).max, type(uint32).max);
        (order.priceIn, order.priceOut) = (type(uint64).max, type(uint64).max);
        uint256 nano = maxNanoOf(order);
        depositFor(requester, unitsOf(nano));
        allow(spender, unitsOf(nano), NEVER);
        Deal memory deal = signedBy(spenderKey, order);
        expectRevertOnOpen(
            deal,
            abi.encodeWithSelector(SafeCast.SafeCastOverflowedUintDowncast.selector, 96, nano)
        );
    }

    /// Lowering a limit while an order is on its way lets no more be spent than the new limit says.
    function test_limit_loweredBelowWhatIsUsed_closesTheDoor() public {
        openMatched(signedBy(spenderKey, newOrder()));
        uint256 had = used(spender);
        allow(spender, had / NANO, NEVER);
        Deal memory deal = signedBy(spenderKey, newOrder());
        expectRevertOnOpen(
            deal,
            abi.encodeWithSelector(
                IEscrow.SpenderOverLimit.selector, spender, 2 * had, had / NANO * NANO
            )
        );
        vm.assertEq(used(spender), had);
    }

    /// Escrow asks by itself, whatever TaskRegistry asked before.
    function test_lock_byAKeyThatIsNotAllowed_reverts() public {
        JobId id = JobId.wrap("job");
        vm.startPrank(address(tasks));
        vm.expectRevert(
            abi.encodeWithSelector(IEscrow.SpenderNotAllowed.selector, requester, other)
        );
        escrow.lock(id, requester, other, 0);
        vm.expectRevert(
            abi.encodeWithSelector(IEscrow.SpenderNotAllowed.selector, stranger, spender)
        );
        escrow.lock(id, stranger, spender, 0);
        escrow.lock(id, requester, spender, 7);
        vm.stopPrank();
        vm.assertEq(used(spender), 7);
        vm.assertEq(escrow.jobSpenderOf(id), spender);
    }

    /// A refund or a payment's rest frees the spender's limit only of a job that it opened.
    function test_refund_freesTheLimitOfItsOwnJobAlone() public {
        JobId id = JobId.wrap("job");
        JobId own = JobId.wrap("own");
        vm.startPrank(address(tasks));
        escrow.lock(id, requester, spender, 7);
        escrow.lock(own, requester, address(0), 9);
        escrow.pay(IEscrow.Bill(own, requester, false, matcher, 0, 0, 9), new uint256[](0));
        vm.assertEq(used(spender), 7);
        escrow.pay(IEscrow.Bill(id, requester, true, matcher, 0, 0, 3), new uint256[](0));
        vm.assertEq(used(spender), 4);
        IEscrow.Bill memory bill = IEscrow.Bill(id, requester, true, matcher, 1, 0, 2);
        escrow.pay(bill, new uint256[](0));
        vm.assertEq(used(spender), 2);
        vm.stopPrank();
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - 2);
    }

    function test_limit_isNoMoney() public {
        allow(spender, 1000 * USD, NEVER);
        uint256 free = escrow.balanceOf(requester);
        vm.prank(requester);
        escrow.requestWithdraw(free);
        Deal memory deal = signedBy(spenderKey, newOrder());
        uint256 amount = maxNanoOf(deal.order);
        expectRevertOnOpen(
            deal,
            abi.encodeWithSelector(IEscrow.InsufficientBalance.selector, requester, 0, amount)
        );
    }

    // --- what a spender cannot do ---

    function test_spender_hasNoMoneyOfItsOwn() public {
        uint256 all = balanceNano(requester);
        vm.startPrank(spender);
        vm.expectRevert(
            abi.encodeWithSelector(IEscrow.InsufficientBalance.selector, spender, 0, NANO)
        );
        escrow.requestWithdraw(1);
        vm.expectRevert(IEscrow.NothingThawing.selector);
        escrow.withdraw();
        address[] memory list = new address[](2);
        (list[0], list[1]) = (spender, requester);
        escrow.collect(list);
        escrow.collectFees(list);
        escrow.setSpender(other, uint96(100 * USD), NEVER); // for the spender's own, empty account
        vm.stopPrank();
        vm.assertFalse(escrow.isSpender(requester, other));
        vm.assertEq(balanceNano(requester), all);
    }

    function test_spender_opensNoJobWithTheRequestersTokens_andCancelsNone() public {
        Order memory order = newOrder();
        fund(requester, address(escrow), unitsOf(maxNanoOf(order)));
        vm.prank(spender);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, spender));
        tasks.open(order);
        vm.prank(requester);
        tasks.open(order);
        vm.prank(spender);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, spender));
        tasks.cancel(order);
    }

    // --- Acks and delegations ---

    function test_ack_byTheKeyThatSignedTheOrder() public {
        Deal memory batch = signedBy(spenderKey, newOrder());
        openMatched(batch);
        ackBy(spenderKey, batch, IN, OUT);
        assertState(batch, ITaskRegistry.State.Settled);
        Deal memory session = signedBy(spenderKey, sessionOrder());
        openMatched(session);
        ackBy(spenderKey, session, 1000, 500);
        ackBy(requesterKey, session, 2000, 500); // the requester itself, at any time
        ackBy(spenderKey, session, IN, OUT);
        vm.assertEq(jobOf(session).tokensIn, IN);
    }

    /// A spender does not say what another's jobs, or the requester's own, are due.
    function test_ack_byAnotherSpender_reverts() public {
        allow(other, 10 * USD, NEVER);
        Deal[2] memory deals = [signedBy(spenderKey, sessionOrder()), matchedSession(2)];
        openMatched(deals[0]);
        for (uint256 i; i < 2; ++i) {
            (Ack memory ack,) = newAck(deals[i], IN, OUT);
            bytes memory sig = sign(otherKey, digest(ack.hash()));
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester));
            tasks.settleAck(deals[i].order, ack, sig, deals[i].plan);
        }
    }

    /// A key taken back opens nothing more, but the jobs that it opened are settled by it.
    function test_ack_afterTheKeyWasTakenBack_stillPays() public {
        Deal memory deal = signedBy(spenderKey, sessionOrder());
        Deal memory late = signedBy(spenderKey, newOrder());
        openMatched(deal);
        allow(spender, 0, 0);
        ackBy(spenderKey, deal, IN, OUT);
        expectRevertOnOpen(
            late, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester)
        );
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        // Frees what it used, though its limit is zero by now.
        tasks.expire(deal.order, deal.plan);
        vm.assertGt(creditNano(minerOwners[0]), 0);
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        vm.assertEq(used(spender), gross[0] + gross[1] + openingNano(deal.order));
    }

    function test_requestClose_mayComeFromItsOwnSpender() public {
        Deal memory deal = signedBy(spenderKey, sessionOrder());
        openMatched(deal);
        vm.prank(other);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, other));
        tasks.requestClose(deal.order, deal.planHash);
        vm.prank(spender);
        tasks.requestClose(deal.order, deal.planHash);
    }

    /// Also when the job has ended and its lock is gone.
    function test_delegation_byTheKeyThatSignedTheOrder() public {
        Deal memory deal = signedBy(spenderKey, newOrder());
        openMatched(deal);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        ackBy(spenderKey, deal, IN, OUT);
        AuditorDelegation memory delegation = AuditorDelegation(deal.orderHash, stranger, NEVER);
        fund(stranger, address(jury), uint256(BOND) + FEE);
        bytes memory sig = sign(otherKey, digest(delegation.hash()));
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester));
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
        sig = sign(spenderKey, digest(delegation.hash()));
        vm.prank(stranger);
        tasks.dispute(
            deal.order, deal.plan, delivery.receipts[1], delivery.sigs[1], delegation, sig
        );
    }

    /// Nobody who could dispute the job, or delegate that, is drawn for it.
    function test_dispute_namesTheSpenderAsAParty() public {
        address[] memory jurors = new address[](8);
        (jurors[0], jurors[1], jurors[2], jurors[3]) = (spender, requester, auditor, matcher);
        for (uint256 i = 4; i < 8; ++i) {
            jurors[i] = i == 4 ? other : address(uint160(0x70 + i));
        }
        stakeAsJurors(jurors);
        Deal memory deal = signedBy(spenderKey, newOrder());
        openMatched(deal);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        ackBy(spenderKey, deal, IN, OUT);
        dispute(deal, delivery, 1);
        DisputeId id =
            jury.disputeIdOf(deal.id, 1, delivery.receipts[1].hash(), IArbitrator.Right.Requester);
        vm.roll(uint256(jury.disputeOf(id).drawBlock) + 1);
        jury.draw(id);
        address[] memory panel = jury.panelOf(id);
        vm.assertEq(panel.length, 3);
        for (uint256 i; i < 3; ++i) {
            vm.assertTrue(panel[i] == other || uint160(panel[i]) < 0x80);
        }
    }

    // --- contract accounts ---

    function test_contractAccount_letsAPlainKeySpend() public {
        ContractWallet wallet = new ContractWallet(stranger);
        depositFor(address(wallet), 10 * USD);
        vm.prank(address(wallet));
        escrow.setSpender(spender, uint96(10 * USD), NEVER);
        Order memory order = sessionOrder();
        order.requester = address(wallet);
        Deal memory deal = signedBy(spenderKey, order);
        openMatched(deal);
        ackBy(spenderKey, deal, IN, OUT);
        vm.assertEq(escrow.jobSpenderOf(deal.id), spender);
    }

    // --- the books ---

    /// used = paid + locked for its jobs, whatever comes in, and never over the limit.
    function testFuzz_used_isPaidPlusLocked(uint256 limit, uint256 seed) public {
        limit = bound(limit, 0, 5 * USD);
        allow(spender, limit, NEVER);
        uint256 paid;
        uint256 locked;
        for (uint256 i; i < 8; ++i) {
            seed = uint256(keccak256(abi.encode(seed)));
            Deal memory deal = signedBy(spenderKey, seed % 2 == 0 ? sessionOrder() : newOrder());
            uint256 amount = maxNanoOf(deal.order);
            if (paid + locked + amount > limit * NANO) {
                bytes memory over = abi.encodeWithSelector(
                    IEscrow.SpenderOverLimit.selector,
                    spender,
                    paid + locked + amount,
                    limit * NANO
                );
                bytes memory none =
                    abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester);
                expectRevertOnOpen(deal, limit == 0 ? none : over);
                continue;
            }
            openMatched(deal);
            if (seed >> 8 & 1 == 1) {
                ackBy(spenderKey, deal, uint32(seed % IN) + 1, uint32(seed % OUT));
            }
            locked += lockedNano(deal);
            if (stateOf(deal) == ITaskRegistry.State.Settled) {
                (uint256[] memory gross,,,) =
                    tasks.split(deal.order, deal.plan, uint32(seed % IN) + 1, uint32(seed % OUT));
                paid += gross[0] + gross[1] + openingNano(deal.order);
            }
            vm.assertEq(used(spender), paid + locked);
            vm.assertLe(used(spender), limit * NANO);
        }
    }
}
