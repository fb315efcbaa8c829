// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Place} from "../trace/Layout.sol";
import {DisputeId, JobId, ModelId} from "../types/Ids.sol";
import {StageReceipt} from "../types/Signed.sol";
import {IArbitrator} from "./IArbitrator.sol";
import {Claim, Evidence} from "./ITraceJudge.sol";

/// A dispute that ends at one number: the accuser asserts a float64 trace, the accused points at a leaf of it, the referee rules.
///
/// Phases: Opened → Picking ⇄ Opening, Picking → Proving → Ruled or PickingPart → ProvingPart → Ruled, Ruled → Executed. Every turn has its own
/// full clock; a move at its last second is in time. docs/trust.md has the whole; twin: core/protocol/dispute.py.
interface IToleranceGame is IArbitrator {
    enum Phase {
        None,
        Opened, //      accuser: accuse
        Picking, //     accused: pick or point
        Opening, //     accuser: openNode or openValues
        Proving, //     accuser: prove or expand
        PickingPart, // accused: pickPart
        ProvingPart, // accuser: provePart
        Ruled, //       anyone, after the payout delay: execute
        Executed
    }

    struct Params {
        uint96 bond;
        uint32 turnSeconds;
        uint32 payoutDelaySeconds;
        uint16 slashBps;
    }

    /// Packing: {accused 160 | phase 8 | status 8 | endsAt 40 | child 8} {accuser 160 | chunks 40 | level 8} {requester 160 | index 40 |
    /// part 16} {binding} {node}. Job, stage, model, receipt and claim are given again with each move and held against their hashes.
    struct Game {
        address accused;
        Phase phase;
        Status status;
        uint40 endsAt; //   of the turn; once ruled, when the payout may be
        uint8 child; //     picked under the node
        address accuser;
        uint40 chunks; //   of the accuser's trace
        uint8 level; //     of the node that was opened last
        address requester;
        uint40 index;
        uint16 part;
        bytes32 binding; // hash of model and receipt, then of model and claim
        bytes32 node; //    the node's hash; then the place on trial; then the hash of place and stated partial sums
    }

    event GameOpened(DisputeId indexed id, JobId indexed job, address indexed accused, uint16 stage, address accuser, ModelId model, bytes32 receiptHash, bytes32 requestsRoot, uint256 bond);
    // What was opened stands in the calldata of the move; events only say that it was.
    event Accused(DisputeId indexed id, uint256 chunks, uint256 endsAt);
    event Picked(DisputeId indexed id, uint8 child, uint256 endsAt);
    event NodeOpened(DisputeId indexed id, uint256 level, uint256 index, uint256 endsAt);
    event ValuesShown(DisputeId indexed id, uint256 firstChunk, uint256 endsAt);
    event PointedAt(DisputeId indexed id, Place place, uint256 endsAt);
    event Expanded(DisputeId indexed id, uint256 endsAt);
    event PartPicked(DisputeId indexed id, uint16 part, uint256 endsAt);
    event GameRuled(DisputeId indexed id, Status status, uint256 payoutAt);
    event GameExecuted(DisputeId indexed id, Status status, uint256 slashed);
    event CreditWithdrawn(address indexed account, uint256 amount);

    error NotTaskRegistry(address caller);
    error DisputeExists(DisputeId id);
    error DisputeTooLong(uint256 have, uint256 max);
    error ParamsInvalid();
    error WrongPhase(Phase have);
    error NotTurn(address caller);
    error ClockOver(uint256 endedAt);
    error ClockRunning(uint256 endsAt);
    error ReceiptMismatch();
    error RequestUnproven();
    error ClaimMismatch();
    error OpeningWrong();
    error HashesDue();
    error ValuesDue();
    error ChildUnknown(uint8 child);
    error StatedMismatch();
    error NoParts();
    error PayoutNotReady(uint256 when);
    error NoCredit();
    error TokenShortfall(uint256 received, uint256 expected);

    // --- the accuser: who opened the dispute ---

    /// Post the claim, its request's place under the accused receipt, and up to 32 hashes below the trace's root.
    function accuse(
        DisputeId id,
        ModelId model,
        StageReceipt calldata receipt,
        Claim calldata claim,
        uint256 position,
        bytes32[] calldata proof,
        bytes32[] calldata below
    ) external;

    /// Open the picked child while it is more than five levels up: what is below it, and its siblings up to the node before.
    function openNode(DisputeId id, bytes32[] calldata below, bytes32[] calldata siblings) external;

    /// Show the values under the picked child: at most 32 chunks.
    function openValues(DisputeId id, ModelId model, Claim calldata claim, bytes calldata data, bytes32[] calldata siblings) external;

    /// Open the operands of the element that was pointed at. That is the ruling.
    function prove(DisputeId id, ModelId model, Claim calldata claim, Evidence calldata evidence) external;

    /// State the partial sums of an element of many terms. If they do not add up to it, that is the ruling.
    function expand(DisputeId id, ModelId model, Claim calldata claim, Evidence calldata evidence, bytes calldata stated) external;

    /// Open the operands of the partial sum that was picked. That is the ruling.
    function provePart(
        DisputeId id,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        bytes calldata stated
    ) external;

    // --- the accused: the miner's owner or its operator ---

    /// Name a child of the node that was opened last.
    function pick(DisputeId id, uint8 child) external;

    /// Name any element of the trace, or its verdict. Who names none that there is loses when the accuser next moves.
    function point(DisputeId id, Place calldata place) external;

    function pickPart(DisputeId id, uint16 part) external;

    // --- anyone ---

    /// Rule against whoever let the clock run out.
    function timeout(DisputeId id) external;

    /// Move the money of a ruled game: bond, slash, release.
    function execute(JobId job, uint16 stage, bytes32 requestsRoot) external;

    /// Pull what a game left to the caller.
    function withdrawCredit() external returns (uint256 amount);

    // --- reads ---

    function gameOf(DisputeId id) external view returns (Game memory);
    function creditOf(address account) external view returns (uint256);
    function disputeIdOf(JobId job, uint16 stage, bytes32 requestsRoot) external view returns (DisputeId);
}
