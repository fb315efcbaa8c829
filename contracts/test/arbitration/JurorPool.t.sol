// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {StakeFixture} from "../fixtures/StakeFixture.sol";
import {BlacklistToken, CallbackToken, CutToken} from "../fixtures/Tokens.sol";

/// Jurors' own money: in, out, and what a draw sees of it.
contract JurorPoolTest is StakeFixture {
    address private juror;

    function setUp() public override {
        super.setUp();
        juror = jurorAt(0);
    }

    function requestExit(uint256 amount) private {
        vm.prank(juror);
        jury.requestJurorExit(amount);
    }

    function withdraw() private returns (uint256) {
        vm.prank(juror);
        return jury.withdrawJuror();
    }

    function test_stakeJuror_takesAPlace() public {
        fund(juror, address(jury), MIN_JUROR_STAKE);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.JurorStaked(juror, MIN_JUROR_STAKE, MIN_JUROR_STAKE);
        vm.prank(juror);
        jury.stakeJuror(MIN_JUROR_STAKE);
        IJuryArbitrator.Juror memory j = jury.jurorOf(juror);
        vm.assertEq(uint256(j.stake), MIN_JUROR_STAKE);
        vm.assertEq(uint256(j.place), 0);
        uint256 ripe = vm.getBlockTimestamp() + MATURITY_SECONDS;
        vm.assertEq(uint256(j.maturesAt), ripe);

        vm.warp(ripe - 1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.StakeImmature.selector, ripe));
        jury.enrol(juror);
        vm.warp(ripe);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.JurorEnrolled(juror);
        vm.prank(stranger); // anyone may
        jury.enrol(juror);
        vm.assertEq(uint256(jury.jurorOf(juror).place), 1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.AlreadyEnrolled.selector, juror));
        jury.enrol(juror);

        stakeUnripe(juror, 1); // topping up needs no minimum, and no new clock
        vm.assertEq(uint256(jury.jurorOf(juror).stake), MIN_JUROR_STAKE + 1);
        vm.assertEq(uint256(jury.jurorOf(juror).place), 1);
    }

    /// More stake while it matures begins its clock anew: none of it is younger than the clock.
    function test_stakeJuror_whenNotYetMature_beginsTheClockAnew() public {
        stakeUnripe(juror, MIN_JUROR_STAKE);
        skipTime(MATURITY_SECONDS - 1);
        stakeUnripe(juror, 1);
        uint256 ripe = vm.getBlockTimestamp() + MATURITY_SECONDS;
        skipTime(1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.StakeImmature.selector, ripe));
        jury.enrol(juror);
    }

    function test_enrol_whenItsStakeIsShort_reverts() public {
        bytes memory short =
            abi.encodeWithSelector(IJuryArbitrator.StakeTooLow.selector, 0, MIN_JUROR_STAKE);
        vm.expectRevert(short);
        jury.enrol(stranger);
        stakeUnripe(juror, MIN_JUROR_STAKE);
        requestExit(MIN_JUROR_STAKE);
        skipTime(MATURITY_SECONDS);
        vm.expectRevert(short);
        jury.enrol(juror);
    }

    function test_stakeJuror_whenAmountWrong_reverts() public {
        vm.startPrank(juror);
        vm.expectRevert(IJuryArbitrator.AmountZero.selector);
        jury.stakeJuror(0);
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.StakeTooLow.selector, MIN_JUROR_STAKE - 1, MIN_JUROR_STAKE
            )
        );
        jury.stakeJuror(MIN_JUROR_STAKE - 1);
        vm.stopPrank();
    }

    function test_stakeJuror_whenTokenKeepsACut_reverts() public {
        deploy(new CutToken(address(this)));
        fund(juror, address(jury), MIN_JUROR_STAKE);
        uint256 received = uint256(MIN_JUROR_STAKE) * 99 / 100;
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.TokenShortfall.selector, received, MIN_JUROR_STAKE
            )
        );
        vm.prank(juror);
        jury.stakeJuror(MIN_JUROR_STAKE);
    }

    /// The roll has no end, so nobody can fill it to keep others out.
    function test_enrol_whenThereAreAThousandJurors_takesOneMore() public {
        token.mint(address(this), 1024 * uint256(MIN_JUROR_STAKE));
        fillRoll(1024);
        stakeJuror(juror, MIN_JUROR_STAKE);
        vm.assertEq(uint256(jury.jurorOf(juror).place), 1025);
    }

    function test_exit_atItsSecondAndNotBefore() public {
        stakeJuror(juror, MIN_JUROR_STAKE * 2);
        uint256 leaveAt = vm.getBlockTimestamp() + JUROR_UNBOND_SECONDS;
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.JurorExitRequested(juror, MIN_JUROR_STAKE, leaveAt);
        requestExit(MIN_JUROR_STAKE);
        vm.warp(leaveAt - 1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.ExitNotReady.selector, leaveAt));
        withdraw();
        vm.warp(leaveAt);
        vm.expectEmit(address(jury));
        emit IJuryArbitrator.JurorWithdrawn(juror, MIN_JUROR_STAKE);
        vm.assertEq(withdraw(), MIN_JUROR_STAKE);
        vm.assertEq(token.balanceOf(juror), MIN_JUROR_STAKE);
        vm.assertEq(uint256(jury.jurorOf(juror).place), 1); // half is still at stake
    }

    /// The last on the roll takes the place of who leaves, at once.
    function test_exit_whenAll_givesThePlaceToTheLast() public {
        address[] memory all = stakeJurors(3);
        requestExit(MIN_JUROR_STAKE);
        vm.assertEq(uint256(jury.jurorOf(juror).place), 0);
        vm.assertEq(uint256(jury.jurorOf(all[2]).place), 1);
        skipTime(JUROR_UNBOND_SECONDS);
        vm.assertEq(withdraw(), MIN_JUROR_STAKE);
        vm.expectRevert(IJuryArbitrator.AmountZero.selector);
        withdraw();

        // Back again it waits like everyone.
        stakeUnripe(juror, MIN_JUROR_STAKE);
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.StakeImmature.selector, vm.getBlockTimestamp() + MATURITY_SECONDS
            )
        );
        jury.enrol(juror);
    }

    function test_requestExit_whenAmountWrong_reverts() public {
        stakeJuror(juror, MIN_JUROR_STAKE);
        vm.expectRevert(IJuryArbitrator.AmountZero.selector);
        requestExit(0);
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.ExitTooLarge.selector, MIN_JUROR_STAKE + 1, MIN_JUROR_STAKE
            )
        );
        requestExit(MIN_JUROR_STAKE + 1);
        vm.expectRevert(
            abi.encodeWithSelector(
                IJuryArbitrator.StakeTooLow.selector, MIN_JUROR_STAKE - 1, MIN_JUROR_STAKE
            )
        );
        requestExit(1);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.ExitTooLarge.selector, 1, 0));
        vm.prank(stranger);
        jury.requestJurorExit(1);
    }

    function test_withdraw_whenNothingLeaves_reverts() public {
        stakeJuror(juror, MIN_JUROR_STAKE);
        vm.expectRevert(IJuryArbitrator.AmountZero.selector);
        withdraw();
    }

    function testFuzz_exit_noSequenceShortensAClock(uint256 seed) public {
        stakeJuror(juror, uint256(MIN_JUROR_STAKE) * 100);
        uint256 lastRequest;
        for (uint256 i; i < 20; ++i) {
            uint256 random = uint256(keccak256(abi.encode(seed, i)));
            skipTime(random % 1 days);
            uint256 before = jury.jurorOf(juror).leaveAt;
            if (random % 3 == 0) {
                vm.prank(juror);
                try jury.withdrawJuror() {
                    vm.assertGe(vm.getBlockTimestamp(), lastRequest + JUROR_UNBOND_SECONDS);
                } catch {}
            } else if (random % 3 == 1) {
                requestExit(1 + random % USD);
                lastRequest = vm.getBlockTimestamp();
                vm.assertGe(jury.jurorOf(juror).leaveAt, before);
            } else {
                stakeJuror(juror, 1);
                vm.assertEq(uint256(jury.jurorOf(juror).leaveAt), before);
            }
        }
    }

    function test_withdraw_whenOnAPanel_waits() public {
        registerMiner(MIN_STAKE);
        stakeJurors(3);
        DisputeId id = openDispute();
        drawPanel(id);
        requestExit(MIN_JUROR_STAKE);
        skipTime(JUROR_UNBOND_SECONDS * 2);
        vm.expectRevert(abi.encodeWithSelector(IJuryArbitrator.JurorBusy.selector, 1));
        withdraw();
        jury.advance(id);
        execute(id);
        vm.assertEq(withdraw(), MIN_JUROR_STAKE * 8 / 10); // fined out of what was leaving
    }

    /// Silent on five panels at once: fined to nothing, and off the roll.
    function test_fines_whenToNothing_strikeOffTheRoll() public {
        registerMiner(MIN_STAKE);
        stakeJurors(3);
        DisputeId[] memory ids = new DisputeId[](5);
        for (uint256 i; i < 5; ++i) {
            ids[i] = openDispute();
        }
        for (uint256 i; i < 5; ++i) {
            drawPanel(ids[i]);
        }
        skipTime(COMMIT_SECONDS + 1);
        for (uint256 i; i < 5; ++i) {
            jury.advance(ids[i]);
        }
        for (uint256 i; i < 5; ++i) {
            execute(ids[i]);
        }
        vm.assertEq(uint256(jury.jurorOf(juror).stake), 0);
        vm.assertEq(uint256(jury.jurorOf(juror).place), 0);
        vm.expectRevert(IJuryArbitrator.AmountZero.selector);
        withdraw();
    }

    function test_credit_whenNone_reverts() public {
        vm.expectRevert(IJuryArbitrator.NoCredit.selector);
        jury.withdrawCredit();
    }

    function test_reentrancy_intoEveryGuardedFunction_fails() public {
        CallbackToken bad = new CallbackToken(address(this));
        deploy(bad);
        stakeJuror(juror, MIN_JUROR_STAKE);
        bytes[] memory calls = new bytes[](4);
        calls[0] = abi.encodeCall(jury.withdrawJuror, ());
        calls[1] = abi.encodeCall(jury.withdrawCredit, ());
        calls[2] = abi.encodeCall(jury.stakeJuror, (1));
        calls[3] = abi.encodeCall(jury.open, (disputeRef()));
        for (uint256 i; i < calls.length; ++i) {
            fund(juror, address(jury), 1);
            bad.arm(address(jury), calls[i]);
            vm.prank(juror);
            jury.stakeJuror(1);
            vm.assertTrue(bad.called());
            vm.assertFalse(bad.succeeded());
            vm.assertEq(bad.answer(), abi.encodeWithSignature("ReentrancyGuardReentrantCall()"));
        }
    }

    function test_execute_whenEveryoneIsBlacklisted_doesNotRevert() public {
        BlacklistToken bad = new BlacklistToken(address(this));
        deploy(bad);
        registerMiner(MIN_STAKE);
        stakeJurors(3);
        DisputeId id = openDispute();
        address[] memory panel = drawPanel(id);
        IJuryArbitrator.Vote[] memory votes = new IJuryArbitrator.Vote[](3);
        (votes[0], votes[1], votes[2]) =
        (IJuryArbitrator.Vote.Fault, IJuryArbitrator.Vote.Fault, IJuryArbitrator.Vote.Fault);
        voteAll(id, panel, votes);
        bad.refuse(challenger);
        bad.refuse(requester);
        bad.refuse(owner);
        bad.refuse(panel[0]);
        bad.refuse(BURN);
        execute(id);
        vm.assertEq(tasks.count(), 1);
    }
}
