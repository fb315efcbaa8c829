// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";

import {IEscrow} from "../src/interfaces/IEscrow.sol";
import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Split} from "../src/libraries/Split.sol";
import {JobId} from "../src/types/Ids.sol";
import {Order, Stage} from "../src/types/Signed.sol";
import {Messages} from "./fixtures/Messages.sol";
import {Suite} from "./fixtures/Suite.sol";
import {CutToken} from "./fixtures/Tokens.sol";

/// Balances, thaws, locks, pay and fees. Spenders: EscrowSpenders.t.sol.
contract EscrowTest is Suite {
    JobId private constant JOB = JobId.wrap(keccak256("job"));
    address private payer = makeAddr("payer");

    function lock(uint256 nano) private {
        vm.prank(address(tasks));
        escrow.lock(JOB, requester, address(0), nano);
    }

    function refund(uint256 nano) private {
        vm.prank(address(tasks));
        escrow.pay(bill(0, 0, nano), new uint256[](0));
    }

    function operatorAt(uint256 i) private view returns (address) {
        return vm.addr(operatorKeys[i]);
    }

    function bill(uint256 matcherNano, uint256 protocolNano, uint256 refundNano)
        private
        view
        returns (IEscrow.Bill memory)
    {
        return IEscrow.Bill({
            job: JOB,
            requester: requester,
            isSpenders: false,
            matcher: matcher,
            matcherNano: matcherNano,
            protocolNano: protocolNano,
            refundNano: refundNano
        });
    }

    /// To the first two operators.
    function shares(uint256 one, uint256 two) private view returns (uint256[] memory list) {
        list = new uint256[](2);
        list[0] = Split.shareOf(operatorAt(0), one);
        list[1] = Split.shareOf(operatorAt(1), two);
    }

    function pay(IEscrow.Bill memory bill_, uint256 one, uint256 two) private {
        vm.prank(address(tasks));
        escrow.pay(bill_, shares(one, two));
    }

    function pay(uint256 one, uint256 two) private {
        pay(bill(0, 0, 0), one, two);
    }

    function listOf(address one) private pure returns (address[] memory list) {
        list = new address[](1);
        list[0] = one;
    }

    function collect(address operator) private {
        vm.prank(stranger);
        escrow.collect(listOf(operator));
    }

    function collectFees(address matcher_) private {
        vm.prank(stranger);
        escrow.collectFees(listOf(matcher_));
    }

    function earnedNano(address operator) private view returns (uint256) {
        return escrow.nanoOf(operator).earned;
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

    // --- what jobs lock ---

    function test_lock_takesFromBalance() public {
        lock(40 * USD * NANO + 1);
        vm.assertEq(balanceNano(requester), 60 * USD * NANO - 1);
        vm.assertEq(escrow.balanceOf(requester), 60 * USD - 1);
        vm.assertEq(token.balanceOf(address(escrow)), 100 * USD);
        vm.assertEq(escrow.jobSpenderOf(JOB), address(0));
    }

    function test_lock_withoutBalance_reverts() public {
        uint256 all = 100 * USD * NANO;
        vm.prank(address(tasks));
        vm.expectRevert(
            abi.encodeWithSelector(IEscrow.InsufficientBalance.selector, requester, all, all + 1)
        );
        escrow.lock(JOB, requester, address(0), all + 1);
        lock(all);
        vm.assertEq(balanceNano(requester), 0);
    }

    function test_pull_takesFromTheRequestersTokens() public {
        fund(payer, address(escrow), USD);
        vm.prank(address(tasks));
        escrow.pull(payer, USD * NANO);
        vm.assertEq(token.balanceOf(payer), 0);
        vm.assertEq(balanceNano(payer), 0);
        vm.assertEq(token.balanceOf(address(escrow)), 101 * USD);
    }

    /// Tokens are pulled in whole units; what they are more than the lock is the requester's.
    function test_pull_ofLessThanAUnit_leavesTheRestInTheBalance() public {
        fund(payer, address(escrow), 2);
        vm.startPrank(address(tasks));
        escrow.pull(payer, 3);
        vm.assertEq(balanceNano(payer), NANO - 3);
        escrow.pull(payer, 0);
        vm.assertEq(balanceNano(payer), NANO - 3);
        escrow.pull(payer, NANO);
        vm.assertEq(balanceNano(payer), NANO - 3);
        vm.stopPrank();
        vm.assertEq(token.balanceOf(payer), 0);
        vm.prank(address(tasks));
        escrow.pay(IEscrow.Bill(JOB, payer, false, matcher, 0, 0, NANO + 3), new uint256[](0));
        vm.assertEq(escrow.balanceOf(payer), 2);
    }

    function test_pull_withoutAllowance_reverts() public {
        token.mint(payer, USD);
        vm.prank(address(tasks));
        vm.expectRevert(
            abi.encodeWithSelector(
                IERC20Errors.ERC20InsufficientAllowance.selector, address(escrow), 0, 1
            )
        );
        escrow.pull(payer, 1);
    }

    function test_pull_ofTokenThatTakesACut_reverts() public {
        deploy(new CutToken(address(this)));
        fund(payer, address(escrow), 100 * USD);
        vm.prank(address(tasks));
        vm.expectRevert(
            abi.encodeWithSelector(IEscrow.TokenShortfall.selector, 99 * USD, 100 * USD)
        );
        escrow.pull(payer, 100 * USD * NANO);
    }

    function test_moneyOfJobs_isTaskRegistrysAlone() public {
        address[6] memory others =
            [address(this), requester, matcher, governor, address(miners), address(jury)];
        uint256[] memory list = shares(1, 1);
        for (uint256 i; i < others.length; ++i) {
            bytes memory reason =
                abi.encodeWithSelector(IEscrow.NotTaskRegistry.selector, others[i]);
            vm.startPrank(others[i]);
            vm.expectRevert(reason);
            escrow.lock(JOB, requester, address(0), 1);
            vm.expectRevert(reason);
            escrow.pull(requester, 1);
            vm.expectRevert(reason);
            escrow.pay(bill(0, 0, 0), list);
            vm.stopPrank();
        }
    }

    // --- what jobs pay ---

    function test_pay_addsToEveryBook() public {
        lock(40 * USD * NANO);
        (uint256 one, uint256 two) = (10 * USD * NANO + 1, 5 * USD * NANO);
        vm.expectEmit(address(escrow));
        emit IEscrow.Paid(JOB, requester, matcher, shares(one, two), 2 * USD * NANO, 7, 9);
        pay(bill(2 * USD * NANO, 7, 9), one, two);
        vm.assertEq(earnedNano(operatorAt(0)), one);
        vm.assertEq(escrow.earnedOf(operatorAt(0)), 10 * USD);
        vm.assertEq(escrow.earnedOf(operatorAt(1)), 5 * USD);
        (uint256 ofMatcher, uint256 ofProtocol) = escrow.feesOf(matcher);
        vm.assertEq(ofMatcher, 2 * USD);
        vm.assertEq(ofProtocol, 0);
        IEscrow.Holdings memory held = escrow.nanoOf(matcher);
        vm.assertEq(held.balance, 0);
        vm.assertEq(held.earned, 0);
        vm.assertEq(held.matcherFees, 2 * USD * NANO);
        vm.assertEq(held.protocolFees, 7);
        vm.assertEq(balanceNano(requester), 60 * USD * NANO + 9);
        vm.assertEq(token.balanceOf(address(escrow)), 100 * USD);
    }

    /// An operator may have several stages of a job.
    function test_pay_toOneOperatorTwice_addsUp() public {
        lock(3);
        uint256[] memory list = shares(1, 2);
        list[1] = Split.shareOf(operatorAt(0), 2);
        vm.prank(address(tasks));
        escrow.pay(bill(0, 0, 0), list);
        vm.assertEq(earnedNano(operatorAt(0)), 3);
    }

    function test_pay_ofNothing_changesNoBook() public {
        pay(0, 0);
        refund(0);
        vm.assertEq(earnedNano(operatorAt(0)), 0);
        vm.assertEq(escrow.nanoOf(matcher).matcherFees, 0);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO);
    }

    function test_refund_goesToTheBalance() public {
        lock(40 * USD * NANO);
        refund(40 * USD * NANO - 1);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO - 1);
        refund(1);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO);
    }

    /// In any steps: tokens = balances + earned + fees + what is still locked.
    function testFuzz_pay_inSteps_conserves(uint96 locked, uint96[6] memory steps) public {
        uint256 left = bound(locked, 0, 100 * USD * NANO);
        lock(left);
        for (uint256 i; i < steps.length; ++i) {
            uint256 step = bound(steps[i], 0, left);
            uint256 part = step / 7;
            pay(bill(part, part / 3, part), 2 * part, step - 4 * part - part / 3);
            left -= step;
            assertBooks(left);
            if (steps[i] % 2 == 0) collect(operatorAt(0));
            else collectFees(matcher);
            assertBooks(left);
        }
        refund(left);
        assertBooks(0);
    }

    function assertBooks(uint256 locked) private view {
        uint256 books = balanceNano(requester) + creditNano(matcher)
            + escrow.nanoOf(matcher).protocolFees + earnedNano(operatorAt(0))
            + earnedNano(operatorAt(1)) + locked;
        vm.assertEq(books, token.balanceOf(address(escrow)) * NANO);
    }

    // --- collect ---

    function test_collect_paysTheOwner_whoeverCalls() public {
        lock(40 * USD * NANO);
        pay(10 * USD * NANO, 5 * USD * NANO);
        address[3] memory callers = [stranger, minerOwners[0], operatorAt(0)];
        uint256 state = vm.snapshotState();
        for (uint256 i; i < callers.length; ++i) {
            vm.expectEmit(address(escrow));
            emit IEscrow.Collected(minerOwners[0], operatorAt(0), IEscrow.Payee.Operator, 10 * USD);
            vm.prank(callers[i]);
            escrow.collect(listOf(operatorAt(0)));
            vm.assertEq(token.balanceOf(minerOwners[0]), 10 * USD);
            vm.assertEq(token.balanceOf(stranger), 0);
            vm.assertEq(token.balanceOf(operatorAt(0)), 0);
            vm.assertEq(earnedNano(operatorAt(0)), 0);
            vm.assertEq(escrow.earnedOf(operatorAt(1)), 5 * USD);
            vm.assertEq(token.balanceOf(address(escrow)), 90 * USD);
            vm.revertToState(state);
            state = vm.snapshotState();
        }
    }

    /// A share below a unit is a share: it adds up with others to what can be sent.
    function test_collect_keepsTheRestBelowAUnit() public {
        lock(2 * NANO);
        pay(NANO - 1, 1);
        vm.assertEq(escrow.earnedOf(operatorAt(0)), 0);
        collect(operatorAt(0));
        vm.assertEq(earnedNano(operatorAt(0)), NANO - 1);
        vm.assertEq(token.balanceOf(minerOwners[0]), 0);
        pay(NANO - 1, 1);
        vm.assertEq(escrow.earnedOf(operatorAt(0)), 1);
        collect(operatorAt(0));
        vm.assertEq(token.balanceOf(minerOwners[0]), 1);
        vm.assertEq(earnedNano(operatorAt(0)), NANO - 2);
        collect(operatorAt(0));
        vm.assertEq(token.balanceOf(minerOwners[0]), 1);
        vm.assertEq(earnedNano(operatorAt(0)), NANO - 2);
    }

    /// The owner of a key never changes, so what it earned is never stranded.
    function test_collect_ofAKeyRotatedAway_paysItsOwner() public {
        lock(40 * USD * NANO);
        pay(10 * USD * NANO, 0);
        address old = operatorAt(0);
        (address fresh, uint256 freshKey) = makeKey("fresh operator");
        bytes memory proof =
            sign(freshKey, digest(Messages.hashOperatorProof(minerOwners[0], fresh)));
        vm.prank(minerOwners[0]);
        miners.rotateOperator(fresh, proof);
        collect(fresh);
        vm.assertEq(token.balanceOf(minerOwners[0]), 0);
        collect(old);
        vm.assertEq(token.balanceOf(minerOwners[0]), 10 * USD);
    }

    function test_collect_ofAMinerThatLeft_paysItsOwner() public {
        lock(40 * USD * NANO);
        pay(10 * USD * NANO, 0);
        vm.startPrank(minerOwners[0]);
        miners.requestExit(STAKE);
        skipTime(UNBOND_SECONDS);
        miners.withdraw();
        vm.stopPrank();
        collect(operatorAt(0));
        vm.assertEq(token.balanceOf(minerOwners[0]), STAKE + 10 * USD);
    }

    function test_collect_whereThereIsNothing_doesNothing() public {
        address[] memory list = new address[](5);
        (list[0], list[1], list[2]) = (address(0), stranger, operatorAt(3));
        (list[3], list[4]) = (minerOwners[3], requester);
        vm.recordLogs();
        escrow.collect(list);
        escrow.collect(new address[](0));
        vm.assertEq(vm.getRecordedLogs().length, 0);
        vm.assertEq(token.balanceOf(address(escrow)), 100 * USD);
        vm.assertEq(balanceNano(requester), 100 * USD * NANO);
    }

    /// Whom the list names twice is paid once, and between others that have nothing.
    function test_collect_ofAListWithRepeats_paysOnce() public {
        lock(40 * USD * NANO);
        pay(10 * USD * NANO + 5, 5 * USD * NANO);
        address[] memory list = new address[](6);
        (list[0], list[1], list[2]) = (operatorAt(0), operatorAt(0), stranger);
        (list[3], list[4], list[5]) = (operatorAt(1), operatorAt(0), operatorAt(1));
        escrow.collect(list);
        vm.assertEq(token.balanceOf(minerOwners[0]), 10 * USD);
        vm.assertEq(token.balanceOf(minerOwners[1]), 5 * USD);
        vm.assertEq(earnedNano(operatorAt(0)), 5);
        vm.assertEq(token.balanceOf(address(escrow)), 85 * USD);
    }

    // --- collectFees ---

    function test_collectFees_paysMatcherAndFeeRecipient_whoeverCalls() public {
        lock(40 * USD * NANO);
        pay(bill(3 * USD * NANO + 1, 2 * USD * NANO + 2, 0), 0, 0);
        vm.expectEmit(address(escrow));
        emit IEscrow.Collected(matcher, matcher, IEscrow.Payee.Matcher, 3 * USD);
        vm.expectEmit(address(escrow));
        emit IEscrow.Collected(treasury, matcher, IEscrow.Payee.Protocol, 2 * USD);
        collectFees(matcher);
        vm.assertEq(token.balanceOf(matcher), 3 * USD);
        vm.assertEq(token.balanceOf(treasury), 2 * USD);
        vm.assertEq(escrow.nanoOf(matcher).matcherFees, 1);
        vm.assertEq(escrow.nanoOf(matcher).protocolFees, 2);
        vm.assertEq(token.balanceOf(address(escrow)), 95 * USD);
    }

    /// The protocol's part goes to whom TaskRegistry names at the time.
    function test_collectFees_followsTheFeeRecipient() public {
        lock(40 * USD * NANO);
        pay(bill(0, 2 * USD * NANO, 0), 0, 0);
        vm.prank(governor);
        tasks.setFeeRecipient(payer);
        collectFees(matcher);
        vm.assertEq(token.balanceOf(payer), 2 * USD);
        vm.assertEq(token.balanceOf(treasury), 0);
    }

    /// A job without a matcher owes the protocol alone.
    function test_collectFees_ofJobsWithoutAMatcher_paysTheProtocol() public {
        lock(40 * USD * NANO);
        IEscrow.Bill memory b = bill(0, 2 * USD * NANO, 0);
        b.matcher = address(0);
        pay(b, 0, 0);
        collectFees(address(0));
        vm.assertEq(token.balanceOf(treasury), 2 * USD);
        vm.assertEq(token.balanceOf(address(0)), 0);
    }

    function test_collectFees_ofAListWithRepeatsAndStrangers_paysOnce() public {
        lock(40 * USD * NANO);
        pay(bill(3 * USD * NANO, 2 * USD * NANO, 0), 10 * USD * NANO, 0);
        address[] memory list = new address[](5);
        (list[0], list[1], list[2]) = (matcher, matcher, address(0));
        (list[3], list[4]) = (requester, operatorAt(0));
        escrow.collectFees(list);
        escrow.collectFees(new address[](0));
        vm.assertEq(token.balanceOf(matcher), 3 * USD);
        vm.assertEq(token.balanceOf(treasury), 2 * USD);
        vm.assertEq(earnedNano(operatorAt(0)), 10 * USD * NANO);
        vm.assertEq(token.balanceOf(address(escrow)), 95 * USD);
    }
}

/// All books together, whatever jobs do.
contract EscrowBooksTest is Suite {
    bytes[] private deals; // encoded: storage takes no copy of a plan

    function dealAt(uint256 i) private view returns (Deal memory) {
        return abi.decode(deals[i], (Deal));
    }

    /// INVARIANT of IEscrow: tokens less thaws = balances + earned + fees + open locks.
    function assertBooks() private view {
        uint256 books = balanceNano(requester) + creditNano(matcher) + creditNano(treasury);
        for (uint256 i; i < minerOwners.length; ++i) {
            books += creditNano(minerOwners[i]);
        }
        for (uint256 i; i < deals.length; ++i) {
            books += lockedNano(dealAt(i));
        }
        uint256 held = token.balanceOf(address(escrow)) - escrow.thawOf(requester).amount;
        vm.assertEq(books, held * NANO);
    }

    function testFuzz_books_areTheTokens(uint256 seed) public {
        for (uint256 i; i < 6; ++i) {
            begin(random(seed, i, "begin"));
            assertBooks();
            for (uint256 j; j < deals.length; ++j) {
                goOn(dealAt(j), random(seed, i * 8 + j, "go on"));
                assertBooks();
            }
            collect(random(seed, i, "collect"));
            assertBooks();
        }
    }

    function random(uint256 seed, uint256 i, string memory what) private pure returns (uint256) {
        return uint256(keccak256(abi.encode(seed, i, what)));
    }

    function begin(uint256 seed) private {
        Order memory order = seed % 2 == 0 ? sessionOrder() : newOrder();
        if (seed >> 8 & 3 == 0) dropMatcher(order);
        Deal memory deal = dealOf(order, evenPlan(1 + (seed >> 16) % 3));
        if (seed >> 24 & 1 == 0) openUnmatched(deal);
        else try this.tryOpenMatched(deal) {} catch {} // a stage's miner may be in jail
        deals.push(abi.encode(deal));
    }

    function tryOpenMatched(Deal memory deal) external {
        openMatched(deal);
    }

    /// One move that the job's state may allow, or none.
    function goOn(Deal memory deal, uint256 seed) private {
        try this.move(deal, seed) {} catch {}
    }

    function move(Deal memory deal, uint256 seed) external {
        uint32 tokensIn = uint32((seed >> 16) % (uint256(deal.order.maxTokensIn) + 1));
        uint32 tokensOut = uint32((seed >> 64) % (uint256(deal.order.maxTokensOut) + 1));
        uint256 which = seed % 8;
        if (which == 0) matchJob(deal);
        if (which == 1 || which == 2) settleAck(deal, tokensIn, tokensOut);
        if (which == 3) deliver(deal, tokensIn, tokensOut);
        if (which == 4) equivocation(deal, contradiction(deal, deal.plan.length - 1));
        if (which == 5) {
            vm.prank(requester);
            tasks.cancel(deal.order);
        }
        if (which == 6) {
            vm.warp(uint256(deal.order.deadline) + deal.order.window + 1);
            finalize(deal);
        }
        if (which == 7) {
            vm.warp(uint256(deal.order.deadline) + CLOSE_DELAY_SECONDS + 1);
            bool waits = tasks.jobOf(deal.id, 0).state == ITaskRegistry.State.Open;
            tasks.expire(deal.order, waits ? new Stage[](0) : deal.plan);
        }
    }

    function collect(uint256 seed) private {
        address[] memory list = new address[](4);
        (list[0], list[1]) = (vm.addr(operatorKeys[seed % 3]), vm.addr(operatorKeys[seed % 2]));
        (list[2], list[3]) = (matcher, address(0));
        if (seed >> 8 & 1 == 0) escrow.collect(list);
        else escrow.collectFees(list);
    }
}
