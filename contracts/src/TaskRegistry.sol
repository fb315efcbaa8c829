// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
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
import {Jobs} from "./libraries/Jobs.sol";
import {Plans} from "./libraries/Plans.sol";
import {Receipts} from "./libraries/Receipts.sol";
import {Senders} from "./libraries/Senders.sol";
import {Split} from "./libraries/Split.sol";
import {Proofs} from "./Proofs.sol";
import {JobId, ModelId} from "./types/Ids.sol";
import {Ack, AuditorDelegation, Order, Stage, StageReceipt} from "./types/Signed.sol";

/// What is the life of a job, from signed order to payment? See ITaskRegistry.
contract TaskRegistry is ITaskRegistry, EntryPause, ReentrancyGuardTransient {
    using Address for address;
    using Jobs for uint256;

    /// A job that is there, and what every message about it carries.
    struct Bound {
        JobId id;
        bytes32 key;
        Plans.Binding binding;
    }

    uint256 private constant MAX_MATCHER_FEE_BPS = 500;
    uint256 private constant MAX_PROTOCOL_FEE_BPS = 100;
    /// Signed words that contradict each other are no accident.
    uint16 private constant SLASH_ALL_BPS = 10_000;
    /// In place of the job's key, of a dispute that was resolved.
    bytes32 private constant OVER = bytes32(uint256(1));

    IEscrow public immutable escrow;
    IMinerRegistry public immutable minerRegistry;
    IModelRegistry public immutable modelRegistry;
    IEvidence public immutable evidence;
    Proofs private immutable _proofs;

    uint32 private immutable _maxJobSeconds;
    uint32 private immutable _maxWindowSeconds;
    uint32 private immutable _closeDelaySeconds;
    /// What the owner may lower or redirect, in one word.
    uint16 private _protocolFeeBps;
    address private _feeRecipient;
    /// See Jobs.
    mapping(bytes32 key => uint256 job) private _jobs;
    /// The job's key, of an open dispute.
    mapping(bytes32 trial => bytes32 key) private _trials;
    mapping(address requester => mapping(uint256 word => uint256 bits)) private _usedNonces;
    /// Of models that had a job: `_wordOf`. INVARIANT: a model never changes.
    mapping(ModelId => uint256 word) private _models;

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
        uint256 longest = uint256(params_.maxJobSeconds) + params_.closeDelaySeconds
            + params_.maxWindowSeconds + minerRegistry_.maxDisputeSeconds();
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
        _proofs = new Proofs();
        evidence = new Evidence();
        _maxJobSeconds = params_.maxJobSeconds;
        _maxWindowSeconds = params_.maxWindowSeconds;
        _closeDelaySeconds = params_.closeDelaySeconds;
        _protocolFeeBps = params_.protocolFeeBps;
        _feeRecipient = params_.feeRecipient;
    }

    // --- a job begins ---

    function open(Order calldata order) external whenEntriesOpen nonReentrant returns (JobId id) {
        if (msg.sender != order.requester) revert NotParty(msg.sender);
        if (!minerRegistry.isArbitrator(order.arbitrator)) {
            revert ArbitratorUnknown(order.arbitrator);
        }
        id = _idOf(order);
        (uint256 job, uint256 maxNano) = _create(id, order);
        _jobs[_keyOf(id, 0)] = job.with(State.Open);
        escrow.pull(order.requester, maxNano);
    }

    function openMatched(Order calldata order, bytes calldata requesterSig, Stage[] calldata plan)
        external
        whenEntriesOpen
        nonReentrant
        returns (JobId id)
    {
        id = _idOf(order);
        (uint256 job, uint256 maxNano) = _create(id, order);
        address spender;
        if (!_isRequesters(order, JobId.unwrap(id), requesterSig)) {
            spender = Eip712Types.recover(JobId.unwrap(id), requesterSig);
            if (!escrow.isSpender(order.requester, spender)) revert BadSignature(order.requester);
            job = job.ofSpender();
        }
        _match(id, job, order, plan);
        escrow.lock(id, order.requester, spender, maxNano);
    }

    function matchJob(Order calldata order, Stage[] calldata plan)
        external
        whenEntriesOpen
        nonReentrant
    {
        JobId id = _idOf(order);
        bytes32 key = _keyOf(id, 0);
        uint256 job = _jobs[key];
        if (job.state() != State.Open) _rejectState(job);
        if (block.timestamp > job.deadline()) revert DeadlinePassed(job.deadline());
        delete _jobs[key];
        _match(id, job, order, plan);
    }

    // --- a job ends well ---

    function settleAck(
        Order calldata order,
        Ack calldata ack,
        bytes calldata requesterSig,
        Stage[] calldata plan
    ) external nonReentrant {
        (Bound memory bound, uint256 job) = _bind(order, plan);
        State state = job.state();
        if (state != State.Matched && state != State.Delivered) _rejectState(job);
        if (ack.orderHash != bound.binding.orderHash || ack.planHash != bound.binding.planHash) {
            revert AckMismatch();
        }
        bytes32 digest = Eip712Types.toDigest(bound.binding.separator, Eip712Types.ackHash(ack));
        _requireSigner(bound.id, order, digest, requesterSig);

        if (state == State.Delivered && job.finalAt() <= job.deadline() + order.window) {
            // INVARIANT: the stages have shown all of their work; an Ack ends the wait for pay, and
            // changes none.
            if (ack.tokensIn != job.tokensIn() || ack.tokensOut != job.tokensOut()) {
                revert TokenCountMismatch(0);
            }
            _settle(bound, job, order, plan);
            return;
        }
        Receipts.checkCounts(order, ack.tokensIn, ack.tokensOut);
        uint256 counted = job.withMost(ack.tokensIn, ack.tokensOut);
        // SAFETY: a batch ends by its matcher's word alone. Else a requester, or a stage of its,
        // could end it with an Ack of nothing after the work.
        bool ends = msg.sender == order.matcher && !_isSession(order);
        // INVARIANT: an Ack that counts nothing new changes nothing, not even the window.
        if (counted == job && !ends) revert AckStale(job.tokensIn(), job.tokensOut());
        if (state == State.Matched) {
            uint256 from = job.deadline();
            if (block.timestamp < from) from = block.timestamp;
            // SAFETY: both have 32 bits.
            unchecked {
                counted = counted.withFinalAt(from + order.window);
            }
        }
        if (ends) {
            _settle(bound, counted, order, plan);
            return;
        }
        _jobs[bound.key] = counted;
        emit JobAcknowledged(bound.id, counted.tokensIn(), counted.tokensOut());
    }

    function deliver(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata sigs
    ) external {
        (Bound memory bound, uint256 job) = _bind(order, plan);
        // SAFETY: who may accuse a stage reads receipts in the calldata, whatever stages show.
        Senders.requireKey();
        bool isLate = block.timestamp > job.deadline();
        State state = job.state();
        bool isAgain = state == State.Delivered || state == State.Disputed;
        if (state != State.Matched && !(isLate && isAgain)) _rejectState(job);
        if (_isSession(order)) revert NotBatch();
        uint256 until = job.deadline() + (isLate ? _closeDelaySeconds : 0);
        if (block.timestamp > until) revert DeadlinePassed(until);
        sigs; // read by _check
        _check();

        StageReceipt calldata last = receipts[receipts.length - 1];
        uint256 counted = job.withMost(last.tokensIn, last.tokensOut);
        // INVARIANT: what was counted before is paid in its time, whatever is shown again.
        if (isLate && counted == job) revert AckStale(job.tokensIn(), job.tokensOut());
        // INVARIANT: a late window begins when nothing more can come, so none ends the job between
        // a small part and a larger one; and unbonding outlasts it.
        uint256 finalAt = (isLate ? until : block.timestamp) + order.window;
        job = counted.withFinalAt(finalAt);
        // An Ack lets disputes begin before.
        job = job.with(job.openDisputes() == 0 ? State.Delivered : State.Disputed);
        _jobs[bound.key] = job;
        emit JobDelivered(bound.id, last.outputRoot, job.tokensIn(), job.tokensOut(), finalAt);
    }

    function finalize(Order calldata order, Stage[] calldata plan) external nonReentrant {
        (Bound memory bound, uint256 job) = _bind(order, plan);
        if (job.state() != State.Delivered) _rejectState(job);
        if (block.timestamp <= job.finalAt()) revert WindowOpen(job.finalAt());
        _settle(bound, job, order, plan);
    }

    // --- a job ends without delivery ---

    function cancel(Order calldata order) external nonReentrant {
        JobId id = _idOf(order);
        bytes32 key = _keyOf(id, 0);
        uint256 job = _jobs[key];
        if (job.state() != State.Open) _rejectState(job);
        if (msg.sender != order.requester) revert NotParty(msg.sender);
        _jobs[key] = job.with(State.Cancelled);
        emit JobCancelled(id, order.requester, _payBack(id, job, order, 0));
    }

    function expire(Order calldata order, Stage[] calldata plan) external nonReentrant {
        Bound memory bound;
        uint256 job;
        if (plan.length == 0) {
            bound.id = _idOf(order);
            bound.key = _keyOf(bound.id, 0);
            job = _jobs[bound.key];
            if (job.state() != State.Open) _rejectState(job);
        } else {
            (bound, job) = _bind(order, plan);
            if (job.state() != State.Matched) _rejectState(job);
        }
        // INVARIANT: after the deadline of work comes a time in which Acks and receipts count.
        uint256 until = job.deadline() + (plan.length == 0 ? 0 : _closeDelaySeconds);
        if (block.timestamp <= until) revert DeadlineNotPassed(until);
        if (job.isCounted()) {
            _settle(bound, job, order, plan);
            return;
        }
        _jobs[bound.key] = job.with(State.Expired);
        // INVARIANT: opening costs its sender gas, so a match is paid for whatever comes of it.
        uint256 fee = plan.length == 0 ? 0 : _openingNano(order);
        uint256 refunded = _payBack(bound.id, job, order, fee);
        emit JobExpired(bound.id, order.requester, fee, refunded);
    }

    function requestClose(Order calldata order, bytes32 planHash) external {
        JobId id = _idOf(order);
        bytes32 key = _keyOf(id, planHash);
        uint256 job = _jobs[key];
        if (job.state() != State.Matched) _rejectState(job);
        if (!_isSession(order)) revert NotSession();
        if (
            msg.sender != order.requester && msg.sender != order.matcher
                && msg.sender != escrow.jobSpenderOf(id)
        ) {
            revert NotParty(msg.sender);
        }
        // INVARIANT: a session's deadline only moves to an earlier second that has come.
        if (block.timestamp >= job.deadline()) revert DeadlinePassed(job.deadline());
        _jobs[key] = job.withDeadline(block.timestamp);
        emit JobClosing(id, block.timestamp + _closeDelaySeconds);
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
        (Bound memory bound, uint256 job) = _bind(order, plan);
        _requireDisputable(job);
        receiptSig; // read by _check
        IArbitrator.DisputeRef memory ref;
        ref.right = _rightOf(bound, order, delegation, delegationSig);
        ref.receiptHash = abi.decode(_check(), (bytes32));
        ref.job = bound.id;
        ref.stage = receipt.stage;
        ref.requestsRoot = receipt.requestsRoot;
        _openDispute(bound.key, job, order, plan, ref);
    }

    function resolve(
        JobId id,
        uint16 stage,
        bytes32 receiptHash,
        IArbitrator.Right right,
        bool fault
    ) external {
        bytes32 trial = _trialOf(id, stage, receiptHash, right, msg.sender);
        bytes32 key = _trials[trial];
        if (key == 0 || key == OVER) revert NoOpenDispute(stage);
        _trials[trial] = OVER;
        _jobs[key] = _jobs[key].resolved(stage, fault);
        emit JobResolved(id, stage, right, receiptHash, fault);
    }

    function convict(
        Order calldata order,
        Stage[] calldata plan,
        uint16 stage,
        IEvidence.Kind kind
    ) external nonReentrant {
        if (msg.sender != address(evidence)) revert NotParty(msg.sender);
        (Bound memory bound, uint256 job) = _bind(order, plan);
        _requireFaultless(job, stage);
        _jobs[bound.key] = job.withFault(stage);
        address owner = _ownerOf(plan[stage]);
        emit JobConvicted(bound.id, stage, owner, kind, _slashAll(job, order, owner));
    }

    // --- nonces ---

    function revokeNonce(uint64 nonce) external {
        _useNonce(msg.sender, nonce);
        emit NonceRevoked(msg.sender, nonce);
    }

    // --- governance ---

    function setFeeRecipient(address feeRecipient) external onlyOwner {
        if (feeRecipient == address(0)) revert AccountZero();
        _feeRecipient = feeRecipient;
        emit FeeRecipientChanged(feeRecipient);
    }

    function lowerProtocolFee(uint16 feeBps) external onlyOwner {
        // INVARIANT: fees only fall, so a stage is never paid less than when it accepted.
        if (feeBps >= _protocolFeeBps) revert FeeTooHigh(feeBps, _protocolFeeBps);
        _protocolFeeBps = feeBps;
        emit ProtocolFeeLowered(feeBps);
    }

    // --- reads ---

    function jobOf(JobId id, bytes32 planHash) external view returns (Job memory) {
        return _jobs[_keyOf(id, planHash)].told();
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
        uint256 job = Jobs.create(uint32(_wordOf(order.modelId)), 0).withMost(tokensIn, tokensOut);
        Plans.checkTiling(plan, job.layers());
        Split.Terms memory terms = _terms(job, order);
        Plans.Shape memory shape = job.shape();
        Split.Shares memory shares = Split.shares(plan, shape, terms);
        gross = new uint256[](plan.length);
        pay = new uint256[](plan.length);
        for (uint256 i; i < plan.length; ++i) {
            gross[i] = Plans.unitsOf(plan[i], shape) * terms.nanoPerUnit;
            pay[i] = Split.nanoOf(shares.pay[i]);
        }
        return (gross, pay, shares.matcherFee, shares.protocolFee);
    }

    function isNonceUsed(address requester, uint64 nonce) external view returns (bool) {
        return _usedNonces[requester][nonce >> 8] >> (nonce & 0xff) & 1 == 1;
    }

    function params() external view returns (Params memory) {
        return Params({
            protocolFeeBps: _protocolFeeBps,
            feeRecipient: _feeRecipient,
            maxJobSeconds: _maxJobSeconds,
            maxWindowSeconds: _maxWindowSeconds,
            closeDelaySeconds: _closeDelaySeconds
        });
    }

    // --- internals ---

    function _idOf(Order calldata order) private view returns (JobId) {
        return JobId.wrap(
            Eip712Types.toDigest(
                Eip712Types.domainSeparator(address(this)), Eip712Types.orderHash(order)
            )
        );
    }

    /// INVARIANT: a job is found by its plan alone, so all that is paid or punished in it is by the
    /// plan that it was matched with. `planHash` is zero before.
    function _keyOf(JobId id, bytes32 planHash) private pure returns (bytes32) {
        return keccak256(abi.encode(id, planHash));
    }

    /// INVARIANT: from here on `plan` is the one that the job was matched with.
    function _bind(Order calldata order, Stage[] calldata plan)
        private
        view
        returns (Bound memory bound, uint256 job)
    {
        bound.binding = Plans.Binding({
            orderHash: Eip712Types.orderHash(order),
            planHash: Eip712Types.planHash(plan),
            separator: Eip712Types.domainSeparator(address(this))
        });
        bound.id =
            JobId.wrap(Eip712Types.toDigest(bound.binding.separator, bound.binding.orderHash));
        bound.key = _keyOf(bound.id, bound.binding.planHash);
        job = _jobs[bound.key];
        if (job.state() == State.None) _rejectState(job);
    }

    /// A model's shape, as Jobs keeps it, in place of the lowest 32 bits of its numerics profile.
    function _wordOf(ModelId model) private view returns (uint256) {
        (uint16 layers, uint8 embedUnits, uint8 headUnits) = modelRegistry.shapeOf(model);
        uint256 profile = uint256(modelRegistry.numericsProfileOf(model));
        return profile >> 32 << 32 | Jobs.shapeOf(layers, embedUnits, headUnits);
    }

    function _rejectProfile(Order calldata order) private view {
        bytes32 profile = modelRegistry.numericsProfileOf(order.modelId);
        revert NumericsProfileMismatch(order.numericsProfile, profile);
    }

    function _units(uint256 job) private pure returns (uint256) {
        return uint256(job.layers()) + job.embedUnits() + job.headUnits();
    }

    function _openingNano(Order calldata order) private pure returns (uint256) {
        // SAFETY: 64 bits and 30.
        unchecked {
            return order.openingFee * Split.NANO;
        }
    }

    /// All that the order locks.
    function _maxNano(uint256 job, Order calldata order) private pure returns (uint256) {
        uint256 most =
            Split.perUnit(order.maxTokensIn, order.maxTokensOut, order.priceIn, order.priceOut);
        // SAFETY: units, what tokens cost for each, and the fee have 17, 97 and 94 bits.
        unchecked {
            return _units(job) * most + _openingNano(order);
        }
    }

    /// What the order locks, in base units: the most that its requester gets of a slash's share.
    function _maxUnits(uint256 job, Order calldata order) private pure returns (uint256) {
        return _maxNano(job, order) / Split.NANO;
    }

    /// Check an order by itself and use its nonce; the caller sets the state and locks `maxNano`.
    function _create(JobId id, Order calldata order)
        private
        returns (uint256 job, uint256 maxNano)
    {
        // INVARIANT: a nonce opens one job, so no order opens twice.
        _useNonce(order.requester, order.nonce);
        if (block.timestamp > order.deadline) revert DeadlinePassed(order.deadline);
        // INVARIANT: receipts can be disputed for maxJob + maxWindow at most; unbonding is longer.
        uint256 lastDeadline = block.timestamp + _maxJobSeconds;
        if (order.deadline > lastDeadline) {
            revert DeadlineOutOfRange(order.deadline, lastDeadline);
        }
        if (order.window > _maxWindowSeconds) {
            revert WindowOutOfRange(order.window, _maxWindowSeconds);
        }
        if (order.requests == 0) revert RequestsZero();
        // INVARIANT: both fees are under 6 % together, so pay = gross − fees never underflows.
        uint256 maxFeeBps = order.matcher == address(0) ? 0 : MAX_MATCHER_FEE_BPS;
        if (order.matcherFeeBps > maxFeeBps) revert FeeTooHigh(order.matcherFeeBps, maxFeeBps);
        // INVARIANT: no fee is owed to nobody.
        if (maxFeeBps == 0 && order.openingFee != 0) revert FeeTooHigh(order.openingFee, 0);
        uint256 model = _models[order.modelId];
        if (model == 0) _models[order.modelId] = model = _wordOf(order.modelId);
        // 224 bits of a hash are as good as all.
        if (uint256(order.numericsProfile) >> 32 != model >> 32) _rejectProfile(order);
        job = Jobs.create(uint32(model), SafeCast.toUint32(order.deadline));
        // INVARIANT: a stage's share is packed beside its operator's address.
        maxNano = SafeCast.toUint96(_maxNano(job, order));
        emit JobOpened(id, order.requester, ModelId.unwrap(order.modelId), maxNano);
    }

    function _useNonce(address requester, uint64 nonce) private {
        uint256 word = _usedNonces[requester][nonce >> 8];
        uint256 bit = 1 << (nonce & 0xff);
        if (word & bit != 0) revert NonceUsedAlready(nonce);
        _usedNonces[requester][nonce >> 8] = word | bit;
    }

    /// Whom the order names to match it gives the job its pipeline; without a name its requester.
    function _match(JobId id, uint256 job, Order calldata order, Stage[] calldata plan) private {
        address matcher = order.matcher == address(0) ? order.requester : order.matcher;
        if (msg.sender != matcher) revert NotMatcher(msg.sender, matcher);
        Plans.checkTiling(plan, job.layers());
        // INVARIANT: the arbitrator is on MinerRegistry's list when the job gets its stages. It
        // decides this job's disputes for good, also when it is taken from the list.
        minerRegistry.requireWorkers(plan, order.minStake, order.arbitrator);
        bytes32 planHash = Eip712Types.planHash(plan);
        _jobs[_keyOf(id, planHash)] = job.with(State.Matched);
        emit JobMatched(id, msg.sender, planHash, plan);
    }

    /// Once here and not at each caller: the contract stays under the size limit of EIP-170.
    function _rejectState(uint256 job) private pure {
        revert WrongState(job.state());
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

    /// The lock of a job that came to nothing, but for `matcherNano` of it.
    function _payBack(JobId id, uint256 job, Order calldata order, uint256 matcherNano)
        private
        returns (uint256 refunded)
    {
        refunded = _maxNano(job, order) - matcherNano;
        _pay(id, job, order, matcherNano, 0, refunded, new uint256[](0));
    }

    function _pay(
        JobId id,
        uint256 job,
        Order calldata order,
        uint256 matcherNano,
        uint256 protocolNano,
        uint256 refundNano,
        uint256[] memory shares
    ) private {
        escrow.pay(
            IEscrow.Bill({
                job: id,
                requester: order.requester,
                isSpenders: job.isSpenders(),
                matcher: order.matcher,
                matcherNano: matcherNano,
                protocolNano: protocolNano,
                refundNano: refundNano
            }),
            shares
        );
    }

    /// The rest of `ref`, and what follows from it.
    function _openDispute(
        bytes32 key,
        uint256 job,
        Order calldata order,
        Stage[] calldata plan,
        IArbitrator.DisputeRef memory ref
    ) private {
        _requireFaultless(job, ref.stage);
        // INVARIANT: a right is used once for a receipt, so share and stake are frozen once for it.
        bytes32 trial = _trialOf(ref.job, ref.stage, ref.receiptHash, ref.right, order.arbitrator);
        if (_trials[trial] != 0) revert StageAlreadyDisputed(ref.stage);
        _trials[trial] = key;
        _jobs[key] = job.disputed();
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
        ref.number = _accuse(job, order, ref.accused, order.arbitrator, msg.sender);
        IArbitrator(order.arbitrator).open(ref);
    }

    /// INVARIANT: the victim of record is the requester, for what the job locked.
    function _accuse(
        uint256 job,
        Order calldata order,
        address owner,
        address arbitrator,
        address challenger
    ) private returns (uint32 number) {
        return minerRegistry.openDispute(
            owner, arbitrator, challenger, order.requester, _maxUnits(job, order)
        );
    }

    /// INVARIANT: a stolen operator key is worth what its thief locks. Nobody risked a bond for
    /// this, so neither share is more than the job's own lock.
    function _slashAll(uint256 job, Order calldata order, address owner)
        private
        returns (uint256 slashed)
    {
        uint32 number = _accuse(job, order, owner, address(this), order.requester);
        return minerRegistry.closeDispute(owner, number, SLASH_ALL_BPS, _maxUnits(job, order));
    }

    /// A dispute, as the arbitrator that decides it calls it.
    function _trialOf(
        JobId id,
        uint16 stage,
        bytes32 receiptHash,
        IArbitrator.Right right,
        address arbitrator
    ) private pure returns (bytes32) {
        return keccak256(abi.encode(id, stage, receiptHash, right, arbitrator));
    }

    /// INVARIANT: a stage is found at fault once for a job, but for disputes that were open then.
    function _requireFaultless(uint256 job, uint16 stage) private pure {
        if (job.isAtFault(stage)) revert StageAlreadyAtFault(stage);
    }

    function _requireDisputable(uint256 job) private view {
        State state = job.state();
        // A job is disputed while it goes on, once an Ack has counted something.
        bool counted = state == State.Settled || (state == State.Matched && job.isCounted());
        if (state != State.Delivered && state != State.Disputed && !counted) _rejectState(job);
        if (block.timestamp > job.finalAt()) revert WindowClosed(job.finalAt());
    }

    /// The requester's, or that of the order's auditor and of a delegate by signature.
    function _rightOf(
        Bound memory bound,
        Order calldata order,
        AuditorDelegation calldata delegation,
        bytes calldata signature
    ) private view returns (IArbitrator.Right) {
        if (msg.sender == order.requester) {
            return IArbitrator.Right.Requester;
        }
        if (msg.sender == order.auditor) return IArbitrator.Right.Auditor;
        if (
            delegation.auditor != msg.sender || delegation.orderHash != bound.binding.orderHash
                || block.timestamp > delegation.expiry
        ) {
            revert NotParty(msg.sender);
        }
        _requireSigner(
            bound.id,
            order,
            Eip712Types.toDigest(bound.binding.separator, Eip712Types.delegationHash(delegation)),
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

    /// Pay by the job's counts and close. INVARIANT: paid + refunded == maxNano.
    function _settle(Bound memory bound, uint256 job, Order calldata order, Stage[] calldata plan)
        private
    {
        _jobs[bound.key] = job.with(State.Settled);
        Split.Terms memory terms = _terms(job, order);
        Split.Shares memory shares = Split.shares(plan, job.shape(), terms);
        uint256 openingNano = _openingNano(order);
        uint256 matcherNano;
        uint256 paid;
        // SAFETY: of 115 bits at most, and a part is less than its whole.
        unchecked {
            matcherNano = shares.matcherFee + openingNano;
            paid = _units(job) * terms.nanoPerUnit - shares.withheld + openingNano;
        }
        // INVARIANT: no job pays more than it locked.
        uint256 refunded = _maxNano(job, order) - paid;
        emit JobSettled(bound.id, paid, refunded, shares.withheld);
        _pay(bound.id, job, order, matcherNano, shares.protocolFee, refunded, shares.pay);
    }

    function _terms(uint256 job, Order calldata order) private view returns (Split.Terms memory) {
        return Split.Terms({
            nanoPerUnit: Split.perUnit(
                job.tokensIn(), job.tokensOut(), order.priceIn, order.priceOut
            ),
            matcherFeeBps: order.matcherFeeBps,
            protocolFeeBps: _protocolFeeBps,
            faultMask: job.faultMask()
        });
    }
}
