// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {StakeFixture} from "../fixtures/StakeFixture.sol";

/// Panels of 3, 7 and 15: who may appeal, when, for what, and who pays.
contract AppealsTest is StakeFixture {
    IJuryArbitrator.Vote private constant SILENT = IJuryArbitrator.Vote.None;
    IJuryArbitrator.Vote private constant FAULT = IJuryArbitrator.Vote.Fault;
    IJuryArbitrator.Vote private constant NO_FAULT = IJuryArbitrator.Vote.NoFault;
    uint256 private constant STAKE = 4 * MIN_STAKE;
    uint256 private constant MINORITY_FINE = MIN_JUROR_STAKE / 10;

    address[] private jurors;

    function setUp() public override {
        super.setUp();
        registerMiner(STAKE);
        jurors = stakeJurors(15);
    }

    function ruled(IJuryArbitrator.Vote vote) private returns (DisputeId id) {
        id = openDispute();
        voteAll(id, drawPanel(id), vote);
    }

    function hearAgain(DisputeId id, address by, IJuryArbitrator.Vote vote) private {
        appeal(id, by);
        voteAll(id, drawPanel(id), vote);
    }

    function statusOf(DisputeId id) private view returns (IArbitrator.Status) {
        return jury.disputeOf(id).status;
    }

    // --- what an appeal does ---

    function test_appeal_convenesALargerPanelForTwiceTheBond() public {
        DisputeId id = ruled(FAULT);
        vm.assertEq(jury.disputeOf(id).payoutAt, vm.getBlockTimestamp() + APPEAL_SECONDS);
        vm.assertTrue(jury.isAppealable(id));
        (uint256 bond, uint256 fee) = jury.appealCostOf(id);
        vm.assertEq(bond, 2 * uint256(BOND));
        vm.assertEq(fee, 7 * uint256(SEAT_FEE));
        fund(owner, address(jury), bond + fee);
        uint256 before = token.balanceOf(address(jury));
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.DisputeAppealed(
            id, 1, owner, false, bond, fee, vm.getBlockNumber() + DRAW_DELAY_BLOCKS
        );
        vm.prank(owner);
        jury.appeal(id);
        vm.assertEq(token.balanceOf(address(jury)), before + bond + fee);
        assertEqPhase(phaseOf(id), IJuryArbitrator.Phase.Opened);
        assertEqStatus(statusOf(id), IArbitrator.Status.Open);
        IJuryArbitrator.Appeal[] memory appeals = jury.appealsOf(id);
        vm.assertEq(appeals.length, 1);
        vm.assertEq(appeals[0].by, owner);
        vm.assertFalse(appeals[0].asksFault);

        voteAll(id, drawPanel(id), FAULT);
        vm.assertEq(jury.panelOf(id).length, 7);
        (bond, fee) = jury.appealCostOf(id);
        vm.assertEq(bond, 4 * uint256(BOND));
        vm.assertEq(fee, 15 * uint256(SEAT_FEE));
        hearAgain(id, owner, FAULT);
        vm.assertEq(jury.panelOf(id).length, 15);
        vm.assertEq(jury.disputeOf(id).payoutAt, vm.getBlockTimestamp() + PAYOUT_DELAY_SECONDS);
    }

    function test_appeal_isOfTheOtherSideAlone() public {
        DisputeId id = ruled(FAULT);
        address[2] memory winners = [challenger, requester]; // the victim is the requester
        for (uint256 i; i < 2; ++i) {
            vm.expectRevert(
                abi.encodeWithSelector(
                    IJuryArbitrator.AppealPointless.selector, IArbitrator.Status.Fault
                )
            );
            vm.prank(winners[i]);
            jury.appeal(id);
        }
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.NotParty.selector, stranger));
        vm.prank(stranger);
        jury.appeal(id);
        hearAgain(id, operator, NO_FAULT); // a key of the accused
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.AppealPointless.selector, IArbitrator.Status.NoFault
            )
        );
        vm.prank(operator);
        jury.appeal(id);
        hearAgain(id, requester, FAULT);
        vm.assertTrue(jury.appealsOf(id)[1].asksFault);
    }

    /// Moves up to the payout, `execute` from it: no second belongs to both or neither.
    function test_appeal_clock_isExactToTheSecond() public {
        DisputeId id = ruled(FAULT);
        uint256 ends = jury.disputeOf(id).payoutAt;
        vm.warp(ends - 1);
        uint256 snapshot = vm.snapshotState();
        appeal(id, owner);
        vm.revertToState(snapshot);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.PayoutNotReady.selector, ends));
        jury.execute(id);
        vm.warp(ends);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.AppealOver.selector, ends));
        vm.prank(owner);
        jury.appeal(id);
        jury.execute(id);
    }

    function test_appeal_endsWithTheSecond() public {
        DisputeId id = ruled(FAULT);
        hearAgain(id, owner, NO_FAULT);
        hearAgain(id, challenger, FAULT);
        vm.assertFalse(jury.isAppealable(id));
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.NotAppealable.selector, 2));
        vm.prank(owner);
        jury.appeal(id);
    }

    /// Else who was convicted would appeal to a panel that the roll cannot fill, and go free.
    function test_appeal_whenTheRollCannotFillThePanel_isRefused() public {
        for (uint256 i = 7; i < 15; ++i) {
            vm.prank(jurors[i]);
            jury.requestJurorExit(MIN_JUROR_STAKE);
        }
        skipBlocks(1);
        IArbitrator.DisputeRef memory ref = disputeRef();
        ref.parties[1] = jurors[0]; // seven on the roll, one of them a party
        DisputeId id = openDispute(ref);
        voteAll(id, drawPanel(id), FAULT);
        vm.assertFalse(jury.isAppealable(id));
        vm.assertEq(jury.disputeOf(id).payoutAt, vm.getBlockTimestamp() + PAYOUT_DELAY_SECONDS);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.NotAppealable.selector, 0));
        vm.prank(owner);
        jury.appeal(id);

        skipBlocks(1);
        id = ruled(FAULT); // seven, and no party among them
        vm.assertTrue(jury.isAppealable(id));
    }

    /// Who was enrolled after the opening sits on no panel of it.
    function test_appeal_isHeardByTheRollOfTheOpening() public {
        DisputeId id = ruled(FAULT);
        for (uint256 i; i < 40; ++i) {
            stakeUnripe(jurorAt(100 + i), MIN_JUROR_STAKE);
        }
        appeal(id, owner);
        skipTime(MATURITY_SECONDS);
        for (uint256 i; i < 40; ++i) {
            jury.enrol(jurorAt(100 + i));
        }
        skipBlocks(1);
        address[] memory panel = drawPanel(id);
        vm.assertEq(panel.length, 7);
        for (uint256 i; i < panel.length; ++i) {
            vm.assertLe(uint256(jury.jurorOf(panel[i]).place), 15);
        }
    }

    /// A vote of an earlier panel, whose salt is known, is none in a later one.
    function test_commit_ofAnEarlierPanel_cannotBeRevealed() public {
        DisputeId id = openDispute();
        address[] memory panel = drawPanel(id);
        bytes32 old = commitment(id, panel[0], FAULT);
        voteAll(id, panel, FAULT);
        appeal(id, owner);
        address[] memory all = drawPanel(id);
        vm.assertNotEq(old, commitment(id, panel[0], FAULT));
        for (uint256 i; i < all.length; ++i) {
            bytes32 stale = jury.commitmentHash(id, 0, all[i], FAULT, "evidence", "salt");
            vm.prank(all[i]);
            jury.commitVote(id, stale);
        }
        vm.expectRevert(IJuryArbitrator.CommitmentMismatch.selector);
        revealVote(id, all[0], FAULT);
    }

    // --- two thirds ---

    /// 5 of 7, and 10 of 15: one vote less rules nothing.
    function test_ruling_takesTwoThirds() public {
        DisputeId id = ruled(FAULT);
        appeal(id, owner);
        split(id, 5, 2);
        assertEqStatus(statusOf(id), IArbitrator.Status.Fault);
        appeal(id, owner);
        split(id, 9, 6);
        assertEqStatus(statusOf(id), IArbitrator.Status.NoRuling);

        id = ruled(FAULT);
        appeal(id, owner);
        split(id, 4, 3);
        assertEqStatus(statusOf(id), IArbitrator.Status.NoRuling);
        appeal(id, challenger);
        split(id, 5, 10);
        assertEqStatus(statusOf(id), IArbitrator.Status.NoFault);
    }

    /// Silent seats count: four of five that spoke are not two thirds of seven.
    function test_ruling_countsTheSilent() public {
        DisputeId id = ruled(FAULT);
        appeal(id, owner);
        split(id, 4, 1);
        assertEqStatus(statusOf(id), IArbitrator.Status.NoRuling);
    }

    /// What jurors cannot measure is for neither side: nothing is ruled, and none of them is fined.
    function test_ruling_whenUnmeasured_isNone() public {
        for (uint256 i = 4; i < 15; ++i) {
            vm.prank(jurors[i]);
            jury.requestJurorExit(MIN_JUROR_STAKE);
        }
        skipBlocks(1);
        DisputeId id = ruled(IJuryArbitrator.Vote.Unmeasured);
        assertEqStatus(statusOf(id), IArbitrator.Status.NoRuling);
        execute(id);
        vm.assertEq(jury.creditOf(owner), BOND / 5); // the hour of the payout delay
        vm.assertEq(jury.creditOf(challenger), BOND - BOND / 5 + FEE);
        for (uint256 i; i < 4; ++i) {
            vm.assertEq(uint256(jury.jurorOf(jurors[i]).stake), MIN_JUROR_STAKE);
        }
    }

    /// Beside a ruling of the others, who cannot measure is neither paid nor fined.
    function test_execute_whoCannotMeasure_losesNothing() public {
        DisputeId id = openDispute();
        address[] memory panel = drawPanel(id);
        IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](panel.length);
        for (uint256 i; i < panel.length; ++i) {
            votes[i] = i == 0 ? IJuryArbitrator.Vote.Unmeasured : FAULT;
        }
        voteAll(id, panel, votes);
        assertEqStatus(statusOf(id), IArbitrator.Status.Fault);
        execute(id);
        vm.assertEq(uint256(jury.jurorOf(panel[0]).stake), MIN_JUROR_STAKE);
        vm.assertEq(jury.creditOf(panel[0]), 0);
        for (uint256 i = 1; i < panel.length; ++i) {
            vm.assertEq(uint256(jury.jurorOf(panel[i]).stake), MIN_JUROR_STAKE);
            vm.assertEq(jury.creditOf(panel[i]), FEE / (panel.length - 1));
        }
    }

    function split(DisputeId id, uint256 fault, uint256 noFault) private {
        address[] memory panel = drawPanel(id);
        IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](panel.length);
        for (uint256 i; i < panel.length; ++i) {
            votes[i] = i < fault ? FAULT : i < fault + noFault ? NO_FAULT : SILENT;
        }
        voteAll(id, panel, votes);
    }

    // --- money ---

    function test_execute_whenAnAppealFails_itsBondIsTheOthers() public {
        DisputeId id = ruled(FAULT);
        hearAgain(id, owner, FAULT);
        hearAgain(id, owner, FAULT);
        execute(id);
        vm.assertEq(jury.creditOf(challenger), uint256(BOND) * 7); // its own, 2 and 4
        vm.assertEq(jury.creditOf(owner), 0);
        vm.assertEq(uint256(miners.minerOf(owner).stake), 0);
    }

    /// The last ruling settles all panels: the overturned are fined, and what they did not earn of
    /// their panel's fee is burned.
    function test_execute_whenOverturned_theFirstPanelIsTheMinority() public {
        DisputeId id = openDispute();
        address[] memory first = drawPanel(id);
        voteAll(id, first, FAULT);
        hearAgain(id, owner, NO_FAULT);
        execute(id);
        assertEqStatus(statusOf(id), IArbitrator.Status.NoFault);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
        // Its own bond, and half of the challenger's.
        vm.assertEq(jury.creditOf(owner), 2 * uint256(BOND) + BOND / 2);
        vm.assertEq(jury.creditOf(challenger), 0);
        vm.assertEq(jury.creditOf(BURN), BOND / 2 + FEE + 3 * MINORITY_FINE);
        for (uint256 i; i < 3; ++i) {
            vm.assertEq(jury.jurorOf(first[i]).stake, MIN_JUROR_STAKE - MINORITY_FINE);
        }
    }

    /// Without a ruling at the end every bond and fee comes back, but for the time that the
    /// challenger asked for: until its own panel ruled.
    function test_execute_whenTheLastPanelIsSplit_returnsAllButFrozenTime() public {
        DisputeId id = openDispute();
        skipTime(1 hours);
        voteAll(id, drawPanel(id), FAULT);
        skipTime(2 hours);
        appeal(id, owner);
        skipTime(1 hours);
        split(id, 4, 3);
        execute(id);
        vm.assertEq(jury.creditOf(owner), 2 * uint256(BOND) + 7 * SEAT_FEE + BOND / 5);
        vm.assertEq(jury.creditOf(challenger), FEE + BOND - BOND / 5);
        vm.assertEq(jury.creditOf(BURN), 0);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    /// By the second: an hour of five costs a fifth of the bond.
    function testFuzz_execute_whenNoRuling_paysFrozenTimeByTheSecond(uint32 late) public {
        late = uint32(bound(late, 0, 10 hours));
        for (uint256 i = 4; i < 15; ++i) {
            vm.prank(jurors[i]);
            jury.requestJurorExit(MIN_JUROR_STAKE);
        }
        skipBlocks(1);
        DisputeId id = openDispute();
        skipTime(late);
        address[] memory panel = drawPanel(id);
        IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](3);
        (votes[0], votes[1], votes[2]) = (FAULT, NO_FAULT, SILENT);
        voteAll(id, panel, votes);
        execute(id);
        uint256 frozen = uint256(late) + REVEAL_SECONDS + 1 + PAYOUT_DELAY_SECONDS;
        uint256 paid = frozen >= BOND_SECONDS ? BOND : BOND * frozen / BOND_SECONDS;
        vm.assertEq(jury.creditOf(owner), paid);
        vm.assertEq(jury.creditOf(challenger), BOND - paid + FEE);
    }

    /// Any votes, silences and appeals: every unit that came in is a stake or a credit afterwards.
    function testFuzz_execute_conservesMoney(uint256 seed) public {
        uint256 came = 15 * uint256(MIN_JUROR_STAKE) + BOND + FEE;
        DisputeId id = openDispute();
        for (uint256 level; level < 3; ++level) {
            uint256 random = uint256(keccak256(abi.encode(seed, level)));
            address[] memory panel = drawPanel(id);
            IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](panel.length);
            for (uint256 i; i < panel.length; ++i) {
                // Most panels lean to one side, so that every verdict is met.
                uint256 word = uint8(random >> (8 + 8 * i));
                votes[i] = word % 4 != 0
                    ? IJuryArbitrator.Vote(1 + random % 2)
                    : IJuryArbitrator.Vote(word / 4 % 4);
            }
            voteAll(id, panel, votes);
            if (level == 2 || random >> 252 == 0) break;
            (uint256 bond, uint256 fee) = jury.appealCostOf(id);
            came += bond + fee;
            bool guilty = statusOf(id) == IArbitrator.Status.Fault;
            bool open = statusOf(id) == IArbitrator.Status.NoRuling;
            appeal(id, guilty || (open && random >> 251 & 1 == 1) ? owner : challenger);
        }
        vm.assertEq(token.balanceOf(address(jury)), came);
        execute(id);
        uint256 books = jury.creditOf(challenger) + jury.creditOf(owner) + jury.creditOf(BURN);
        for (uint256 i; i < jurors.length; ++i) {
            books += jury.creditOf(jurors[i]) + jury.jurorOf(jurors[i]).stake;
            vm.assertEq(uint256(jury.jurorOf(jurors[i]).openDisputes), 0);
        }
        vm.assertEq(books, came);
    }
}
