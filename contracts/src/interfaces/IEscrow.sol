// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../types/Ids.sol";

/// Who owns which money: balances, job locks, credits; and which keys may lock how much of whose balance. No policy: TaskRegistry
/// decides what a job pays. Nobody owns or pauses this contract.
///
/// INVARIANT: token.balanceOf(this) = Σ balances + Σ thawing + Σ job locks + Σ credits.
/// (Tokens sent here without a deposit belong to nobody.)
interface IEscrow {
    /// A key that may sign orders for an account: for an application's server, so that the account's own key can stay away.
    struct Spender {
        uint96 limit; //         of `used`
        uint96 used; //          by its jobs: what they were paid, and what is still locked for them
        uint64 expiry; //        no order of it is opened later; zero: never allowed
    }

    struct Thaw {
        uint128 amount;
        uint64 readyAt;
    }

    struct Payout {
        address account;
        uint256 amount;
    }

    event Deposited(address indexed account, address indexed payer, uint256 amount);
    event WithdrawRequested(address indexed account, uint256 amount, uint256 readyAt);
    event Withdrawn(address indexed account, uint256 amount);
    event JobLocked(JobId indexed job, address indexed requester, uint256 amount);
    event JobReleased(JobId indexed job, address indexed requester, uint256 refunded, uint256 paid);
    event Credited(address indexed account, uint256 amount, bytes32 indexed source);
    event CreditWithdrawn(address indexed account, uint256 amount);
    event SpenderSet(
        address indexed account, address indexed spender, uint256 limit, uint256 expiry
    );
    event SpenderLocked(
        address indexed account, address indexed spender, JobId indexed job, uint256 amount
    );

    error AmountZero();
    error InsufficientBalance(address account, uint256 have, uint256 need);
    error WithdrawNotReady(uint256 when);
    error NothingThawing();
    error NoCredit();
    error NotTaskRegistry(address caller);
    error JobLockExists(JobId job);
    error JobLockMissing(JobId job);
    error PayoutsExceedLock(uint256 payouts, uint256 lock);
    error SpenderInvalid(address spender);
    error SpenderNotAllowed(address account, address spender);
    error SpenderOverLimit(address spender, uint256 used, uint256 limit);
    error TokenShortfall(uint256 received, uint256 expected);

    // --- requester ---
    function deposit(uint256 amount) external;

    /// Move `amount` out of the spendable balance; a new request restarts the clock for the sum.
    function requestWithdraw(uint256 amount) external;
    function withdraw() external returns (uint256 amount);

    /// Let `spender` sign orders that lock the caller's balance here, until `expiry`, for no more than `limit` in all: what its jobs
    /// paid counts, what is locked for them counts, what comes back counts no more. A new call replaces limit and expiry, and what
    /// was used stays: to allow more, raise the limit; zero takes the permission back. A plain key, and not the caller's own.
    ///
    /// INVARIANT: a spender withdraws nothing, sets no spenders and pulls no tokens; all it can do is pay miners for jobs of this
    /// account, and say of the jobs it opened itself what they are due. That it may go on saying after it was taken back, for
    /// stages worked on its word; the money at stake is locked, hence within the limit.
    function setSpender(address spender, uint96 limit, uint64 expiry) external;

    // --- anyone with a credit ---
    function withdrawCredit() external returns (uint256 amount);

    // --- TaskRegistry only ---
    /// `spender`: the key that signed in the requester's place, of which expiry and limit are checked; zero: the requester signed.
    function lockForJob(JobId job, address requester, address spender, uint256 amount) external;

    /// As `lockForJob`, but pulls `amount` from the requester's token allowance instead of its balance here.
    function pullForJob(JobId job, address requester, uint256 amount) external;

    /// Credit the payouts out of a lock, which stays. Reverts if they are more than is left of it.
    function payJob(JobId job, Payout[] calldata payouts) external;

    /// End a lock: credit the payouts, return the rest to the requester's balance.
    function releaseJob(JobId job, Payout[] calldata payouts) external returns (uint256 refunded);

    // --- reads ---
    function balanceOf(address account) external view returns (uint256);
    function creditOf(address account) external view returns (uint256);
    function thawOf(address account) external view returns (Thaw memory);
    function lockOf(JobId job) external view returns (address requester, uint256 amount);

    /// Which key opened this job in the requester's place; zero: none. Kept when the lock has ended.
    function jobSpenderOf(JobId job) external view returns (address);
    function spenderOf(address account, address spender) external view returns (Spender memory);

    /// May `spender` open jobs of `account` now, as far as its limit goes?
    function isSpender(address account, address spender) external view returns (bool);
    function token() external view returns (address);
    function taskRegistry() external view returns (address);
    function withdrawDelaySeconds() external view returns (uint256);
}
