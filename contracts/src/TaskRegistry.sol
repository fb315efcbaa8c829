// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {EntryPause} from "./EntryPause.sol";
import {Evidence} from "./Evidence.sol";
import {IArbitrator} from "./interfaces/IArbitrator.sol";
import {IEscrow} from "./interfaces/IEscrow.sol";
import {IEvidence} from "./interfaces/IEvidence.sol";
import {IMinerRegistry} from "./interfaces/IMinerRegistry.sol";
import {IModelRegistry} from "./interfaces/IModelRegistry.sol";
import {ITaskRegistry} from "./interfaces/ITaskRegistry.sol";
import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Plans} from "./libraries/Plans.sol";
import {Receipts} from "./libraries/Receipts.sol";
import {Split} from "./libraries/Split.sol";
import {Proofs} from "./Proofs.sol";
import {JobId, ModelId} from "./types/Ids.sol";
import {Acceptance, Ack, AuditorDelegation, Order, Stage, StageReceipt} from "./types/Signed.sol";

/// What is the life of a job, from signed order to payment? See ITaskRegistry.
contract TaskRegistry is ITaskRegistry, EntryPause, ReentrancyGuardTransient {
    using Address for address;

    /// Of a dispute, by `_trialKey`.
    enum Trial {
        None,
        Open,
        Over
    }

    uint256 private constant MAX_MATCHER_FEE_BPS = 500;
    uint256 private constant MAX_PROTOCOL_FEE_BPS = 100;
    /// Signed words that contradict each other are no accident.
    uint16 private constant SLASH_ALL_BPS = 10_000;

    IEscrow public immutable escrow;
    IMinerRegistry public immutable minerRegistry;
    IModelRegistry public immutable modelRegistry;
    IEvidence public immutable evidence;
    Proofs private immutable _proofs;

    Params private _params;
    mapping(JobId job => Job) private _jobs;
    mapping(bytes32 key => Trial) private _trials;
    mapping(address requester => mapping(uint256 word => uint256 bits)) private _revokedNonces;

    constructor(
        IEscrow escrow_,
        IMinerRegistry minerRegistry_,
        IModelRegistry modelRegistry_,
        Params memory params_,
        address owner_,
        address guardian_
    ) EntryPause(owner_, guardian_) {
        // INVARIANT: escrow and stakes obey this registry, and signatures mean the same to all.
        bool wired = escrow_.taskRegistry() == address(this)
            && minerRegistry_.taskRegistry() == address(this);
        // INVARIANT: stake cannot leave before the last dispute about its last receipt is over.
        uint256 longest = uint256(params_.maxJobSeconds) + params_.maxWindowSeconds
            + minerRegistry_.maxDisputeSeconds();
        if (!wired || minerRegistry_.unbondSeconds() < longest) revert WiringMismatch();
        if (params_.protocolFeeBps > MAX_PROTOCOL_FEE_BPS) {
            revert FeeTooHigh(params_.protocolFeeBps, MAX_PROTOCOL_FEE_BPS);
        }
        if (params_.feeRecipient == address(0)) revert AccountZero();
        // INVARIANT: nobody who holds a session's Ack finds it worthless without a warning.
        if (params_.closeDelaySeconds == 0) revert CloseDelayZero();
        escrow = escrow_;
        minerRegistry = minerRegistry_;
        modelRegistry = modelRegistry_;
        _proofs = new Proofs(minerRegistry_, modelRegistry_);
        evidence = new Evidence();
        _params = params_;
    }

    // --- a job begins ---

    function open(Order calldata order) external whenEntriesOpen nonReentrant returns (JobId id) {
        if (msg.sender != order.requester) revert NotParty(msg.sender);
        (id,) = _ids(order);
        uint256 amount = _create(id, order);
        _jobs[id].state = State.Open;
        escrow.pullForJob(id, order.requester, amount);
    }

    function openMatched(
        Order calldata order,
        bytes calldata requesterSig,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) external whenEntriesOpen nonReentrant returns (JobId id) {
        (acceptances, acceptanceSigs); // read by _check
        id = _createSigned(order, requesterSig);
        _match(id, order, plan);
    }

    function matchJob(
        Order calldata order,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) external whenEntriesOpen nonReentrant {
        (JobId id,) = _ids(order);
        Job storage job = _jobs[id];
        if (job.state != State.Open) _rejectState(job.state);
        if (block.timestamp > job.deadline) revert DeadlinePassed(job.deadline);
        (acceptances, acceptanceSigs); // read by _check
        _match(id, order, plan);
    }

    // --- a job ends well ---

    function settleAck(
        Order calldata order,
        Ack calldata ack,
        bytes calldata requesterSig,
        Stage[] calldata plan
    ) external nonReentrant {
        (JobId id, Plans.Binding memory binding) = _bind(order, plan);
        Job storage job = _jobs[id];
        State state = job.state;
        if (state != State.Matched && state != State.Delivered) _rejectState(state);
        if (ack.orderHash != binding.orderHash || ack.planHash != binding.planHash) {
            revert AckMismatch();
        }
        bytes32 digest = Eip712Types.toDigest(binding.separator, Eip712Types.ackHash(ack));
        _requireSigner(id, order, digest, requesterSig);

        if (state == State.Delivered) {
            // INVARIANT: the stages have shown their work; an Ack ends the wait for pay, and
            // changes none.
            if (ack.tokensIn != job.tokensIn || ack.tokensOut != job.tokensOut) {
                revert TokenCountMismatch(0);
            }
            if (ack.resultRoot != job.resultRoot) revert AckMismatch();
            _settle(id, order, plan);
            return;
        }
        Receipts.checkCounts(order, ack.tokensIn, ack.tokensOut);
        // INVARIANT: no dispute opens after deadline + window, which unbonding outlasts.
        uint256 from = block.timestamp < job.deadline ? block.timestamp : job.deadline;
        job.finalAt = uint40(from + job.window);
        if (job.isSession) {
            _payStep(id, order, plan, ack);
            return;
        }
        // SAFETY: else a requester could Ack nothing after the work and take its money back.
        if (msg.sender != order.matcher && !_isStage(plan, msg.sender)) {
            revert NotParty(msg.sender);
        }
        job.tokensIn = ack.tokensIn;
        job.tokensOut = ack.tokensOut;
        _settle(id, order, plan);
    }

    function deliver(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata sigs
    ) external {
        (JobId id,) = _bind(order, plan);
        Job storage job = _jobs[id];
        if (job.state != State.Matched) _rejectState(job.state);
        if (job.isSession) revert NotBatch();
        if (block.timestamp > job.deadline) revert DeadlinePassed(job.deadline);
        sigs; // read by _check
        _check();

        StageReceipt calldata last = receipts[receipts.length - 1];
        uint256 finalAt = block.timestamp + job.window;
        job.state = State.Delivered;
        job.finalAt = uint40(finalAt);
        job.tokensIn = last.tokensIn;
        job.tokensOut = last.tokensOut;
        job.resultRoot = last.outputRoot;
        emit JobDelivered(id, last.outputRoot, last.tokensIn, last.tokensOut, finalAt);
    }

    function finalize(Order calldata order, Stage[] calldata plan) external nonReentrant {
        (JobId id,) = _bind(order, plan);
        Job storage job = _jobs[id];
        if (job.state != State.Delivered) _rejectState(job.state);
        if (block.timestamp <= job.finalAt) revert WindowOpen(job.finalAt);
        _settle(id, order, plan);
    }

    // --- a job ends without work ---

    function cancel(JobId id) external nonReentrant {
        Job storage job = _jobs[id];
        if (job.state != State.Open) _rejectState(job.state);
        (address requester,) = escrow.lockOf(id);
        if (msg.sender != requester) revert NotParty(msg.sender);
        job.state = State.Cancelled;
        emit JobCancelled(id, _refundAll(id));
    }

    function expire(JobId id) external nonReentrant {
        Job storage job = _jobs[id];
        State state = job.state;
        if (state != State.Open && state != State.Matched) _rejectState(state);
        uint256 until = job.deadline;
        // INVARIANT: after the deadline of work comes a time in which only an Ack counts.
        if (state == State.Matched) until += _params.closeDelaySeconds;
        if (block.timestamp <= until) revert DeadlineNotPassed(until);
        // Not final yet and still Matched: a session that has paid.
        bool paid = job.finalAt != 0;
        job.state = paid ? State.Settled : State.Expired;
        uint256 refunded = _refundAll(id);
        if (paid) emit JobSettled(id, 0, refunded, 0);
        else emit JobExpired(id, refunded);
    }

    function requestClose(Order calldata order) external {
        (JobId id,) = _ids(order);
        Job storage job = _jobs[id];
        if (job.state != State.Matched) _rejectState(job.state);
        if (!job.isSession) revert NotSession();
        if (
            msg.sender != order.requester && msg.sender != order.matcher
                && msg.sender != escrow.jobSpenderOf(id)
        ) {
            revert NotParty(msg.sender);
        }
        // INVARIANT: a session's deadline only moves to an earlier second that has come.
        if (block.timestamp >= job.deadline) revert DeadlinePassed(job.deadline);
        job.deadline = uint40(block.timestamp);
        emit JobClosing(id, block.timestamp + _params.closeDelaySeconds);
    }

    // --- guilt ---

    function dispute(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt calldata receipt,
        bytes calldata receiptSig,
        AuditorDelegation calldata delegation,
        bytes calldata delegationSig
    ) external nonReentrant {
        (JobId id, Plans.Binding memory binding) = _bind(order, plan);
        _requireDisputable(_jobs[id]);
        receiptSig; // read by _check
        IArbitrator.DisputeRef memory ref;
        ref.right = _rightOf(id, order, delegation, delegationSig, binding);
        ref.receiptHash = abi.decode(_check(), (bytes32));
        ref.job = id;
        ref.stage = receipt.stage;
        ref.requestsRoot = receipt.requestsRoot;
        _openDispute(order, plan, ref);
    }

    function resolve(
        JobId id,
        uint16 stage,
        bytes32 receiptHash,
        IArbitrator.Right right,
        bool fault
    ) external {
        Job storage job = _jobs[id];
        if (job.arbitrator == address(0) || msg.sender != job.arbitrator) {
            revert NotArbitrator(msg.sender, job.arbitrator);
        }
        bytes32 key = _trialKey(id, stage, receiptHash, right);
        if (_trials[key] != Trial.Open) revert NoOpenDispute(stage);
        _trials[key] = Trial.Over;
        job.openDisputes -= 1;
        if (fault) job.faultMask |= uint64(1) << stage;
        if (job.state == State.Disputed && job.openDisputes == 0) job.state = State.Delivered;
        emit JobResolved(id, stage, right, receiptHash, fault);
    }

    function convict(
        Order calldata order,
        Stage[] calldata plan,
        uint16 stage,
        IEvidence.Kind kind
    ) external nonReentrant {
        if (msg.sender != address(evidence)) revert NotParty(msg.sender);
        (JobId id,) = _bind(order, plan);
        Job storage job = _jobs[id];
        _requireFaultless(job, stage);
        job.faultMask |= uint64(1) << stage;
        address owner = _ownerOf(plan[stage]);
        uint32 number = _accuse(order, owner, address(this), order.requester);
        // INVARIANT: a stolen operator key is worth what its thief locks. Nobody risked a bond for
        // this, so neither share is more than the job's own lock.
        uint256 slashed = minerRegistry.closeDispute(owner, number, SLASH_ALL_BPS, _locked(order));
        emit JobConvicted(id, stage, owner, kind, slashed);
    }

    // --- nonces ---

    function revokeNonce(uint64 nonce) external {
        if (isNonceRevoked(msg.sender, nonce)) revert NonceRevokedAlready(nonce);
        _revokedNonces[msg.sender][nonce >> 8] |= 1 << (nonce & 0xff);
        emit NonceRevoked(msg.sender, nonce);
    }

    // --- governance ---

    function setFeeRecipient(address feeRecipient) external onlyOwner {
        if (feeRecipient == address(0)) revert AccountZero();
        _params.feeRecipient = feeRecipient;
        emit FeeRecipientChanged(feeRecipient);
    }

    function lowerProtocolFee(uint16 feeBps) external onlyOwner {
        // INVARIANT: fees only fall, so a stage is never paid less than when it accepted.
        if (feeBps >= _params.protocolFeeBps) revert FeeTooHigh(feeBps, _params.protocolFeeBps);
        _params.protocolFeeBps = feeBps;
        emit ProtocolFeeLowered(feeBps);
    }

    // --- reads ---

    function jobOf(JobId id) external view returns (Job memory) {
        return _jobs[id];
    }

    function split(Order calldata order, Stage[] calldata plan, uint32 tokensIn, uint32 tokensOut)
        external
        view
        returns (
            uint256[] memory gross,
            uint256[] memory pay,
            uint256 matcherFee,
            uint256 protocolFee
        )
    {
        (uint16 layers,,) = _shapeOf(order);
        Plans.checkTiling(plan, layers);
        Split.Shares memory shares = _shares(order, plan, 0, 0, tokensIn, tokensOut, 0);
        return (shares.gross, shares.pay, shares.matcherFee, shares.protocolFee);
    }

    function isNonceRevoked(address requester, uint64 nonce) public view returns (bool) {
        return _revokedNonces[requester][nonce >> 8] >> (nonce & 0xff) & 1 == 1;
    }

    function params() external view returns (Params memory) {
        return _params;
    }

    // --- internals ---

    /// A job's id and what every message about it carries; the plan's hash once a plan is bound.
    function _ids(Order calldata order)
        private
        view
        returns (JobId id, Plans.Binding memory binding)
    {
        binding.orderHash = Eip712Types.orderHash(order);
        binding.separator = Eip712Types.domainSeparator(address(this));
        id = JobId.wrap(Eip712Types.toDigest(binding.separator, binding.orderHash));
    }

    function _maxNano(Order calldata order) private view returns (uint256) {
        (uint16 layers, uint8 embedUnits, uint8 headUnits) = _shapeOf(order);
        uint256 units = uint256(layers) + embedUnits + headUnits;
        return
            Split.cost(units, order.maxTokensIn, order.maxTokensOut, order.priceIn, order.priceOut);
    }

    /// What the order locks, in base units: the most that its requester gets of a slash's share.
    function _locked(Order calldata order) private view returns (uint256) {
        return _maxNano(order) / Split.NANO;
    }

    /// Check an order by itself and enter it; the caller sets the state and locks `amount`.
    function _create(JobId id, Order calldata order) private returns (uint256 amount) {
        Job storage job = _jobs[id];
        // INVARIANT: a job's id is its order's digest and its end is kept, so no order opens twice.
        if (job.state != State.None) _rejectState(job.state);
        if (isNonceRevoked(order.requester, order.nonce)) revert NonceRevokedAlready(order.nonce);
        if (block.timestamp > order.deadline) revert DeadlinePassed(order.deadline);
        // INVARIANT: receipts can be disputed for maxJob + maxWindow at most; unbonding is longer.
        uint256 lastDeadline = block.timestamp + _params.maxJobSeconds;
        if (order.deadline > lastDeadline) {
            revert DeadlineOutOfRange(order.deadline, lastDeadline);
        }
        if (order.window > _params.maxWindowSeconds) {
            revert WindowOutOfRange(order.window, _params.maxWindowSeconds);
        }
        if (order.requests == 0) revert RequestsZero();
        // INVARIANT: both fees are under 6 % together, so pay = gross − fees never underflows.
        uint256 maxFeeBps = order.matcher == address(0) ? 0 : MAX_MATCHER_FEE_BPS;
        if (order.matcherFeeBps > maxFeeBps) revert FeeTooHigh(order.matcherFeeBps, maxFeeBps);
        // INVARIANT: the arbitrator is on MinerRegistry's list, from which none is taken.
        if (!minerRegistry.isArbitrator(order.arbitrator)) {
            revert ArbitratorUnknown(order.arbitrator);
        }
        bytes32 profile = modelRegistry.numericsProfileOf(order.modelId);
        if (order.numericsProfile != profile) {
            revert NumericsProfileMismatch(order.numericsProfile, profile);
        }
        amount = _maxNano(order);

        job.deadline = uint40(order.deadline);
        job.window = order.window;
        job.matcherFeeBps = order.matcherFeeBps;
        job.isSession = _isSession(order);
        emit JobOpened(id, order.requester, ModelId.unwrap(order.modelId), amount);
    }

    function _match(JobId id, Order calldata order, Stage[] calldata plan) private {
        if (order.matcher != address(0) && msg.sender != order.matcher) {
            revert NotMatcher(msg.sender, order.matcher);
        }
        _check(); // that plan covers the model, that its miners may work, and that each accepted
        bytes32 planHash = Eip712Types.planHash(plan);
        Job storage job = _jobs[id];
        job.planHash = planHash;
        job.stages = uint8(plan.length);
        job.state = State.Matched;
        emit JobMatched(id, msg.sender, planHash, plan);
    }

    /// INVARIANT: from here on `plan` is the one that was accepted when the job was matched.
    function _bind(Order calldata order, Stage[] calldata plan)
        private
        view
        returns (JobId id, Plans.Binding memory binding)
    {
        (id, binding) = _ids(order);
        Job storage job = _jobs[id];
        bytes32 need = job.planHash;
        if (need == 0) _rejectState(job.state);
        binding.planHash = Eip712Types.planHash(plan);
        if (binding.planHash != need) revert PlanMismatch(binding.planHash, need);
    }

    /// Once here and not at each caller: the contract stays under the size limit of EIP-170.
    function _rejectState(State have) private pure {
        revert WrongState(have);
    }

    /// As `_create`, and lock the requester's balance, on its word or a spender's.
    function _createSigned(Order calldata order, bytes calldata signature)
        private
        returns (JobId id)
    {
        (id,) = _ids(order);
        uint256 amount = _create(id, order);
        address spender;
        if (!_isRequesters(order, JobId.unwrap(id), signature)) {
            spender = Eip712Types.recover(JobId.unwrap(id), signature);
            if (!escrow.isSpender(order.requester, spender)) revert BadSignature(order.requester);
        }
        escrow.lockForJob(id, order.requester, spender, amount);
    }

    /// INVARIANT: a job obeys its requester and the key that opened it, and no other spender: each
    /// is held to its own limit, for as long as the job lasts.
    function _requireSigner(
        JobId id,
        Order calldata order,
        bytes32 digest,
        bytes calldata signature
    ) private view {
        if (_isRequesters(order, digest, signature)) return;
        if (!Eip712Types.isSignedBy(escrow.jobSpenderOf(id), digest, signature)) {
            revert BadSignature(order.requester);
        }
    }

    /// INVARIANT: a session's Acks are of a key, the requester's own or a spender's. A contract
    /// could disown by ERC-1271 those that stages went on working for.
    function _isRequesters(Order calldata order, bytes32 digest, bytes calldata signature)
        private
        view
        returns (bool)
    {
        return _isSession(order)
            ? Eip712Types.isSignedBy(order.requester, digest, signature)
            : Eip712Types.isValidSigner(order.requester, digest, signature);
    }

    function _isSession(Order calldata order) private pure returns (bool) {
        return order.inputRoot == 0 && order.samplingRoot == 0;
    }

    /// What else the call brought, checked by Proofs from the same bytes.
    ///
    /// SAFETY: our own contract without state, and these bytes' order and plan were just bound.
    function _check() private view returns (bytes memory) {
        return address(_proofs).functionStaticCall(msg.data);
    }

    function _ownerOf(Stage calldata stage) private view returns (address) {
        return minerRegistry.ownerOf(stage.operator);
    }

    function _shapeOf(Order calldata order)
        private
        view
        returns (uint16 layers, uint8 embedUnits, uint8 headUnits)
    {
        return modelRegistry.shapeOf(order.modelId);
    }

    function _refundAll(JobId id) private returns (uint256 refunded) {
        return escrow.releaseJob(id, new IEscrow.Payout[](0));
    }

    /// The rest of `ref`, and what follows from it.
    function _openDispute(
        Order calldata order,
        Stage[] calldata plan,
        IArbitrator.DisputeRef memory ref
    ) private {
        Job storage job = _jobs[ref.job];
        _requireFaultless(job, ref.stage);
        // INVARIANT: a right is used once for a receipt, so share and stake are frozen once for it.
        bytes32 key = _trialKey(ref.job, ref.stage, ref.receiptHash, ref.right);
        if (_trials[key] != Trial.None) revert StageAlreadyDisputed(ref.stage);
        _trials[key] = Trial.Open;
        job.openDisputes += 1;
        job.arbitrator = order.arbitrator;
        if (job.state == State.Delivered) job.state = State.Disputed;
        emit JobDisputed(
            ref.job, ref.stage, msg.sender, ref.right, ref.receiptHash, order.arbitrator
        );

        ref.operator = plan[ref.stage].operator;
        ref.accused = _ownerOf(plan[ref.stage]);
        ref.challenger = msg.sender;
        ref.requester = order.requester;
        ref.modelId = order.modelId;
        ref.operators = _operators(plan);
        ref.parties = _parties(order, ref.job);
        ref.number = _accuse(order, ref.accused, order.arbitrator, msg.sender);
        IArbitrator(order.arbitrator).open(ref);
    }

    /// INVARIANT: the victim of record is the requester, for what the job locked.
    function _accuse(Order calldata order, address owner, address arbitrator, address challenger)
        private
        returns (uint32 number)
    {
        return
            minerRegistry.openDispute(
                owner, arbitrator, challenger, order.requester, _locked(order)
            );
    }

    function _trialKey(JobId id, uint16 stage, bytes32 receiptHash, IArbitrator.Right right)
        private
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(id, stage, receiptHash, right));
    }

    /// INVARIANT: a stage is found at fault once for a job, but for disputes that were open then.
    function _requireFaultless(Job storage job, uint16 stage) private view {
        if (job.faultMask >> stage & 1 != 0) revert StageAlreadyAtFault(stage);
    }

    function _requireDisputable(Job storage job) private view {
        State state = job.state;
        // A session is disputed while it goes on, once it has paid: finalAt is set.
        bool paid = state == State.Settled || (state == State.Matched && job.finalAt != 0);
        if (state != State.Delivered && state != State.Disputed && !paid) _rejectState(state);
        if (block.timestamp > job.finalAt) revert WindowClosed(job.finalAt);
    }

    /// The requester's, or that of the order's auditor and of a delegate by signature.
    function _rightOf(
        JobId id,
        Order calldata order,
        AuditorDelegation calldata delegation,
        bytes calldata signature,
        Plans.Binding memory binding
    ) private view returns (IArbitrator.Right) {
        if (msg.sender == order.requester) {
            return IArbitrator.Right.Requester;
        }
        if (msg.sender == order.auditor) return IArbitrator.Right.Auditor;
        if (
            delegation.auditor != msg.sender || delegation.orderHash != binding.orderHash
                || block.timestamp > delegation.expiry
        ) {
            revert NotParty(msg.sender);
        }
        _requireSigner(
            id,
            order,
            Eip712Types.toDigest(binding.separator, Eip712Types.delegationHash(delegation)),
            signature
        );
        return IArbitrator.Right.Auditor;
    }

    function _operators(Stage[] calldata plan) private pure returns (address[] memory operators) {
        operators = new address[](plan.length);
        for (uint256 i; i < plan.length; ++i) {
            operators[i] = plan[i].operator;
        }
    }

    /// Who else has an interest in the job. May repeat, and have zeros.
    function _parties(Order calldata order, JobId id)
        private
        view
        returns (address[] memory parties)
    {
        parties = new address[](5);
        (parties[0], parties[1]) = (order.requester, msg.sender);
        (parties[2], parties[3]) = (order.matcher, order.auditor);
        parties[4] = escrow.jobSpenderOf(id);
    }

    function _isStage(Stage[] calldata plan, address account) private view returns (bool) {
        for (uint256 i; i < plan.length; ++i) {
            if (account == plan[i].operator || account == _ownerOf(plan[i])) return true;
        }
        return false;
    }

    /// Pay by a batch's counts and close. INVARIANT: paid + refunded == maxAmount.
    function _settle(JobId id, Order calldata order, Stage[] calldata plan) private {
        Job storage job = _jobs[id];
        job.state = State.Settled;
        Split.Shares memory shares =
            _shares(order, plan, 0, 0, job.tokensIn, job.tokensOut, job.faultMask);
        (IEscrow.Payout[] memory payouts, uint256 paid) = _payouts(order, plan, shares);
        emit JobSettled(id, paid, escrow.releaseJob(id, payouts), shares.withheld);
    }

    /// Pay what a session has come to since its last Ack; it goes on.
    ///
    /// INVARIANT: an Ack is worth its face whatever was paid before: each count is the most that
    /// any Ack said. So counts never fall, and an Ack that raises neither changes nothing, not even
    /// the window. A stage found at fault is paid no more; its gross stays with the requester.
    function _payStep(JobId id, Order calldata order, Stage[] calldata plan, Ack calldata ack)
        private
    {
        Job storage job = _jobs[id];
        (uint32 paidIn, uint32 paidOut) = (job.tokensIn, job.tokensOut);
        uint32 tokensIn = ack.tokensIn > paidIn ? ack.tokensIn : paidIn;
        uint32 tokensOut = ack.tokensOut > paidOut ? ack.tokensOut : paidOut;
        if (tokensIn == paidIn && tokensOut == paidOut) revert AckStale(paidIn, paidOut);
        job.tokensIn = tokensIn;
        job.tokensOut = tokensOut;
        Split.Shares memory shares =
            _shares(order, plan, paidIn, paidOut, tokensIn, tokensOut, job.faultMask);
        (IEscrow.Payout[] memory payouts, uint256 paid) = _payouts(order, plan, shares);
        emit JobPaid(id, tokensIn, tokensOut, paid);
        escrow.payJob(id, payouts);
    }

    function _payouts(Order calldata order, Stage[] calldata plan, Split.Shares memory shares)
        private
        view
        returns (IEscrow.Payout[] memory payouts, uint256 paid)
    {
        payouts = new IEscrow.Payout[](plan.length + 2);
        paid = shares.matcherFee + shares.protocolFee;
        for (uint256 i; i < plan.length; ++i) {
            paid += shares.pay[i];
            payouts[i] = IEscrow.Payout(_ownerOf(plan[i]), shares.pay[i]);
        }
        payouts[plan.length] = IEscrow.Payout(order.matcher, shares.matcherFee);
        payouts[plan.length + 1] = IEscrow.Payout(_params.feeRecipient, shares.protocolFee);
    }

    function _shares(
        Order calldata order,
        Stage[] calldata plan,
        uint256 paidIn,
        uint256 paidOut,
        uint256 tokensIn,
        uint256 tokensOut,
        uint256 faultMask
    ) private view returns (Split.Shares memory) {
        (uint16 layers, uint8 embedUnits, uint8 headUnits) = _shapeOf(order);
        return Split.shares(
            Plans.unitsOf(plan, layers, embedUnits, headUnits),
            Split.Terms({
                paidIn: paidIn,
                paidOut: paidOut,
                tokensIn: tokensIn,
                tokensOut: tokensOut,
                priceIn: order.priceIn,
                priceOut: order.priceOut,
                matcherFeeBps: order.matcherFeeBps,
                protocolFeeBps: _params.protocolFeeBps
            }),
            faultMask
        );
    }
}
