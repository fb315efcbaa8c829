// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../types/Ids.sol";
import {Ack, AuditorDelegation, Order, Stage, StageReceipt} from "../types/Signed.sol";
import {IArbitrator} from "./IArbitrator.sol";
import {IEvidence} from "./IEvidence.sol";
import {IMinerRegistry} from "./IMinerRegistry.sol";

/// A job, from signed order to payment: a batch of requests, or, if both roots of its order are
/// zero, a session whose requests are opened one by one and counted by cumulative Acks. A job is
/// paid once, at its end.
///
/// None → Open → Matched → Delivered → Settled; Open → Cancelled; Open | Matched → Expired; a batch
/// Matched → Settled by its matcher's Ack; Delivered ⇄ Disputed → Settled without the guilty
/// stages' shares. Any other Ack is counted and leaves the job Matched; `expire` ends it, as
/// Settled if anything was counted.
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

    /// One word a job, found by its id and the hash of its plan. All else is the order's.
    struct Job {
        uint32 deadline; //      seconds; the order's, or the moment of requestClose
        uint32 finalAt; //       of a delivery; of an Ack: the end of slash-only disputes
        uint32 tokensIn; //      delivered or acknowledged
        uint32 tokensOut;
        uint64 faultMask; //     bit i: stage i was found at fault
        uint16 openDisputes;
        uint16 layers; //        the model's shape
        uint8 embedUnits;
        uint8 headUnits;
        State state;
        bool isSpenders; //      a spender of the requester opened it
    }

    struct Params {
        uint16 protocolFeeBps;
        address feeRecipient;
        uint32 maxJobSeconds;
        uint32 maxWindowSeconds;
        uint32 closeDelaySeconds; // after a job's deadline, in which Acks and receipts count
    }

    event JobOpened(
        JobId indexed job, address indexed requester, bytes32 modelId, uint256 maxNano
    );
    event JobMatched(JobId indexed job, address matcher, bytes32 planHash, Stage[] plan);
    event JobDelivered(
        JobId indexed job, bytes32 resultRoot, uint32 tokensIn, uint32 tokensOut, uint256 finalAt
    );
    /// An Ack was counted: the most that any said of each so far. The job goes on.
    event JobAcknowledged(JobId indexed job, uint32 tokensIn, uint32 tokensOut);
    /// No more work for this session: its Acks count until then.
    event JobClosing(JobId indexed job, uint256 until);
    /// Escrow's `Paid` tells who got what, of every job that ends.
    event JobSettled(
        JobId indexed job, uint256 paidNano, uint256 refundedNano, uint256 withheldNano
    );
    event JobCancelled(JobId indexed job, address indexed requester, uint256 refundedNano);
    event JobExpired(
        JobId indexed job, address indexed requester, uint256 paidNano, uint256 refundedNano
    );
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
    error LayerGap(uint16 expectedFrom, uint16 haveFrom);
    error LayersUncovered(uint16 coveredTo, uint16 layers);
    error TooManyStages(uint256 have, uint256 max);
    error MinerCannotWork(address operator);
    error ReceiptMismatch(uint256 stage);
    error BadWords(uint256 stage);
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
    error ArbitratorUnknown(address arbitrator);
    error FeeTooHigh(uint256 have, uint256 max);
    error NumericsProfileMismatch(bytes32 have, bytes32 need);
    error NonceUsedAlready(uint64 nonce);
    error StageOutOfRange(uint256 stage, uint256 stages);
    error StageAlreadyDisputed(uint256 stage);
    error StageAlreadyAtFault(uint256 stage);
    error NoOpenDispute(uint256 stage);
    error AckMismatch();
    error AckStale(uint32 countedIn, uint32 countedOut);
    error NotSession();
    error NotBatch();
    error RequestsZero();
    error AccountZero();
    error WiringMismatch();
    error CloseDelayZero();

    /// Direct escrow: the requester's own tokens are pulled now. → Open
    function open(Order calldata order) external returns (JobId);

    /// The normal way, in one transaction from a prepaid balance. → Matched
    ///
    /// Sent by the order's matcher; by the requester, if it names none. Stages' acceptances stay
    /// with the matcher: a stage is bound by what it signs about a plan alone, and the requester
    /// trusts a matcher with no more than when it could name miners of its own.
    function openMatched(Order calldata order, bytes calldata requesterSig, Stage[] calldata plan)
        external
        returns (JobId);

    /// Give an open job its pipeline. → Matched
    function matchJob(Order calldata order, Stage[] calldata plan) external;

    /// Requester, Open only: full refund. → Cancelled
    function cancel(Order calldata order) external;

    /// The requester's word of what the job is due, which anyone may bring.
    ///
    /// A batch's Ack ends the job at once if its matcher brings it, or if it says what was
    /// delivered by the deadline. → Settled. Any other Ack is counted, each count as the most that
    /// any said, and is paid when the job ends: so no Ack takes anything from a job, whatever it
    /// says.
    function settleAck(
        Order calldata order,
        Ack calldata ack,
        bytes calldata requesterSig,
        Stage[] calldata plan
    ) external;

    /// Silent requester: every stage's receipt over all requests, by the deadline. → Delivered, or
    /// Disputed if a dispute is open. An Ack that counted more keeps its counts. Not of a session,
    /// whose receipts never cover what was ordered. From a key itself, so that all can read them.
    ///
    /// For `closeDelaySeconds` after the deadline over the requests that all stages signed for, and
    /// again for more; the window begins when that time is over.
    function deliver(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata sigs
    ) external;

    /// After the window, with no open dispute: pays all stages not at fault. → Settled
    function finalize(Order calldata order, Stage[] calldata plan) external;

    /// After the deadline, nothing delivered: refund. Anyone. → Expired. `plan` is empty of a job
    /// that waits for one. A matched job ends so `closeDelaySeconds` later, less its opening fee.
    /// If Acks counted anything it is paid by their counts. → Settled
    function expire(Order calldata order, Stage[] calldata plan) external;

    /// Requester, the key that signed the order, or its matcher: a session's deadline is now. Acks
    /// of work done by then count for `closeDelaySeconds` more.
    function requestClose(Order calldata order, bytes32 planHash) external;

    /// Requester, the order's auditor or a delegate: name the guilty stage by its signed receipt,
    /// within the window. Delivered or Disputed: its share is frozen. Acknowledged: only stake is
    /// at risk, and the share of a stage that is found at fault before the job ends; the window
    /// begins anew with every Ack that counts, and ends a window after the deadline.
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

    /// Orders with this nonce can no longer be opened, as if a job had used it. Not one that a job
    /// has used.
    function revokeNonce(uint64 nonce) external;

    // --- governance: only redirect or lower ---

    function setFeeRecipient(address feeRecipient) external;
    function lowerProtocolFee(uint16 feeBps) external;

    // --- reads ---
    function evidence() external view returns (IEvidence);
    function minerRegistry() external view returns (IMinerRegistry);
    /// `planHash` is zero of a job that was opened without a plan and waits for one.
    function jobOf(JobId job, bytes32 planHash) external view returns (Job memory);

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
    function isNonceUsed(address requester, uint64 nonce) external view returns (bool);
    function params() external view returns (Params memory);
}
