// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {StakeFixture} from "../fixtures/StakeFixture.sol";

/// Ways to buy a jury: what each wins of twenty disputes of a miner that is at fault. Panels of 7.
contract JuryAttacks is StakeFixture {
    IJuryArbitrator.Vote private constant FAULT = IJuryArbitrator.Vote.Fault;
    IJuryArbitrator.Vote private constant NO_FAULT = IJuryArbitrator.Vote.NoFault;
    uint256 private constant DISPUTES = 20;

    mapping(address juror => bool) private bought;

    function setUp() public override {
        super.setUp();
        IJuryArbitrator.Params memory p = juryParams();
        p.panelSize = 7;
        deployJury(p);
        registerMiner(4 * MIN_STAKE);
    }

    /// `count` accounts of one buyer, with the least stake each.
    function stakeSybils(uint256 count) private returns (address[] memory sybils) {
        sybils = new address[](count);
        for (uint256 i; i < count; ++i) {
            sybils[i] = address(uint160(0x5000 + i));
            bought[sybils[i]] = true;
            stakeUnripe(sybils[i], MIN_JUROR_STAKE);
        }
    }

    function enrolAll(address[] memory all) private {
        skipTime(MATURITY_SECONDS);
        for (uint256 i; i < all.length; ++i) {
            jury.enrol(all[i]);
        }
        skipBlocks(1);
    }

    /// How twenty panels rule: the honest say fault, the bought say none.
    function rulings() private returns (uint256 honest, uint256 sold) {
        for (uint256 i; i < DISPUTES; ++i) {
            DisputeId id = openDispute();
            address[] memory panel = drawPanel(id);
            IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](panel.length);
            for (uint256 j; j < panel.length; ++j) {
                votes[j] = bought[panel[j]] ? NO_FAULT : FAULT;
            }
            if (panel.length != 0) voteAll(id, panel, votes);
            IArbitrator.Status status = jury.disputeOf(id).status;
            if (status == IArbitrator.Status.Fault) ++honest;
            if (status == IArbitrator.Status.NoFault) ++sold;
            skipBlocks(1);
        }
    }

    /// 1,000 USD against 250 USD, staked when there is something to win: nobody sits.
    function test_sybils_thatStakedJustNow_winNothing() public {
        stakeJurors(5);
        address[] memory sybils = stakeSybils(20);
        skipTime(MATURITY_SECONDS - 1);
        vm.expectRevert();
        jury.enrol(sybils[0]);
        skipBlocks(1);
        (uint256 honest, uint256 sold) = rulings();
        vm.assertEq(sold, 0);
        vm.assertEq(honest, DISPUTES);
    }

    /// The same a maturity later: who owns four seats of five rules. No rule of a jury prevents it.
    function test_sybils_thatWaited_rule() public {
        stakeJurors(5);
        enrolAll(stakeSybils(20));
        (uint256 honest, uint256 sold) = rulings();
        vm.assertEq(honest, 0);
        vm.assertGe(sold, 15);
    }

    /// A quarter of the seats wins nothing, and hinders some panels.
    function test_sybils_withAQuarterOfTheSeats_winNothing() public {
        stakeJurors(60);
        enrolAll(stakeSybils(20));
        (uint256 honest, uint256 sold) = rulings();
        vm.assertEq(sold, 0);
        vm.assertGe(honest, 12);
    }

    /// A million in one account is one seat.
    function test_wealth_buysOneSeat() public {
        stakeJurors(7);
        bought[stranger] = true;
        stakeJuror(stranger, 1_000_000 * USD);
        skipBlocks(1);
        (uint256 honest, uint256 sold) = rulings();
        vm.assertEq(sold, 0);
        vm.assertEq(honest, DISPUTES);
    }

    /// Stake that goes out and in again for another dispute is as young as at first.
    function test_aSeat_cannotBeLentOn() public {
        address[] memory all = stakeJurors(1);
        vm.prank(all[0]);
        jury.requestJurorExit(MIN_JUROR_STAKE);
        stakeUnripe(all[0], MIN_JUROR_STAKE);
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.StakeImmature.selector, vm.getBlockTimestamp() + MATURITY_SECONDS
            )
        );
        jury.enrol(all[0]);
    }

    /// Who owns a third of the seats hangs a panel, and pays for the frozen time by the second.
    function test_freezing_withBoughtSilence_costsTheBond() public {
        stakeJurors(7);
        DisputeId id = openDispute();
        address[] memory panel = drawPanel(id);
        IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](7);
        for (uint256 i; i < 4; ++i) {
            votes[i] = NO_FAULT; // the other three are the challenger's friends
        }
        voteAll(id, panel, votes);
        skipTime(4 hours);
        execute(id);
        // The reveal clock and the payout delay: three hours and a second of five.
        uint256 frozen = uint256(REVEAL_SECONDS) + 1 + PAYOUT_DELAY_SECONDS;
        vm.assertEq(jury.creditOf(owner), BOND * frozen / BOND_SECONDS);
    }
}
