// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ToleranceGame} from "../../src/ToleranceGame.sol";
import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {SignedRequest} from "../../src/interfaces/IRowJudge.sol";
import {Claim} from "../../src/interfaces/ITraceJudge.sol";
import {IToleranceGame} from "../../src/interfaces/IToleranceGame.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {AuditorDelegation, Order, RequestLeaf, RequestRows} from "../../src/types/Signed.sol";
import {ScriptedJudge, ScriptedRowJudge} from "../fixtures/GameFixture.sol";
import {Messages} from "../fixtures/Messages.sol";
import {Suite} from "../fixtures/Suite.sol";
import {Trees} from "../fixtures/Trees.sol";

/// A tolerance game from its order to the last payment, with the real registries and escrow.
contract ToleranceGameSystemTest is Suite {
    using Messages for *;

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;
    uint32 private constant TURN_SECONDS = 4800;
    uint256 private constant ACCUSED_STAGE = 1;

    ToleranceGame private game;

    function setUp() public override {
        super.setUp();
        IToleranceGame.Params memory p;
        p.bond = BOND;
        p.bondBps = BOND_BPS;
        p.turnSeconds = TURN_SECONDS;
        p.slashBps = 10_000;
        game = new ToleranceGame(
            token,
            address(tasks),
            IMinerRegistry(address(miners)),
            new ScriptedJudge(),
            new ScriptedRowJudge(1),
            p
        );
        vm.prank(governor);
        miners.proposeArbitrator(address(game));
        skipTime(UNBOND_SECONDS + MAX_JOB_SECONDS);
        vm.prank(governor);
        miners.addArbitrator(address(game));
    }

    function leaf() private pure returns (RequestLeaf memory) {
        return RequestLeaf(0, keccak256("in"), keccak256("out"), IN, OUT, 0);
    }

    function delivered() private returns (Deal memory deal, Delivery memory delivery) {
        Order memory order = newOrder();
        order.arbitrator = address(game);
        order.requests = 1;
        deal = dealOf(order, evenPlan(3));
        openMatched(deal);
        delivery = newDelivery(deal, IN, OUT);
        delivery.receipts[ACCUSED_STAGE].requestsRoot = Trees.root(Trees.requests(leaf()));
        signReceipt(deal, delivery, ACCUSED_STAGE);
        deliver(deal, delivery);
    }

    function open(Deal memory deal, Delivery memory delivery, address accuser)
        private
        returns (DisputeId)
    {
        fund(accuser, address(game), BOND);
        vm.prank(accuser);
        callDispute(deal, delivery, ACCUSED_STAGE);
        return game.disputeIdOf(
            deal.id,
            uint16(ACCUSED_STAGE),
            delivery.receipts[ACCUSED_STAGE].hash(),
            accuser == requester ? IArbitrator.Right.Requester : IArbitrator.Right.Auditor
        );
    }

    function accuse(DisputeId id, Deal memory deal, Delivery memory delivery, address accuser)
        private
    {
        Claim memory claim;
        claim.leaf = RequestRows(0, leaf().inRoot, leaf().outRoot, IN, OUT);
        claim.layerFrom = deal.plan[ACCUSED_STAGE].layerFrom;
        claim.layerTo = deal.plan[ACCUSED_STAGE].layerTo;
        claim.traceRoot = keccak256("root");
        bytes32[] memory below = new bytes32[](1);
        below[0] = claim.traceRoot;
        SignedRequest memory signed;
        signed.leaf = leaf();
        signed.proof = Trees.proof(Trees.requests(leaf()), 0);
        vm.prank(accuser, accuser);
        game.accuse(id, deal.order.modelId, delivery.receipts[ACCUSED_STAGE], claim, signed, below);
    }

    function execute(Deal memory deal, Delivery memory delivery, IArbitrator.Right right) private {
        vm.prank(stranger);
        game.execute(
            deal.id, uint16(ACCUSED_STAGE), delivery.receipts[ACCUSED_STAGE].hash(), right
        );
    }

    function payOf(Deal memory deal, uint256 stage) private view returns (uint256) {
        (, uint256[] memory pay,,) = tasks.split(deal.order, deal.plan, IN, OUT);
        return pay[stage];
    }

    function test_aSilentAccused_isSlashedAndNotPaid_theOthersAre() public {
        (Deal memory deal, Delivery memory delivery) = delivered();
        DisputeId id = open(deal, delivery, requester);
        assertState(deal, ITaskRegistry.State.Disputed);
        accuse(id, deal, delivery, requester);
        skipTime(TURN_SECONDS + 1);
        vm.prank(stranger);
        game.timeout(id);
        execute(deal, delivery, IArbitrator.Right.Requester);
        assertState(deal, ITaskRegistry.State.Delivered);
        vm.assertEq(uint256(miners.minerOf(minerOwners[ACCUSED_STAGE]).stake), 0);
        skipTime(deal.order.window + 1);
        finalize(deal);
        vm.assertEq(creditNano(minerOwners[ACCUSED_STAGE]), 0);
        vm.assertEq(creditNano(minerOwners[0]), payOf(deal, 0));
        vm.assertEq(creditNano(minerOwners[2]), payOf(deal, 2));
        vm.assertEq(game.creditOf(requester), BOND);
    }

    function test_aSilentAccuser_paysTheAccused_andTheJobIsPaid() public {
        (Deal memory deal, Delivery memory delivery) = delivered();
        DisputeId id = open(deal, delivery, auditor); // whom the order names
        skipTime(TURN_SECONDS + 1);
        game.timeout(id);
        execute(deal, delivery, IArbitrator.Right.Auditor);
        skipTime(deal.order.window + 1);
        finalize(deal);
        for (uint256 i; i < 3; ++i) {
            vm.assertEq(creditNano(minerOwners[i]), payOf(deal, i));
            vm.assertEq(uint256(miners.minerOf(minerOwners[i]).stake), STAKE);
        }
        vm.assertEq(game.creditOf(minerOwners[ACCUSED_STAGE]), BOND);
        vm.assertEq(game.creditOf(auditor), 0);
    }

    function test_aStranger_startsNoClock() public {
        (Deal memory deal, Delivery memory delivery) = delivered();
        address[3] memory strangers = [stranger, matcher, minerOwners[0]];
        for (uint256 i; i < strangers.length; ++i) {
            vm.prank(strangers[i]);
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, strangers[i]));
            callDispute(deal, delivery, ACCUSED_STAGE);
        }
        IArbitrator.DisputeRef memory ref;
        ref.challenger = stranger;
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(IToleranceGame.NotTaskRegistry.selector, stranger));
        game.open(ref);
    }

    function test_whomTheRequesterDelegatedTo_mayAccuse() public {
        (Deal memory deal, Delivery memory delivery) = delivered();
        AuditorDelegation memory d =
            AuditorDelegation(deal.orderHash, stranger, uint64(vm.getBlockTimestamp() + 1 hours));
        bytes memory sig = sign(requesterKey, digest(d.hash()));
        fund(stranger, address(game), BOND);
        vm.prank(stranger);
        tasks.dispute(
            deal.order,
            deal.plan,
            delivery.receipts[ACCUSED_STAGE],
            delivery.sigs[ACCUSED_STAGE],
            d,
            sig
        );
        DisputeId id = game.disputeIdOf(
            deal.id,
            uint16(ACCUSED_STAGE),
            delivery.receipts[ACCUSED_STAGE].hash(),
            IArbitrator.Right.Auditor
        );
        accuse(id, deal, delivery, stranger);
    }

    function test_anExitWaitsForTheGame() public {
        (Deal memory deal, Delivery memory delivery) = delivered();
        open(deal, delivery, requester);
        address owner = minerOwners[ACCUSED_STAGE];
        vm.prank(owner);
        miners.requestExit(STAKE);
        skipTime(30 days);
        vm.prank(owner);
        vm.expectRevert(abi.encodeWithSelector(IMinerRegistry.HasOpenDisputes.selector, 1));
        miners.withdraw();
    }

    function test_dispute_cost() public {
        (Deal memory deal, Delivery memory delivery) = delivered();
        fund(requester, address(game), BOND);
        vm.prank(requester);
        callDispute(deal, delivery, ACCUSED_STAGE);
        vm.snapshotGasLastCall("DisputeOpening", "ToleranceGame, 3 stages (execution)");
    }
}
