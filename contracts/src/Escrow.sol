// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {IEscrow} from "./interfaces/IEscrow.sol";
import {IMinerRegistry} from "./interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "./interfaces/ITaskRegistry.sol";
import {Split} from "./libraries/Split.sol";
import {JobId} from "./types/Ids.sol";

/// Who owns which money? See IEscrow.
contract Escrow is IEscrow, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;

    /// What one matcher's jobs brought, so that both fees of a job are a write.
    struct Fees {
        uint128 matcherNano;
        uint128 protocolNano;
    }

    uint256 private constant NANO = Split.NANO;

    address public immutable token;
    address public immutable taskRegistry;
    uint256 public immutable withdrawDelaySeconds;

    mapping(address account => uint256 nano) private _balances;
    mapping(address operator => uint256 nano) private _earned;
    mapping(address matcher => Fees) private _fees;
    mapping(address account => Thaw) private _thaws;
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

    // --- what jobs paid: anyone may call, the money goes where it belongs ---

    function collect(address[] calldata operators) external nonReentrant {
        IMinerRegistry miners = ITaskRegistry(taskRegistry).minerRegistry();
        for (uint256 i; i < operators.length; ++i) {
            address operator = operators[i];
            uint256 nano = _earned[operator];
            _earned[operator] = nano % NANO;
            address owner = miners.ownerOf(operator);
            uint256 kept = _payOut(Payee.Operator, operator, owner, nano / NANO);
            if (kept != 0) _earned[operator] += kept;
        }
    }

    function collectFees(address[] calldata matchers) external nonReentrant {
        address recipient = ITaskRegistry(taskRegistry).params().feeRecipient;
        for (uint256 i; i < matchers.length; ++i) {
            address matcher = matchers[i];
            Fees memory fees = _fees[matcher];
            _fees[matcher] =
                Fees(fees.matcherNano % uint128(NANO), fees.protocolNano % uint128(NANO));
            uint256 kept = _payOut(Payee.Matcher, matcher, matcher, fees.matcherNano / NANO);
            if (kept != 0) _fees[matcher].matcherNano += kept.toUint128();
            kept = _payOut(Payee.Protocol, matcher, recipient, fees.protocolNano / NANO);
            if (kept != 0) _fees[matcher].protocolNano += kept.toUint128();
        }
    }

    // --- TaskRegistry only ---

    function lock(JobId job, address requester, address spender, uint256 nano)
        external
        onlyTaskRegistry
    {
        if (spender != address(0)) _use(job, requester, spender, nano);
        _debit(requester, nano);
    }

    function pull(address requester, uint256 nano) external onlyTaskRegistry nonReentrant {
        uint256 units = (nano + NANO - 1) / NANO;
        _balances[requester] += units * NANO - nano;
        _pull(requester, units);
    }

    function pay(Bill calldata bill, uint256[] calldata shares) external onlyTaskRegistry {
        emit Paid(
            bill.job,
            bill.requester,
            bill.matcher,
            shares,
            bill.matcherNano,
            bill.protocolNano,
            bill.refundNano
        );
        for (uint256 i; i < shares.length; ++i) {
            uint256 share = shares[i];
            uint256 nano = Split.nanoOf(share);
            if (nano != 0) _earned[Split.operatorOf(share)] += nano;
        }
        if (bill.matcherNano != 0 || bill.protocolNano != 0) {
            Fees memory fees = _fees[bill.matcher];
            fees.matcherNano += bill.matcherNano.toUint128();
            fees.protocolNano += bill.protocolNano.toUint128();
            _fees[bill.matcher] = fees;
        }
        _refund(bill.job, bill.requester, bill.refundNano, bill.isSpenders);
    }

    // --- reads ---

    function balanceOf(address account) external view returns (uint256) {
        return _balances[account] / NANO;
    }

    function earnedOf(address operator) external view returns (uint256) {
        return _earned[operator] / NANO;
    }

    function feesOf(address matcher)
        external
        view
        returns (uint256 ofMatcher, uint256 ofProtocol)
    {
        Fees storage fees = _fees[matcher];
        return (fees.matcherNano / NANO, fees.protocolNano / NANO);
    }

    function nanoOf(address account) external view returns (Holdings memory) {
        Fees storage fees = _fees[account];
        return Holdings(_balances[account], _earned[account], fees.matcherNano, fees.protocolNano);
    }

    function thawOf(address account) external view returns (Thaw memory) {
        return _thaws[account];
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

    /// INVARIANT: whom the token refuses keeps nobody else from their money, a matcher the protocol
    /// or the fee recipient a matcher: what was not sent is back in the books.
    function _payOut(Payee payee, address account, address to, uint256 amount)
        private
        returns (uint256 keptNano)
    {
        if (amount == 0) return 0;
        if (!IERC20(token).trySafeTransfer(to, amount)) return amount * NANO;
        emit Collected(to, account, payee, amount);
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

    /// INVARIANT: `usedNano` is what was paid and is locked for a spender's jobs; this part its
    /// lock counted.
    function _refund(JobId job, address requester, uint256 nano, bool isSpenders) private {
        if (nano == 0) return;
        _balances[requester] += nano;
        if (isSpenders) _spenders[requester][_jobSpenders[job]].usedNano -= nano.toUint96();
    }
}
