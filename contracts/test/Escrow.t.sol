// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";

import {IEscrow} from "../src/interfaces/IEscrow.sol";
import {JobId} from "../src/types/Ids.sol";
import {Suite} from "./fixtures/Suite.sol";
import {CutToken} from "./fixtures/Tokens.sol";

/// Balances, thaws, credits and job locks. Spenders: EscrowSpenders.t.sol.
contract EscrowTest is Suite {
    JobId private constant JOB = JobId.wrap(keccak256("job"));
    address private payer = makeAddr("payer");

    function lock(uint256 amount) private {
        vm.prank(address(tasks));
        escrow.lockForJob(JOB, requester, address(0), amount * NANO);
    }

    function payouts(uint256 one, uint256 two) private returns (IEscrow.Payout[] memory list) {
        list = new IEscrow.Payout[](2);
        list[0] = IEscrow.Payout(makeAddr("one"), one * NANO);
        list[1] = IEscrow.Payout(makeAddr("two"), two * NANO);
    }

    function release(IEscrow.Payout[] memory list) private returns (uint256) {
        vm.prank(address(tasks));
        return escrow.releaseJob(JOB, list) / NANO;
    }

    // --- wiring ---

    function test_wiring_isReadable() public view {
        vm.assertEq(escrow.token(), address(token));
        vm.assertEq(escrow.taskRegistry(), address(tasks));
        vm.assertEq(escrow.withdrawDelaySeconds(), WITHDRAW_DELAY_SECONDS);
    }

    // --- deposit ---

    function test_deposit_addsToBalance() public {
        fund(payer, address(escrow), 7 * USD);
        vm.expectEmit(address(escrow));
        emit IEscrow.Deposited(payer, payer, 7 * USD);
        vm.prank(payer);
        escrow.deposit(7 * USD);
        vm.assertEq(escrow.balanceOf(payer), 7 * USD);
        vm.assertEq(token.balanceOf(address(escrow)), 107 * USD);
    }

    function test_deposit_ofNothing_reverts() public {
        vm.expectRevert(IEscrow.AmountZero.selector);
        escrow.deposit(0);
    }

    function test_deposit_withoutAllowance_reverts() public {
        token.mint(payer, USD);
        vm.prank(payer);
        vm.expectRevert(
            abi.encodeWithSelector(
                IERC20Errors.ERC20InsufficientAllowance.selector, address(escrow), 0, USD
            )
        );
        escrow.deposit(USD);
    }

    /// A deposit must not touch an exit.
    function test_deposit_doesNotTouchAThaw() public {
        vm.prank(requester);
        escrow.requestWithdraw(10 * USD);
        IEscrow.Thaw memory before = escrow.thawOf(requester);
        skipTime(WITHDRAW_DELAY_SECONDS);
        fund(requester, address(escrow), 1);
        vm.prank(requester);
        escrow.deposit(1);
        vm.assertEq(escrow.thawOf(requester).amount, before.amount);
        vm.assertEq(escrow.thawOf(requester).readyAt, before.readyAt);
        vm.prank(requester);
        vm.assertEq(escrow.withdraw(), 10 * USD);
    }

    function test_deposit_ofTokenThatTakesACut_reverts() public {
        deploy(new CutToken(address(this)));
        fund(payer, address(escrow), 100 * USD);
        vm.prank(payer);
        vm.expectRevert(
            abi.encodeWithSelector(IEscrow.TokenShortfall.selector, 99 * USD, 100 * USD)
        );
        escrow.deposit(100 * USD);
    }

    // --- withdraw ---

    function test_requestWithdraw_movesBalanceToThaw() public {
        uint256 readyAt = vm.getBlockTimestamp() + WITHDRAW_DELAY_SECONDS;
        vm.expectEmit(address(escrow));
        emit IEscrow.WithdrawRequested(requester, 30 * USD, readyAt);
        vm.prank(requester);
        escrow.requestWithdraw(30 * USD);
        vm.assertEq(escrow.balanceOf(requester), 70 * USD);
        vm.assertEq(escrow.thawOf(requester).amount, 30 * USD);
        vm.assertEq(escrow.thawOf(requester).readyAt, readyAt);
    }

    function test_requestWithdraw_again_restartsTheClockForTheSum() public {
        vm.prank(requester);
        escrow.requestWithdraw(30 * USD);
        skipTime(WITHDRAW_DELAY_SECONDS - 1);
        vm.prank(requester);
        escrow.requestWithdraw(1);
        vm.assertEq(escrow.thawOf(requester).amount, 30 * USD + 1);
        vm.assertEq(
            escrow.thawOf(requester).readyAt, vm.getBlockTimestamp() + WITHDRAW_DELAY_SECONDS
        );
    }

    function test_requestWithdraw_ofNothingOrTooMuch_reverts() public {
        vm.prank(requester);
        vm.expectRevert(IEscrow.AmountZero.selector);
        escrow.requestWithdraw(0);
        vm.prank(requester);
        vm.expectRevert(
            abi.encodeWithSelector(
                IEscrow.InsufficientBalance.selector,
                requester,
                100 * USD * NANO,
                (100 * USD + 1) * NANO
            )
        );
        escrow.requestWithdraw(100 * USD + 1);
    }

    function test_withdraw_waitsForItsClock() public {
        vm.prank(requester);
        escrow.requestWithdraw(30 * USD);
        uint256 readyAt = escrow.thawOf(requester).readyAt;
        vm.warp(readyAt - 1);
        vm.prank(requester);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.WithdrawNotReady.selector, readyAt));
        escrow.withdraw();
        vm.warp(readyAt);
        vm.expectEmit(address(escrow));
        emit IEscrow.Withdrawn(requester, 30 * USD);
        vm.prank(requester);
        vm.assertEq(escrow.withdraw(), 30 * USD);
        vm.assertEq(token.balanceOf(requester), 30 * USD);
        vm.prank(requester);
        vm.expectRevert(IEscrow.NothingThawing.selector);
        escrow.withdraw();
    }

    // --- job locks ---

    function test_lockForJob_takesFromBalance() public {
        vm.expectEmit(address(escrow));
        emit IEscrow.JobLocked(JOB, requester, 40 * USD * NANO);
        lock(40 * USD);
        vm.assertEq(escrow.balanceOf(requester), 60 * USD);
        (address who, uint256 amount) = escrow.lockOf(JOB);
        vm.assertEq(who, requester);
        vm.assertEq(amount, 40 * USD * NANO);
    }

    function test_lockForJob_withoutBalance_reverts() public {
        vm.prank(address(tasks));
        vm.expectRevert(
            abi.encodeWithSelector(
                IEscrow.InsufficientBalance.selector,
                requester,
                100 * USD * NANO,
                100 * USD * NANO + 1
            )
        );
        escrow.lockForJob(JOB, requester, address(0), 100 * USD * NANO + 1);
    }

    function test_lock_twice_reverts() public {
        lock(1);
        vm.prank(address(tasks));
        vm.expectRevert(abi.encodeWithSelector(IEscrow.JobLockExists.selector, JOB));
        escrow.lockForJob(JOB, requester, address(0), 1);
        vm.prank(address(tasks));
        vm.expectRevert(abi.encodeWithSelector(IEscrow.JobLockExists.selector, JOB));
        escrow.pullForJob(JOB, requester, 1);
    }

    function test_pullForJob_takesFromTheRequestersTokens() public {
        fund(payer, address(escrow), USD);
        vm.prank(address(tasks));
        escrow.pullForJob(JOB, payer, USD * NANO);
        (address who, uint256 amount) = escrow.lockOf(JOB);
        vm.assertEq(who, payer);
        vm.assertEq(amount, USD * NANO);
        vm.assertEq(token.balanceOf(payer), 0);
    }

    function test_jobLocks_areTaskRegistrysAlone() public {
        IEscrow.Payout[] memory none;
        vm.expectRevert(abi.encodeWithSelector(IEscrow.NotTaskRegistry.selector, address(this)));
        escrow.lockForJob(JOB, requester, address(0), 1);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.NotTaskRegistry.selector, address(this)));
        escrow.pullForJob(JOB, requester, 1);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.NotTaskRegistry.selector, address(this)));
        escrow.releaseJob(JOB, none);
        vm.expectRevert(abi.encodeWithSelector(IEscrow.NotTaskRegistry.selector, address(this)));
        escrow.payJob(JOB, none);
    }

    function test_releaseJob_creditsAndRefunds() public {
        lock(40 * USD);
        IEscrow.Payout[] memory list = payouts(10 * USD, 5 * USD);
        vm.expectEmit(address(escrow));
        emit IEscrow.Credited(list[0].account, 10 * USD * NANO, JobId.unwrap(JOB));
        vm.expectEmit(address(escrow));
        emit IEscrow.JobReleased(JOB, requester, 25 * USD * NANO, 15 * USD * NANO);
        vm.assertEq(release(list), 25 * USD);
        vm.assertEq(escrow.creditOf(list[0].account), 10 * USD);
        vm.assertEq(escrow.creditOf(list[1].account), 5 * USD);
        vm.assertEq(escrow.balanceOf(requester), 85 * USD);
        (address who, uint256 amount) = escrow.lockOf(JOB);
        vm.assertEq(who, address(0));
        vm.assertEq(amount, 0);
    }

    function test_releaseJob_ofMoreThanTheLock_reverts() public {
        lock(40 * USD);
        IEscrow.Payout[] memory list = payouts(40 * USD, 1);
        vm.prank(address(tasks));
        vm.expectRevert(
            abi.encodeWithSelector(
                IEscrow.PayoutsExceedLock.selector, (40 * USD + 1) * NANO, 40 * USD * NANO
            )
        );
        escrow.releaseJob(JOB, list);
    }

    // --- paying in steps ---

    function pay(IEscrow.Payout[] memory list) private {
        vm.prank(address(tasks));
        escrow.payJob(JOB, list);
    }

    function test_payJob_creditsAndKeepsTheRestLocked() public {
        lock(40 * USD);
        IEscrow.Payout[] memory list = payouts(10 * USD, 5 * USD);
        vm.expectEmit(address(escrow));
        emit IEscrow.Credited(list[0].account, 10 * USD * NANO, JobId.unwrap(JOB));
        pay(list);
        (address who, uint256 amount) = escrow.lockOf(JOB);
        vm.assertEq(who, requester);
        vm.assertEq(amount, 25 * USD * NANO);
        vm.assertEq(escrow.balanceOf(requester), 60 * USD);
        vm.assertEq(release(payouts(1 * USD, 0)), 24 * USD);
        vm.assertEq(escrow.creditOf(list[0].account), 11 * USD);
        vm.assertEq(escrow.balanceOf(requester), 84 * USD);
    }

    function test_payJob_ofMoreThanIsLeft_reverts() public {
        lock(40 * USD);
        pay(payouts(40 * USD, 0));
        IEscrow.Payout[] memory list = payouts(1, 0);
        vm.prank(address(tasks));
        vm.expectRevert(abi.encodeWithSelector(IEscrow.PayoutsExceedLock.selector, NANO, 0));
        escrow.payJob(JOB, list);
        IEscrow.Payout[] memory none;
        vm.assertEq(release(none), 0);
        vm.prank(address(tasks));
        vm.expectRevert(abi.encodeWithSelector(IEscrow.JobLockMissing.selector, JOB));
        escrow.payJob(JOB, none);
    }

    function testFuzz_payJob_inSteps_conserves(uint96 locked, uint96[6] memory steps) public {
        uint256 left = bound(locked, 0, 100 * USD);
        lock(left);
        uint256 paid;
        for (uint256 i; i < steps.length; ++i) {
            uint256 step = bound(steps[i], 0, left);
            pay(payouts(step / 3, step - step / 3));
            left -= step;
            paid += step;
            (, uint256 amount) = escrow.lockOf(JOB);
            vm.assertEq(amount, left * NANO);
        }
        IEscrow.Payout[] memory none;
        vm.assertEq(release(none), left);
        vm.assertEq(escrow.balanceOf(requester), 100 * USD - paid);
    }

    /// A share below a unit is a share: it adds up with others to what can be withdrawn.
    function test_credits_belowAUnit_addUp() public {
        lock(40 * USD);
        IEscrow.Payout[] memory list = payouts(0, 0);
        list[0].nano = NANO - 1;
        list[1].nano = 1;
        pay(list);
        vm.assertEq(escrow.creditOf(list[0].account), 0);
        vm.prank(list[0].account);
        vm.expectRevert(IEscrow.NoCredit.selector);
        escrow.withdrawCredit();
        pay(list);
        vm.prank(list[0].account);
        vm.assertEq(escrow.withdrawCredit(), 1);
        (, uint256 nano) = escrow.nanoOf(list[0].account);
        vm.assertEq(nano, NANO - 2);
        (, nano) = escrow.nanoOf(list[1].account);
        vm.assertEq(nano, 2);
        IEscrow.Payout[] memory none;
        vm.prank(address(tasks));
        vm.assertEq(escrow.releaseJob(JOB, none), 40 * USD * NANO - 2 * NANO);
    }

    /// Tokens are pulled in whole units; what they are more than the lock is the requester's.
    function test_pullForJob_ofLessThanAUnit_leavesTheRestInTheBalance() public {
        fund(payer, address(escrow), 1);
        vm.prank(address(tasks));
        escrow.pullForJob(JOB, payer, 3);
        (uint256 balance,) = escrow.nanoOf(payer);
        vm.assertEq(balance, NANO - 3);
        IEscrow.Payout[] memory none;
        release(none);
        vm.assertEq(escrow.balanceOf(payer), 1);
    }

    function test_releaseJob_twice_reverts() public {
        lock(1);
        IEscrow.Payout[] memory none;
        release(none);
        vm.prank(address(tasks));
        vm.expectRevert(abi.encodeWithSelector(IEscrow.JobLockMissing.selector, JOB));
        escrow.releaseJob(JOB, none);
    }

    function testFuzz_releaseJob_conserves(uint96 locked, uint96 one, uint96 two) public {
        uint256 amount = bound(locked, 0, 100 * USD);
        uint256 first = bound(one, 0, amount);
        uint256 second = bound(two, 0, amount - first);
        lock(amount);
        uint256 refunded = release(payouts(first, second));
        vm.assertEq(refunded + first + second, amount);
        vm.assertEq(escrow.balanceOf(requester), 100 * USD - first - second);
    }

    // --- credits ---

    function test_withdrawCredit_paysOnce() public {
        lock(40 * USD);
        IEscrow.Payout[] memory list = payouts(10 * USD, 0);
        release(list);
        vm.expectEmit(address(escrow));
        emit IEscrow.CreditWithdrawn(list[0].account, 10 * USD);
        vm.prank(list[0].account);
        vm.assertEq(escrow.withdrawCredit(), 10 * USD);
        vm.assertEq(token.balanceOf(list[0].account), 10 * USD);
        vm.prank(list[0].account);
        vm.expectRevert(IEscrow.NoCredit.selector);
        escrow.withdrawCredit();
        vm.prank(list[1].account);
        vm.expectRevert(IEscrow.NoCredit.selector);
        escrow.withdrawCredit();
    }
}
