// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Order, RequestLeaf, StageReceipt} from "../src/types/Signed.sol";
import {Suite} from "./fixtures/Suite.sol";
import {Trees} from "./fixtures/Trees.sol";

/// A stage that keeps its receipt back is delivered, paid and disputed by its words.
/// forge-config: default.isolate = true
contract TaskRegistryWordsTest is Suite {
    uint256 private constant STAGES = 3;
    uint256 private constant LAST = STAGES - 1;
    uint256 private constant REQUESTS = 3;
    uint32 private constant IN = 500; //  tokens of each prompt
    uint32 private constant OUT = 100; // tokens of each answer

    function matched(uint256 stages) private returns (Deal memory deal) {
        Order memory order = newOrder();
        order.requests = uint32(REQUESTS);
        deal = dealOf(order, evenPlan(stages));
        openMatched(deal);
    }

    /// What stages sign of the same work: what one sent came to the next.
    function leavesOfStage(uint256 stage) private pure returns (RequestLeaf[] memory leaves) {
        leaves = new RequestLeaf[](REQUESTS);
        for (uint256 i; i < REQUESTS; ++i) {
            bytes32 inner = keccak256(abi.encode("inner", stage, i));
            leaves[i] =
                RequestLeaf(uint32(i), rootOf(stage, i), rootOf(stage + 1, i), IN, OUT, inner);
        }
    }

    function rootOf(uint256 boundary, uint256 request) private pure returns (bytes32) {
        return keccak256(abi.encode("rows", boundary, request));
    }

    /// All receipts, signed as ever.
    function receiptsOf(Deal memory deal) private view returns (Delivery memory d) {
        uint256 last = deal.plan.length - 1;
        d = newDelivery(deal, uint32(REQUESTS) * IN, uint32(REQUESTS) * OUT);
        for (uint256 i; i <= last; ++i) {
            RequestLeaf[] memory leaves = leavesOfStage(i);
            RequestLeaf[] memory before = leavesOfStage(i == 0 ? last : i - 1);
            StageReceipt memory r = d.receipts[i];
            r.inputRoot = Trees.root(Trees.boundary(before, true));
            r.outputRoot = Trees.root(Trees.boundary(leaves, true));
            r.requestsRoot = Trees.root(Trees.requests(leaves));
            signReceipt(deal, d, i);
        }
    }

    function withWords(Deal memory deal, Delivery memory d, uint256 stage) private view {
        (d.receipts[stage], d.sigs[stage]) =
            wordsOf(deal, stage, leavesOfStage(stage), leavesOfStage(LAST));
    }

    // --- a receipt is kept back ---

    function test_deliver_byTheWordsOfAnyStage_paysAll() public {
        for (uint256 stage; stage < STAGES; ++stage) {
            uint256 snapshotId = vm.snapshotState();
            Deal memory deal = matched(STAGES);
            Delivery memory d = receiptsOf(deal);
            deliver(deal, d);
            finish(deal);
            uint256[] memory due = credits();
            vm.revertToState(snapshotId);

            deal = matched(STAGES);
            d = receiptsOf(deal);
            withWords(deal, d, stage);
            deliver(deal, d);
            vm.snapshotGasLastCall("TaskRegistry", "deliver, 3 stages, one by three words");
            finish(deal);
            vm.assertEq(keccak256(abi.encode(credits())), keccak256(abi.encode(due)));
            vm.revertToState(snapshotId);
        }
    }

    function test_deliver_byTheWordsOfAllStages() public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        for (uint256 stage; stage < STAGES; ++stage) {
            withWords(deal, d, stage);
        }
        deliver(deal, d);
        assertState(deal, ITaskRegistry.State.Delivered);
    }

    /// It sent other rows than its receipt is over: its words fit the next stage's input.
    function test_deliver_aroundASpoiledHop_isByItsWords() public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        RequestLeaf[] memory told_ = leavesOfStage(1);
        told_[1].outRoot = keccak256("what it never sent");
        d.receipts[1].outputRoot = Trees.root(Trees.boundary(told_, true));
        d.receipts[1].requestsRoot = Trees.root(Trees.requests(told_));
        signReceipt(deal, d, 1);
        refuseDelivery(
            deal, d, abi.encodeWithSelector(ITaskRegistry.ReceiptChainBroken.selector, 2)
        );
        withWords(deal, d, 1);
        deliver(deal, d);

        Contradiction memory c;
        c.one = told(deal, 1, told_, 1);
        c.other.leaf = leavesOfStage(1)[1];
        RequestLeaf[] memory word = new RequestLeaf[](1);
        word[0] = c.other.leaf;
        (c.other.receipt, c.other.signature) = wordsOf(deal, 1, word, word);
        c.other.proof = Trees.proof(Trees.requests(word), 0);
        equivocation(deal, c);
        finish(deal);
        vm.assertEq(creditNano(minerOwners[1]), 0);
        vm.assertGt(creditNano(minerOwners[0]), 0);
        vm.assertGt(creditNano(minerOwners[2]), 0);
    }

    function test_dispute_byWords() public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        withWords(deal, d, 1);
        deliver(deal, d);
        dispute(deal, d, 1);
        assertState(deal, ITaskRegistry.State.Disputed);
        resolve(deal, d, 1, true);
        finish(deal);
        vm.assertEq(creditNano(minerOwners[1]), 0);
    }

    // --- words that are not worth the receipt ---

    function test_deliver_byOtherRowsThanTheNextStageHad_reverts() public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        RequestLeaf[] memory other = leavesOfStage(0);
        other[2].outRoot = keccak256("other");
        (d.receipts[0], d.sigs[0]) = wordsOf(deal, 0, other, leavesOfStage(LAST));
        refuseDelivery(
            deal, d, abi.encodeWithSelector(ITaskRegistry.ReceiptChainBroken.selector, 1)
        );
    }

    function test_deliver_byWordsOfSomeRequests_reverts() public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        RequestLeaf[] memory all = leavesOfStage(1);
        RequestLeaf[] memory two = new RequestLeaf[](2);
        (two[0], two[1]) = (all[0], all[2]);
        (d.receipts[1], d.sigs[1]) = wordsOf(deal, 1, two, two);
        refuseDelivery(
            deal, d, abi.encodeWithSelector(ITaskRegistry.RequestCountMismatch.selector, 1)
        );
    }

    /// In another order they would make sums that convict an honest stage.
    function test_deliver_byWordsOutOfOrder_reverts() public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        RequestLeaf[] memory leaves = leavesOfStage(1);
        (leaves[0], leaves[1]) = (leaves[1], leaves[0]);
        (d.receipts[1], d.sigs[1]) = wordsOf(deal, 1, leaves, leaves);
        refuseDelivery(deal, d, abi.encodeWithSelector(ITaskRegistry.BadWords.selector, 1));
        leaves[0] = leaves[1];
        (d.receipts[1], d.sigs[1]) = wordsOf(deal, 1, leaves, leaves);
        refuseDelivery(deal, d, abi.encodeWithSelector(ITaskRegistry.BadWords.selector, 1));
    }

    /// All that stands in such a receipt follows from the words.
    function testFuzz_deliver_byAnotherReceiptThanTheWords_reverts(
        uint8 stage,
        uint8 what,
        uint256 bit
    ) public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        stage = uint8(stage % STAGES);
        withWords(deal, d, stage);
        StageReceipt memory r = d.receipts[stage];
        what %= 9;
        if (what == 0) r.shardRoot = bytes32(1 << (bit % 256));
        else if (what == 1) r.inputRoot ^= bytes32(1 << (bit % 256));
        else if (what == 2) r.outputRoot ^= bytes32(1 << (bit % 256));
        else if (what == 3) r.requestsRoot ^= bytes32(1 << (bit % 256));
        else if (what == 4) r.requests ^= uint32(1 << (bit % 32));
        else if (what == 5) r.tokensIn ^= uint32(1 << (bit % 9));
        else if (what == 6) r.tokensOut ^= uint32(1 << (bit % 9));
        else if (what == 7) r.startedAt = uint64(1 << (bit % 64));
        else r.signedAt = uint64(1 << (bit % 64));
        // A first stage's counts are those that all others are held to, and first within the caps.
        vm.expectRevert();
        deliver(deal, d);
    }

    function testFuzz_deliver_byChangedWords_reverts(uint8 stage, uint256 bit) public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        stage = uint8(stage % STAGES);
        withWords(deal, d, stage);
        bit %= 8 * d.sigs[stage].length;
        d.sigs[stage][bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        refuseDelivery(
            deal,
            d,
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[stage].operator)
        );
    }

    /// Bytes of any other length are a signature that fits nobody.
    function testFuzz_deliver_byBytesOfAnotherLength_reverts(uint8 stage, uint16 cut) public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        stage = uint8(stage % STAGES);
        withWords(deal, d, stage);
        bytes memory words = d.sigs[stage];
        uint256 left = words.length - 1 - cut % words.length;
        if (left == 65 || (left % 205 == 0 && left != 0)) ++left;
        d.sigs[stage] = new bytes(left);
        for (uint256 i; i < left; ++i) {
            d.sigs[stage][i] = words[i];
        }
        refuseDelivery(
            deal,
            d,
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[stage].operator)
        );
    }

    function testFuzz_deliver_byWordsOfAnotherPlace_reverts(uint8 what) public {
        Deal memory deal = matched(STAGES);
        Delivery memory d = receiptsOf(deal);
        RequestLeaf[] memory leaves = leavesOfStage(1);
        Deal memory other = deal;
        bytes32 planHash = deal.planHash;
        bytes32 orderHash = deal.orderHash;
        what %= 3;
        if (what == 0) other.planHash = keccak256("another plan");
        else if (what == 1) other.orderHash = keccak256("another order");
        (StageReceipt memory r, bytes memory words) = wordsOf(other, 1, leaves, leaves);
        (r.planHash, r.orderHash) = (planHash, orderHash);
        (deal.planHash, deal.orderHash) = (planHash, orderHash);
        if (what == 2) {
            deal.keys[0] = deal.keys[1]; // the same operator's word of another stage
            (, words) = wordsOf(deal, 0, leaves, leaves);
        }
        (d.receipts[1], d.sigs[1]) = (r, words);
        refuseDelivery(
            deal,
            d,
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[1].operator)
        );
    }

    // --- internals ---

    function finish(Deal memory deal) private {
        skipTime(uint256(deal.order.window) + 1);
        finalize(deal);
    }

    function credits() private view returns (uint256[] memory list) {
        list = new uint256[](STAGES + 3);
        for (uint256 i; i < STAGES; ++i) {
            list[i] = creditNano(minerOwners[i]);
        }
        (list[STAGES], list[STAGES + 1]) = (creditNano(matcher), creditNano(treasury));
        list[STAGES + 2] = balanceNano(requester);
    }
}
