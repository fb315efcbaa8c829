// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../types/Ids.sol";

/// Who owns which money, and which keys may lock how much of it? TaskRegistry decides what a job
/// pays. Nobody owns or pauses this contract.
///
/// Balances, pay and fees are kept in nano units, so a share below a unit is a share. Tokens come
/// and go in whole units. What a job has locked is in nobody's book here: it follows from its order
/// and its state, which TaskRegistry has.
///
/// INVARIANT: 10⁹·(token.balanceOf(this) − Σ thawing) = Σ balances + Σ earned + Σ fees + Σ locks of
/// TaskRegistry's jobs, in nano units. (Tokens sent here without a deposit belong to nobody.)
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

    /// What a job owes beside its stages' pay.
    struct Bill {
        JobId job;
        address requester;
        bool isSpenders; //      a spender opened the job
        address matcher;
        uint256 matcherNano;
        uint256 protocolNano;
        uint256 refundNano; //   back to the requester's balance
    }

    /// All that is kept under one address, in nano units: each kind belongs to another account.
    struct Holdings {
        uint256 balance; //      its own
        uint256 earned; //       of this operator, and so of its miner's owner
        uint256 matcherFees; //  its own, as a matcher
        uint256 protocolFees; // of this matcher's jobs, and so of the fee recipient
    }

    enum Payee {
        Operator,
        Matcher,
        Protocol
    }

    event Deposited(address indexed account, address indexed payer, uint256 amount);
    event WithdrawRequested(address indexed account, uint256 amount, uint256 readyAt);
    event Withdrawn(address indexed account, uint256 amount);
    /// Out of a job's lock: to stages, to matcher and protocol, and back. A share is a word: the
    /// operator's address above 96 bits of nano units.
    event Paid(
        JobId indexed job,
        address indexed requester,
        address matcher,
        uint256[] shares,
        uint256 matcherNano,
        uint256 protocolNano,
        uint256 refundNano
    );
    /// `amount` went to `to`: the pay of an operator, or a fee of a matcher's jobs.
    event Collected(address indexed to, address indexed account, Payee payee, uint256 amount);
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
    error NotTaskRegistry(address caller);
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

    // --- what jobs paid: anyone may call, the money goes where it belongs ---

    /// Send what these operators' stages earned, in whole units, to the owners of their miners;
    /// what is less than a unit stays, and what the token refuses to send.
    function collect(address[] calldata operators) external;

    /// Send the fees of these matchers' jobs: their own to them, the protocol's to TaskRegistry's
    /// fee recipient. Each is sent, or stays, whatever the token says to the other.
    function collectFees(address[] calldata matchers) external;

    // --- TaskRegistry only, which knows what of a job's lock is left ---

    /// Take `nano` from the requester's balance for a job. `spender`: the key that signed in the
    /// requester's place, within expiry and limit; or zero.
    function lock(JobId job, address requester, address spender, uint256 nano) external;

    /// As `lock`, but pulls whole units from the requester's token allowance; what they are more
    /// than `nano` is added to its balance.
    function pull(address requester, uint256 nano) external;

    /// Pay out all of a job's lock: each stage's operator, the fees, and back to the requester.
    /// Shares are words as `Paid` tells them.
    function pay(Bill calldata bill, uint256[] calldata shares) external;

    // --- reads ---
    /// Whole units, as `earnedOf` and `feesOf`.
    function balanceOf(address account) external view returns (uint256);
    function earnedOf(address operator) external view returns (uint256);
    function feesOf(address matcher) external view returns (uint256 ofMatcher, uint256 ofProtocol);

    /// All exactly.
    function nanoOf(address account) external view returns (Holdings memory);
    function thawOf(address account) external view returns (Thaw memory);

    /// The key that opened this job in the requester's place, or zero. Kept for ever.
    function jobSpenderOf(JobId job) external view returns (address);
    function spenderOf(address account, address spender) external view returns (Spender memory);

    /// May `spender` open jobs of `account` now, as far as its limit goes? Not with one of zero.
    function isSpender(address account, address spender) external view returns (bool);
    function token() external view returns (address);
    function taskRegistry() external view returns (address);
    function withdrawDelaySeconds() external view returns (uint256);
}
