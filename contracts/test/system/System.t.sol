// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {Order} from "../../src/types/Signed.sol";
import {Court} from "../fixtures/Court.sol";
import {Messages} from "../fixtures/Messages.sol";

/// Whole stories, every contract real: who ends with which money.
contract SystemTest is Court {
    using Messages for *;

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;
    IJuryArbitrator.Vote private constant FAULT = IJuryArbitrator.Vote.Fault;
    IJuryArbitrator.Vote private constant NO_FAULT = IJuryArbitrator.Vote.NoFault;

    /// What of their own these people hold in tokens.
    function tokensOf(address[] memory people) private view returns (uint256 units) {
        for (uint256 i; i < people.length; ++i) {
            units += token.balanceOf(people[i]);
        }
    }

    /// A stranger sends what the job's operators earned and its matcher's fees where they belong.
    function collectAll(Deal memory deal) private {
        address[] memory operators = new address[](deal.plan.length);
        for (uint256 i; i < operators.length; ++i) {
            operators[i] = deal.plan[i].operator;
        }
        address[] memory matchers = new address[](1);
        matchers[0] = deal.order.matcher;
        vm.startPrank(stranger);
        escrow.collect(operators);
        escrow.collectFees(matchers);
        vm.stopPrank();
    }

    function withdrawBalance(address who) private returns (uint256) {
        uint256 amount = escrow.balanceOf(who);
        vm.prank(who);
        escrow.requestWithdraw(amount);
        skipTime(WITHDRAW_DELAY_SECONDS);
        vm.prank(who);
        return escrow.withdraw();
    }

    /// Everyone takes what is theirs, and escrow keeps what is less than a unit of each.
    function assertEscrowDrains(Deal memory deal) private {
        uint256 left;
        address[] memory payees = new address[](deal.plan.length + 2);
        for (uint256 i; i < deal.plan.length; ++i) {
            payees[i] = minerOwners[i];
        }
        (payees[deal.plan.length], payees[deal.plan.length + 1]) = (matcher, treasury);
        uint256 before = tokensOf(payees);
        collectAll(deal);
        uint256 paid = tokensOf(payees) - before;
        for (uint256 i; i < payees.length; ++i) {
            left += creditNano(payees[i]);
        }
        paid += withdrawBalance(requester);
        left += balanceNano(requester);
        vm.assertEq((100 * USD - paid) * NANO, left);
        vm.assertEq(token.balanceOf(address(escrow)) * NANO, left);
        vm.assertLt(left, (payees.length + 1) * NANO);
    }

    function payOf(Deal memory deal, uint256 stage) private view returns (uint256) {
        (, uint256[] memory pay,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        return pay[stage];
    }

    function grossOf(Deal memory deal, uint256 stage) private view returns (uint256) {
        (uint256[] memory gross,,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        return gross[stage];
    }

    // --- happy paths ---

    function test_ackPath_paysAtOnce() public {
        for (uint256 stages = 1; stages <= 8; stages *= 2) {
            uint256 fresh = vm.snapshotState();
            Deal memory deal = matchedDeal(stages);
            settleAck(deal, IN, OUT);
            for (uint256 i; i < stages; ++i) {
                vm.assertEq(creditNano(minerOwners[i]), payOf(deal, i));
            }
            assertEscrowDrains(deal);
            vm.revertToState(fresh);
        }
    }

    function test_silentRequester_isCharged() public {
        Deal memory deal = matchedDeal(4);
        deliver(deal, IN, OUT);
        skipTime(deal.order.window + 1);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[3]), payOf(deal, 3));
        assertEscrowDrains(deal);
    }

    function test_directEscrow_fromOpenToAck() public {
        Deal memory deal = newDeal(3);
        openUnmatched(deal);
        matchJob(deal);
        settleAck(deal, IN, OUT);
        vm.assertEq(creditNano(minerOwners[1]), payOf(deal, 1));
        vm.assertEq(token.balanceOf(address(escrow)), 100 * USD + unitsOf(maxNanoOf(deal.order)));
    }

    /// A stage died: nothing is delivered, the requester has its money but for the opening fee.
    function test_killedStage_refundsAll() public {
        Deal memory deal = matchedDeal(4);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        delivery.sigs[2] = ""; // never signed
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[2].operator)
        );
        deliver(deal, delivery);
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        tasks.expire(deal.order, deal.plan);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - openingNano(deal.order));
        vm.assertEq(miners.minerOf(minerOwners[2]).stake, STAKE);
    }

    function test_session_fromOpenToClose() public {
        Deal memory deal = matchedSession(4);
        for (uint32 step = 1; step <= 3; ++step) {
            settleAck(deal, IN / 4 * step, OUT / 4 * step);
        }
        vm.prank(requester);
        tasks.requestClose(deal.order, deal.planHash);
        skipTime(CLOSE_DELAY_SECONDS);
        settleAck(deal, IN, OUT);
        skipTime(1);
        tasks.expire(deal.order, deal.plan);
        uint256 paid = creditNano(matcher) + creditNano(treasury);
        uint256 spent = openingNano(deal.order);
        for (uint256 i; i < 4; ++i) {
            paid += creditNano(minerOwners[i]);
            spent += grossOf(deal, i);
        }
        vm.assertEq(paid, spent);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - paid);
        assertEscrowDrains(deal);
    }

    // --- disputes ---

    function test_fault_slashesWithholdsAndPaysTheOthers() public {
        Deal memory deal = matchedDeal(4);
        Delivery memory delivery = deliver(deal, IN, OUT);
        rule(openDispute(deal, delivery, 2), FAULT);
        assertState(deal, ITaskRegistry.State.Delivered);
        vm.assertEq(miners.minerOf(minerOwners[2]).stake, 0);
        vm.assertEq(miners.creditOf(requester), amends(deal)); // as challenger and as victim
        vm.assertEq(jury.creditOf(requester), BOND); // the fee went to the jurors
        skipTime(deal.order.window);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[2]), 0);
        vm.assertEq(creditNano(minerOwners[0]), payOf(deal, 0));
        vm.assertEq(creditNano(minerOwners[1]), payOf(deal, 1));
        vm.assertEq(creditNano(minerOwners[3]), payOf(deal, 3));
        uint256 spent = grossOf(deal, 0) + grossOf(deal, 1) + grossOf(deal, 3);
        spent += openingNano(deal.order);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - spent);
        assertEscrowDrains(deal);
    }

    function test_noFault_paysAllAndCompensatesTheAccused() public {
        Deal memory deal = matchedDeal(4);
        Delivery memory delivery = deliver(deal, IN, OUT);
        rule(openDispute(deal, delivery, 2), NO_FAULT);
        vm.assertEq(miners.minerOf(minerOwners[2]).stake, STAKE);
        vm.assertEq(miners.minerOf(minerOwners[2]).openDisputes, 0);
        vm.assertEq(jury.creditOf(minerOwners[2]), BOND / 2);
        vm.assertEq(jury.creditOf(requester), 0);
        skipTime(deal.order.window);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[2]), payOf(deal, 2));
        assertEscrowDrains(deal);
    }

    /// A jury that says nothing slashes nobody; its challenger pays for five hours and a second.
    function test_noRuling_paysAllAndSlashesNobody() public {
        Deal memory deal = matchedDeal(4);
        Delivery memory delivery = deliver(deal, IN, OUT);
        DisputeId id = openDispute(deal, delivery, 1);
        letLapse(id);
        vm.assertEq(uint256(jury.disputeOf(id).status), uint256(IArbitrator.Status.NoRuling));
        vm.assertEq(miners.minerOf(minerOwners[1]).stake, STAKE);
        vm.assertEq(jury.creditOf(requester), FEE);
        vm.assertEq(jury.creditOf(minerOwners[1]), BOND);
        skipTime(deal.order.window);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[1]), payOf(deal, 1));
        assertEscrowDrains(deal);
    }

    function test_twoDisputes_oneGuilty() public {
        Deal memory deal = matchedDeal(3);
        Delivery memory delivery = deliver(deal, IN, OUT);
        DisputeId first = openDispute(deal, delivery, 0);
        DisputeId second = openDispute(deal, delivery, 1);
        rule(first, NO_FAULT);
        assertState(deal, ITaskRegistry.State.Disputed);
        rule(second, FAULT);
        skipTime(deal.order.window);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[0]), payOf(deal, 0));
        vm.assertEq(creditNano(minerOwners[1]), 0);
        assertEscrowDrains(deal);
    }

    /// Attack #30: an Ack is final for the money, not for the stake.
    function test_ackThenDispute_slashesOnly() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = newDelivery(deal, IN, OUT);
        settleAck(deal, IN, OUT);
        DisputeId id = openDispute(deal, delivery, 1);
        rule(id, FAULT);
        vm.assertEq(miners.minerOf(minerOwners[1]).stake, 0);
        vm.assertEq(creditNano(minerOwners[1]), payOf(deal, 1));
        assertState(deal, ITaskRegistry.State.Settled);
        assertEscrowDrains(deal);
    }

    /// A job may be acknowledged once its disputes are over, without the guilty stage's share.
    function test_disputeThenAck_withholds() public {
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = deliver(deal, IN, OUT);
        rule(openDispute(deal, delivery, 1), FAULT);
        settleAck(deal, IN, OUT);
        vm.assertEq(creditNano(minerOwners[1]), 0);
        vm.assertEq(creditNano(minerOwners[0]), payOf(deal, 0));
        assertEscrowDrains(deal);
    }

    /// No party of the job sits on its jury, even if it staked as a juror.
    function test_parties_areNeverDrawn() public {
        address[] memory parties = new address[](4);
        (parties[0], parties[1], parties[2]) = (requester, matcher, auditor);
        parties[3] = minerOwners[0];
        stakeAsJurors(parties);
        Deal memory deal = matchedDeal(2);
        Delivery memory delivery = deliver(deal, IN, OUT);
        address[] memory panel = draw(openDispute(deal, delivery, 1));
        vm.assertEq(panel.length, 3);
        for (uint256 i; i < panel.length; ++i) {
            for (uint256 j; j < parties.length; ++j) {
                vm.assertNotEq(panel[i], parties[j]);
            }
        }
    }

    /// #12 at its sharpest: the miner asks to leave when it is matched, all is done at the last
    /// moment, and its stake is still there when the verdict is executed.
    function test_unbonding_outlastsTheLatestVerdict() public {
        Order memory order = newOrder();
        order.deadline = uint64(vm.getBlockTimestamp() + MAX_JOB_SECONDS);
        order.window = MAX_WINDOW_SECONDS;
        Deal memory deal = dealOf(order, evenPlan(2));
        openMatched(deal);
        vm.prank(minerOwners[1]);
        miners.requestExit(STAKE);
        vm.warp(deal.order.deadline);
        Delivery memory delivery = deliver(deal, IN, OUT);
        vm.warp(jobOf(deal).finalAt);
        DisputeId id = openDispute(deal, delivery, 1);
        skipTime(UNBOND_SECONDS); // even if the jury is late: frozen
        vm.prank(minerOwners[1]);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.HasOpenDisputes.selector, 1));
        miners.withdraw();
        rule(id, FAULT);
        vm.assertEq(miners.minerOf(minerOwners[1]).leaving, 0);
        vm.assertEq(miners.creditOf(requester), amends(deal));
    }

    /// Every clock of a job at its largest ends before stake asked for at its start may leave.
    function test_longestJob_endsBeforeUnbonding() public view {
        ITaskRegistry.Params memory p = tasks.params();
        uint256 longest = uint256(p.maxJobSeconds) + p.maxWindowSeconds + jury.maxDisputeSeconds();
        vm.assertLe(longest, miners.unbondSeconds());
    }
}
