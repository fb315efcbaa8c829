// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {Ack, Order, RequestLeaf} from "../../src/types/Signed.sol";
import {Court} from "../fixtures/Court.sol";
import {Messages} from "../fixtures/Messages.sol";

/// What attackers gain together by an attack with random parameters: what they have afterwards,
/// less what they had before, plus what they were served. `CASES` in the environment says how many
/// cases of each are played.
contract Gains is Court {
    using Messages for *;

    /// The largest gain of the attackers in nano units, negative where they always lose. Forge
    /// prints events of this name.
    event log_named_int(string attack, int256 worst);

    address[] private coalition;
    address private straw;
    uint256 private strawKey;
    uint256 private seed;

    function setUp() public override {
        super.setUp();
        (straw, strawKey) = makeKey("straw");
        depositFor(straw, 1_000_000 * USD);
        depositFor(requester, 1_000_000 * USD);
    }

    // --- randomness and wealth ---

    function random(uint256 least, uint256 most) private returns (uint256) {
        seed = uint256(keccak256(abi.encode(seed)));
        return bound(seed >> 8, least, most);
    }

    function flip() private returns (bool) {
        return random(0, 1) == 1;
    }

    /// Everything that the attackers own: tokens, balances, credits and stakes.
    function wealth() private view returns (int256 nano) {
        for (uint256 i; i < coalition.length; ++i) {
            address who = coalition[i];
            IMinerRegistry.Miner memory miner = miners.minerOf(who);
            uint256 units = token.balanceOf(who) + escrow.thawOf(who).amount + miners.creditOf(who)
                + jury.creditOf(who) + uint256(miner.stake) + miner.leaving;
            nano += int256(balanceNano(who) + creditNano(who) + units * NANO);
        }
    }

    /// Two attackers who hold tokens for bonds and stakes.
    function gather(address one, address other) private {
        coalition = [one, other];
        token.mint(one, 100_000 * USD);
        token.mint(other, 100_000 * USD);
    }

    function worstOf(string memory name, function() external returns (int256) attack) private {
        uint256 cases = vm.envOr("CASES", uint256(8));
        int256 worst = type(int256).min;
        for (uint256 i; i < cases; ++i) {
            uint256 state = vm.snapshotState();
            seed = uint256(keccak256(abi.encode(name, i)));
            int256 gain = attack();
            vm.assertTrue(vm.revertToState(state));
            if (gain > worst) worst = gain;
        }
        emit log_named_int(name, worst);
        vm.assertTrue(worst <= 0, name);
    }

    // --- jobs of random size ---

    function randomOrder(address who) private returns (Order memory order) {
        order = newOrder();
        order.requester = who;
        if (who == straw) order.auditor = straw;
        uint64 scale = uint64(10 ** random(0, 4));
        (order.priceIn, order.priceOut) =
        (order.priceIn * scale / 100, order.priceOut * scale / 100);
    }

    function opened(Order memory order, uint256 stages) private returns (Deal memory deal) {
        deal = dealOf(order, evenPlan(stages));
        uint256 key = order.requester == straw ? strawKey : requesterKey;
        deal.orderSig = sign(key, digest(deal.orderHash));
        openMatched(deal);
    }

    /// Bond and fee come out of what `who` has.
    function disputeBy(address who, Deal memory deal, Delivery memory delivery) private {
        vm.startPrank(who);
        token.approve(address(jury), type(uint256).max);
        callDispute(deal, delivery, 0);
        vm.stopPrank();
    }

    // --- the attacks ---

    function test_gain_ofConvictingOneself() public {
        worstOf("a guilty miner convicts itself in jobs of its straw", this.convictOneself);
    }

    function test_gain_ofASilentAuditor() public {
        worstOf(
            "an auditor of the guilty miner accuses first and falls silent", this.silentAuditor
        );
    }

    function test_gain_ofFreezing() public {
        worstOf("false accusations freeze a competitor", this.freeze);
    }

    function test_gain_ofStaleVouchers() public {
        worstOf("a requester brings Acks of its own before a stage's voucher", this.staleVouchers);
    }

    function test_gain_ofAnExpiryBeforeTheAck() public {
        worstOf("a requester lets a job expire before its Ack comes", this.expireFirst);
    }

    function test_gain_ofCuttingABatchOff() public {
        worstOf("a requester and a stage of it cut a batch off with a small Ack", this.cutOff);
    }

    function test_gain_ofKeepingAReceiptBack() public {
        worstOf("a requester and a stage that keeps its receipt back pay nobody", this.keepBack);
    }

    function convictOneself() external returns (int256) {
        gather(minerOwners[0], straw);
        vm.startPrank(minerOwners[0]);
        uint256 more = random(1, 50_000) * USD;
        token.approve(address(miners), more);
        miners.addStake(more);
        vm.stopPrank();
        int256 before = wealth();

        Deal memory deal = opened(randomOrder(requester), 2);
        Deal[] memory own = new Deal[](random(0, 3));
        for (uint256 i; i < own.length; ++i) {
            own[i] = opened(randomOrder(straw), 1);
        }
        Delivery memory delivery = deliver(deal, 900_000, 400_000);
        uint256 stake = miners.minerOf(minerOwners[0]).stake;
        fund(requester, address(jury), stake);
        DisputeId honest = disputeIdOf(deal, delivery, 0);
        DisputeId[] memory feigned = new DisputeId[](own.length);
        uint256 turn = random(0, own.length);
        for (uint256 i; i <= own.length; ++i) {
            if (i == turn) {
                vm.prank(requester);
                callDispute(deal, delivery, 0);
            }
            if (i == own.length) break;
            if (flip()) {
                equivocation(own[i], contradiction(own[i], 0));
                continue;
            }
            Delivery memory mine = deliver(own[i], 900_000, 400_000);
            disputeBy(straw, own[i], mine);
            feigned[i] = disputeIdOf(own[i], mine, 0);
        }
        bool early = flip();
        if (early) rule(honest, IJuryArbitrator.Vote.Fault);
        for (uint256 i; i < own.length; ++i) {
            if (DisputeId.unwrap(feigned[i]) != 0) rule(feigned[i], IJuryArbitrator.Vote.Fault);
        }
        if (!early) rule(honest, IJuryArbitrator.Vote.Fault);
        skipTime(3 days);
        finalize(deal);
        for (uint256 i; i < own.length; ++i) {
            if (DisputeId.unwrap(feigned[i]) != 0) finalize(own[i]);
            else tasks.expire(own[i].order, own[i].plan);
        }
        return wealth() - before;
    }

    function silentAuditor() external returns (int256) {
        gather(minerOwners[0], auditor);
        int256 before = wealth();
        Deal memory deal = opened(randomOrder(requester), random(1, 4));
        Delivery memory delivery = deliver(deal, 900_000, 400_000);
        disputeBy(auditor, deal, delivery);
        DisputeId silent = disputeIdOf(deal, delivery, 0, IArbitrator.Right.Auditor);
        bool lapses = flip();
        if (lapses) letLapse(silent);
        DisputeId honest = openDispute(deal, delivery, 0);
        rule(honest, IJuryArbitrator.Vote.Fault);
        if (!lapses) letLapse(silent);
        skipTime(3 days);
        finalize(deal);
        return wealth() - before;
    }

    function freeze() external returns (int256) {
        gather(requester, auditor);
        int256 before = wealth();
        uint256 jobs = random(1, 3);
        int256 owed;
        Deal[] memory deals = new Deal[](jobs);
        Delivery[] memory deliveries = new Delivery[](jobs);
        for (uint256 i; i < jobs; ++i) {
            deals[i] = opened(randomOrder(requester), 1);
        }
        for (uint256 i; i < jobs; ++i) {
            deliveries[i] = deliver(deals[i], 900_000, 400_000);
            disputeBy(requester, deals[i], deliveries[i]);
            disputeBy(auditor, deals[i], deliveries[i]);
            owed += served(deals[i], 900_000, 400_000);
        }
        for (uint256 i; i < 2 * jobs; ++i) {
            DisputeId id =
                disputeIdOf(deals[i / 2], deliveries[i / 2], 0, IArbitrator.Right(i % 2));
            if (flip()) rule(id, IJuryArbitrator.Vote.NoFault);
            else letLapse(id);
        }
        skipTime(3 days);
        for (uint256 i; i < jobs; ++i) {
            finalize(deals[i]);
        }
        return wealth() - before + owed; // they were served, and pay for it
    }

    function staleVouchers() external returns (int256) {
        coalition = [requester];
        int256 before = wealth();
        Order memory order = randomOrder(requester);
        (order.inputRoot, order.samplingRoot) = (0, 0);
        Deal memory deal = opened(order, random(1, 4));
        uint32 usedIn = uint32(random(1, 900_000));
        uint32 usedOut = uint32(random(1, 400_000));
        (Ack memory held, bytes memory sig) = newAck(deal, usedIn, usedOut);
        for (uint256 i = random(0, 3); i != 0; --i) {
            acknowledge(
                deal,
                flip() ? usedIn + 1 : uint32(random(0, usedIn)),
                flip() ? 0 : uint32(random(0, usedOut))
            );
        }
        if (flip()) {
            vm.prank(requester);
            tasks.requestClose(deal.order, deal.planHash);
        }
        skipTime(random(0, CLOSE_DELAY_SECONDS));
        vm.prank(minerOwners[0]);
        tasks.settleAck(deal.order, held, sig, deal.plan);
        skipTime(3 days);
        tasks.expire(deal.order, deal.plan);
        return wealth() - before + served(deal, usedIn, usedOut);
    }

    function expireFirst() external returns (int256) {
        coalition = [requester];
        int256 before = wealth();
        Deal memory deal = opened(randomOrder(requester), random(1, 4));
        uint32 usedIn = uint32(random(1, 900_000));
        uint32 usedOut = uint32(random(1, 400_000));
        vm.warp(deal.order.deadline + random(0, CLOSE_DELAY_SECONDS));
        vm.prank(requester);
        (bool ok,) = address(tasks).call(abi.encodeCall(tasks.expire, (deal.order, deal.plan)));
        vm.assertFalse(ok, "expired while its Ack counts");
        settleAck(deal, usedIn, usedOut);
        return wealth() - before + served(deal, usedIn, usedOut);
    }

    /// The others deliver what they did, by all receipts: the attackers' stage has signed too.
    function cutOff() external returns (int256) {
        gather(requester, minerOwners[0]);
        int256 before = wealth();
        Deal memory deal = opened(randomOrder(requester), random(2, 4));
        (uint32 usedIn, uint32 usedOut) = (uint32(random(1, 900_000)), uint32(random(1, 400_000)));
        (, uint256[] memory pay,,) = tasks.split(deal.order, deal.plan, usedIn, usedOut);
        int256 owed = served(deal, usedIn, usedOut) - int256(pay[0]);
        Delivery memory delivery = newDelivery(deal, usedIn, usedOut);
        for (uint256 i = random(1, 3); i != 0; --i) {
            acknowledge(deal, uint32(random(0, usedIn)), uint32(random(0, usedOut)));
        }
        deliver(deal, delivery);
        if (flip()) acknowledge(deal, uint32(random(0, usedIn)), uint32(random(0, usedOut)));
        skipTime(3 days);
        finalize(deal);
        return wealth() - before + owed;
    }

    /// The attackers' stage gave no word of its last request, and the batch is never whole. They
    /// show less before the others deliver what all are bound for, and acknowledge less.
    function keepBack() external returns (int256) {
        gather(requester, minerOwners[0]);
        int256 before = wealth();
        Deal memory deal = opened(randomOrder(requester), random(2, 4));
        uint256 done = random(1, 3);
        Delivery memory delivery = boundFor(deal, done);
        (uint32 usedIn, uint32 usedOut) =
            (delivery.receipts[0].tokensIn, delivery.receipts[0].tokensOut);
        (, uint256[] memory pay,,) = tasks.split(deal.order, deal.plan, usedIn, usedOut);
        int256 owed = served(deal, usedIn, usedOut) - int256(pay[0]);
        if (flip()) acknowledge(deal, uint32(random(0, usedIn)), 0);
        vm.warp(deal.order.deadline + random(1, CLOSE_DELAY_SECONDS));
        if (done > 1 && flip()) deliver(deal, boundFor(deal, done - 1));
        if (flip()) acknowledge(deal, uint32(random(0, usedIn)), uint32(random(0, usedOut - 1)));
        deliver(deal, delivery);
        if (flip()) acknowledge(deal, uint32(random(0, usedIn)), uint32(random(0, usedOut)));
        skipTime(3 days);
        if (stateOf(deal) == ITaskRegistry.State.Delivered) finalize(deal);
        return wealth() - before + owed;
    }

    /// The first stage by its words of so many requests, the others by their receipts.
    function boundFor(Deal memory deal, uint256 requests)
        private
        view
        returns (Delivery memory delivery)
    {
        RequestLeaf[] memory leaves = new RequestLeaf[](requests);
        uint32 tokensIn;
        uint32 tokensOut;
        for (uint256 i; i < requests; ++i) {
            leaves[i] = leafOf(i, "one");
            tokensIn += leaves[i].tokensIn;
            tokensOut += leaves[i].tokensOut;
        }
        delivery = newDelivery(deal, tokensIn, tokensOut);
        (delivery.receipts[0], delivery.sigs[0]) = wordsOf(deal, 0, leaves, leaves);
        uint256 last = deal.plan.length - 1;
        delivery.receipts[1].inputRoot = delivery.receipts[0].outputRoot;
        delivery.receipts[last].outputRoot = delivery.receipts[0].inputRoot;
        for (uint256 i = 1; i <= last; ++i) {
            delivery.receipts[i].requests = uint32(requests);
            signReceipt(deal, delivery, i);
        }
    }

    /// The requester brings its own Ack. One that raises neither count is refused.
    function acknowledge(Deal memory deal, uint32 tokensIn, uint32 tokensOut) private {
        (Ack memory ack, bytes memory sig) = newAck(deal, tokensIn, tokensOut);
        vm.prank(requester);
        try tasks.settleAck(deal.order, ack, sig, deal.plan) {} catch {}
    }

    /// What a requester owes for what it was served.
    function served(Deal memory deal, uint32 tokensIn, uint32 tokensOut)
        private
        view
        returns (int256 units)
    {
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, tokensIn, tokensOut);
        for (uint256 i; i < gross.length; ++i) {
            units += int256(gross[i]);
        }
    }
}
