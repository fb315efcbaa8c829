// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId, SessionId} from "../types/Ids.sol";
import {Order, Stage, Voucher} from "../types/Signed.sol";

/// Who owns which money: balances, job locks, earmarked sessions, credits. No policy: TaskRegistry decides what a job pays.
///
/// INVARIANT: token.balanceOf(this) = Σ balances + Σ thawing + Σ job locks + Σ (cap − claimed + dust) of unclosed sessions + Σ credits.
/// (Tokens sent here without a deposit belong to nobody.)
interface IEscrow {
    enum SessionState {
        None,
        Open,
        Closing,
        Closed
    }

    /// Packing: {requester 160 | cap 96} {claimed 96 | expiry 40 | closeAt 40 | state 8 | matcherFeeBps 16 | dust 8}
    /// {matcher 160 | layers 16 | embedUnits 8 | headUnits 8} {planHash}
    struct Session {
        address requester;
        uint96 cap;
        uint96 claimed; //      highest cumulative amount a voucher has drawn
        uint40 expiry;
        uint40 closeAt; //      zero until requestClose
        SessionState state;
        uint16 matcherFeeBps;
        uint8 dust; //          of `claimed`, not paid to anyone because of rounding: less than one base unit a stage
        address matcher;
        uint16 layers; //       of the model, copied at open so that shares never change
        uint8 embedUnits;
        uint8 headUnits;
        bytes32 planHash;
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
    event WithdrawCancelled(address indexed account, uint256 amount);
    event Withdrawn(address indexed account, uint256 amount);
    event JobLocked(JobId indexed job, address indexed requester, uint256 amount);
    event JobReleased(JobId indexed job, address indexed requester, uint256 refunded, uint256 paid);
    event Credited(address indexed account, uint256 amount, bytes32 indexed source);
    event CreditWithdrawn(address indexed account, uint256 amount);
    event SessionOpened(SessionId indexed session, address indexed requester, uint256 cap, uint256 expiry, bytes32 planHash);
    event SessionToppedUp(SessionId indexed session, uint256 added, uint256 cap);
    event SessionClaimed(SessionId indexed session, uint256 cumulative, uint256 delta);
    event SessionClosing(SessionId indexed session, uint256 closeAt);
    event SessionClosed(SessionId indexed session, uint256 refunded);

    error AmountZero();
    error InsufficientBalance(address account, uint256 have, uint256 need);
    error WithdrawNotReady(uint256 when);
    error NothingThawing();
    error NoCredit();
    error NotTaskRegistry(address caller);
    error JobLockExists(JobId job);
    error JobLockMissing(JobId job);
    error PayoutsExceedLock(uint256 payouts, uint256 lock);
    error SessionWrongState(SessionState have);
    error SessionExists(SessionId session);
    error NotSessionRequester(address caller);
    error SessionExpired(uint256 when);
    error SessionStillOpen(uint256 until);
    error SessionOverCap(uint256 cumulative, uint256 cap);
    error PlanMismatch(bytes32 have, bytes32 need);
    error VoucherStale(uint256 cumulative, uint256 claimed);
    error BadSignature();
    error TooManyVouchers(uint256 max);
    error LengthMismatch();
    error ExpiryOutOfRange(uint256 expiry);
    error FeeTooHigh(uint256 have, uint256 max);
    error TokenShortfall(uint256 received, uint256 expected);

    // --- requester ---
    function deposit(uint256 amount) external;
    function depositFor(address account, uint256 amount) external;

    /// A front-run permit does not brick the deposit: the permit is tried, then the allowance decides.
    function depositWithPermit(uint256 amount, uint256 permitDeadline, uint8 v, bytes32 r, bytes32 s) external;

    /// Move `amount` out of the spendable balance; a new request restarts the clock for the sum.
    function requestWithdraw(uint256 amount) external;
    function cancelWithdraw() external;
    function withdraw() external returns (uint256 amount);

    // --- sessions: money that only one plan's stages can draw, by cumulative vouchers ---
    function openSession(bytes32 salt, uint96 cap, uint40 expiry, bytes32 modelId, Stage[] calldata plan, address matcher, uint16 matcherFeeBps) external returns (SessionId);
    function topUpSession(SessionId session, uint96 amount) external;

    /// Anyone may bring a voucher; only the plan's owners and the matcher are paid. Pays on totals, not on differences, so that
    /// many small claims never pay more than one.
    function claim(Voucher calldata voucher, bytes calldata signature, Stage[] calldata plan) external;

    /// As `claim`, for at most 32 vouchers. One that draws nothing new is passed over, so nobody can spoil a batch by bringing a
    /// single voucher of it first; any other fault reverts all.
    function claimMany(Voucher[] calldata vouchers, bytes[] calldata signatures, Stage[][] calldata plans) external;

    /// Requester: stop the session after a delay in which vouchers still pay.
    function requestClose(SessionId session) external;

    /// After `requestClose` and its delay, or after expiry and the same delay: the rest goes back. Anyone may call.
    function close(SessionId session) external;

    // --- anyone with a credit ---
    function withdrawCredit() external returns (uint256 amount);

    // --- TaskRegistry only ---
    function lockForJob(JobId job, address requester, uint256 amount) external;

    /// As `lockForJob`, but pulls `amount` from the requester's token allowance instead of its balance here.
    function pullForJob(JobId job, address requester, uint256 amount) external;

    /// End a lock: credit the payouts, return the rest to the requester's balance.
    function releaseJob(JobId job, Payout[] calldata payouts) external returns (uint256 refunded);

    // --- reads ---
    function balanceOf(address account) external view returns (uint256);
    function creditOf(address account) external view returns (uint256);
    function thawOf(address account) external view returns (Thaw memory);
    function lockOf(JobId job) external view returns (address requester, uint256 amount);
    function sessionOf(SessionId session) external view returns (Session memory);
    function sessionIdOf(address requester, bytes32 salt) external view returns (SessionId);
    function token() external view returns (address);
    function taskRegistry() external view returns (address);
    function minerRegistry() external view returns (address);
    function modelRegistry() external view returns (address);
    function withdrawDelaySeconds() external view returns (uint256);
    function sessionCloseDelaySeconds() external view returns (uint256);
}
