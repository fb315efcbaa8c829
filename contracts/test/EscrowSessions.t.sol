// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEscrow} from "../src/interfaces/IEscrow.sol";
import {IModelRegistry} from "../src/interfaces/IModelRegistry.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Split} from "../src/libraries/Split.sol";
import {ModelId, SessionId} from "../src/types/Ids.sol";
import {Stage, Voucher} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {ContractWallet} from "./fixtures/Wallets.sol";

/// Earmarked sessions and cumulative vouchers.
contract EscrowSessionsTest is Suite {
    using Messages for *;

    uint96 private constant CAP = uint96(10 * USD);
    bytes32 private constant SALT = keccak256("salt");

    Stage[] private plan;
    SessionId private id;
    uint40 private expiry;

    function setUp() public override {
        super.setUp();
        Stage[] memory stages = evenPlan(3);
        for (uint256 i; i < stages.length; ++i) {
            plan.push(stages[i]);
        }
        expiry = uint40(vm.getBlockTimestamp() + 1 days);
        id = open(SALT, CAP);
    }

    function open(bytes32 salt, uint96 cap) private returns (SessionId) {
        Stage[] memory stages = plan;
        vm.prank(requester);
        return escrow.openSession(salt, cap, expiry, ModelId.unwrap(modelId), stages, matcher, MATCHER_FEE_BPS);
    }

    function voucherOf(SessionId session, uint256 cumulative) private view returns (Voucher memory) {
        Stage[] memory stages = plan;
        return Voucher(session, stages.hash(), uint128(cumulative), keccak256(abi.encode("result", cumulative)));
    }

    function signed(Voucher memory voucher) private view returns (bytes memory) {
        return sign(requesterKey, digest(voucher.hash()));
    }

    function claim(uint256 cumulative) private {
        Voucher memory voucher = voucherOf(id, cumulative);
        escrow.claim(voucher, signed(voucher), plan);
    }

    function expectRevertOnClaim(Voucher memory voucher, bytes memory sig, bytes memory reason) private {
        Stage[] memory stages = plan;
        vm.expectRevert(reason);
        escrow.claim(voucher, sig, stages);
    }

    function creditsOfPlan() private view returns (uint256 total) {
        for (uint256 i; i < plan.length; ++i) {
            total += escrow.creditOf(minerOwners[i]);
        }
        total += escrow.creditOf(matcher);
    }

    // --- open ---

    function test_openSession_ownsItsCap() public view {
        IEscrow.Session memory s = escrow.sessionOf(id);
        Stage[] memory stages = plan;
        vm.assertEq(SessionId.unwrap(id), SessionId.unwrap(escrow.sessionIdOf(requester, SALT)));
        vm.assertEq(escrow.balanceOf(requester), 90 * USD);
        vm.assertEq(s.requester, requester);
        vm.assertEq(s.cap, CAP);
        vm.assertEq(s.claimed, 0);
        vm.assertEq(s.expiry, expiry);
        vm.assertEq(uint256(s.state), uint256(IEscrow.SessionState.Open));
        vm.assertEq(s.matcher, matcher);
        vm.assertEq(s.matcherFeeBps, MATCHER_FEE_BPS);
        vm.assertEq(s.planHash, stages.hash());
        vm.assertEq(s.layers, LAYERS);
        vm.assertEq(s.embedUnits, EMBED_UNITS);
        vm.assertEq(s.headUnits, HEAD_UNITS);
    }

    function test_sessionId_namesChainEscrowRequesterAndSalt() public view {
        vm.assertEq(SessionId.unwrap(id), keccak256(abi.encode(chain(), address(escrow), requester, SALT)));
    }

    function expectRevertOnOpen(
        bytes memory reason,
        uint96 cap,
        uint256 expiry_,
        bytes32 model,
        Stage[] memory stages,
        address matcher_,
        uint16 feeBps
    ) private {
        vm.prank(requester);
        vm.expectRevert(reason);
        escrow.openSession("other", cap, uint40(expiry_), model, stages, matcher_, feeBps);
    }

    function test_openSession_withSameSalt_reverts() public {
        Stage[] memory stages = plan;
        vm.prank(requester);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionExists.selector, id));
        escrow.openSession(SALT, CAP, expiry, ModelId.unwrap(modelId), stages, matcher, 0);
    }

    function test_openSession_checksItsNumbers() public {
        Stage[] memory stages = plan;
        bytes32 model = ModelId.unwrap(modelId);
        uint256 t = vm.getBlockTimestamp();
        expectRevertOnOpen(abi.encodeWithSelector(IEscrow.AmountZero.selector), 0, expiry, model, stages, matcher, 0);
        expectRevertOnOpen(abi.encodeWithSelector(IEscrow.ExpiryOutOfRange.selector, t), CAP, t, model, stages, matcher, 0);
        uint256 late = t + 365 days + 1;
        expectRevertOnOpen(abi.encodeWithSelector(IEscrow.ExpiryOutOfRange.selector, late), CAP, late, model, stages, matcher, 0);
        expectRevertOnOpen(abi.encodeWithSelector(IEscrow.FeeTooHigh.selector, 501, 500), CAP, expiry, model, stages, matcher, 501);
        expectRevertOnOpen(abi.encodeWithSelector(IEscrow.FeeTooHigh.selector, 1, 0), CAP, expiry, model, stages, address(0), 1);
        expectRevertOnOpen(abi.encodeWithSelector(IModelRegistry.ModelUnknown.selector, bytes32("x")), CAP, expiry, "x", stages, matcher, 0);
        expectRevertOnOpen(
            abi.encodeWithSelector(IEscrow.InsufficientBalance.selector, requester, 90 * USD, 90 * USD + 1),
            uint96(90 * USD + 1),
            expiry,
            model,
            stages,
            matcher,
            0
        );
    }

    function test_openSession_checksItsPlan() public {
        Stage[] memory stages = evenPlan(3);
        bytes32 model = ModelId.unwrap(modelId);
        stages[1].layerFrom += 1;
        expectRevertOnOpen(
            abi.encodeWithSelector(ITaskRegistry.LayerGap.selector, stages[0].layerTo, stages[1].layerFrom),
            CAP,
            expiry,
            model,
            stages,
            matcher,
            0
        );
        stages = evenPlan(3);
        stages[1].operator = stranger;
        expectRevertOnOpen(abi.encodeWithSelector(ITaskRegistry.MinerCannotWork.selector, stranger), CAP, expiry, model, stages, matcher, 0);
    }

    function test_openSession_atTheLongestExpiry_opens() public {
        Stage[] memory stages = plan;
        vm.prank(requester);
        escrow.openSession("l", 1, uint40(vm.getBlockTimestamp() + 365 days), ModelId.unwrap(modelId), stages, matcher, 500);
    }

    // --- claim ---

    function test_claim_paysByLayerUnits() public {
        Voucher memory voucher = voucherOf(id, 6 * USD);
        bytes memory sig = signed(voucher);
        vm.expectEmit(address(escrow));
        emit IEscrow.SessionClaimed(id, 6 * USD, 6 * USD);
        vm.prank(stranger);
        escrow.claim(voucher, sig, plan);
        uint256 net = 6 * USD - 6 * USD * MATCHER_FEE_BPS / 10_000;
        // 70 layers + 2 + 3 over [0,23) [23,46) [46,70)
        vm.assertEq(escrow.creditOf(minerOwners[0]), net * 25 / 75);
        vm.assertEq(escrow.creditOf(minerOwners[1]), net * 23 / 75);
        vm.assertEq(escrow.creditOf(minerOwners[2]), net * 27 / 75);
        vm.assertEq(escrow.creditOf(matcher), 120_000);
        vm.assertEq(escrow.sessionOf(id).claimed, 6 * USD);
    }

    function test_claim_withoutMatcher_paysNoFee() public {
        Stage[] memory stages = plan;
        vm.prank(requester);
        id = escrow.openSession("free", CAP, expiry, ModelId.unwrap(modelId), stages, address(0), 0);
        claim(75);
        vm.assertEq(escrow.creditOf(minerOwners[0]) + escrow.creditOf(minerOwners[1]) + escrow.creditOf(minerOwners[2]), 75);
        vm.assertEq(escrow.creditOf(address(0)), 0);
    }

    function test_claim_ofTheSameOrLess_reverts() public {
        claim(5 * USD);
        Voucher memory voucher = voucherOf(id, 5 * USD);
        expectRevertOnClaim(voucher, signed(voucher), abi.encodeWithSelector(IEscrow.VoucherStale.selector, 5 * USD, 5 * USD));
        voucher = voucherOf(id, 4 * USD);
        expectRevertOnClaim(voucher, signed(voucher), abi.encodeWithSelector(IEscrow.VoucherStale.selector, 4 * USD, 5 * USD));
    }

    function test_claim_overCap_reverts() public {
        Voucher memory voucher = voucherOf(id, uint256(CAP) + 1);
        expectRevertOnClaim(voucher, signed(voucher), abi.encodeWithSelector(IEscrow.SessionOverCap.selector, uint256(CAP) + 1, CAP));
        claim(CAP);
    }

    function test_claim_ofUnknownSession_reverts() public {
        Voucher memory voucher = voucherOf(SessionId.wrap("unknown"), 1);
        expectRevertOnClaim(voucher, signed(voucher), abi.encodeWithSelector(IEscrow.SessionWrongState.selector, IEscrow.SessionState.None));
    }

    function test_claim_withAnotherPlan_reverts() public {
        Voucher memory voucher = voucherOf(id, USD);
        Stage[] memory fewer = evenPlan(2);
        bytes32 need = voucher.planHash;
        bytes memory sig = signed(voucher);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.PlanMismatch.selector, fewer.hash(), need));
        escrow.claim(voucher, sig, fewer);
        voucher.planHash = fewer.hash();
        sig = signed(voucher);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.PlanMismatch.selector, fewer.hash(), need));
        escrow.claim(voucher, sig, fewer);
    }

    function testFuzz_claim_withMutatedSignature_reverts(uint256 bit) public {
        Voucher memory voucher = voucherOf(id, USD);
        bytes memory sig = signed(voucher);
        bit %= 520;
        sig[bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        expectRevertOnClaim(voucher, sig, abi.encodeWithSelector(IEscrow.BadSignature.selector));
    }

    function test_claim_signedByAnother_reverts() public {
        Voucher memory voucher = voucherOf(id, USD);
        bytes memory sig = sign(operatorKeys[0], digest(voucher.hash()));
        expectRevertOnClaim(voucher, sig, abi.encodeWithSelector(IEscrow.BadSignature.selector));
    }

    function test_claim_ofAnotherSessionsVoucher_reverts() public {
        SessionId other = open("other", CAP);
        Voucher memory voucher = voucherOf(id, USD);
        bytes memory sig = signed(voucher);
        voucher.sessionId = other;
        expectRevertOnClaim(voucher, sig, abi.encodeWithSelector(IEscrow.BadSignature.selector));
    }

    function test_claim_onAnotherChain_reverts() public {
        Voucher memory voucher = voucherOf(id, USD);
        bytes memory sig = signed(voucher);
        vm.chainId(777);
        expectRevertOnClaim(voucher, sig, abi.encodeWithSelector(IEscrow.BadSignature.selector));
    }

    function test_claim_ofAContractRequester_asksIt() public {
        ContractWallet wallet = new ContractWallet(requester);
        depositFor(address(wallet), 10 * USD);
        bytes memory data = abi.encodeCall(escrow.openSession, ("w", CAP, expiry, ModelId.unwrap(modelId), plan, matcher, 0));
        SessionId session = abi.decode(wallet.run(address(escrow), data), (SessionId));
        Voucher memory voucher = voucherOf(session, USD);
        bytes memory sig = signed(voucher);
        escrow.claim(voucher, sig, plan);
        voucher = voucherOf(session, 2 * USD);
        sig = signed(voucher);
        wallet.setSigner(stranger);
        expectRevertOnClaim(voucher, sig, abi.encodeWithSelector(IEscrow.BadSignature.selector));
    }

    /// An operator that changed its key or left still gets its share: its owner is known for good.
    function test_claim_afterAMinerLeft_stillPaysIt() public {
        vm.prank(minerOwners[1]);
        miners.requestExit(STAKE);
        skipTime(UNBOND_SECONDS);
        vm.prank(minerOwners[1]);
        miners.withdraw();
        claim(6 * USD);
        vm.assertGt(escrow.creditOf(minerOwners[1]), 0);
    }

    /// Attack #5 and #31: whatever vouchers come, in whatever order, each account ends with what the largest alone would pay.
    function testFuzz_claims_inAnyOrder_payTheLargestOnly(uint96[6] memory cumulatives) public {
        uint256 most;
        for (uint256 i; i < cumulatives.length; ++i) {
            uint256 cumulative = bound(cumulatives[i], 1, CAP);
            Voucher memory voucher = voucherOf(id, cumulative);
            bytes memory sig = signed(voucher);
            if (cumulative <= most) {
                expectRevertOnClaim(voucher, sig, abi.encodeWithSelector(IEscrow.VoucherStale.selector, cumulative, most));
            } else {
                escrow.claim(voucher, sig, plan);
                most = cumulative;
            }
        }
        uint256[3] memory units = [uint256(25), 23, 27];
        uint256 paid = Split.fee(most, MATCHER_FEE_BPS);
        vm.assertEq(escrow.creditOf(matcher), paid);
        for (uint256 i; i < 3; ++i) {
            uint256 want = Split.sessionTotal(most, MATCHER_FEE_BPS, units[i], 75);
            vm.assertEq(escrow.creditOf(minerOwners[i]), want);
            paid += want;
        }
        vm.assertEq(escrow.sessionOf(id).dust, most - paid);
        vm.warp(uint256(expiry) + CLOSE_DELAY_SECONDS + 1);
        escrow.close(id);
        vm.assertEq(escrow.balanceOf(requester), 100 * USD - paid);
    }

    function test_claim_ofSingleUnits_leavesDustToTheRequester() public {
        for (uint256 i = 1; i <= 80; ++i) {
            claim(i);
        }
        uint256 paid = creditsOfPlan();
        vm.assertEq(paid + escrow.sessionOf(id).dust, 80);
        vm.prank(requester);
        escrow.requestClose(id);
        skipTime(CLOSE_DELAY_SECONDS + 1);
        escrow.close(id);
        vm.assertEq(escrow.balanceOf(requester), 100 * USD - paid);
        vm.assertEq(token.balanceOf(address(escrow)), escrow.balanceOf(requester) + paid);
    }

    // --- claimMany ---

    function many(uint256 count) private returns (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) {
        vouchers = new Voucher[](count);
        sigs = new bytes[](count);
        plans = new Stage[][](count);
        for (uint256 i; i < count; ++i) {
            vouchers[i] = voucherOf(open(keccak256(abi.encode("many", i)), uint96(USD)), 75 + i);
            sigs[i] = signed(vouchers[i]);
            plans[i] = plan;
        }
    }

    function test_claimMany_paysAll() public {
        (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) = many(32);
        escrow.claimMany(vouchers, sigs, plans);
        for (uint256 i; i < vouchers.length; ++i) {
            vm.assertEq(escrow.sessionOf(vouchers[i].sessionId).claimed, 75 + i);
        }
    }

    function test_claimMany_of33_reverts() public {
        (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) = many(33);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.TooManyVouchers.selector, 32));
        escrow.claimMany(vouchers, sigs, plans);
    }

    function test_claimMany_ofDifferentLengths_reverts() public {
        (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) = many(2);
        vm.expectRevert(IEscrow.LengthMismatch.selector);
        escrow.claimMany(vouchers, new bytes[](1), plans);
        vm.expectRevert(IEscrow.LengthMismatch.selector);
        escrow.claimMany(vouchers, sigs, new Stage[][](3));
    }

    function test_claimMany_whenOneWasBroughtAlready_paysTheRest() public {
        (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) = many(2);
        escrow.claim(vouchers[0], sigs[0], plans[0]);
        escrow.claimMany(vouchers, sigs, plans);
        vm.assertEq(escrow.sessionOf(vouchers[1].sessionId).claimed, 76);
    }

    function test_claimMany_whenANewerOneWasBrought_paysTheRest() public {
        (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) = many(2);
        Voucher memory newer = voucherOf(vouchers[0].sessionId, 1000);
        escrow.claim(newer, signed(newer), plan);
        escrow.claimMany(vouchers, sigs, plans);
        vm.assertEq(escrow.sessionOf(newer.sessionId).claimed, 1000);
        vm.assertEq(escrow.sessionOf(vouchers[1].sessionId).claimed, 76);
    }

    function test_claimMany_ofABadSignature_revertsAll() public {
        (Voucher[] memory vouchers, bytes[] memory sigs, Stage[][] memory plans) = many(2);
        sigs[1] = sigs[0];
        vm.expectRevert(IEscrow.BadSignature.selector);
        escrow.claimMany(vouchers, sigs, plans);
    }

    // --- top up ---

    function test_topUp_raisesTheCap() public {
        vm.expectEmit(address(escrow));
        emit IEscrow.SessionToppedUp(id, USD, uint256(CAP) + USD);
        vm.prank(requester);
        escrow.topUpSession(id, uint96(USD));
        vm.assertEq(escrow.sessionOf(id).cap, uint256(CAP) + USD);
        vm.assertEq(escrow.balanceOf(requester), 89 * USD);
        claim(uint256(CAP) + USD);
    }

    function test_topUp_checksCallerAmountBalanceClockAndState() public {
        vm.expectRevert(abi.encodeWithSelector(IEscrow.NotSessionRequester.selector, address(this)));
        escrow.topUpSession(id, 1);
        vm.startPrank(requester);
        vm.expectRevert(IEscrow.AmountZero.selector);
        escrow.topUpSession(id, 0);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.InsufficientBalance.selector, requester, 90 * USD, 91 * USD));
        escrow.topUpSession(id, uint96(91 * USD));
        vm.warp(expiry);
        escrow.topUpSession(id, 1);
        vm.warp(uint256(expiry) + 1);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionExpired.selector, expiry));
        escrow.topUpSession(id, 1);
        escrow.requestClose(id);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionWrongState.selector, IEscrow.SessionState.Closing));
        escrow.topUpSession(id, 1);
        vm.stopPrank();
    }

    // --- close ---

    function test_requestClose_startsTheDelay_inWhichVouchersStillPay() public {
        uint256 until = vm.getBlockTimestamp() + CLOSE_DELAY_SECONDS;
        vm.expectEmit(address(escrow));
        emit IEscrow.SessionClosing(id, until);
        vm.prank(requester);
        escrow.requestClose(id);
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionStillOpen.selector, until));
        escrow.close(id);
        claim(USD);
        vm.warp(until + 1);
        uint256 refund = uint256(CAP) - USD + escrow.sessionOf(id).dust;
        vm.expectEmit(address(escrow));
        emit IEscrow.SessionClosed(id, refund);
        vm.prank(stranger);
        escrow.close(id);
        vm.assertEq(uint256(escrow.sessionOf(id).state), uint256(IEscrow.SessionState.Closed));
    }

    function test_requestClose_checksCallerAndState() public {
        vm.expectRevert(abi.encodeWithSelector(IEscrow.NotSessionRequester.selector, address(this)));
        escrow.requestClose(id);
        vm.startPrank(requester);
        escrow.requestClose(id);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionWrongState.selector, IEscrow.SessionState.Closing));
        escrow.requestClose(id);
        vm.stopPrank();
    }

    function test_close_afterExpiry_aroundItsClock() public {
        uint256 until = uint256(expiry) + CLOSE_DELAY_SECONDS;
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionStillOpen.selector, until));
        escrow.close(id);
        vm.warp(until + 1);
        escrow.close(id);
        vm.assertEq(escrow.balanceOf(requester), 100 * USD);
    }

    /// Asking late never makes a session last longer than expiry and the delay.
    function test_requestClose_afterExpiry_doesNotLengthen() public {
        vm.warp(uint256(expiry) + 10);
        vm.prank(requester);
        escrow.requestClose(id);
        vm.warp(uint256(expiry) + CLOSE_DELAY_SECONDS + 1);
        escrow.close(id);
    }

    function test_closed_isTerminal() public {
        vm.warp(uint256(expiry) + CLOSE_DELAY_SECONDS + 1);
        escrow.close(id);
        bytes memory wrong = abi.encodeWithSelector(IEscrow.SessionWrongState.selector, IEscrow.SessionState.Closed);
        Voucher memory voucher = voucherOf(id, USD);
        expectRevertOnClaim(voucher, signed(voucher), wrong);
        vm.expectRevert(wrong);
        escrow.close(id);
        vm.startPrank(requester);
        vm.expectRevert(wrong);
        escrow.requestClose(id);
        vm.expectRevert(wrong);
        escrow.topUpSession(id, 1);
        vm.stopPrank();
        Stage[] memory stages = plan;
        vm.prank(requester);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.SessionExists.selector, id));
        escrow.openSession(SALT, CAP, uint40(vm.getBlockTimestamp() + 1), ModelId.unwrap(modelId), stages, matcher, 0);
    }

    function test_none_hasNoMoves() public {
        SessionId none = SessionId.wrap("none");
        bytes memory wrong = abi.encodeWithSelector(IEscrow.SessionWrongState.selector, IEscrow.SessionState.None);
        vm.expectRevert(wrong);
        escrow.close(none);
        vm.expectRevert(wrong);
        escrow.requestClose(none);
        vm.expectRevert(wrong);
        escrow.topUpSession(none, 1);
    }

    /// Attack #7: two sessions from one deposit draw at most the deposit.
    function test_sessions_cannotShareADeposit() public {
        open("second", uint96(90 * USD));
        Stage[] memory stages = plan;
        vm.prank(requester);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.InsufficientBalance.selector, requester, 0, 1));
        escrow.openSession("third", 1, expiry, ModelId.unwrap(modelId), stages, matcher, 0);
    }
}
