// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JuryArbitrator} from "../../src/arbitration/JuryArbitrator.sol";
import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {DisputeId, JobId} from "../../src/types/Ids.sol";
import {StakeFixture} from "../fixtures/StakeFixture.sol";

/// A dispute from open to execution: every function, error, verdict and unit of money.
contract JuryArbitratorTest is StakeFixture {
    IJuryArbitrator.Vote private constant SILENT = IJuryArbitrator.Vote.None;
    IJuryArbitrator.Vote private constant FAULT = IJuryArbitrator.Vote.Fault;
    IJuryArbitrator.Vote private constant NO_FAULT = IJuryArbitrator.Vote.NoFault;
    uint256 private constant STAKE = 4 * MIN_STAKE;
    uint256 private constant MINORITY_FINE = MIN_JUROR_STAKE / 10;
    uint256 private constant SILENT_FINE = MIN_JUROR_STAKE / 5;

    function setUp() public override {
        super.setUp();
        registerMiner(STAKE);
    }

    function votes3(IJuryArbitrator.Vote a, IJuryArbitrator.Vote b, IJuryArbitrator.Vote c)
        private
        pure
        returns (IJuryArbitrator.Vote[] memory votes)
    {
        votes = new IJuryArbitrator.Vote[](3);
        (votes[0], votes[1], votes[2]) = (a, b, c);
    }

    function ruled(IJuryArbitrator.Vote[] memory votes)
        private
        returns (DisputeId id, address[] memory panel)
    {
        stakeJurors(3);
        id = openDispute();
        panel = drawPanel(id);
        voteAll(id, panel, votes);
    }

    function assertResolved(DisputeId id, bool fault) private view {
        (
            JobId job,
            uint16 stage,
            bytes32 receiptHash,
            IArbitrator.Right right,
            bool told,
            address caller
        ) = tasks.resolutions(0);
        vm.assertEq(receiptHash, jury.disputeOf(id).receiptHash);
        vm.assertTrue(right == jury.disputeOf(id).right);
        vm.assertEq(JobId.unwrap(job), JobId.unwrap(jury.disputeOf(id).job));
        vm.assertEq(uint256(stage), 1);
        vm.assertEq(told, fault);
        vm.assertEq(caller, address(jury));
        vm.assertEq(tasks.count(), 1);
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 0);
        vm.assertTrue(jury.disputeOf(id).phase == IJuryArbitrator.Phase.Executed);
    }

    function stakeOf(address juror) private view returns (uint256) {
        return jury.jurorOf(juror).stake;
    }

    // --- open ---

    function test_open_freezesTheMinerAndTakesBondAndFee() public {
        IArbitrator.DisputeRef memory ref = disputeRef();
        DisputeId expected = jury.disputeIdOf(ref.job, ref.stage, ref.receiptHash, ref.right);
        fund(challenger, address(jury), uint256(BOND) + FEE);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.DisputeOpened(
            expected,
            ref.job,
            owner,
            1,
            challenger,
            ref.receiptHash,
            BOND,
            vm.getBlockNumber() + DRAW_DELAY_BLOCKS
        );
        DisputeId id = tasks.open(miners, jury, ref);

        vm.assertEq(DisputeId.unwrap(id), DisputeId.unwrap(expected));
        vm.assertEq(
            DisputeId.unwrap(id),
            keccak256(abi.encode(address(jury), ref.job, ref.stage, ref.receiptHash, ref.right))
        );
        IJuryArbitrator.Dispute memory d = jury.disputeOf(id);
        assertEqPhase(d.phase, IJuryArbitrator.Phase.Opened);
        assertEqStatus(jury.disputeOf(id).status, IArbitrator.Status.Open);
        vm.assertEq(d.receiptHash, ref.receiptHash);
        vm.assertEq(uint256(d.number), 0);
        vm.assertEq(uint256(d.bond), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 1);
        vm.assertEq(token.balanceOf(address(jury)), uint256(BOND) + FEE);
        vm.assertEq(token.balanceOf(challenger), 0);
    }

    function test_open_whenNotTaskRegistry_reverts() public {
        IArbitrator.DisputeRef memory ref = disputeRef();
        vm.expectRevert(
            abi.encodeWithSelector(IJuryArbitrator.NotTaskRegistry.selector, challenger)
        );
        vm.prank(challenger);
        jury.open(ref);
    }

    function test_open_whenOpenedBefore_revertsInEveryLaterPhase() public {
        stakeJurors(3);
        IArbitrator.DisputeRef memory ref = disputeRef();
        DisputeId id = openDispute(ref);
        bytes memory exists = abi.encodeWithSelector(IJuryArbitrator.DisputeExists.selector, id);
        vm.expectRevert(exists);
        tasks.open(miners, jury, ref);
        address[] memory panel = drawPanel(id);
        voteAll(id, panel, votes3(FAULT, FAULT, FAULT));
        execute(id);
        vm.expectRevert(exists);
        tasks.open(miners, jury, ref);
    }

    function test_open_whenChallengerCannotPay_reverts() public {
        IArbitrator.DisputeRef memory ref = disputeRef();
        vm.expectRevert();
        tasks.open(miners, jury, ref);
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 0);
    }

    // --- draw ---

    function test_draw_seatsThreeDistinctJurors() public {
        address[] memory jurors = stakeJurors(8);
        DisputeId id = openDispute();
        uint256 drawBlock = jury.disputeOf(id).drawBlock;
        vm.roll(drawBlock);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.DrawTooEarly.selector, drawBlock));
        jury.draw(id);
        vm.roll(drawBlock + 1);
        jury.draw(id);
        address[] memory panel = jury.panelOf(id);
        vm.assertEq(panel.length, 3);
        for (uint256 i; i < 3; ++i) {
            vm.assertEq(uint256(jury.jurorOf(panel[i]).openDisputes), 1);
            vm.assertTrue(panel[i] != panel[(i + 1) % 3]);
            bool staked;
            for (uint256 j; j < jurors.length; ++j) {
                staked = staked || panel[i] == jurors[j];
            }
            vm.assertTrue(staked);
        }
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Committing);
    }

    /// Whoever calls, and whatever happened to the stakes since, the panel is the same.
    function test_draw_cannotBeBentAfterwards() public {
        address[] memory jurors = stakeJurors(8);
        DisputeId id = openDispute();
        vm.roll(jury.disputeOf(id).drawBlock + 1);
        uint256 snapshot = vm.snapshotState();
        jury.draw(id);
        bytes memory panel = abi.encode(jury.panelOf(id));
        vm.revertToState(snapshot);

        vm.prank(jurors[2]);
        jury.requestJurorExit(MIN_JUROR_STAKE);
        stakeJuror(jurors[5], 1000 * USD);
        stakeJuror(stranger, 1_000_000 * USD);
        skipBlocks(5);
        vm.prank(stranger);
        jury.draw(id);
        vm.assertEq(abi.encode(jury.panelOf(id)), panel);
    }

    function test_draw_whenItsHashIsForgotten_setsANewBlock() public {
        stakeJurors(3);
        DisputeId id = openDispute();
        vm.roll(jury.disputeOf(id).drawBlock + 257);
        uint256 newBlock = vm.getBlockNumber() + DRAW_DELAY_BLOCKS;
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.DrawMissed(id, newBlock);
        jury.draw(id);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Opened);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.DrawTooEarly.selector, newBlock));
        jury.draw(id);
        vm.assertEq(drawPanel(id).length, 3);
    }

    function test_draw_atTheLastRememberedBlock_works() public {
        stakeJurors(3);
        DisputeId id = openDispute();
        vm.roll(jury.disputeOf(id).drawBlock + 256);
        jury.draw(id);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Committing);
    }

    function test_draw_whenTooFewAreEligible_isNoRulingAtOnce() public {
        stakeJurors(1);
        DisputeId id = openDispute();
        drawPanel(id);
        assertEqStatus(jury.disputeOf(id).status, IArbitrator.Status.NoRuling);
        vm.assertEq(jury.panelOf(id).length, 0);
        vm.assertEq(uint256(jury.jurorOf(jurorAt(0)).openDisputes), 0);
        execute(id);
        // Nobody worked: all but the hour of the payout delay comes back.
        vm.assertEq(jury.creditOf(challenger), uint256(BOND) + FEE - BOND / 5);
        vm.assertEq(jury.creditOf(owner), BOND / 5);
        assertResolved(id, false);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    function test_draw_whenTwoThirdsOfAPanel_goesAhead() public {
        stakeJurors(2);
        DisputeId id = openDispute();
        vm.assertEq(drawPanel(id).length, 2);
    }

    function test_draw_neverSeatsAParty() public {
        stakeJuror(owner, 1_000_000 * USD);
        stakeJuror(operator, 1_000_000 * USD);
        stakeJuror(requester, 1_000_000 * USD);
        stakeJuror(challenger, 1_000_000 * USD);
        stakeJurors(3);
        for (uint256 i; i < 8; ++i) {
            address[] memory panel = drawPanel(openDispute());
            vm.assertEq(panel.length, 3);
            for (uint256 j; j < 3; ++j) {
                vm.assertTrue(
                    panel[j] != owner && panel[j] != operator && panel[j] != requester
                        && panel[j] != challenger
                );
            }
        }
    }

    /// A party named twice is cut out once.
    function test_draw_whenAPartyIsNamedTwice_countsItOnce() public {
        stakeJuror(requester, MIN_JUROR_STAKE);
        stakeJurors(3);
        IArbitrator.DisputeRef memory ref = disputeRef();
        ref.challenger = requester;
        ref.parties[1] = requester;
        vm.assertEq(drawPanel(openDispute(ref)).length, 3);
    }

    /// Who staked in the block of the opening or later is not drawn for it.
    function test_draw_whenStakedTooLate_isNotSeated() public {
        stakeJurors(2);
        DisputeId id = openDispute();
        stakeJuror(stranger, 1_000_000 * USD);
        vm.assertEq(drawPanel(id).length, 2);
    }

    /// Who asked to leave before the dispute opened is not drawn, though its money is still here.
    function test_draw_whenLeavingAlready_isNotSeated() public {
        address[] memory jurors = stakeJurors(3);
        vm.prank(jurors[0]);
        jury.requestJurorExit(MIN_JUROR_STAKE);
        skipBlocks(1);
        address[] memory panel = drawPanel(openDispute());
        vm.assertEq(panel.length, 2);
        vm.assertTrue(panel[0] != jurors[0] && panel[1] != jurors[0]);
    }

    /// Long after a missed draw, jurors that have left since are passed over.
    function test_draw_whenJurorsHaveLeftSince_seatsTheRest() public {
        address[] memory jurors = stakeJurors(6);
        DisputeId id = openDispute();
        for (uint256 i; i < 3; ++i) {
            vm.prank(jurors[i]);
            jury.requestJurorExit(MIN_JUROR_STAKE);
        }
        skipTime(JUROR_UNBOND_SECONDS);
        for (uint256 i; i < 3; ++i) {
            vm.prank(jurors[i]);
            jury.withdrawJuror();
        }
        address[] memory panel = drawPanel(id);
        vm.assertEq(panel.length, 3);
        for (uint256 i; i < 3; ++i) {
            vm.assertTrue(panel[i] == jurors[3] || panel[i] == jurors[4] || panel[i] == jurors[5]);
        }
    }

    /// Over 512 hashes every juror is as often first, within 5 standard deviations, whatever its
    /// stake.
    function test_draw_weighsEveryJurorTheSame() public {
        stakeJuror(jurorAt(0), MIN_JUROR_STAKE);
        stakeJuror(jurorAt(1), uint256(MIN_JUROR_STAKE) * 2);
        stakeJuror(jurorAt(2), uint256(MIN_JUROR_STAKE) * 5000);
        skipBlocks(1);
        DisputeId id = openDispute();
        uint256 drawBlock = jury.disputeOf(id).drawBlock;
        vm.roll(drawBlock + 1);
        uint256 snapshot = vm.snapshotState();
        uint256[3] memory firsts;
        for (uint256 i; i < 512; ++i) {
            vm.setBlockhash(drawBlock, keccak256(abi.encode(i)));
            jury.draw(id);
            address first = jury.panelOf(id)[0];
            for (uint256 j; j < 3; ++j) {
                if (first == jurorAt(j)) ++firsts[j];
            }
            vm.revertToState(snapshot);
        }
        for (uint256 j; j < 3; ++j) {
            vm.assertApproxEqAbs(firsts[j], 171, 54);
        }
    }

    // --- commit ---

    function committing() private returns (DisputeId id, address[] memory panel) {
        stakeJurors(3);
        id = openDispute();
        panel = drawPanel(id);
    }

    function test_commit_whenAllHave_revealStartsAtOnce() public {
        (DisputeId id, address[] memory panel) = committing();
        bytes32 hash = commitment(id, panel[0], FAULT);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.VoteCommitted(id, panel[0], hash);
        vm.prank(panel[0]);
        jury.commitVote(id, hash);
        commitVote(id, panel[1], FAULT);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Committing);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.RevealStarted(id, vm.getBlockTimestamp() + REVEAL_SECONDS);
        commitVote(id, panel[2], NO_FAULT);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Revealing);
    }

    function test_commit_whenNotDrawn_reverts() public {
        (DisputeId id,) = committing();
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.NotJuror.selector, stranger));
        vm.prank(stranger);
        jury.commitVote(id, bytes32("x"));
    }

    function test_commit_whenTwiceOrEmpty_reverts() public {
        (DisputeId id, address[] memory panel) = committing();
        vm.startPrank(panel[0]);
        vm.expectRevert(IJuryArbitrator.VoteInvalid.selector);
        jury.commitVote(id, 0);
        jury.commitVote(id, bytes32("x"));
        vm.expectRevert(
            abi.encodeWithSelector(IJuryArbitrator.AlreadyCommitted.selector, panel[0])
        );
        jury.commitVote(id, bytes32("y"));
        vm.stopPrank();
    }

    /// Moves up to the deadline, time-outs after it: no second belongs to both or neither.
    function test_commit_clock_isExactToTheSecond() public {
        (DisputeId id, address[] memory panel) = committing();
        uint256 ends = jury.disputeOf(id).phaseEndsAt;
        vm.assertEq(ends, vm.getBlockTimestamp() + COMMIT_SECONDS);
        vm.warp(ends);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.ClockRunning.selector, ends));
        jury.advance(id);
        commitVote(id, panel[0], FAULT);
        vm.warp(ends + 1);
        bytes32 late = commitment(id, panel[1], FAULT);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.ClockOver.selector, ends));
        vm.prank(panel[1]);
        jury.commitVote(id, late);
        jury.advance(id);
        assertEqStatus(jury.disputeOf(id).status, IArbitrator.Status.NoRuling); // two are needed
    }

    function test_advance_whenQuorumCommitted_startsAFullRevealClock() public {
        (DisputeId id, address[] memory panel) = committing();
        commitVote(id, panel[0], FAULT);
        commitVote(id, panel[1], FAULT);
        skipTime(COMMIT_SECONDS + 3 days); // advanced late, yet nobody's clock has run
        jury.advance(id);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Revealing);
        vm.assertEq(
            uint256(jury.disputeOf(id).phaseEndsAt), vm.getBlockTimestamp() + REVEAL_SECONDS
        );
    }

    // --- reveal ---

    function revealing() private returns (DisputeId id, address[] memory panel) {
        (id, panel) = committing();
        for (uint256 i; i < 3; ++i) {
            commitVote(id, panel[i], FAULT);
        }
    }

    function test_reveal_whenAllHave_isRuledAtOnce() public {
        (DisputeId id, address[] memory panel) = revealing();
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.VoteRevealed(id, panel[0], FAULT, bytes32("evidence"));
        revealVote(id, panel[0], FAULT);
        revealVote(id, panel[1], FAULT);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Revealing);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.DisputeRuled(
            id, IArbitrator.Status.Fault, 3, 0, vm.getBlockTimestamp() + PAYOUT_DELAY_SECONDS
        );
        revealVote(id, panel[2], FAULT);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Ruled);
    }

    function test_reveal_whenItIsNotWhatWasCommitted_reverts() public {
        (DisputeId id, address[] memory panel) = revealing();
        vm.startPrank(panel[0]);
        vm.expectRevert(IJuryArbitrator.CommitmentMismatch.selector);
        jury.revealVote(id, NO_FAULT, bytes32("evidence"), bytes32("salt"));
        vm.expectRevert(IJuryArbitrator.CommitmentMismatch.selector);
        jury.revealVote(id, FAULT, bytes32("other"), bytes32("salt"));
        vm.expectRevert(IJuryArbitrator.CommitmentMismatch.selector);
        jury.revealVote(id, FAULT, bytes32("evidence"), bytes32("other"));
        vm.expectRevert(IJuryArbitrator.VoteInvalid.selector);
        jury.revealVote(id, SILENT, bytes32("evidence"), bytes32("salt"));
        vm.stopPrank();
    }

    /// A juror that copied a colleague's commitment has nothing it can reveal.
    function test_reveal_whenCommitmentWasCopied_reverts() public {
        (DisputeId id, address[] memory panel) = committing();
        bytes32 copied = commitment(id, panel[0], FAULT);
        for (uint256 i; i < 3; ++i) {
            vm.prank(panel[i]);
            jury.commitVote(id, copied);
        }
        revealVote(id, panel[0], FAULT);
        vm.expectRevert(IJuryArbitrator.CommitmentMismatch.selector);
        revealVote(id, panel[1], FAULT);
    }

    function test_reveal_whenTwiceOrByStranger_reverts() public {
        (DisputeId id, address[] memory panel) = revealing();
        revealVote(id, panel[0], FAULT);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.AlreadyRevealed.selector, panel[0]));
        revealVote(id, panel[0], FAULT);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.NotJuror.selector, stranger));
        revealVote(id, stranger, FAULT);
    }

    function test_reveal_clock_isExactToTheSecond() public {
        (DisputeId id, address[] memory panel) = revealing();
        uint256 ends = jury.disputeOf(id).phaseEndsAt;
        vm.warp(ends);
        revealVote(id, panel[0], FAULT);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.ClockRunning.selector, ends));
        jury.advance(id);
        vm.warp(ends + 1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.ClockOver.selector, ends));
        revealVote(id, panel[1], FAULT);
        jury.advance(id);
        // One reveal of two needed.
        assertEqStatus(jury.disputeOf(id).status, IArbitrator.Status.NoRuling);
    }

    // --- verdicts and money ---

    function test_execute_whenFault_slashesAndRewards() public {
        (DisputeId id, address[] memory panel) = ruled(votes3(FAULT, FAULT, FAULT));
        uint256 payoutAt = jury.disputeOf(id).payoutAt;
        vm.warp(payoutAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.PayoutNotReady.selector, payoutAt));
        jury.execute(id);
        vm.warp(payoutAt);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.DisputeExecuted(id, IArbitrator.Status.Fault, STAKE);
        jury.execute(id);

        assertResolved(id, true);
        vm.assertEq(uint256(miners.minerOf(owner).stake), 0);
        vm.assertEq(miners.creditOf(challenger), STAKE / 5);
        vm.assertEq(miners.creditOf(requester), STAKE * 3 / 10);
        vm.assertEq(miners.creditOf(BURN), STAKE / 2);
        vm.assertEq(jury.creditOf(challenger), BOND);
        for (uint256 i; i < 3; ++i) {
            vm.assertEq(jury.creditOf(panel[i]), FEE / 3);
            vm.assertEq(stakeOf(panel[i]), MIN_JUROR_STAKE);
        }
        vm.prank(panel[0]);
        jury.withdrawCredit();
        vm.assertEq(token.balanceOf(panel[0]), FEE / 3);
    }

    function test_execute_whenFaultOfALargeStake_capsTheRewardAtTenBonds() public {
        fund(owner, address(miners), 100_000 * USD);
        vm.prank(owner);
        miners.addStake(100_000 * USD);
        uint256 bond = (STAKE + 100_000 * USD) * BOND_BPS / 10_000;
        fund(challenger, address(jury), bond - BOND); // the fixture adds the rest
        (DisputeId id,) = ruled(votes3(FAULT, FAULT, FAULT));
        vm.assertEq(uint256(jury.disputeOf(id).bond), bond);
        execute(id);
        vm.assertEq(miners.creditOf(challenger), 10 * bond);
        vm.assertEq(jury.creditOf(challenger), bond);
    }

    function test_execute_whenNoFault_compensatesTheAccused() public {
        (DisputeId id, address[] memory panel) = ruled(votes3(NO_FAULT, NO_FAULT, FAULT));
        execute(id);
        assertResolved(id, false);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
        vm.assertEq(jury.creditOf(owner), BOND / 2);
        vm.assertEq(jury.creditOf(challenger), 0);
        uint256 pot = FEE + MINORITY_FINE;
        vm.assertEq(jury.creditOf(panel[0]), pot / 2);
        vm.assertEq(jury.creditOf(panel[1]), pot / 2);
        vm.assertEq(jury.creditOf(panel[2]), 0);
        vm.assertEq(stakeOf(panel[2]), MIN_JUROR_STAKE - MINORITY_FINE);
        vm.assertEq(jury.creditOf(BURN), BOND - BOND / 2 + pot % 2);
    }

    function test_execute_whenOneIsSilent_itPaysTwiceTheFine() public {
        (DisputeId id, address[] memory panel) = ruled(votes3(FAULT, FAULT, SILENT));
        assertEqStatus(jury.disputeOf(id).status, IArbitrator.Status.Fault);
        vm.warp(jury.disputeOf(id).payoutAt);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.JurorPenalised(id, panel[2], SILENT_FINE, true);
        jury.execute(id);
        vm.assertEq(stakeOf(panel[2]), MIN_JUROR_STAKE - SILENT_FINE);
        vm.assertEq(jury.creditOf(panel[0]), (FEE + SILENT_FINE) / 2);
    }

    /// Bond and fee come back but for the frozen time: here the payout delay.
    function test_execute_whenNoTwoThirds_slashesNobody() public {
        (DisputeId id, address[] memory panel) = ruled(votes3(FAULT, NO_FAULT, SILENT));
        assertEqStatus(jury.disputeOf(id).status, IArbitrator.Status.NoRuling);
        execute(id);
        assertResolved(id, false);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
        uint256 frozen = uint256(REVEAL_SECONDS) + 1 + PAYOUT_DELAY_SECONDS;
        uint256 paid = BOND * frozen / BOND_SECONDS;
        vm.assertEq(jury.creditOf(owner), paid);
        vm.assertEq(jury.creditOf(challenger), BOND + FEE - paid);
        vm.assertEq(jury.creditOf(panel[0]), SILENT_FINE / 2);
        vm.assertEq(jury.creditOf(panel[1]), SILENT_FINE / 2);
        vm.assertEq(stakeOf(panel[0]), MIN_JUROR_STAKE); // outvoted by nobody
        vm.assertEq(stakeOf(panel[2]), MIN_JUROR_STAKE - SILENT_FINE);
    }

    function test_execute_whenAllSilent_finesAreBurned() public {
        (DisputeId id, address[] memory panel) = committing();
        skipTime(COMMIT_SECONDS + 1);
        jury.advance(id);
        execute(id);
        vm.assertEq(jury.creditOf(challenger), FEE); // five hours and a second
        vm.assertEq(jury.creditOf(owner), BOND);
        vm.assertEq(jury.creditOf(BURN), 3 * SILENT_FINE);
        for (uint256 i; i < 3; ++i) {
            vm.assertEq(stakeOf(panel[i]), MIN_JUROR_STAKE - SILENT_FINE);
        }
    }

    /// A juror fined below the minimum is not drawn again until it tops up and that is mature.
    function test_execute_whenFinedBelowMinimum_isOffTheRoll() public {
        (DisputeId id, address[] memory panel) = ruled(votes3(FAULT, FAULT, NO_FAULT));
        execute(id);
        skipBlocks(1);
        vm.assertEq(drawPanel(openDispute()).length, 2);
        skipBlocks(1);
        stakeJuror(panel[2], MINORITY_FINE);
        skipBlocks(1);
        vm.assertEq(drawPanel(openDispute()).length, 3);
    }

    function test_execute_whenMinerLeftSince_doesNotRevert() public {
        vm.prank(owner);
        miners.requestExit(STAKE);
        skipTime(UNBOND_SECONDS);
        vm.prank(owner);
        miners.withdraw();
        (DisputeId id,) = ruled(votes3(FAULT, FAULT, FAULT));
        execute(id);
        assertResolved(id, true);
    }

    /// #20: challenger and requester in league with the accused get at most half of its loss.
    function testFuzz_execute_selfDisputeLosesAtLeastHalf(uint96 extra) public {
        extra = uint96(bound(extra, 0, 1e15));
        if (extra != 0) {
            fund(owner, address(miners), extra);
            vm.prank(owner);
            miners.addStake(extra);
        }
        fund(challenger, address(jury), extra); // enough for a share of it as bond
        (DisputeId id,) = ruled(votes3(FAULT, FAULT, FAULT));
        execute(id);
        uint256 lost = STAKE + extra;
        vm.assertLe(miners.creditOf(challenger) + miners.creditOf(requester), lost / 2);
    }

    /// Any votes and silences: every unit that came in is a stake or a credit afterwards.
    function testFuzz_execute_conservesMoney(uint8[3] calldata choices, bool[3] calldata commits)
        public
    {
        (DisputeId id, address[] memory panel) = committing();
        IJuryArbitrator.Vote[3] memory votes;
        for (uint256 i; i < 3; ++i) {
            votes[i] = IJuryArbitrator.Vote(choices[i] % 3);
            if (commits[i]) commitVote(id, panel[i], votes[i]);
        }
        if (phaseOf(id) == IJuryArbitrator.Phase.Committing) {
            skipTime(COMMIT_SECONDS + 1);
            jury.advance(id);
        }
        for (uint256 i; i < 3 && phaseOf(id) == IJuryArbitrator.Phase.Revealing; ++i) {
            if (commits[i] && votes[i] != SILENT) revealVote(id, panel[i], votes[i]);
        }
        if (phaseOf(id) == IJuryArbitrator.Phase.Revealing) {
            skipTime(REVEAL_SECONDS + 1);
            jury.advance(id);
        }
        execute(id);
        uint256 books = jury.creditOf(challenger) + jury.creditOf(owner) + jury.creditOf(BURN);
        for (uint256 i; i < 3; ++i) {
            books += jury.creditOf(panel[i]) + stakeOf(panel[i]);
            vm.assertEq(uint256(jury.jurorOf(panel[i]).openDisputes), 0);
        }
        vm.assertEq(books, token.balanceOf(address(jury)));
        vm.assertEq(books, 3 * uint256(MIN_JUROR_STAKE) + BOND + FEE);
    }

    // --- state × function: what is illegal in a phase says which phase it is ---

    function assertOnlyLegal(DisputeId id, IJuryArbitrator.Phase phase, address juror) private {
        assertEqPhase(phaseOf(id), phase);
        bytes memory wrong = abi.encodeWithSelector(IJuryArbitrator.WrongPhase.selector, phase);
        if (phase != IJuryArbitrator.Phase.Opened) {
            vm.expectRevert(wrong);
            jury.draw(id);
        }
        if (phase != IJuryArbitrator.Phase.Committing) {
            vm.expectRevert(wrong);
            vm.prank(juror);
            jury.commitVote(id, bytes32("x"));
        }
        if (phase != IJuryArbitrator.Phase.Revealing) {
            vm.expectRevert(wrong);
            vm.prank(juror);
            jury.revealVote(id, FAULT, bytes32("evidence"), bytes32("salt"));
        }
        if (phase != IJuryArbitrator.Phase.Committing && phase != IJuryArbitrator.Phase.Revealing)
        {
            vm.expectRevert(wrong);
            jury.advance(id);
        }
        if (phase != IJuryArbitrator.Phase.Ruled) {
            vm.expectRevert(wrong);
            jury.execute(id);
            vm.expectRevert(wrong);
            jury.appeal(id);
        }
    }

    function test_matrix_everyIllegalMoveIsRefusedInEveryPhase() public {
        stakeJurors(3);
        assertOnlyLegal(DisputeId.wrap(keccak256("none")), IJuryArbitrator.Phase.None, jurorAt(0));
        DisputeId id = openDispute();
        assertOnlyLegal(id, IJuryArbitrator.Phase.Opened, jurorAt(0));
        address[] memory panel = drawPanel(id);
        assertOnlyLegal(id, IJuryArbitrator.Phase.Committing, panel[0]);
        for (uint256 i; i < 3; ++i) {
            commitVote(id, panel[i], FAULT);
        }
        assertOnlyLegal(id, IJuryArbitrator.Phase.Revealing, panel[0]);
        for (uint256 i; i < 3; ++i) {
            revealVote(id, panel[i], FAULT);
        }
        assertOnlyLegal(id, IJuryArbitrator.Phase.Ruled, panel[0]);
        execute(id);
        assertOnlyLegal(id, IJuryArbitrator.Phase.Executed, panel[0]);
    }

    // --- deployment ---

    function expectParamsRefused(IJuryArbitrator.Params memory p) private {
        vm.expectRevert(IJuryArbitrator.ParamsInvalid.selector);
        new JuryArbitrator(token, address(tasks), IMinerRegistry(address(miners)), p);
    }

    function test_constructor_whenParamsMakeNoJury_reverts() public {
        for (uint256 i; i < 14; ++i) {
            IJuryArbitrator.Params memory p = juryParams();
            if (i == 0) p.minJurorStake = 0;
            if (i == 1) p.jurorUnbondSeconds = 0;
            if (i == 2) p.panelSize = 0;
            if (i == 3) p.panelSize = 8;
            if (i == 4) p.appealSeconds = 0;
            if (i == 5) p.bondSeconds = 0;
            if (i == 6) p.drawDelayBlocks = 0;
            if (i == 7) p.drawDelayBlocks = 201;
            if (i == 8) p.slashBps = 10_001;
            if (i == 9) p.commitSeconds = 0;
            if (i == 10) p.revealSeconds = 0;
            if (i == 11) p.maturitySeconds = 0;
            if (i == 12) p.slashBps = 0;
            if (i == 13) p.bondBps = 10_001;
            expectParamsRefused(p);
        }
    }

    /// INVARIANT: unbonding outlasts any dispute.
    function test_constructor_whenDisputesOutlastUnbonding_reverts() public {
        IJuryArbitrator.Params memory p = juryParams();
        p.appealSeconds = 20 hours;
        uint256 longest = 3 * (uint256(COMMIT_SECONDS) + REVEAL_SECONDS + DRAW_DELAY_BLOCKS * 15)
            + 40 hours + PAYOUT_DELAY_SECONDS;
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.DisputeTooLong.selector, longest, MAX_DISPUTE_SECONDS
            )
        );
        new JuryArbitrator(token, address(tasks), IMinerRegistry(address(miners)), p);
        p = juryParams();
        p.jurorUnbondSeconds = uint32(jury.maxDisputeSeconds() - 1);
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.UnbondTooShort.selector,
                p.jurorUnbondSeconds,
                jury.maxDisputeSeconds()
            )
        );
        new JuryArbitrator(token, address(tasks), IMinerRegistry(address(miners)), p);
    }

    function test_reads_tellTheTerms() public view {
        vm.assertEq(jury.bond(), BOND);
        vm.assertEq(jury.fee(), FEE);
        vm.assertEq(
            jury.maxDisputeSeconds(),
            3 * (uint256(COMMIT_SECONDS) + REVEAL_SECONDS + DRAW_DELAY_BLOCKS * 15) + 2
                * uint256(APPEAL_SECONDS) + PAYOUT_DELAY_SECONDS
        );
        vm.assertLe(jury.maxDisputeSeconds(), miners.maxDisputeSeconds());
        assertEqStatus(
            jury.disputeOf(DisputeId.wrap(keccak256("none"))).status, IArbitrator.Status.None
        );
    }
}
