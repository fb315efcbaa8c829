// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {IEscrow} from "./interfaces/IEscrow.sol";
import {Split} from "./libraries/Split.sol";
import {JobId} from "./types/Ids.sol";

/// Who owns which money? See IEscrow.
contract Escrow is IEscrow, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;

    struct JobLock {
        address requester;
        uint88 nano; //          3·10¹⁷ units at most
        bool isSpenders; //      its spender is in _jobSpenders
    }

    uint256 private constant NANO = Split.NANO;

    address public immutable token;
    address public immutable taskRegistry;
    uint256 public immutable withdrawDelaySeconds;

    mapping(address account => uint256 nano) private _balances;
    mapping(address account => uint256 nano) private _credits;
    mapping(address account => Thaw) private _thaws;
    mapping(JobId job => JobLock) private _locks;
    mapping(JobId job => address) private _jobSpenders;
    mapping(address account => mapping(address spender => Spender)) private _spenders;

    modifier onlyTaskRegistry() {
        if (msg.sender != taskRegistry) revert NotTaskRegistry(msg.sender);
        _;
    }

    constructor(address token_, address taskRegistry_, uint256 withdrawDelaySeconds_) {
        token = token_;
        taskRegistry = taskRegistry_;
        withdrawDelaySeconds = withdrawDelaySeconds_;
    }

    // --- requester ---

    function deposit(uint256 amount) external nonReentrant {
        if (amount == 0) revert AmountZero();
        _balances[msg.sender] += amount * NANO;
        emit Deposited(msg.sender, msg.sender, amount);
        _pull(msg.sender, amount);
    }

    function requestWithdraw(uint256 amount) external {
        if (amount == 0) revert AmountZero();
        _debit(msg.sender, amount * NANO);
        Thaw storage thaw = _thaws[msg.sender];
        uint64 readyAt = (block.timestamp + withdrawDelaySeconds).toUint64();
        thaw.amount = (thaw.amount + amount).toUint128();
        thaw.readyAt = readyAt;
        emit WithdrawRequested(msg.sender, amount, readyAt);
    }

    function withdraw() external nonReentrant returns (uint256 amount) {
        Thaw memory thaw = _thaws[msg.sender];
        amount = thaw.amount;
        if (amount == 0) revert NothingThawing();
        if (block.timestamp < thaw.readyAt) revert WithdrawNotReady(thaw.readyAt);
        delete _thaws[msg.sender];
        emit Withdrawn(msg.sender, amount);
        IERC20(token).safeTransfer(msg.sender, amount);
    }

    function setSpender(address spender, uint96 limit, uint64 expiry) external {
        if (spender == address(0) || spender == msg.sender) revert SpenderInvalid(spender);
        Spender storage allowed = _spenders[msg.sender][spender];
        // INVARIANT: only locks and refunds move `usedNano`, so no change of a limit spends
        // anything twice.
        allowed.limit = limit;
        allowed.expiry = expiry;
        emit SpenderSet(msg.sender, spender, limit, expiry);
    }

    // --- anyone with a credit ---

    function withdrawCredit() external nonReentrant returns (uint256 amount) {
        uint256 nano = _credits[msg.sender];
        amount = nano / NANO;
        if (amount == 0) revert NoCredit();
        _credits[msg.sender] = nano % NANO;
        emit CreditWithdrawn(msg.sender, amount);
        IERC20(token).safeTransfer(msg.sender, amount);
    }

    // --- TaskRegistry only ---

    function lockForJob(JobId job, address requester, address spender, uint256 nano)
        external
        onlyTaskRegistry
    {
        _lock(job, requester, spender, nano);
        _debit(requester, nano);
    }

    function pullForJob(JobId job, address requester, uint256 nano)
        external
        onlyTaskRegistry
        nonReentrant
    {
        _lock(job, requester, address(0), nano);
        uint256 units = (nano + NANO - 1) / NANO;
        _balances[requester] += units * NANO - nano;
        _pull(requester, units);
    }

    function payJob(JobId job, Payout[] calldata payouts) external onlyTaskRegistry {
        JobLock memory lock = _lockOf(job);
        _locks[job].nano = (lock.nano - _payOut(job, lock.nano, payouts)).toUint88();
    }

    function releaseJob(JobId job, Payout[] calldata payouts)
        external
        onlyTaskRegistry
        returns (uint256 refunded)
    {
        JobLock memory lock = _lockOf(job);
        delete _locks[job];
        uint256 paid = _payOut(job, lock.nano, payouts);
        refunded = lock.nano - paid;
        if (refunded > 0) _balances[lock.requester] += refunded;
        // INVARIANT: `usedNano` is what was paid and is locked for a spender's jobs; this part its
        // lock counted.
        if (lock.isSpenders) {
            _spenders[lock.requester][_jobSpenders[job]].usedNano -= refunded.toUint96();
        }
        emit JobReleased(job, lock.requester, refunded, paid);
    }

    // --- reads ---

    function balanceOf(address account) external view returns (uint256) {
        return _balances[account] / NANO;
    }

    function creditOf(address account) external view returns (uint256) {
        return _credits[account] / NANO;
    }

    function nanoOf(address account) external view returns (uint256 balance, uint256 credit) {
        return (_balances[account], _credits[account]);
    }

    function thawOf(address account) external view returns (Thaw memory) {
        return _thaws[account];
    }

    function lockOf(JobId job) external view returns (address requester, uint256 nano) {
        JobLock memory lock = _locks[job];
        return (lock.requester, lock.nano);
    }

    function jobSpenderOf(JobId job) external view returns (address) {
        return _jobSpenders[job];
    }

    function spenderOf(address account, address spender) external view returns (Spender memory) {
        return _spenders[account][spender];
    }

    function isSpender(address account, address spender) public view returns (bool) {
        Spender storage allowed = _spenders[account][spender];
        return allowed.limit != 0 && block.timestamp <= allowed.expiry;
    }

    // --- internals ---

    /// INVARIANT: the books grow by what arrived: a token that takes a fee or rebases is refused
    /// here.
    function _pull(address from, uint256 amount) private {
        uint256 before = IERC20(token).balanceOf(address(this));
        IERC20(token).safeTransferFrom(from, address(this), amount);
        uint256 received = IERC20(token).balanceOf(address(this)) - before;
        if (received != amount) revert TokenShortfall(received, amount);
    }

    function _debit(address account, uint256 nano) private {
        uint256 balance = _balances[account];
        if (balance < nano) revert InsufficientBalance(account, balance, nano);
        _balances[account] = balance - nano;
    }

    function _credit(address account, uint256 nano, bytes32 source) private {
        if (nano == 0) return;
        _credits[account] += nano;
        emit Credited(account, nano, source);
    }

    function _lock(JobId job, address requester, address spender, uint256 nano) private {
        if (_locks[job].requester != address(0)) revert JobLockExists(job);
        _locks[job] = JobLock(requester, nano.toUint88(), spender != address(0));
        emit JobLocked(job, requester, nano);
        if (spender != address(0)) _use(job, requester, spender, nano);
    }

    /// INVARIANT: what this spender's jobs were paid, and may be, is at most the limit at their
    /// opening.
    function _use(JobId job, address account, address spender, uint256 nano) private {
        if (!isSpender(account, spender)) revert SpenderNotAllowed(account, spender);
        Spender storage allowed = _spenders[account][spender];
        uint256 used = allowed.usedNano + nano;
        uint256 limit = uint256(allowed.limit) * NANO;
        if (used > limit) revert SpenderOverLimit(spender, used, limit);
        allowed.usedNano = used.toUint96();
        _jobSpenders[job] = spender;
        emit SpenderLocked(account, spender, job, nano);
    }

    function _lockOf(JobId job) private view returns (JobLock memory lock) {
        lock = _locks[job];
        if (lock.requester == address(0)) revert JobLockMissing(job);
    }

    /// INVARIANT: no job pays out more than was locked for it, in whatever number of steps.
    function _payOut(JobId job, uint256 locked, Payout[] calldata payouts)
        private
        returns (uint256 paid)
    {
        for (uint256 i; i < payouts.length; ++i) {
            paid += payouts[i].nano;
            _credit(payouts[i].account, payouts[i].nano, JobId.unwrap(job));
        }
        if (paid > locked) revert PayoutsExceedLock(paid, locked);
    }
}
