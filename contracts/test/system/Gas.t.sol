// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../../src/types/Ids.sol";
import {Ack} from "../../src/types/Signed.sol";
import {Messages} from "../fixtures/Messages.sol";
import {Suite} from "../fixtures/Suite.sol";

/// What does each step of a job cost, for 1 to 8 stages, each call its own transaction?
/// forge-config: default.isolate = true
contract GasTest is Suite {
    using Messages for *;

    function setUp() public override {
        super.setUp();
        // An account's first credit costs 17,100 more, so all have been paid before.
        settleAck(matchedDeal(8), 900_000, 400_000);
    }

    function snapshot(string memory step, uint256 stages) private {
        vm.snapshotGasLastCall("TaskRegistry", string.concat(step, " K=", vm.toString(stages)));
    }

    function ackPath(uint256 stages) private {
        Deal memory deal = newDeal(stages);
        openMatched(deal);
        snapshot("openMatched", stages);
        (Ack memory ack, bytes memory sig) = newAck(deal, 900_000, 400_000);
        vm.prank(matcher);
        tasks.settleAck(deal.order, ack, sig, deal.plan);
        snapshot("settleAck", stages);
    }

    function deliverPath(uint256 stages) private {
        Deal memory deal = matchedDeal(stages);
        Delivery memory delivery = newDelivery(deal, 900_000, 400_000);
        deliver(deal, delivery);
        snapshot("deliver", stages);
        skipTime(1 days + 1);
        finalize(deal);
        snapshot("finalize", stages);
    }

    function test_ackPath_cost() public {
        for (uint256 stages = 1; stages <= 8; stages *= 2) {
            ackPath(stages);
        }
    }

    function test_deliverPath_cost() public {
        for (uint256 stages = 1; stages <= 8; stages *= 2) {
            deliverPath(stages);
        }
    }

    /// An order that was matched and came to nothing.
    function test_unpaid_cost() public {
        for (uint256 stages = 1; stages <= 8; stages *= 2) {
            Deal memory deal = matchedDeal(stages);
            vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
            tasks.expire(deal.order, deal.plan);
            snapshot("expire, nothing counted,", stages);
        }
    }

    /// A session's first Ack, a later one, and its end.
    function test_session_cost() public {
        for (uint256 stages = 1; stages <= 8; stages *= 2) {
            Deal memory deal = matchedSession(stages);
            for (uint32 step = 1; step <= 3; ++step) {
                (Ack memory ack, bytes memory sig) = newAck(deal, 1000 * step, 500 * step);
                tasks.settleAck(deal.order, ack, sig, deal.plan);
                if (step != 2) {
                    snapshot(
                        step == 1 ? "first Ack of a session" : "later Ack of a session", stages
                    );
                }
            }
            vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
            tasks.expire(deal.order, deal.plan);
            if (stages == 1) vm.snapshotGasLastCall("TaskRegistry", "expire, session");
        }
    }

    function test_spender_cost() public {
        (address spender, uint256 key) = makeKey("spender");
        vm.prank(requester);
        escrow.setSpender(spender, uint96(100 * USD), type(uint64).max);
        vm.snapshotGasLastCall("Escrow", "setSpender");
        for (uint256 i; i < 2; ++i) {
            Deal memory deal = newDeal(4);
            deal.orderSig = sign(key, JobId.unwrap(deal.id));
            openMatched(deal);
        }
        snapshot("openMatched, by a spender,", 4);
    }

    function test_deposit_cost() public {
        fund(requester, address(escrow), 2 * USD);
        vm.prank(requester);
        escrow.deposit(USD);
        vm.snapshotGasLastCall("Escrow", "deposit, later");
        address[] memory operators = new address[](1);
        operators[0] = vm.addr(operatorKeys[0]);
        escrow.collect(operators);
        vm.snapshotGasLastCall("Escrow", "collect, one operator");
        operators[0] = matcher;
        escrow.collectFees(operators);
        vm.snapshotGasLastCall("Escrow", "collectFees, one matcher");
    }

    function test_dispute_cost() public {
        Deal memory deal = matchedDeal(4);
        dispute(deal, deliver(deal, 900_000, 400_000), 2);
        snapshot("dispute", 4);
    }
}
