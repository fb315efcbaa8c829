// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEvidence} from "../src/interfaces/IEvidence.sol";
import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Order, RequestLeaf} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {Trees} from "./fixtures/Trees.sol";

/// Each call convicts who signed what it shows, and nobody who signed what was ordered.
/// forge-config: default.isolate = true
contract EvidenceTest is Suite {
    using Messages for *;

    uint32 private constant IN = 5; //  tokens of each prompt
    uint32 private constant OUT = 3; // tokens of each answer
    uint32 private constant ROWS = IN + OUT - 1;
    uint256 private constant STAGES = 3;
    uint256 private constant LAST = STAGES - 1;
    uint256 private constant REQUESTS = 3;
    bytes32 private constant SALT = keccak256("salt");
    bytes32 private constant STATES = keccak256("states");
    bytes32 private constant TOP = keccak256("top");

    bytes private constant NOT_PROVEN = abi.encodeWithSelector(IEvidence.NotProven.selector);

    // --- what was ordered, and what honest stages sign of it ---

    function idOf(uint256 request, uint256 at) private pure returns (bytes4) {
        return bytes4(uint32(1000 * (request + 1) + at) << 24);
    }

    function ids(uint256 request, uint256 from, uint256 count)
        private
        pure
        returns (bytes32[] memory hashes)
    {
        hashes = new bytes32[](count);
        for (uint256 i; i < count; ++i) {
            hashes[i] = Trees.leaf(bytes.concat(bytes4(uint32(i)), idOf(request, from + i)));
        }
    }

    function id(uint256 request, uint256 from, uint256 count, uint256 at)
        private
        pure
        returns (IEvidence.Id memory x)
    {
        x.at = uint32(at);
        x.id = idOf(request, from + at);
        x.proof = Trees.proof(ids(request, from, count), at);
    }

    function promptRoot(uint256 request) private pure returns (bytes32) {
        return Trees.root(ids(request, 0, IN));
    }

    function promptLeaves() private pure returns (bytes32[] memory hashes) {
        hashes = new bytes32[](REQUESTS);
        for (uint256 i; i < REQUESTS; ++i) {
            bytes32 sealed_ = sha256(bytes.concat(SALT, promptRoot(i)));
            hashes[i] = Trees.leaf(bytes.concat(bytes4(uint32(i)), sealed_));
        }
    }

    function answerRoot(bytes32 tokens) private pure returns (bytes32) {
        return sha256(bytes.concat(hex"04", tokens, STATES));
    }

    function sealedRoot(uint32 count) private pure returns (bytes32) {
        return sha256(bytes.concat(hex"02", bytes4(count), TOP));
    }

    /// What an honest stage signs of a request: prompt 0 … IN − 1, answer IN … IN + OUT − 1.
    function honest(uint256 stage) private pure returns (RequestLeaf[] memory leaves) {
        leaves = new RequestLeaf[](REQUESTS);
        for (uint256 i; i < REQUESTS; ++i) {
            leaves[i] = RequestLeaf(
                uint32(i),
                stage == 0 ? Trees.root(ids(i, 0, ROWS)) : sealedRoot(ROWS),
                stage == LAST ? answerRoot(Trees.root(ids(i, IN, OUT))) : sealedRoot(ROWS),
                IN,
                OUT,
                keccak256("inner")
            );
        }
    }

    function matched() private returns (Deal memory deal) {
        Order memory order = newOrder();
        order.requests = uint32(REQUESTS);
        order.inputRoot = Trees.root(promptLeaves());
        deal = dealOf(order, evenPlan(STAGES));
        openMatched(deal);
    }

    function answerLeaves() private pure returns (bytes32[] memory) {
        return Trees.boundary(honest(LAST), true);
    }

    /// As `told`, with the roots of both boundaries, as honest programs sign them.
    function said(Deal memory deal, uint256 stage, RequestLeaf[] memory leaves, uint256 position)
        private
        view
        returns (IEvidence.Told memory t)
    {
        t = told(deal, stage, leaves, position);
        t.receipt.inputRoot =
            Trees.root(stage == 0 ? answerLeaves() : Trees.boundary(leaves, false));
        t.receipt.outputRoot = Trees.root(Trees.boundary(leaves, true));
        signTold(deal, t);
    }

    function sums(RequestLeaf[] memory leaves, uint256 position)
        private
        pure
        returns (IEvidence.Sums memory s)
    {
        for (uint256 i; i <= position; ++i) {
            s.tokensIn += leaves[i].tokensIn;
            s.tokensOut += leaves[i].tokensOut;
        }
        s.proof = Trees.proof(Trees.requests(leaves), 2 * position + 1);
    }

    function assertConvicted(Deal memory deal, uint256 stage) private view {
        vm.assertEq(jobOf(deal).faultMask, uint256(1) << stage);
        vm.assertEq(miners.minerOf(minerOwners[stage]).stake, 0);
        for (uint256 i; i < STAGES; ++i) {
            if (i != stage) vm.assertEq(miners.minerOf(minerOwners[i]).stake, STAKE);
        }
    }

    function snapshot(string memory name) private {
        vm.snapshotGasLastCall("Evidence", name);
    }

    // --- equivocation ---

    function test_equivocation_slashesAndWithholds() public {
        Deal memory deal = matched();
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobConvicted(
            deal.id, 1, minerOwners[1], IEvidence.Kind.Equivocation, STAKE
        );
        Contradiction memory c = contradiction(deal, 1);
        vm.prank(stranger);
        desk.equivocation(deal.order, deal.plan, c.one, c.other);
        snapshot("equivocation");
        assertConvicted(deal, 1);
        vm.assertGt(miners.minerOf(minerOwners[1]).jailUntil, 0);
        vm.assertEq(miners.creditOf(requester), evidenceAmends(deal));
        vm.assertEq(miners.creditOf(stranger), 0);
        settleAck(deal, IN, OUT);
        vm.assertEq(creditNano(minerOwners[1]), 0);
        vm.assertGt(creditNano(minerOwners[2]), 0);
    }

    function test_equivocation_afterSettlement_stillSlashes() public {
        Deal memory deal = matchedDeal(2);
        settleAck(deal, IN, OUT);
        uint256 credit = creditNano(minerOwners[0]);
        skipTime(30 days);
        equivocation(deal, contradiction(deal, 0));
        vm.assertEq(miners.minerOf(minerOwners[0]).stake, 0);
        vm.assertEq(creditNano(minerOwners[0]), credit);
    }

    function test_equivocation_ofAnExpiredJob_stillSlashes() public {
        Deal memory deal = matchedDeal(2);
        vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
        tasks.expire(deal.order, deal.plan);
        equivocation(deal, contradiction(deal, 0));
        vm.assertEq(miners.minerOf(minerOwners[0]).stake, 0);
        assertState(deal, ITaskRegistry.State.Expired);
    }

    /// A request's sums depend on what else its receipt is over; its own leaf does not.
    function test_equivocation_ofOneLeafInTwoReceipts_reverts() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(1);
        RequestLeaf[] memory one = new RequestLeaf[](1);
        one[0] = leaves[2];
        Contradiction memory c = Contradiction(told(deal, 1, leaves, 2), told(deal, 1, one, 0));
        refuseEquivocation(deal, c, NOT_PROVEN);
    }

    function test_equivocation_aboutDifferentRequests_reverts() public {
        Deal memory deal = matchedDeal(2);
        Contradiction memory c = contradiction(deal, 1);
        c.other = contradictionAt(deal, 1, 2).other;
        refuseEquivocation(deal, c, NOT_PROVEN);
    }

    function test_equivocation_ofDifferentStages_reverts() public {
        Deal memory deal = matchedDeal(2);
        Contradiction memory c = contradiction(deal, 1);
        c.other = contradiction(deal, 0).other;
        refuseEquivocation(deal, c, NOT_PROVEN);
    }

    function testFuzz_equivocation_withAnythingForged_reverts(uint8 what, uint256 bit, bool second)
        public
    {
        Deal memory deal = matchedDeal(2);
        Contradiction memory c = contradiction(deal, 1);
        IEvidence.Told memory t = second ? c.other : c.one;
        what %= 5;
        bytes memory reason = NOT_PROVEN;
        bytes memory badSignature =
            abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, deal.plan[1].operator);
        if (what == 0) {
            t.proof[bit % t.proof.length] ^= bytes32(1 << (bit % 256));
        } else if (what == 1) {
            t.position ^= 1 << (bit % 256);
        } else if (what == 2) {
            t.leaf.outRoot ^= bytes32(1 << (bit % 256));
        } else if (what == 3) {
            t.receipt.requestsRoot ^= bytes32(1 << (bit % 256));
            reason = badSignature;
        } else {
            t.signature[(bit % 520) / 8] ^= bytes1(uint8(1 << (bit % 8)));
            reason = badSignature;
        }
        refuseEquivocation(deal, c, reason);
        vm.assertEq(miners.minerOf(minerOwners[1]).stake, STAKE);
    }

    function test_equivocation_ofAnotherJobsReceipts_reverts() public {
        Deal memory deal = matchedDeal(2);
        Deal memory other = matchedDeal(2);
        refuseEquivocation(
            deal,
            contradiction(other, 1),
            abi.encodeWithSelector(ITaskRegistry.ReceiptMismatch.selector, 1)
        );
    }

    function test_equivocation_ofNoSuchStage_reverts() public {
        Deal memory deal = matchedDeal(2);
        Contradiction memory c = contradiction(deal, 1);
        (c.one.receipt.stage, c.other.receipt.stage) = (2, 2);
        refuseEquivocation(
            deal, c, abi.encodeWithSelector(ITaskRegistry.StageOutOfRange.selector, 2, 2)
        );
    }

    /// Once a stage and job: the same proof does not take stake that came later.
    function test_equivocation_twice_reverts() public {
        Deal memory deal = matchedDeal(2);
        Contradiction memory c = contradiction(deal, 1);
        equivocation(deal, c);
        refuseEquivocation(
            deal, c, abi.encodeWithSelector(ITaskRegistry.StageAlreadyAtFault.selector, 1)
        );
    }

    function test_equivocation_underAnUnmatchedOrder_reverts() public {
        Deal memory deal = newDeal(2);
        refuseEquivocation(
            deal,
            contradiction(deal, 1),
            abi.encodeWithSelector(ITaskRegistry.WrongState.selector, 0)
        );
    }

    function refuseEquivocation(Deal memory deal, Contradiction memory c, bytes memory reason)
        private
    {
        vm.expectRevert(reason);
        desk.equivocation(deal.order, deal.plan, c.one, c.other);
    }

    /// TaskRegistry believes Evidence alone.
    function test_convict_byAnybodyElse_reverts() public {
        Deal memory deal = matchedDeal(2);
        address[4] memory callers = [stranger, requester, governor, matcher];
        for (uint256 i; i < 4; ++i) {
            vm.prank(callers[i]);
            vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, callers[i]));
            tasks.convict(deal.order, deal.plan, 1, IEvidence.Kind.Rows);
        }
    }

    // --- counts ---

    /// Show request `position` and the one before it of what `t` was made from.
    function count(
        Deal memory deal,
        IEvidence.Told memory t,
        RequestLeaf[] memory leaves,
        bytes memory reason
    ) private {
        uint256 before = t.position == 0 ? 0 : t.position - 1;
        bytes32[] memory proof = Trees.proof(Trees.requests(leaves), 2 * before);
        IEvidence.Sums memory here = sums(leaves, t.position);
        IEvidence.Sums memory sumsBefore = sums(leaves, before);
        if (reason.length != 0) vm.expectRevert(reason);
        desk.counts(deal.order, deal.plan, t, here, leaves[before], proof, sumsBefore);
    }

    function test_counts_totalsBeyondTheLeaves() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(1);
        IEvidence.Told memory t = said(deal, 1, leaves, REQUESTS - 1);
        t.receipt.tokensOut += 1;
        signTold(deal, t);
        count(deal, t, leaves, "");
        snapshot("counts");
        assertConvicted(deal, 1);
    }

    function test_counts_ofTheSameRequestTwice() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(1);
        leaves[2] = leaves[1];
        count(deal, said(deal, 1, leaves, 2), leaves, "");
        assertConvicted(deal, 1);
    }

    function test_counts_ofARequestThatWasNotOrdered() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(1);
        leaves[2].requestIndex = uint32(REQUESTS);
        count(deal, said(deal, 1, leaves, 2), leaves, "");
        assertConvicted(deal, 1);
    }

    function test_counts_sumsThatDoNotFollow() public {
        for (uint256 position; position < REQUESTS; ++position) {
            Deal memory deal = matched();
            RequestLeaf[] memory leaves = honest(1);
            IEvidence.Told memory t = said(deal, 1, leaves, position);
            bytes32[] memory hashes = Trees.requests(leaves);
            IEvidence.Sums memory here = sums(leaves, position);
            here.tokensIn += 1;
            hashes[2 * position + 1] =
                Trees.leaf(bytes.concat(bytes4(here.tokensIn), bytes4(here.tokensOut)));
            t.receipt.requestsRoot = Trees.root(hashes);
            signTold(deal, t);
            t.proof = Trees.proof(hashes, 2 * position);
            here.proof = Trees.proof(hashes, 2 * position + 1);
            uint256 before = position == 0 ? 0 : position - 1;
            IEvidence.Sums memory sumsBefore = sums(leaves, before);
            sumsBefore.proof = Trees.proof(hashes, 2 * before + 1);
            bytes32[] memory beforeProof = Trees.proof(hashes, 2 * before);
            uint256 snapshotId = vm.snapshotState();
            desk.counts(deal.order, deal.plan, t, here, leaves[before], beforeProof, sumsBefore);
            assertConvicted(deal, 1);
            vm.revertToState(snapshotId);
        }
    }

    // --- rows ---

    function test_rows_anotherNumber() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(1);
        leaves[1].inRoot = sealedRoot(ROWS + 1);
        IEvidence.Told memory t = said(deal, 1, leaves, 1);
        desk.rows(deal.order, deal.plan, t, IEvidence.Side.In, ROWS + 1, TOP, 0);
        snapshot("rows");
        assertConvicted(deal, 1);
    }

    function test_rows_ofALastStage() public {
        for (uint256 k; k < 2; ++k) {
            bool states = k == 1;
            Deal memory deal = matched();
            RequestLeaf[] memory leaves = honest(LAST);
            bytes32 other = keccak256("other");
            bytes32 odd = sealedRoot(OUT + 1);
            leaves[0].outRoot = sha256(
                states ? bytes.concat(hex"04", other, odd) : bytes.concat(hex"04", odd, other)
            );
            IEvidence.Told memory t = said(deal, LAST, leaves, 0);
            IEvidence.Side side = states ? IEvidence.Side.States : IEvidence.Side.Tokens;
            uint256 snapshotId = vm.snapshotState();
            desk.rows(deal.order, deal.plan, t, side, OUT + 1, TOP, other);
            assertConvicted(deal, LAST);
            vm.revertToState(snapshotId);
        }
    }

    function testFuzz_rows_ofAnHonestStage_revert(
        uint8 stage,
        uint8 side,
        uint32 number,
        bytes32 top,
        bytes32 beside
    ) public {
        Deal memory deal = matched();
        stage = uint8(stage % STAGES);
        IEvidence.Told memory t = said(deal, stage, honest(stage), 1);
        if (number % 4 == 0) (number, top) = (ROWS, TOP);
        vm.expectRevert(NOT_PROVEN);
        desk.rows(deal.order, deal.plan, t, IEvidence.Side(side % 4), number, top, beside);
    }

    // --- roots ---

    function test_roots_anotherLeaf() public {
        for (uint256 k; k < 2; ++k) {
            Deal memory deal = matched();
            RequestLeaf[] memory leaves = honest(1);
            IEvidence.Told memory t = said(deal, 1, leaves, 1);
            bytes32[] memory hashes = Trees.boundary(leaves, k == 1);
            hashes[1] = keccak256("another leaf");
            if (k == 0) t.receipt.inputRoot = Trees.root(hashes);
            else t.receipt.outputRoot = Trees.root(hashes);
            signTold(deal, t);
            bytes32[] memory proof = Trees.proof(hashes, 1);
            uint256 snapshotId = vm.snapshotState();
            desk.roots(deal.order, deal.plan, t, k == 1, hashes[1], proof);
            if (k == 1) snapshot("roots");
            assertConvicted(deal, 1);
            vm.revertToState(snapshotId);
        }
    }

    function testFuzz_roots_ofAnHonestStage_revert(uint8 stage, bool isOutput, uint8 at) public {
        Deal memory deal = matched();
        stage = uint8(stage % STAGES);
        RequestLeaf[] memory leaves = honest(stage);
        IEvidence.Told memory t = said(deal, stage, leaves, at % REQUESTS);
        bytes32[] memory hashes =
            stage == 0 && !isOutput ? answerLeaves() : Trees.boundary(leaves, isOutput);
        bytes32[] memory proof = Trees.proof(hashes, t.position);
        vm.expectRevert(NOT_PROVEN);
        desk.roots(deal.order, deal.plan, t, isOutput, hashes[t.position], proof);
    }

    // --- prompt ---

    function orderedIds(uint256 request) private pure returns (IEvidence.Ids memory p) {
        p = IEvidence.Ids(promptRoot(request), IN, SALT, Trees.proof(promptLeaves(), request));
    }

    /// A first stage that computes what it has in its cache: the prompt of request 0 for request 1.
    function test_prompt_ofAnotherRequest() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(0);
        leaves[1].inRoot = leaves[0].inRoot;
        IEvidence.Told memory t = said(deal, 0, leaves, 1);
        desk.prompt(deal.order, deal.plan, t, orderedIds(1), id(1, 0, IN, 2), id(0, 0, ROWS, 2));
        snapshot("prompt");
        assertConvicted(deal, 0);
    }

    function test_prompt_ofAnotherLength() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(0);
        (leaves[1].tokensIn, leaves[1].tokensOut) = (IN + 1, OUT - 1);
        IEvidence.Told memory t = said(deal, 0, leaves, 1);
        IEvidence.Id memory none;
        desk.prompt(deal.order, deal.plan, t, orderedIds(1), id(1, 0, IN, 2), none);
        assertConvicted(deal, 0);
    }

    function testFuzz_prompt_ofAnHonestStage_reverts(
        uint8 request,
        uint8 at,
        uint8 shownAt,
        bool forged,
        bytes4 other
    ) public {
        Deal memory deal = matched();
        request = uint8(request % REQUESTS);
        IEvidence.Told memory t = said(deal, 0, honest(0), request);
        IEvidence.Id memory asked = id(request, 0, IN, at % IN);
        IEvidence.Id memory fed = id(request, 0, ROWS, shownAt % ROWS);
        if (forged) asked.id = other;
        IEvidence.Ids memory ordered = orderedIds(request);
        vm.expectRevert(NOT_PROVEN);
        desk.prompt(deal.order, deal.plan, t, ordered, asked, fed);
    }

    /// The prompt is the first stage's: nobody else is held to it.
    function test_prompt_ofALaterStage_reverts() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(0);
        leaves[1].inRoot = leaves[0].inRoot;
        IEvidence.Told memory t = said(deal, 1, leaves, 1);
        IEvidence.Ids memory ordered = orderedIds(1);
        IEvidence.Id memory asked = id(1, 0, IN, 2);
        IEvidence.Id memory other = id(0, 0, ROWS, 2);
        vm.expectRevert(NOT_PROVEN);
        desk.prompt(deal.order, deal.plan, t, ordered, asked, other);
    }

    // --- fed ---

    function answerIds(uint256 request) private pure returns (IEvidence.Ids memory a) {
        a = IEvidence.Ids(
            Trees.root(ids(request, IN, OUT)), OUT, STATES, Trees.proof(answerLeaves(), request)
        );
    }

    function test_fed_anotherToken() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(0);
        bytes32[] memory rows = ids(1, 0, ROWS);
        IEvidence.Id memory other = id(1, 0, ROWS, IN + 1);
        other.id = bytes4("else");
        rows[IN + 1] = Trees.leaf(bytes.concat(bytes4(IN + 1), other.id));
        leaves[1].inRoot = Trees.root(rows);
        IEvidence.Told memory t = said(deal, 0, leaves, 1);
        desk.fed(deal.order, deal.plan, t, answerIds(1), id(1, IN, OUT, 1), other);
        snapshot("fed");
        assertConvicted(deal, 0);
    }

    function test_fed_anotherNumber() public {
        Deal memory deal = matched();
        RequestLeaf[] memory leaves = honest(0);
        (leaves[1].tokensIn, leaves[1].tokensOut) = (IN - 1, OUT + 1);
        IEvidence.Told memory t = said(deal, 0, leaves, 1);
        IEvidence.Id memory none;
        desk.fed(deal.order, deal.plan, t, answerIds(1), id(1, IN, OUT, 1), none);
        assertConvicted(deal, 0);
    }

    function testFuzz_fed_ofAnHonestStage_reverts(
        uint8 at,
        uint8 shownAt,
        bool forged,
        bytes4 other
    ) public {
        Deal memory deal = matched();
        IEvidence.Told memory t = said(deal, 0, honest(0), 1);
        IEvidence.Id memory drawn = id(1, IN, OUT, at % OUT);
        if (forged) drawn.id = other;
        IEvidence.Id memory found = id(1, 0, ROWS, shownAt % ROWS);
        IEvidence.Ids memory answer = answerIds(1);
        vm.expectRevert(NOT_PROVEN);
        desk.fed(deal.order, deal.plan, t, answer, drawn, found);
    }

    /// A last stage that signs another answer than it told convicts itself, and not the first one.
    function test_fed_isHeldToWhatTheFirstStageSigned() public {
        Deal memory deal = matched();
        IEvidence.Told memory t = said(deal, 0, honest(0), 1);
        IEvidence.Ids memory answer = answerIds(1);
        bytes32[] memory tokens = ids(1, IN, OUT);
        IEvidence.Id memory drawn = id(1, IN, OUT, 1);
        drawn.id = bytes4("else");
        tokens[1] = Trees.leaf(bytes.concat(bytes4(uint32(1)), drawn.id));
        answer.root = Trees.root(tokens);
        drawn.proof = Trees.proof(tokens, 1);
        IEvidence.Id memory found = id(1, 0, ROWS, IN + 1);
        vm.expectRevert(NOT_PROVEN);
        desk.fed(deal.order, deal.plan, t, answer, drawn, found);
    }

    // --- words of single requests ---

    /// A stage's word of request 1, in the place of a receipt over it.
    function worded(Deal memory deal, uint256 stage, RequestLeaf memory leaf)
        private
        view
        returns (IEvidence.Told memory t)
    {
        RequestLeaf[] memory leaves = new RequestLeaf[](1);
        leaves[0] = leaf;
        RequestLeaf[] memory answers = new RequestLeaf[](1);
        answers[0] = honest(LAST)[1];
        (t.receipt, t.signature) = wordsOf(deal, stage, leaves, answers);
        t.leaf = leaf;
        t.proof = Trees.proof(Trees.requests(leaves), 0);
    }

    function test_equivocation_sentOtherRowsThanItSigned() public {
        for (uint256 stage; stage < STAGES; ++stage) {
            Deal memory deal = matched();
            IEvidence.Told memory t = said(deal, stage, honest(stage), 1);
            RequestLeaf memory sent = honest(stage)[1];
            sent.outRoot = keccak256("other rows");
            Contradiction memory c = Contradiction(t, worded(deal, stage, sent));
            uint256 snapshotId = vm.snapshotState();
            desk.equivocation(deal.order, deal.plan, c.one, c.other);
            snapshot("equivocation by a word");
            assertConvicted(deal, stage);
            vm.revertToState(snapshotId);
        }
    }

    function testFuzz_equivocation_ofAnHonestWord_reverts(uint8 stage, uint8 signer) public {
        Deal memory deal = matched();
        stage = uint8(stage % STAGES);
        signer = uint8(signer % STAGES);
        RequestLeaf memory sent = honest(stage)[1];
        Contradiction memory c;
        c.one = said(deal, stage, honest(stage), 1);
        bytes memory refused = NOT_PROVEN;
        if (signer != stage) {
            sent.outRoot = keccak256("forged");
            deal.keys[stage] = deal.keys[signer];
            refused = abi.encodeWithSelector(
                ITaskRegistry.BadSignature.selector, deal.plan[stage].operator
            );
        }
        c.other = worded(deal, stage, sent);
        refuseEquivocation(deal, c, refused);
    }

    /// A first stage's word names the answer that it received.
    function test_fed_byAWord() public {
        Deal memory deal = matched();
        RequestLeaf memory leaf = honest(0)[1];
        bytes32[] memory rows = ids(1, 0, ROWS);
        IEvidence.Id memory other = id(1, 0, ROWS, IN + 1);
        other.id = bytes4("else");
        rows[IN + 1] = Trees.leaf(bytes.concat(bytes4(IN + 1), other.id));
        leaf.inRoot = Trees.root(rows);
        IEvidence.Ids memory answer = answerIds(1);
        answer.proof = new bytes32[](0); // the only request of such a receipt
        IEvidence.Id memory drawn = id(1, IN, OUT, 1);
        desk.fed(deal.order, deal.plan, worded(deal, 0, leaf), answer, drawn, other);
        assertConvicted(deal, 0);
    }

    function test_prompt_byAWord() public {
        Deal memory deal = matched();
        RequestLeaf memory leaf = honest(0)[1];
        leaf.inRoot = honest(0)[0].inRoot;
        IEvidence.Id memory asked = id(1, 0, IN, 2);
        IEvidence.Id memory other = id(0, 0, ROWS, 2);
        desk.prompt(deal.order, deal.plan, worded(deal, 0, leaf), orderedIds(1), asked, other);
        assertConvicted(deal, 0);
    }

    // --- honest receipts ---

    function testFuzz_counts_ofAnHonestStage_revert(uint8 stage, uint8 position) public {
        Deal memory deal = matched();
        stage = uint8(stage % STAGES);
        RequestLeaf[] memory leaves = honest(stage);
        count(deal, said(deal, stage, leaves, position % REQUESTS), leaves, NOT_PROVEN);
    }

    /// A session opens requests as it likes, and an honest receipt may be over any of them.
    function test_counts_ofAReceiptOverSomeRequests_revert() public {
        Deal memory deal = matched();
        RequestLeaf[] memory all = honest(1);
        RequestLeaf[] memory some = new RequestLeaf[](2);
        (some[0], some[1]) = (all[0], all[2]);
        count(deal, said(deal, 1, some, 0), some, NOT_PROVEN);
        count(deal, said(deal, 1, some, 1), some, NOT_PROVEN);
    }
}
