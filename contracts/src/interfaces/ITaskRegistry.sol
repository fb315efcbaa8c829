// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../types/Ids.sol";
import {Ack, Acceptance, AuditorDelegation, Order, Stage, StageReceipt} from "../types/Signed.sol";
import {IArbitrator} from "./IArbitrator.sol";
import {IEvidence} from "./IEvidence.sol";

/// A job, from signed order to payment: a batch of requests, or, if both roots of its order are
/// zero, a session whose requests are opened one by one and paid by cumulative Acks.
///
/// None → Open → Matched → Delivered → Settled; Open → Cancelled; Open | Matched → Expired; Matched
/// → Settled by Ack; Delivered ⇄ Disputed → Settled without the guilty stages' shares. A session
/// stays Matched through its Acks; `expire` ends it, as Settled if anything was paid.
interface ITaskRegistry {
    enum State {
        None,
        Open,
        Matched,
        Delivered,
        Disputed,
        Settled,
        Cancelled,
        Expired
    }

    /// {planHash} {deadline 40 | finalAt 40 | window 32 | tokensIn 32 | tokensOut 32 | openDisputes
    /// 32 | matcherFeeBps 16 | stages 8 | state 8 | isSession 8} {faultMask 64 | arbitrator 160}
    /// {resultRoot}. Escrow has requester and locked amount.
    struct Job {
        bytes32 planHash;
        uint40 deadline; //      the order's, or the moment of requestClose
        uint40 finalAt; //       of a delivery; paid by Ack: the end of slash-only disputes
        uint32 window;
        uint32 tokensIn; //      delivered, or acknowledged and paid
        uint32 tokensOut;
        uint32 openDisputes;
        uint16 matcherFeeBps;
        uint8 stages;
        State state;
        bool isSession; //       its order is open
        uint64 faultMask; //     bit i: stage i was found at fault
        address arbitrator; //   the order's, from the first dispute on
        bytes32 resultRoot; //   of a delivery
    }

    struct Params {
        uint16 protocolFeeBps;
        address feeRecipient;
        uint32 maxJobSeconds;
        uint32 maxWindowSeconds;
        uint32 closeDelaySeconds; // after a matched job's deadline, in which only an Ack counts
    }

    event JobOpened(
        JobId indexed job, address indexed requester, bytes32 indexed modelId, uint256 maxNano
    );
    event JobMatched(JobId indexed job, address indexed matcher, bytes32 planHash, Stage[] plan);
    event JobDelivered(
        JobId indexed job, bytes32 resultRoot, uint32 tokensIn, uint32 tokensOut, uint256 finalAt
    );
    /// A session's Ack: counts in all so far, and what this one brought.
    event JobPaid(JobId indexed job, uint32 tokensIn, uint32 tokensOut, uint256 paidNano);
    /// No more work for this session: its Acks count until then.
    event JobClosing(JobId indexed job, uint256 until);
    /// `paidNano`: by this call; a session's Acks told their own.
    event JobSettled(
        JobId indexed job, uint256 paidNano, uint256 refundedNano, uint256 withheldNano
    );
    event JobCancelled(JobId indexed job, uint256 refundedNano);
    event JobExpired(JobId indexed job, uint256 refundedNano);
    event JobDisputed(
        JobId indexed job,
        uint16 indexed stage,
        address indexed challenger,
        IArbitrator.Right right,
        bytes32 receiptHash,
        address arbitrator
    );
    event JobResolved(
        JobId indexed job,
        uint16 indexed stage,
        IArbitrator.Right right,
        bytes32 receiptHash,
        bool fault
    );
    event NonceRevoked(address indexed requester, uint64 nonce);
    event JobConvicted(
        JobId indexed job,
        uint16 indexed stage,
        address indexed owner,
        IEvidence.Kind kind,
        uint256 slashed
    );
    event FeeRecipientChanged(address indexed feeRecipient);
    event ProtocolFeeLowered(uint256 feeBps);

    error WrongState(State have);
    error BadSignature(address expected);
    error BadPlan();
    error PlanMismatch(bytes32 have, bytes32 need);
    error LayerGap(uint16 expectedFrom, uint16 haveFrom);
    error LayersUncovered(uint16 coveredTo, uint16 layers);
    error TooManyStages(uint256 have, uint256 max);
    error MinerCannotWork(address operator);
    error AcceptanceMismatch(uint256 stage);
    error AcceptanceExpired(uint256 stage, uint256 expiry);
    error ReceiptMismatch(uint256 stage);
    error ReceiptChainBroken(uint256 stage);
    error TokenCountMismatch(uint256 stage);
    error RequestCountMismatch(uint256 stage);
    error OverCap(uint256 have, uint256 cap);
    error DeadlinePassed(uint256 when);
    error DeadlineOutOfRange(uint256 when, uint256 max);
    error DeadlineNotPassed(uint256 when);
    error WindowOutOfRange(uint256 have, uint256 max);
    error WindowOpen(uint256 until);
    error WindowClosed(uint256 when);
    error NotParty(address caller);
    error NotMatcher(address caller, address matcher);
    error NotArbitrator(address caller, address arbitrator);
    error ArbitratorUnknown(address arbitrator);
    error FeeTooHigh(uint256 have, uint256 max);
    error NumericsProfileMismatch(bytes32 have, bytes32 need);
    error NonceRevokedAlready(uint64 nonce);
    error StageOutOfRange(uint256 stage, uint256 stages);
    error StageAlreadyDisputed(uint256 stage);
    error StageAlreadyAtFault(uint256 stage);
    error NoOpenDispute(uint256 stage);
    error AckMismatch();
    error AckStale(uint32 paidIn, uint32 paidOut);
    error NotSession();
    error NotBatch();
    error RequestsZero();
    error AccountZero();
    error WiringMismatch();
    error CloseDelayZero();

    /// Direct escrow: the requester's own tokens are pulled now. → Open
    function open(Order calldata order) external returns (JobId);

    /// The normal way, in one transaction from a prepaid balance. → Matched
    function openMatched(
        Order calldata order,
        bytes calldata requesterSig,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) external returns (JobId);

    /// Give an open job its pipeline. → Matched
    function matchJob(
        Order calldata order,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) external;

    /// Requester, Open only: full refund. → Cancelled
    function cancel(JobId job) external;

    /// Pays by the requester's word, at once. → Settled. In Matched only the order's matcher or a
    /// stage may bring it, else a requester could Ack nothing after the work; in Delivered anyone
    /// may, of the delivered counts and result.
    ///
    /// A session's Ack is a voucher that anyone may bring: it pays every stage the difference to
    /// the counts paid before, of which one grows and none falls, and the session goes on.
    ///
    /// INVARIANT: what a session has paid is a function of its highest Ack (but for a nano unit of
    /// fees a stage if the protocol's fee falls on the way); refund = maxAmount − Σ paid.
    function settleAck(
        Order calldata order,
        Ack calldata ack,
        bytes calldata requesterSig,
        Stage[] calldata plan
    ) external;

    /// Silent requester: every stage's receipt over all requests, by the deadline. → Delivered. Not
    /// of a session, whose receipts never cover what was ordered.
    function deliver(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata sigs
    ) external;

    /// After the window, with no open dispute: pays all stages not at fault. → Settled
    function finalize(Order calldata order, Stage[] calldata plan) external;

    /// After the deadline, nothing delivered: full refund. Anyone. → Expired. A matched job ends so
    /// `closeDelaySeconds` later, a session as Settled if anything was paid.
    function expire(JobId job) external;

    /// Requester, the key that signed the order, or its matcher: a session's deadline is now. Acks
    /// of work done by then count for `closeDelaySeconds` more.
    function requestClose(Order calldata order) external;

    /// Requester, the order's auditor or a delegate: name the guilty stage by its signed receipt,
    /// within the window. Delivered or Disputed: its share is frozen. Paid by Ack: only stake is at
    /// risk; a session's window begins anew with every Ack, and ends a window after the deadline.
    ///
    /// Requester and auditor have a dispute each for every receipt that the stage signed; a
    /// delegate has the auditor's. A stage found at fault is not disputed again in the job. The
    /// accused cannot be slashed but by the order's arbitrator for this dispute.
    function dispute(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt calldata receipt,
        bytes calldata receiptSig,
        AuditorDelegation calldata delegation,
        bytes calldata delegationSig
    ) external;

    /// The order's arbitrator only.
    function resolve(
        JobId job,
        uint16 stage,
        bytes32 receiptHash,
        IArbitrator.Right right,
        bool fault
    ) external;

    /// Evidence only, which has checked the stage's own signed words: slashed at once, no bond. The
    /// reward goes to the requester of record, so front-running gains nothing: 20 % and
    /// 30 % of the slash, each at most what the job locked, so a stolen operator key brings nothing
    /// in a job that locks nothing. It waits in MinerRegistry for disputes that were opened before.
    /// Not of a stage found at fault in the job.
    function convict(
        Order calldata order,
        Stage[] calldata plan,
        uint16 stage,
        IEvidence.Kind kind
    ) external;

    /// Orders with this nonce can no longer be opened; a job already open is not touched.
    function revokeNonce(uint64 nonce) external;

    // --- governance: only redirect or lower ---

    function setFeeRecipient(address feeRecipient) external;
    function lowerProtocolFee(uint16 feeBps) external;

    // --- reads ---
    function evidence() external view returns (IEvidence);
    function jobOf(JobId job) external view returns (Job memory);

    /// gross and pay of every stage for these counts, in nano units: docs/protocol.md §4.
    function split(Order calldata order, Stage[] calldata plan, uint32 tokensIn, uint32 tokensOut)
        external
        view
        returns (
            uint256[] memory gross,
            uint256[] memory pay,
            uint256 matcherFee,
            uint256 protocolFee
        );
    function isNonceRevoked(address requester, uint64 nonce) external view returns (bool);
    function params() external view returns (Params memory);
}
