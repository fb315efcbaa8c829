// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {EntryPause} from "./EntryPause.sol";
import {IEscrow} from "./interfaces/IEscrow.sol";
import {IMinerRegistry} from "./interfaces/IMinerRegistry.sol";
import {IModelRegistry} from "./interfaces/IModelRegistry.sol";
import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Plans} from "./libraries/Plans.sol";
import {Split} from "./libraries/Split.sol";
import {JobId, ModelId, SessionId} from "./types/Ids.sol";
import {Stage, Voucher} from "./types/Signed.sol";

/// Who owns which money? See IEscrow.
contract Escrow is IEscrow, EntryPause, ReentrancyGuardTransient {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;

    struct JobLock {
        address requester;
        uint96 amount;
    }

    uint256 public constant MAX_VOUCHERS = 32;
    uint256 public constant MAX_MATCHER_FEE_BPS = 500;
    /// A session is bounded so that forgotten money is never locked for good; the requester may open another.
    uint256 public constant MAX_SESSION_SECONDS = 365 days;

    /// @inheritdoc IEscrow
    address public immutable token;
    /// @inheritdoc IEscrow
    address public immutable taskRegistry;
    /// @inheritdoc IEscrow
    address public immutable minerRegistry;
    /// @inheritdoc IEscrow
    address public immutable modelRegistry;
    /// @inheritdoc IEscrow
    uint256 public immutable withdrawDelaySeconds;
    /// @inheritdoc IEscrow
    uint256 public immutable sessionCloseDelaySeconds;

    mapping(address account => uint256) private _balances;
    mapping(address account => uint256) private _credits;
    mapping(address account => Thaw) private _thaws;
    mapping(JobId job => JobLock) private _locks;
    mapping(SessionId session => Session) private _sessions;

    modifier onlyTaskRegistry() {
        if (msg.sender != taskRegistry) revert NotTaskRegistry(msg.sender);
        _;
    }

    constructor(
        address token_,
        address taskRegistry_,
        address minerRegistry_,
        address modelRegistry_,
        uint256 withdrawDelaySeconds_,
        uint256 sessionCloseDelaySeconds_,
        address owner_,
        address guardian_
    ) EntryPause(owner_, guardian_) {
        token = token_;
        taskRegistry = taskRegistry_;
        minerRegistry = minerRegistry_;
        modelRegistry = modelRegistry_;
        withdrawDelaySeconds = withdrawDelaySeconds_;
        sessionCloseDelaySeconds = sessionCloseDelaySeconds_;
    }

    // --- requester ---

    /// @inheritdoc IEscrow
    function deposit(uint256 amount) external nonReentrant {
        _deposit(msg.sender, amount);
    }

    /// @inheritdoc IEscrow
    function depositFor(address account, uint256 amount) external nonReentrant {
        _deposit(account, amount);
    }

    /// @inheritdoc IEscrow
    function depositWithPermit(uint256 amount, uint256 permitDeadline, uint8 v, bytes32 r, bytes32 s) external nonReentrant {
        // Whoever saw this permit may have used it already: what counts is the allowance, which the transfer checks.
        try IERC20Permit(token).permit(msg.sender, address(this), amount, permitDeadline, v, r, s) {} catch {}
        _deposit(msg.sender, amount);
    }

    /// @inheritdoc IEscrow
    function requestWithdraw(uint256 amount) external {
        if (amount == 0) revert AmountZero();
        _debit(msg.sender, amount);
        Thaw storage thaw = _thaws[msg.sender];
        uint64 readyAt = (block.timestamp + withdrawDelaySeconds).toUint64();
        thaw.amount = (thaw.amount + amount).toUint128();
        thaw.readyAt = readyAt;
        emit WithdrawRequested(msg.sender, amount, readyAt);
    }

    /// @inheritdoc IEscrow
    function cancelWithdraw() external {
        uint256 amount = _thaws[msg.sender].amount;
        if (amount == 0) revert NothingThawing();
        delete _thaws[msg.sender];
        _balances[msg.sender] += amount;
        emit WithdrawCancelled(msg.sender, amount);
    }

    /// @inheritdoc IEscrow
    function withdraw() external nonReentrant returns (uint256 amount) {
        Thaw memory thaw = _thaws[msg.sender];
        amount = thaw.amount;
        if (amount == 0) revert NothingThawing();
        if (block.timestamp < thaw.readyAt) revert WithdrawNotReady(thaw.readyAt);
        delete _thaws[msg.sender];
        emit Withdrawn(msg.sender, amount);
        IERC20(token).safeTransfer(msg.sender, amount);
    }

    // --- sessions ---

    /// @inheritdoc IEscrow
    function openSession(
        bytes32 salt,
        uint96 cap,
        uint40 expiry,
        bytes32 modelId,
        Stage[] calldata plan,
        address matcher,
        uint16 matcherFeeBps
    ) external whenEntriesOpen returns (SessionId id) {
        id = sessionIdOf(msg.sender, salt);
        Session storage session = _sessions[id];
        if (session.state != SessionState.None) revert SessionExists(id);
        if (cap == 0) revert AmountZero();
        if (expiry <= block.timestamp || expiry > block.timestamp + MAX_SESSION_SECONDS) revert ExpiryOutOfRange(expiry);
        uint256 maxFeeBps = matcher == address(0) ? 0 : MAX_MATCHER_FEE_BPS;
        if (matcherFeeBps > maxFeeBps) revert FeeTooHigh(matcherFeeBps, maxFeeBps);

        (session.layers, session.embedUnits, session.headUnits) = IModelRegistry(modelRegistry).shapeOf(ModelId.wrap(modelId));
        Plans.checkTiling(plan, session.layers);
        Plans.checkWorkers(plan, IMinerRegistry(minerRegistry), 0);

        // INVARIANT: the session owns its cap from here on, so one deposit is never promised to two pipelines.
        _debit(msg.sender, cap);
        session.requester = msg.sender;
        session.cap = cap;
        session.expiry = expiry;
        session.state = SessionState.Open;
        session.matcher = matcher;
        session.matcherFeeBps = matcherFeeBps;
        session.planHash = Eip712Types.planHash(plan);
        emit SessionOpened(id, msg.sender, cap, expiry, session.planHash);
    }

    /// @inheritdoc IEscrow
    function topUpSession(SessionId id, uint96 amount) external {
        Session storage session = _sessions[id];
        if (session.state != SessionState.Open) revert SessionWrongState(session.state);
        if (msg.sender != session.requester) revert NotSessionRequester(msg.sender);
        if (block.timestamp > session.expiry) revert SessionExpired(session.expiry);
        if (amount == 0) revert AmountZero();
        _debit(msg.sender, amount);
        session.cap += amount;
        emit SessionToppedUp(id, amount, session.cap);
    }

    /// @inheritdoc IEscrow
    function claim(Voucher calldata voucher, bytes calldata signature, Stage[] calldata plan) external nonReentrant {
        uint256 claimed = _sessions[voucher.sessionId].claimed;
        if (voucher.cumulative <= claimed) revert VoucherStale(voucher.cumulative, claimed);
        _claim(voucher, signature, plan, Eip712Types.domainSeparator(taskRegistry));
    }

    /// @inheritdoc IEscrow
    function claimMany(Voucher[] calldata vouchers, bytes[] calldata signatures, Stage[][] calldata plans) external nonReentrant {
        if (vouchers.length > MAX_VOUCHERS) revert TooManyVouchers(MAX_VOUCHERS);
        if (signatures.length != vouchers.length || plans.length != vouchers.length) revert LengthMismatch();
        bytes32 separator = Eip712Types.domainSeparator(taskRegistry);
        for (uint256 i; i < vouchers.length; ++i) {
            if (vouchers[i].cumulative <= _sessions[vouchers[i].sessionId].claimed) continue;
            _claim(vouchers[i], signatures[i], plans[i], separator);
        }
    }

    /// @inheritdoc IEscrow
    function requestClose(SessionId id) external {
        Session storage session = _sessions[id];
        if (session.state != SessionState.Open) revert SessionWrongState(session.state);
        if (msg.sender != session.requester) revert NotSessionRequester(msg.sender);
        session.state = SessionState.Closing;
        session.closeAt = (block.timestamp + sessionCloseDelaySeconds).toUint40();
        emit SessionClosing(id, _closableAt(session));
    }

    /// @inheritdoc IEscrow
    function close(SessionId id) external {
        Session storage session = _sessions[id];
        SessionState state = session.state;
        if (state != SessionState.Open && state != SessionState.Closing) revert SessionWrongState(state);
        uint256 until = _closableAt(session);
        if (block.timestamp <= until) revert SessionStillOpen(until);
        session.state = SessionState.Closed;
        uint256 refund = uint256(session.cap) - session.claimed + session.dust;
        _balances[session.requester] += refund;
        emit SessionClosed(id, refund);
    }

    // --- anyone with a credit ---

    /// @inheritdoc IEscrow
    function withdrawCredit() external nonReentrant returns (uint256 amount) {
        amount = _credits[msg.sender];
        if (amount == 0) revert NoCredit();
        delete _credits[msg.sender];
        emit CreditWithdrawn(msg.sender, amount);
        IERC20(token).safeTransfer(msg.sender, amount);
    }

    // --- TaskRegistry only ---

    /// @inheritdoc IEscrow
    function lockForJob(JobId job, address requester, uint256 amount) external onlyTaskRegistry {
        _lock(job, requester, amount);
        _debit(requester, amount);
    }

    /// @inheritdoc IEscrow
    function pullForJob(JobId job, address requester, uint256 amount) external onlyTaskRegistry nonReentrant {
        _lock(job, requester, amount);
        _pull(requester, amount);
    }

    /// @inheritdoc IEscrow
    function releaseJob(JobId job, Payout[] calldata payouts) external onlyTaskRegistry returns (uint256 refunded) {
        JobLock memory lock = _locks[job];
        if (lock.requester == address(0)) revert JobLockMissing(job);
        delete _locks[job];
        uint256 paid;
        for (uint256 i; i < payouts.length; ++i) {
            paid += payouts[i].amount;
            _credit(payouts[i].account, payouts[i].amount, JobId.unwrap(job));
        }
        if (paid > lock.amount) revert PayoutsExceedLock(paid, lock.amount);
        refunded = lock.amount - paid;
        if (refunded > 0) _balances[lock.requester] += refunded;
        emit JobReleased(job, lock.requester, refunded, paid);
    }

    // --- reads ---

    /// @inheritdoc IEscrow
    function balanceOf(address account) external view returns (uint256) {
        return _balances[account];
    }

    /// @inheritdoc IEscrow
    function creditOf(address account) external view returns (uint256) {
        return _credits[account];
    }

    /// @inheritdoc IEscrow
    function thawOf(address account) external view returns (Thaw memory) {
        return _thaws[account];
    }

    /// @inheritdoc IEscrow
    function lockOf(JobId job) external view returns (address requester, uint256 amount) {
        JobLock memory lock = _locks[job];
        return (lock.requester, lock.amount);
    }

    /// @inheritdoc IEscrow
    function sessionOf(SessionId id) external view returns (Session memory) {
        return _sessions[id];
    }

    /// @inheritdoc IEscrow
    function sessionIdOf(address requester, bytes32 salt) public view returns (SessionId) {
        return SessionId.wrap(keccak256(abi.encode(block.chainid, address(this), requester, salt)));
    }

    // --- internals ---

    function _deposit(address account, uint256 amount) private {
        if (amount == 0) revert AmountZero();
        // SAFETY: only ever adds to a balance; nobody's deposit can touch another account's thaw.
        _balances[account] += amount;
        emit Deposited(account, msg.sender, amount);
        _pull(msg.sender, amount);
    }

    /// INVARIANT: the books grow by exactly what arrived, so a token that takes a fee or rebases is refused here.
    function _pull(address from, uint256 amount) private {
        uint256 before = IERC20(token).balanceOf(address(this));
        IERC20(token).safeTransferFrom(from, address(this), amount);
        uint256 received = IERC20(token).balanceOf(address(this)) - before;
        if (received != amount) revert TokenShortfall(received, amount);
    }

    function _debit(address account, uint256 amount) private {
        uint256 balance = _balances[account];
        if (balance < amount) revert InsufficientBalance(account, balance, amount);
        _balances[account] = balance - amount;
    }

    function _credit(address account, uint256 amount, bytes32 source) private {
        if (amount == 0) return;
        _credits[account] += amount;
        emit Credited(account, amount, source);
    }

    function _lock(JobId job, address requester, uint256 amount) private {
        if (_locks[job].requester != address(0)) revert JobLockExists(job);
        _locks[job] = JobLock(requester, amount.toUint96());
        emit JobLocked(job, requester, amount);
    }

    function _claim(Voucher calldata voucher, bytes calldata signature, Stage[] calldata plan, bytes32 separator) private {
        Session storage session = _sessions[voucher.sessionId];
        SessionState state = session.state;
        if (state != SessionState.Open && state != SessionState.Closing) revert SessionWrongState(state);
        bytes32 planHash = session.planHash;
        if (voucher.planHash != planHash) revert PlanMismatch(voucher.planHash, planHash);
        bytes32 shownHash = Eip712Types.planHash(plan);
        if (shownHash != planHash) revert PlanMismatch(shownHash, planHash);
        if (voucher.cumulative > session.cap) revert SessionOverCap(voucher.cumulative, session.cap);
        bytes32 digest = Eip712Types.toDigest(separator, Eip712Types.voucherHash(voucher));
        if (!Eip712Types.isValidSigner(session.requester, digest, signature)) revert BadSignature();
        _payOut(session, voucher, plan);
    }

    /// INVARIANT: what an account has got from a session is a function of `claimed` alone, so vouchers pay the same in any number
    /// of steps; and fee + Σ shares + dust == claimed.
    function _payOut(Session storage session, Voucher calldata voucher, Stage[] calldata plan) private {
        Session memory s = session;
        uint256 before = s.claimed;
        uint256 cumulative = voucher.cumulative;
        bytes32 source = SessionId.unwrap(voucher.sessionId);
        uint256[] memory units = Plans.unitsOf(plan, s.layers, s.embedUnits, s.headUnits);
        uint256 totalUnits = uint256(s.layers) + s.embedUnits + s.headUnits;
        session.claimed = cumulative.toUint96();

        uint256 fee = Split.fee(cumulative, s.matcherFeeBps);
        uint256 dust = cumulative - fee;
        _credit(s.matcher, fee - Split.fee(before, s.matcherFeeBps), source);
        for (uint256 i; i < plan.length; ++i) {
            uint256 total = Split.sessionTotal(cumulative, s.matcherFeeBps, units[i], totalUnits);
            dust -= total;
            uint256 share = total - Split.sessionTotal(before, s.matcherFeeBps, units[i], totalUnits);
            _credit(IMinerRegistry(minerRegistry).ownerOf(plan[i].operator), share, source);
        }
        session.dust = uint8(dust); // less than one unit a stage, and at most 64 stages
        emit SessionClaimed(voucher.sessionId, cumulative, cumulative - before);
    }

    /// Closing: after its delay. In either state no later than the delay after expiry.
    function _closableAt(Session storage session) private view returns (uint256) {
        uint256 afterExpiry = uint256(session.expiry) + sessionCloseDelaySeconds;
        if (session.state != SessionState.Closing || session.closeAt > afterExpiry) return afterExpiry;
        return session.closeAt;
    }
}
