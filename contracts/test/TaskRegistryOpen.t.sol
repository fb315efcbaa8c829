// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {EntryPause} from "../src/EntryPause.sol";
import {Escrow} from "../src/Escrow.sol";
import {TaskRegistry} from "../src/TaskRegistry.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {IEscrow} from "../src/interfaces/IEscrow.sol";
import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {IModelRegistry} from "../src/interfaces/IModelRegistry.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {JobId, ModelId} from "../src/types/Ids.sol";
import {Order, Stage} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {ContractWallet} from "./fixtures/Wallets.sol";

/// Deployment, and how a job begins: open, openMatched, matchJob, nonces, fees.
contract TaskRegistryOpenTest is Suite {
    using Messages for *;

    function expectRevertOnOpenMatched(Deal memory deal, bytes memory reason) internal {
        vm.prank(matcher);
        vm.expectRevert(reason);
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
    }

    // --- deployment ---

    function test_wiring_isReadable() public view {
        vm.assertEq(address(tasks.escrow()), address(escrow));
        vm.assertEq(address(tasks.minerRegistry()), address(miners));
        vm.assertEq(address(tasks.modelRegistry()), address(models));
        ITaskRegistry.Params memory p = tasks.params();
        vm.assertEq(p.protocolFeeBps, PROTOCOL_FEE_BPS);
        vm.assertEq(p.feeRecipient, treasury);
        vm.assertEq(p.maxJobSeconds, MAX_JOB_SECONDS);
        vm.assertEq(p.maxWindowSeconds, MAX_WINDOW_SECONDS);
        vm.assertEq(p.closeDelaySeconds, CLOSE_DELAY_SECONDS);
    }

    function deployWith(
        Escrow escrow_,
        IMinerRegistry miners_,
        IModelRegistry models_,
        ITaskRegistry.Params memory p
    ) external {
        new TaskRegistry(escrow_, miners_, models_, p, governor, guardian);
    }

    function test_constructor_whenOthersNameAnother_reverts() public {
        vm.expectRevert(ITaskRegistry.WiringMismatch.selector);
        this.deployWith(escrow, miners, models, taskParams());
    }

    /// Same address, but one thing wrong in the wiring each time.
    function test_constructor_checksEveryWire() public {
        for (uint256 wrong; wrong < 2; ++wrong) {
            address future = vm.computeCreateAddress(address(this), vm.getNonce(address(this)) + 2);
            IMinerRegistry miners_ = IMinerRegistry(deployMiners(wrong == 1 ? address(1) : future));
            Escrow escrow_ = new Escrow(address(token), wrong == 0 ? address(1) : future, 0);
            vm.expectRevert(ITaskRegistry.WiringMismatch.selector);
            new TaskRegistry(escrow_, miners_, models, taskParams(), governor, guardian);
        }
    }

    function test_constructor_whenUnbondingIsShorterThanADispute_reverts() public {
        address future = vm.computeCreateAddress(address(this), vm.getNonce(address(this)) + 2);
        address miners_ = deployMiners(future);
        Escrow escrow_ = new Escrow(address(token), future, 0);
        ITaskRegistry.Params memory p = taskParams();
        p.maxJobSeconds = uint32(
            UNBOND_SECONDS - CLOSE_DELAY_SECONDS - MAX_WINDOW_SECONDS - MAX_DISPUTE_SECONDS + 1
        );
        vm.expectRevert(ITaskRegistry.WiringMismatch.selector);
        new TaskRegistry(escrow_, IMinerRegistry(miners_), models, p, governor, guardian);
    }

    function test_constructor_checksFeeRecipientAndDelay() public {
        bytes[3] memory reasons = [
            abi.encodeWithSelector(ITaskRegistry.FeeTooHigh.selector, 101, 100),
            abi.encodeWithSelector(ITaskRegistry.AccountZero.selector),
            abi.encodeWithSelector(ITaskRegistry.CloseDelayZero.selector)
        ];
        for (uint256 wrong; wrong < 3; ++wrong) {
            address future = vm.computeCreateAddress(address(this), vm.getNonce(address(this)) + 2);
            address miners_ = deployMiners(future);
            Escrow escrow_ = new Escrow(address(token), future, 0);
            ITaskRegistry.Params memory p = taskParams();
            if (wrong == 0) p.protocolFeeBps = 101;
            else if (wrong == 1) p.feeRecipient = address(0);
            else p.closeDelaySeconds = 0;
            vm.expectRevert(reasons[wrong]);
            new TaskRegistry(escrow_, IMinerRegistry(miners_), models, p, governor, guardian);
        }
    }

    // --- openMatched: what it does ---

    function test_openMatched_locksAndRemembers() public {
        Deal memory deal = newDeal(3);
        uint256 amount = uint256(75) * (uint256(1e6) * 3_750_001 + uint256(5e5) * 11_250_007)
            + OPENING_FEE * NANO;
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobOpened(deal.id, requester, ModelId.unwrap(modelId), amount);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobMatched(deal.id, matcher, deal.planHash, deal.plan);
        openMatched(deal);
        ITaskRegistry.Job memory job = jobOf(deal);
        vm.assertEq(uint256(job.state), uint256(ITaskRegistry.State.Matched));
        vm.assertEq(job.deadline, deal.order.deadline);
        vm.assertEq(job.finalAt, 0);
        vm.assertEq(job.layers, LAYERS);
        vm.assertEq(job.embedUnits, EMBED_UNITS);
        vm.assertEq(job.headUnits, HEAD_UNITS);
        vm.assertFalse(job.isSpenders);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - amount);
        vm.assertEq(lockedNano(deal), amount);
        vm.assertTrue(tasks.isNonceUsed(requester, deal.order.nonce));
    }

    /// A job is found by its plan alone.
    function test_jobOf_withAnotherPlan_isNone() public {
        Deal memory deal = matchedDeal(3);
        assertNone(deal, evenPlan(2).hash());
        assertNone(deal, 0);
        Deal memory other = newDeal(3);
        vm.assertEq(other.planHash, deal.planHash);
        assertNone(other, deal.planHash);
    }

    function assertNone(Deal memory deal, bytes32 planHash) private view {
        ITaskRegistry.Job memory none;
        vm.assertEq(abi.encode(tasks.jobOf(deal.id, planHash)), abi.encode(none));
    }

    function test_openMatched_of64Stages_fitsATransaction() public {
        addMiners(56);
        Deal memory deal = newDeal(64);
        openMatched(deal);
        uint256 gas = vm.snapshotGasLastCall("TaskRegistry", "openMatched K=64 (execution)");
        vm.assertLt(gas, 1 << 24);
        Delivery memory delivery = newDelivery(deal, 900_000, 400_000);
        deliver(deal, delivery);
        vm.assertLt(vm.snapshotGasLastCall("TaskRegistry", "deliver K=64 (execution)"), 1 << 24);
        dispute(deal, delivery, 63);
        vm.assertLt(vm.snapshotGasLastCall("TaskRegistry", "dispute K=64 (execution)"), 1 << 24);
        resolve(deal, delivery, 63, true);
        skipTime(1 days + 1);
        finalize(deal);
        vm.assertLt(vm.snapshotGasLastCall("TaskRegistry", "finalize K=64 (execution)"), 1 << 24);
    }

    function withoutMatcher() private returns (Deal memory) {
        Order memory order = newOrder();
        dropMatcher(order);
        return dealOf(order, evenPlan(2));
    }

    function expectNotMatcher(address caller, address want) private {
        vm.prank(caller);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotMatcher.selector, caller, want));
    }

    function test_openMatched_withoutMatcher_isTheRequestersAlone() public {
        Deal memory deal = withoutMatcher();
        address[3] memory others = [stranger, matcher, deal.plan[0].operator];
        for (uint256 i; i < others.length; ++i) {
            expectNotMatcher(others[i], requester);
            tasks.openMatched(deal.order, deal.orderSig, deal.plan);
        }
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobMatched(deal.id, requester, deal.planHash, deal.plan);
        vm.prank(requester);
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
        assertState(deal, ITaskRegistry.State.Matched);
    }

    function test_openMatched_byAContractRequester() public {
        ContractWallet wallet = new ContractWallet(requester);
        depositFor(address(wallet), 10 * USD);
        Order memory order = newOrder();
        order.requester = address(wallet);
        Deal memory deal = dealOf(order, evenPlan(2));
        uint256 state = vm.snapshotState();
        openMatched(deal);
        vm.revertToState(state);
        wallet.setSigner(stranger);
        expectRevertOnOpenMatched(
            deal, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, address(wallet))
        );
    }

    // --- openMatched: what it refuses ---

    /// Also not the requester itself, where it named a matcher.
    function test_openMatched_byAnotherThanTheMatcher_reverts() public {
        Deal memory deal = newDeal(2);
        address[3] memory others = [stranger, requester, deal.plan[1].operator];
        for (uint256 i; i < others.length; ++i) {
            expectNotMatcher(others[i], matcher);
            tasks.openMatched(deal.order, deal.orderSig, deal.plan);
        }
    }

    /// All ways to open `deal`'s order, by whoever may.
    function expectNoSecondOpening(Deal memory deal) private {
        vm.prank(matcher);
        expectNonceUsed(deal);
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
        Deal memory other = dealOf(deal.order, evenPlan(3));
        vm.prank(matcher);
        expectNonceUsed(deal);
        tasks.openMatched(other.order, other.orderSig, other.plan);
        vm.prank(requester);
        expectNonceUsed(deal);
        tasks.open(deal.order);
    }

    function test_openMatched_twice_reverts() public {
        Deal memory deal = matchedDeal(2);
        expectNoSecondOpening(deal);
        assertState(deal, ITaskRegistry.State.Matched);
    }

    /// The nonce is asked for first, whatever else is wrong by now.
    function test_openMatched_twice_saysSoBeforeAllElse() public {
        Deal memory deal = matchedDeal(2);
        vm.warp(deal.order.deadline + 1);
        deal.order.requests = 0;
        vm.prank(stranger);
        expectNonceUsed(deal);
        tasks.openMatched(deal.order, "", deal.plan);
    }

    /// Attack #3: an order's nonce outlives its job.
    function test_openMatched_afterTheEnd_reverts() public {
        Deal memory deal = matchedDeal(2);
        settleAck(deal, 1, 1);
        expectNoSecondOpening(deal);
        deal = newDeal(2);
        openUnmatched(deal);
        expectNoSecondOpening(deal);
        vm.prank(requester);
        tasks.cancel(deal.order);
        expectNoSecondOpening(deal);
        deal = newDeal(2);
        openUnmatched(deal);
        vm.warp(deal.order.deadline + 1);
        tasks.expire(deal.order, new Stage[](0));
        expectNoSecondOpening(deal);
    }

    function test_openMatched_onAnotherChain_reverts() public {
        Deal memory deal = newDeal(2);
        vm.chainId(777);
        expectRevertOnOpenMatched(
            deal, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester)
        );
    }

    function testFuzz_openMatched_withMutatedOrderSignature_reverts(uint256 bit) public {
        Deal memory deal = newDeal(2);
        bit %= 520;
        deal.orderSig[bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        expectRevertOnOpenMatched(
            deal, abi.encodeWithSelector(ITaskRegistry.BadSignature.selector, requester)
        );
    }

    function test_openMatched_checksTheOrdersClocks() public {
        uint256 t = vm.getBlockTimestamp();
        Order memory order = newOrder();
        order.deadline = uint64(t - 1);
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(ITaskRegistry.DeadlinePassed.selector, t - 1)
        );
        order.deadline = uint64(t + MAX_JOB_SECONDS + 1);
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(
                ITaskRegistry.DeadlineOutOfRange.selector, order.deadline, t + MAX_JOB_SECONDS
            )
        );
        order.deadline = type(uint64).max;
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(
                ITaskRegistry.DeadlineOutOfRange.selector, order.deadline, t + MAX_JOB_SECONDS
            )
        );
        order.deadline = uint64(t + MAX_JOB_SECONDS);
        order.window = MAX_WINDOW_SECONDS + 1;
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(
                ITaskRegistry.WindowOutOfRange.selector, order.window, MAX_WINDOW_SECONDS
            )
        );
        order.window = MAX_WINDOW_SECONDS;
        openMatched(dealOf(order, evenPlan(2)));
        order = newOrder();
        order.deadline = uint64(t);
        openMatched(dealOf(order, evenPlan(2)));
    }

    function test_openMatched_checksTheOrdersTerms() public {
        Order memory order = newOrder();
        order.matcherFeeBps = 501;
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(ITaskRegistry.FeeTooHigh.selector, 501, 500)
        );
        order.matcherFeeBps = 1;
        order.matcher = address(0);
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(ITaskRegistry.FeeTooHigh.selector, 1, 0)
        );
        order.matcherFeeBps = 0;
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(ITaskRegistry.FeeTooHigh.selector, OPENING_FEE, 0)
        );
        order = newOrder();
        order.requests = 0;
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)), abi.encodeWithSelector(ITaskRegistry.RequestsZero.selector)
        );
        order = newOrder();
        order.arbitrator = stranger;
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(ITaskRegistry.ArbitratorUnknown.selector, stranger)
        );
        order = newOrder();
        order.numericsProfile = "other";
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(
                ITaskRegistry.NumericsProfileMismatch.selector, bytes32("other"), PROFILE
            )
        );
        order = newOrder();
        order.modelId = ModelId.wrap("other");
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(IModelRegistry.ModelUnknown.selector, bytes32("other"))
        );
    }

    /// A share is packed in 96 bits, so no lock is larger.
    function test_openMatched_ofMoreThan96Bits_reverts() public {
        Order memory order = newOrder();
        (order.maxTokensIn, order.maxTokensOut) = (type(uint32).max, 0);
        (order.priceIn, order.priceOut) = (type(uint64).max, type(uint64).max);
        uint256 nano = maxNanoOf(order);
        depositFor(requester, unitsOf(nano));
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(SafeCast.SafeCastOverflowedUintDowncast.selector, 96, nano)
        );
    }

    function test_openMatched_atTheLargestNumbers_locksAndPays() public {
        Order memory order = newOrder();
        (order.maxTokensIn, order.maxTokensOut) = (type(uint32).max, type(uint32).max);
        order.priceIn = uint64(
            uint256(type(uint96).max) / (uint256(LAYERS) + EMBED_UNITS + HEAD_UNITS)
                / type(uint32).max - 100
        );
        order.priceOut = 1;
        uint256 nano = maxNanoOf(order);
        depositFor(requester, unitsOf(nano));
        Deal memory deal = dealOf(order, evenPlan(2));
        openMatched(deal);
        vm.assertEq(lockedNano(deal), nano);
        settleAck(deal, type(uint32).max, type(uint32).max);
        vm.assertEq(balanceNano(requester), (100 * USD + unitsOf(nano)) * NANO - nano);
        vm.assertEq(
            creditNano(minerOwners[0]) + creditNano(minerOwners[1]) + creditNano(matcher)
                + creditNano(treasury),
            nano
        );
    }

    function test_openMatched_withoutBalance_reverts() public {
        Order memory order = newOrder();
        order.maxTokensOut = type(uint32).max;
        uint256 amount = maxNanoOf(order);
        expectRevertOnOpenMatched(
            dealOf(order, evenPlan(2)),
            abi.encodeWithSelector(
                IEscrow.InsufficientBalance.selector, requester, 100 * USD * NANO, amount
            )
        );
    }

    function test_openMatched_ofAFreeJob_locksNothing() public {
        Order memory order = newOrder();
        makeFree(order);
        Deal memory deal = dealOf(order, evenPlan(2));
        openMatched(deal);
        settleAck(deal, 5, 5);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO);
    }

    // --- plan ---

    function test_openMatched_checksTheTiling() public {
        Deal memory deal = newDeal(2);
        deal.plan[1].layerFrom += 1;
        resign(deal);
        expectRevertOnOpenMatched(
            deal, abi.encodeWithSelector(ITaskRegistry.LayerGap.selector, 35, 36)
        );
    }

    function test_openMatched_checksEveryMiner() public {
        Deal memory deal = newDeal(3);
        bytes memory reason =
            abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, deal.plan[1].operator);
        uint256 state = vm.snapshotState();

        vm.startPrank(address(tasks));
        uint32 number = miners.openDispute(minerOwners[1], address(tasks), stranger, stranger, 0);
        vm.stopPrank();
        expectRevertOnOpenMatched(deal, reason); // accused
        vm.prank(address(tasks));
        miners.closeDispute(minerOwners[1], number, 1, 0);
        expectRevertOnOpenMatched(deal, reason); // in jail
        vm.revertToState(state);

        state = vm.snapshotState();
        vm.prank(minerOwners[1]);
        miners.requestExit(STAKE);
        expectRevertOnOpenMatched(deal, reason);
        vm.revertToState(state);

        (address fresh, uint256 freshKey) = makeKey("fresh operator");
        bytes memory proof =
            sign(freshKey, digest(Messages.hashOperatorProof(minerOwners[1], fresh)));
        vm.prank(minerOwners[1]);
        miners.rotateOperator(fresh, proof); // an old key gets no new work
        expectRevertOnOpenMatched(deal, reason);

        deal = newDeal(3);
        deal.plan[1].operator = stranger;
        resign(deal);
        expectRevertOnOpenMatched(
            deal, abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, stranger)
        );
    }

    function test_openMatched_asksForTheOrdersStake() public {
        Order memory order = newOrder();
        order.minStake = uint128(STAKE);
        openMatched(dealOf(order, evenPlan(2)));
        order = newOrder();
        order.minStake = uint128(STAKE + 1);
        Deal memory deal = dealOf(order, evenPlan(2));
        expectRevertOnOpenMatched(
            deal,
            abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, deal.plan[0].operator)
        );
    }

    // --- open, matchJob ---

    function test_open_pullsTheRequestersTokens() public {
        Deal memory deal = newDeal(2);
        uint256 amount = maxNanoOf(deal.order);
        openUnmatched(deal);
        assertState(deal, ITaskRegistry.State.Open);
        vm.assertEq(token.balanceOf(requester), 0);
        uint256 pulled = unitsOf(amount) * NANO;
        vm.assertEq(balanceNano(requester), 100 * USD * NANO + pulled - amount);
        vm.assertEq(lockedNano(deal), amount);
        assertNone(deal, deal.planHash);
        vm.assertTrue(tasks.isNonceUsed(requester, deal.order.nonce));
    }

    function test_open_byAnother_reverts() public {
        Deal memory deal = newDeal(2);
        vm.prank(stranger);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.NotParty.selector, stranger));
        tasks.open(deal.order);
    }

    function test_open_checksTheOrder() public {
        Deal memory deal = newDeal(2);
        deal.order.requests = 0;
        vm.prank(requester);
        vm.expectRevert(ITaskRegistry.RequestsZero.selector);
        tasks.open(deal.order);
    }

    function test_matchJob_givesAnOpenJobItsPlan() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.JobMatched(deal.id, matcher, deal.planHash, deal.plan);
        matchJob(deal);
        assertState(deal, ITaskRegistry.State.Matched);
    }

    /// What waited without a plan is then found by the plan alone.
    function test_matchJob_movesTheWaitingJob() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        ITaskRegistry.Job memory job = tasks.jobOf(deal.id, 0);
        matchJob(deal);
        assertNone(deal, 0);
        job.state = ITaskRegistry.State.Matched;
        vm.assertEq(abi.encode(tasks.jobOf(deal.id, deal.planHash)), abi.encode(job));
        Deal memory other = dealOf(deal.order, evenPlan(3));
        vm.prank(matcher);
        expectNoJob();
        tasks.matchJob(deal.order, deal.plan);
        vm.prank(matcher);
        expectNoJob();
        tasks.matchJob(other.order, other.plan);
        vm.prank(requester);
        expectNoJob();
        tasks.cancel(deal.order);
    }

    function test_matchJob_aroundTheDeadline() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        vm.warp(deal.order.deadline + 1);
        resign(deal);
        vm.prank(matcher);
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.DeadlinePassed.selector, deal.order.deadline)
        );
        tasks.matchJob(deal.order, deal.plan);
        vm.warp(deal.order.deadline);
        matchJob(deal);
    }

    function test_matchJob_byAnotherThanTheMatcher_reverts() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        address[3] memory others = [stranger, requester, deal.plan[1].operator];
        for (uint256 i; i < others.length; ++i) {
            expectNotMatcher(others[i], matcher);
            tasks.matchJob(deal.order, deal.plan);
        }
        assertState(deal, ITaskRegistry.State.Open);
    }

    function test_matchJob_withoutMatcher_isTheRequestersAlone() public {
        Deal memory deal = withoutMatcher();
        openUnmatched(deal);
        expectNotMatcher(matcher, requester);
        tasks.matchJob(deal.order, deal.plan);
        vm.prank(requester);
        tasks.matchJob(deal.order, deal.plan);
        assertState(deal, ITaskRegistry.State.Matched);
    }

    function test_matchJob_checksEveryMiner() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        deal.plan[1].operator = stranger;
        vm.prank(matcher);
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, stranger));
        tasks.matchJob(deal.order, deal.plan);
    }

    function test_matchJob_checksThePlan() public {
        Deal memory deal = newDeal(2);
        openUnmatched(deal);
        deal.plan[1].layerTo -= 1;
        resign(deal);
        vm.prank(matcher);
        vm.expectRevert(
            abi.encodeWithSelector(ITaskRegistry.LayersUncovered.selector, LAYERS - 1, LAYERS)
        );
        tasks.matchJob(deal.order, deal.plan);
    }

    // --- nonces ---

    function test_revokeNonce_killsThatOrderOnly() public {
        Deal memory deal = newDeal(2);
        Deal memory next = newDeal(2);
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.NonceRevoked(requester, deal.order.nonce);
        vm.prank(requester);
        tasks.revokeNonce(deal.order.nonce);
        vm.assertTrue(tasks.isNonceUsed(requester, deal.order.nonce));
        bytes memory reason =
            abi.encodeWithSelector(ITaskRegistry.NonceUsedAlready.selector, deal.order.nonce);
        expectRevertOnOpenMatched(deal, reason);
        vm.prank(requester);
        vm.expectRevert(reason);
        tasks.open(deal.order);
        vm.prank(requester);
        vm.expectRevert(reason);
        tasks.revokeNonce(deal.order.nonce);
        openMatched(next);
    }

    /// A nonce that a job has used cannot be revoked, and the job goes on.
    function test_revokeNonce_afterOpening_reverts() public {
        Deal memory deal = matchedDeal(2);
        vm.prank(requester);
        expectNonceUsed(deal);
        tasks.revokeNonce(deal.order.nonce);
        deal = newDeal(2);
        openUnmatched(deal);
        vm.prank(requester);
        expectNonceUsed(deal);
        tasks.revokeNonce(deal.order.nonce);
        matchJob(deal);
        settleAck(deal, 1, 1);
    }

    /// An opening that fails uses no nonce.
    function test_nonce_ofAnOpeningThatFails_staysFree() public {
        Deal memory deal = newDeal(2);
        vm.prank(stranger);
        vm.expectRevert();
        tasks.openMatched(deal.order, deal.orderSig, deal.plan);
        vm.assertFalse(tasks.isNonceUsed(requester, deal.order.nonce));
        openMatched(deal);
    }

    /// Orders of one nonce: the first that is opened is the only one.
    function test_nonce_ofTwoOrders_opensOne() public {
        Deal memory deal = matchedDeal(2);
        Order memory order = newOrder();
        order.nonce = deal.order.nonce;
        order.priceIn += 1;
        Deal memory other = dealOf(order, evenPlan(2));
        vm.assertNotEq(JobId.unwrap(other.id), JobId.unwrap(deal.id));
        vm.prank(matcher);
        expectNonceUsed(other);
        tasks.openMatched(other.order, other.orderSig, other.plan);
    }

    /// 256 nonces share a word of storage, and touch each other not.
    function testFuzz_nonces_ofOneWord_areApart(uint64 first, uint256 used) public {
        first &= ~uint64(0xff);
        uint256 count = 8;
        for (uint256 i; i < count; ++i) {
            Order memory order = newOrder();
            order.nonce = first + uint64(used >> (8 * i) & 0xff);
            if (tasks.isNonceUsed(requester, order.nonce)) continue;
            if (i % 2 == 0) {
                openMatched(dealOf(order, evenPlan(1)));
            } else {
                vm.prank(requester);
                tasks.revokeNonce(order.nonce);
            }
        }
        uint256 bits;
        for (uint256 i; i < count; ++i) {
            bits |= 1 << (used >> (8 * i) & 0xff);
        }
        for (uint64 i; i < 256; ++i) {
            vm.assertEq(tasks.isNonceUsed(requester, first + i), bits >> i & 1 == 1);
            vm.assertFalse(tasks.isNonceUsed(stranger, first + i));
        }
        unchecked {
            vm.assertFalse(tasks.isNonceUsed(requester, first - 1));
            vm.assertFalse(tasks.isNonceUsed(requester, first + 256));
        }
    }

    function testFuzz_nonces_revokeOnlyTheCallersOwn(uint64 nonce, uint64 other, address who)
        public
    {
        if (who == requester) who = stranger;
        vm.prank(requester);
        tasks.revokeNonce(nonce);
        vm.assertTrue(tasks.isNonceUsed(requester, nonce));
        vm.assertFalse(tasks.isNonceUsed(who, nonce));
        vm.assertEq(tasks.isNonceUsed(requester, other), other == nonce);
    }

    // --- pause, fees ---

    function test_pause_stopsEntriesAndNothingElse() public {
        Deal memory open_ = newDeal(2);
        openUnmatched(open_);
        Deal memory running = matchedDeal(2);
        Deal memory fresh = newDeal(2);
        vm.prank(guardian);
        tasks.pauseEntries(7 days);
        bytes memory paused =
            abi.encodeWithSelector(EntryPause.EntriesPaused.selector, tasks.pausedUntil());
        expectRevertOnOpenMatched(fresh, paused);
        vm.prank(requester);
        vm.expectRevert(paused);
        tasks.open(fresh.order);
        vm.prank(matcher);
        vm.expectRevert(paused);
        tasks.matchJob(open_.order, open_.plan);
        vm.prank(requester);
        tasks.cancel(open_.order);
        Delivery memory delivery = deliver(running, 1, 1);
        dispute(running, delivery, 0);
        resolve(running, delivery, 0, false);
        skipTime(1 days + 1);
        finalize(running);
    }

    function test_setFeeRecipient_redirects() public {
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.FeeRecipientChanged(stranger);
        vm.prank(governor);
        tasks.setFeeRecipient(stranger);
        settleAck(matchedDeal(1), 900_000, 400_000);
        address[] memory list = new address[](1);
        list[0] = matcher;
        (, uint256 fees) = escrow.feesOf(matcher);
        escrow.collectFees(list);
        vm.assertGt(fees, 0);
        vm.assertEq(token.balanceOf(stranger), fees);
        vm.assertEq(token.balanceOf(treasury), 0);
        vm.prank(governor);
        vm.expectRevert(ITaskRegistry.AccountZero.selector);
        tasks.setFeeRecipient(address(0));
    }

    function test_lowerProtocolFee_onlyLowers() public {
        vm.startPrank(governor);
        for (uint16 more; more < 2; ++more) {
            vm.expectRevert(
                abi.encodeWithSelector(
                    ITaskRegistry.FeeTooHigh.selector, PROTOCOL_FEE_BPS + more, PROTOCOL_FEE_BPS
                )
            );
            tasks.lowerProtocolFee(PROTOCOL_FEE_BPS + more);
        }
        vm.expectEmit(address(tasks));
        emit ITaskRegistry.ProtocolFeeLowered(0);
        tasks.lowerProtocolFee(0);
        vm.stopPrank();
        settleAck(matchedDeal(1), 900_000, 400_000);
        vm.assertEq(creditNano(treasury), 0);
    }

    function test_governance_isTheOwnersAlone() public {
        vm.expectRevert(
            abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", address(this))
        );
        tasks.setFeeRecipient(stranger);
        vm.expectRevert(
            abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", address(this))
        );
        tasks.lowerProtocolFee(0);
    }

    // --- split ---

    function test_split_isThePagesArithmetic() public {
        Deal memory deal = newDeal(3);
        (uint256[] memory gross, uint256[] memory pay, uint256 matcherFee, uint256 protocolFee) =
            tasks.split(deal.order, deal.plan, 900_000, 400_000);
        uint256 perUnit = uint256(900_000) * 3_750_001 + uint256(400_000) * 11_250_007;
        uint256[3] memory units = [uint256(25), 23, 27];
        uint256 fees;
        uint256 matchers;
        for (uint256 i; i < 3; ++i) {
            vm.assertEq(gross[i], units[i] * perUnit);
            uint256 fee = gross[i] * 230 / 10_000;
            vm.assertEq(pay[i], gross[i] - fee);
            fees += fee;
            matchers += fee * 200 / 230;
        }
        vm.assertEq(matcherFee, matchers);
        vm.assertEq(protocolFee, fees - matchers);
        deal.plan[0].layerTo -= 1;
        vm.expectRevert(abi.encodeWithSelector(ITaskRegistry.LayerGap.selector, 22, 23));
        tasks.split(deal.order, deal.plan, 1, 1);
    }
}
