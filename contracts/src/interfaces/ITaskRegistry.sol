// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JobId} from "../types/Ids.sol";
import {
    Ack,
    Acceptance,
    AuditorDelegation,
    Order,
    RequestLeaf,
    Stage,
    StageReceipt
} from "../types/Signed.sol";

/// The life of a job, from signed order to payment. A job is a batch of requests, or, if its order is open (both roots zero), a
/// session: requests that are opened one by one, paid by cumulative Acks while it goes on.
///
/// None → Open → Matched → Delivered → Settled; Open → Cancelled; Open | Matched → Expired; Matched → Settled by Ack;
/// Delivered ⇄ Disputed → Settled with the guilty stages' shares withheld. Cancelled, Expired and Settled are terminal.
/// A session stays Matched through all its Acks; `expire` ends it, as Settled if anything was paid.
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

    /// Packing: {planHash} {deadline 40 | finalAt 40 | window 32 | tokensIn 32 | tokensOut 32 | openDisputes 16 | matcherFeeBps 16 |
    /// stages 8 | state 8 | isSession 8} {faultMask 64 | disputedMask 64 | openMask 64} {arbitrator} {resultRoot}.
    /// Requester and locked amount are kept once, in Escrow (`lockOf`), while the money is locked; JobOpened tells them for good.
    struct Job {
        bytes32 planHash;
        uint40 deadline; //      the order's, or the moment of requestClose
        uint40 finalAt; //       Delivered: when it may be finalized; paid by Ack: until when a slash-only dispute may open
        uint32 window;
        uint32 tokensIn; //      delivered, or acknowledged and paid
        uint32 tokensOut;
        uint16 openDisputes;
        uint16 matcherFeeBps;
        uint8 stages;
        State state;
        bool isSession; //       its order is open
        uint64 faultMask; //     bit i: stage i was found at fault
        uint64 disputedMask; //  bit i: stage i has had its one dispute
        uint64 openMask; //      bit i: that dispute is undecided
        address arbitrator; //   the order's, from the first dispute on
        bytes32 resultRoot; //   of a delivery
    }

    struct Params {
        uint16 protocolFeeBps;
        address feeRecipient;
        uint32 maxJobSeconds;
        uint32 maxWindowSeconds;
        uint32 closeDelaySeconds; // after a session's deadline, in which its Acks still count
    }

    event JobOpened(
        JobId indexed job, address indexed requester, bytes32 indexed modelId, uint256 maxAmount
    );
    event JobMatched(JobId indexed job, address indexed matcher, bytes32 planHash, Stage[] plan);
    event JobDelivered(
        JobId indexed job, bytes32 resultRoot, uint32 tokensIn, uint32 tokensOut, uint256 finalAt
    );
    /// A session's Ack: counts in all so far, and what this one brought.
    event JobPaid(JobId indexed job, uint32 tokensIn, uint32 tokensOut, uint256 paid);
    /// No more work for this session: its Acks count until then.
    event JobClosing(JobId indexed job, uint256 until);
    /// `paid`: by this call; a session's Acks told their own.
    event JobSettled(JobId indexed job, uint256 paid, uint256 refunded, uint256 withheld);
    event JobCancelled(JobId indexed job, uint256 refunded);
    event JobExpired(JobId indexed job, uint256 refunded);
    event JobDisputed(
        JobId indexed job, uint16 indexed stage, address indexed challenger, address arbitrator
    );
    event JobResolved(JobId indexed job, uint16 indexed stage, bool fault);
    event NonceRevoked(address indexed requester, uint64 nonce);
    event EquivocationProven(
        JobId indexed job, uint16 indexed stage, address indexed owner, uint256 slashed
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
    error NotEquivocation();
    error WiringMismatch();
    error CloseDelayZero();

    /// Direct escrow: the requester's own tokens are pulled now. → Open
    function open(Order calldata order) external returns (JobId);

    /// The normal way: prepaid balance, signed order, every stage's acceptance, one transaction. → Matched
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

    /// The requester's word is final: pays now. → Settled. `order` proves prices and model.
    /// In Matched only the order's matcher or a stage (owner or operator) may bring it: a requester alone could otherwise sign and
    /// bring an Ack for nothing after the work was done. In Delivered anyone may: counts and result equal the delivered ones.
    ///
    /// A session's Ack is a voucher: anyone may bring it as long as the session is Matched, it pays every stage the difference
    /// between its counts and those paid before, and the session goes on. Neither count may be less than paid before, one is more.
    ///
    /// INVARIANT: what a session has paid is a function of the highest Ack brought, so any way there pays the same (but for a unit
    /// of fees a stage if the protocol's fee falls on the way); an early, small Ack takes nothing from a later one, whoever brings
    /// it; refund = maxAmount − Σ paid, always.
    function settleAck(
        Order calldata order,
        Ack calldata ack,
        bytes calldata requesterSig,
        Stage[] calldata plan
    ) external;

    /// Silent requester: one receipt of every stage, each over all requests of the order, not after the deadline. → Delivered
    /// Not of a session: no receipt of it covers what was ordered. Who works in one lets no more go unacknowledged than it will risk.
    function deliver(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata sigs
    ) external;

    /// After the window, with no open dispute: pays all stages not at fault. → Settled
    function finalize(Order calldata order, Stage[] calldata plan) external;

    /// After the deadline, nothing delivered: full refund. Anyone may call. → Expired
    /// A session that was matched ends so too, `closeDelaySeconds` after its deadline, and the rest of its money returns. → Settled
    /// if anything was paid.
    function expire(JobId job) external;

    /// Requester, the key that signed the order, or its matcher: make now the deadline of a session. What was acknowledged by then
    /// can still be brought for `closeDelaySeconds`: whoever works in it has that long to see JobClosing and bring its last Ack.
    function requestClose(Order calldata order) external;

    /// Requester, the order's auditor, or one it delegated: name the guilty stage; the order's arbitrator takes over.
    /// Delivered/Disputed within the window: the stage's share is frozen. Paid by Ack, within the window: only stake is at risk. Of a
    /// session that window begins anew with every Ack, and ends a window after the deadline at the latest.
    /// The receipt must be signed by that stage's operator for this order and plan.
    function dispute(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt calldata receipt,
        bytes calldata receiptSig,
        AuditorDelegation calldata delegation,
        bytes calldata delegationSig
    ) external;

    /// The order's arbitrator only.
    function resolve(JobId job, uint16 stage, bool fault) external;

    /// Two receipts of one operator for the same order, plan and stage whose leaves for one request differ: slashed at once, no bond.
    /// Anyone may call; the reward goes to the requester of record, so nothing is gained by front-running.
    function proveEquivocation(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[2] calldata receipts,
        bytes[2] calldata sigs,
        RequestLeaf[2] calldata leaves,
        uint256[2] calldata positions,
        bytes32[][2] calldata proofs
    ) external;

    /// Orders with this nonce can no longer be opened; a job already open is not touched.
    function revokeNonce(uint64 nonce) external;

    // --- governance: only redirect or lower ---

    function setFeeRecipient(address feeRecipient) external;
    function lowerProtocolFee(uint16 feeBps) external;

    // --- reads ---
    function jobOf(JobId job) external view returns (Job memory);

    /// gross and pay of every stage for these counts: docs/protocol.md §4.
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
