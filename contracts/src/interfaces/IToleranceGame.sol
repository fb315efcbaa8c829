// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Place} from "../trace/Layout.sol";
import {DisputeId, JobId, ModelId} from "../types/Ids.sol";
import {Order, RequestOpening, StageReceipt} from "../types/Signed.sol";
import {IArbitrator} from "./IArbitrator.sol";
import {Drawn, RowSpot, SignedRequest, SignedRows} from "./IRowJudge.sol";
import {Claim, Evidence, Opening, RowOpening} from "./ITraceJudge.sol";

/// A dispute that ends at one number: the accuser asserts a float64 trace, the accused points at a
/// leaf of it, the referee rules. docs/trust.md; twin: tests/twins/game/game.py.
///
/// Opened ⇄ Asked, Opened → Picking ⇄ Opening, Picking → Pleaded → Picking once at the root,
/// Picking → Proving → Ruled or PickingPart → ProvingPart → Ruled, Ruled → Executed. Every turn
/// has its own full clock, its last second included.
///
/// What the other side reads in a move's calldata, only a key may send, as its transaction's own
/// call: a contract could keep it from being seen, and make the other side fall silent.
interface IToleranceGame is IArbitrator {
    enum Phase {
        None,
        Opened, //      accuser: accuse, accuseToken, ask or proveMalformed
        Asked, //       accused: reveal
        Picking, //     accused: pick, plead, point, pointWith or showOpening
        Opening, //     accuser: openNode or openChunks
        Proving, //     accuser: prove or expand
        PickingPart, // accused: pickPart
        ProvingPart, // accuser: provePart or proveSum
        Pleaded, //     accuser: restate
        Ruled, //       anyone, after the payout delay: execute
        Executed
    }

    struct Params {
        uint96 bond; //    at least
        uint16 bondBps; // of the accused's stake, where that is more
        uint32 turnSeconds;
        uint32 payoutDelaySeconds;
        uint16 slashBps;
    }

    /// A dispute as it stands. Job, stage, receipt and right are in its id.
    struct Game {
        address accused;
        Phase phase;
        Status status;
        uint40 endsAt; //   of the turn; once ruled, when the payout may be
        uint8 child; //     picked under the node; while it is to be restated, the plea's seed
        uint8 level; //     of the node that was opened last, until sums are stated
        address accuser;
        uint48 chunks; //   of the accuser's trace
        uint48 index; //    of the node
        uint16 parts; //    that were stated
        uint16 part; //     of them, that was picked; `parts` if they do not add up
        uint8 asks; //      questions for rows so far
        bytes32 binding; // hash of model and receipt, then of model and claim
        bytes32 node; //    of asked rows; of the node; the place on trial; of place and sums
        bytes32 opening; // hash of the request's, where a token of an open order is accused
    }

    event GameOpened(
        DisputeId indexed id,
        JobId indexed job,
        address indexed accused,
        uint16 stage,
        Right right,
        address accuser,
        address requester,
        ModelId model,
        bytes32 receiptHash,
        bytes32 requestsRoot,
        uint256 bond
    );
    // What was opened stands in the calldata of the move; events only say that it was.
    event Accused(DisputeId indexed id, uint256 chunks, uint256 endsAt);
    event Picked(DisputeId indexed id, uint8 child, uint256 endsAt);
    event NodeOpened(DisputeId indexed id, uint256 endsAt);
    event ChunksShown(DisputeId indexed id, uint256 endsAt);
    event Asked(DisputeId indexed id, uint256 endsAt);
    event Revealed(DisputeId indexed id, uint256 endsAt);
    event Pleaded(DisputeId indexed id, uint8 seed, uint256 endsAt);
    event Restated(DisputeId indexed id, uint256 chunks, uint256 endsAt);
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
    error ChildUnknown(uint256 child);
    error StatedMismatch();
    error NoParts();
    error PartDue(uint256 part);
    error SumDue();
    error AskedEnough();
    error AskMismatch();
    error RowSound();
    /// No deviation is accused, or one that was pleaded already. A token is judged by norm and head
    /// of a signed row, where rounding does not grow.
    error NoPlea();
    error PleaOver();
    error ListInvalid();
    error ListMismatch();
    error OpeningMismatch();
    error PayoutNotReady(uint256 when);
    error NoCredit();
    error TokenShortfall(uint256 received, uint256 expected);

    // --- the accuser: who opened the dispute ---

    /// Post the claim, its request under the accused receipt, and up to 32 hashes below the root.
    function accuse(
        DisputeId id,
        ModelId model,
        StageReceipt calldata receipt,
        Claim calldata claim,
        SignedRequest calldata signed,
        bytes32[] calldata below
    ) external;

    /// The same of a served token, with its sampling bytes and the receipt's order.
    function accuseToken(
        DisputeId id,
        ModelId model,
        StageReceipt calldata receipt,
        Claim calldata claim,
        SignedRequest calldata signed,
        bytes32[] calldata below,
        Drawn calldata drawn
    ) external;

    /// Have the accused show parts of a request's rows: at most six at a time, three times.
    function ask(
        DisputeId id,
        StageReceipt calldata receipt,
        SignedRows calldata rows,
        SignedRequest calldata signed,
        RowSpot[] calldata spots
    ) external;

    /// Show that the accused signed no row of numbers, or no token. That is the ruling.
    function proveMalformed(
        DisputeId id,
        StageReceipt calldata receipt,
        SignedRows calldata rows,
        SignedRequest calldata signed,
        RowSpot calldata spot,
        RowOpening calldata opening
    ) external;

    /// Open the picked child above 32 chunks: hashes five levels down, its siblings up to the node.
    function openNode(DisputeId id, bytes32[] calldata below, bytes32[] calldata siblings) external;

    /// Open the picked child to its values: its chunks in a row, and a byte of length for each.
    function openChunks(
        DisputeId id,
        bytes calldata data,
        bytes calldata sizes,
        bytes32[] calldata siblings
    ) external;

    /// Post the root of the pleaded trace, the hashes below it, and the claim as it was accused but
    /// for root, `how` and seed. The descent begins again.
    function restate(DisputeId id, ModelId model, Claim calldata claim, bytes32[] calldata below)
        external;

    /// Open the operands of the element that was pointed at. That is the ruling.
    function prove(DisputeId id, ModelId model, Claim calldata claim, Evidence calldata evidence)
        external;

    /// State the partial sums of an element of many terms, 8 bytes each.
    function expand(DisputeId id, bytes calldata stated) external;

    /// Open the element whose stated sums are said not to add up to it. That is the ruling.
    function proveSum(
        DisputeId id,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        bytes calldata stated
    ) external;

    /// Open the picked partial sum's operands, its group of sixteen and the other groups' hashes.
    /// That is the ruling.
    function provePart(
        DisputeId id,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        Opening calldata stated
    ) external;

    // --- the accused: the miner's owner or its operator ---

    /// Name a child of the node that was opened last.
    function pick(DisputeId id, uint8 child) external;

    /// Have a deviation measured against the rounding of these very rows: the accuser must state
    /// its trace again with a second pass, shaken by this seed. Once, while nothing but the root
    /// was opened; against a token there is none.
    function plead(DisputeId id, uint8 seed) external;

    /// Name any element of the trace, or its verdict. One that there is not loses.
    function point(DisputeId id, Place calldata place) external;

    /// Name a partial sum that was stated; or, by their number, that they do not add up.
    function pickPart(DisputeId id, uint16 part) external;

    /// Point at a token's verdict with `topK` tokens said to keep the preferred one out.
    function pointWith(DisputeId id, Place calldata place, bytes calldata tokens) external;

    /// Show that the requester opened the request twice, differently. That is the ruling.
    function showOpening(
        DisputeId id,
        Order calldata order,
        RequestOpening calldata shown,
        RequestOpening calldata opening,
        bytes calldata signature
    ) external;

    /// Show the parts of rows that were asked for.
    function reveal(
        DisputeId id,
        SignedRows calldata rows,
        RowSpot[] calldata spots,
        RowOpening[] calldata openings
    ) external;

    // --- anyone ---

    /// Rule against whoever let the clock run out.
    function timeout(DisputeId id) external;

    /// Move the money of a ruled game: bond, slash, release.
    function execute(JobId job, uint16 stage, bytes32 receiptHash, Right right) external;

    /// Pull what a game left to the caller.
    function withdrawCredit() external returns (uint256 amount);

    // --- reads ---

    function gameOf(DisputeId id) external view returns (Game memory);

    function creditOf(address account) external view returns (uint256);
    function disputeIdOf(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        external
        view
        returns (DisputeId);
}
