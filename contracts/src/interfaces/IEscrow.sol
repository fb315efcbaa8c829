// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../types/Ids.sol";

/// Who owns which money, and which keys may lock how much of it? TaskRegistry decides what a job
/// pays. Nobody owns or pauses this contract.
///
/// Balances, locks and credits are kept in nano units, so a share below a unit is a share. Tokens
/// come and go in whole units.
///
/// INVARIANT: 10⁹·(token.balanceOf(this) − Σ thawing) = Σ balances + Σ job locks + Σ credits, in
/// nano units. (Tokens sent here without a deposit belong to nobody.)
interface IEscrow {
    /// A key that may sign orders for an account, so that a server needs not the account's own.
    struct Spender {
        uint96 limit; //         of what it uses, in units
        uint96 usedNano; //      by its jobs: what they were paid, and what is still locked for them
        uint64 expiry; //        no order of it is opened later; zero: never allowed
    }

    struct Thaw {
        uint128 amount;
        uint64 readyAt;
    }

    struct Payout {
        address account;
        uint256 nano;
    }

    event Deposited(address indexed account, address indexed payer, uint256 amount);
    event WithdrawRequested(address indexed account, uint256 amount, uint256 readyAt);
    event Withdrawn(address indexed account, uint256 amount);
    event JobLocked(JobId indexed job, address indexed requester, uint256 nano);
    event JobReleased(
        JobId indexed job, address indexed requester, uint256 refundedNano, uint256 paidNano
    );
    event Credited(address indexed account, uint256 nano, bytes32 indexed source);
    event CreditWithdrawn(address indexed account, uint256 amount);
    event SpenderSet(
        address indexed account, address indexed spender, uint256 limit, uint256 expiry
    );
    event SpenderLocked(
        address indexed account, address indexed spender, JobId indexed job, uint256 nano
    );

    error AmountZero();
    error InsufficientBalance(address account, uint256 haveNano, uint256 needNano);
    error WithdrawNotReady(uint256 when);
    error NothingThawing();
    error NoCredit();
    error NotTaskRegistry(address caller);
    error JobLockExists(JobId job);
    error JobLockMissing(JobId job);
    error PayoutsExceedLock(uint256 payoutsNano, uint256 lockNano);
    error SpenderInvalid(address spender);
    error SpenderNotAllowed(address account, address spender);
    error SpenderOverLimit(address spender, uint256 usedNano, uint256 limitNano);
    error TokenShortfall(uint256 received, uint256 expected);

    // --- requester ---
    function deposit(uint256 amount) external;

    /// Move `amount` out of the spendable balance; a new request restarts the clock for the sum.
    function requestWithdraw(uint256 amount) external;
    function withdraw() external returns (uint256 amount);

    /// Let `spender`, a plain key, sign orders that lock the caller's balance until `expiry`, for
    /// at most `limit` in all: of what its jobs were paid and have locked. A new call replaces
    /// limit and expiry and keeps what was used; a limit of zero takes the permission back.
    ///
    /// INVARIANT: a spender can only pay miners for jobs of this account, and say of jobs that it
    /// opened what they are due, also when its permission is gone: that money is locked within the
    /// limit.
    function setSpender(address spender, uint96 limit, uint64 expiry) external;

    // --- anyone with a credit ---
    /// Whole units of it; what is less stays a credit.
    function withdrawCredit() external returns (uint256 amount);

    // --- TaskRegistry only ---
    /// `spender`: the key that signed in the requester's place, within expiry and limit; or zero.
    function lockForJob(JobId job, address requester, address spender, uint256 nano) external;

    /// As `lockForJob`, but pulls whole units from the requester's token allowance; what they are
    /// more than `nano` is added to its balance.
    function pullForJob(JobId job, address requester, uint256 nano) external;

    /// Credit the payouts out of a lock, which stays. Reverts if they are more than is left of it.
    function payJob(JobId job, Payout[] calldata payouts) external;

    /// End a lock: credit the payouts, return the rest to the requester's balance.
    function releaseJob(JobId job, Payout[] calldata payouts)
        external
        returns (uint256 refundedNano);

    // --- reads ---
    /// Whole units, as `creditOf`.
    function balanceOf(address account) external view returns (uint256);
    function creditOf(address account) external view returns (uint256);

    /// Both exactly.
    function nanoOf(address account) external view returns (uint256 balance, uint256 credit);
    function thawOf(address account) external view returns (Thaw memory);
    function lockOf(JobId job) external view returns (address requester, uint256 nano);

    /// The key that opened this job in the requester's place, or zero. Kept after the lock.
    function jobSpenderOf(JobId job) external view returns (address);
    function spenderOf(address account, address spender) external view returns (Spender memory);

    /// May `spender` open jobs of `account` now, as far as its limit goes? Not with one of zero.
    function isSpender(address account, address spender) external view returns (bool);
    function token() external view returns (address);
    function taskRegistry() external view returns (address);
    function withdrawDelaySeconds() external view returns (uint256);
}
