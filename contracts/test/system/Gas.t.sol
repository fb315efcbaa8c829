// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelId, SessionId} from "../../src/types/Ids.sol";
import {Ack, Stage, Voucher} from "../../src/types/Signed.sol";
import {Messages} from "../fixtures/Messages.sol";
import {Suite} from "../fixtures/Suite.sol";

/// What does each step of a job cost, for 1 to 8 stages? Each call is its own transaction; committed in contracts/snapshots.
/// forge-config: default.isolate = true
contract GasTest is Suite {
    using Messages for *;

    function setUp() public override {
        super.setUp();
        // Accounts that have been paid before: the first credit of an account costs 17 100 more, once.
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

    function test_claim_cost() public {
        for (uint256 stages = 1; stages <= 8; stages *= 2) {
            Stage[] memory plan = evenPlan(stages);
            bytes32 model = ModelId.unwrap(modelId);
            uint40 expiry = uint40(vm.getBlockTimestamp() + 1 days);
            vm.prank(requester);
            SessionId id = escrow.openSession(bytes32(stages), uint96(USD), expiry, model, plan, matcher, 100);
            snapshotEscrow("openSession", stages);
            for (uint128 cumulative = 1000; cumulative <= 2000; cumulative += 1000) {
                Voucher memory voucher = Voucher(id, plan.hash(), cumulative, "result");
                bytes memory sig = sign(requesterKey, digest(voucher.hash()));
                escrow.claim(voucher, sig, plan);
            }
            snapshotEscrow("claim", stages);
        }
    }

    function test_deposit_cost() public {
        fund(requester, address(escrow), 2 * USD);
        vm.prank(requester);
        escrow.deposit(USD);
        vm.snapshotGasLastCall("Escrow", "deposit, later");
        vm.prank(minerOwners[0]);
        escrow.withdrawCredit();
        vm.snapshotGasLastCall("Escrow", "withdrawCredit");
    }

    function snapshotEscrow(string memory step, uint256 stages) private {
        vm.snapshotGasLastCall("Escrow", string.concat(step, " K=", vm.toString(stages)));
    }

    function test_dispute_cost() public {
        Deal memory deal = matchedDeal(4);
        dispute(deal, deliver(deal, 900_000, 400_000), 2);
        snapshot("dispute", 4);
    }
}
