// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {IArbitrator} from "./interfaces/IArbitrator.sol";
import {IMinerRegistry} from "./interfaces/IMinerRegistry.sol";
import {Drawn, IRowJudge, RowSpot, SignedRequest, SignedRows} from "./interfaces/IRowJudge.sol";
import {ITaskRegistry} from "./interfaces/ITaskRegistry.sol";
import {Claim, Evidence, ITraceJudge, Opening, RowOpening} from "./interfaces/ITraceJudge.sol";
import {IToleranceGame} from "./interfaces/IToleranceGame.sol";
import {Bonds} from "./libraries/Bonds.sol";
import {CreditBook} from "./libraries/CreditBook.sol";
import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Receipts} from "./libraries/Receipts.sol";
import {Senders} from "./libraries/Senders.sol";
import {Turns} from "./libraries/Turns.sol";
import {Chunks} from "./trace/Chunks.sol";
import {Derive} from "./trace/Derive.sol";
import {Layouts, Place, Places} from "./trace/Layout.sol";
import {DisputeId, JobId, ModelId} from "./types/Ids.sol";
import {Order, RequestLeaf, RequestOpening, RequestRows, StageReceipt} from "./types/Signed.sol";

/// Who lied about one layer? See IToleranceGame. Money and clocks; judges rule on evidence.
///
/// INVARIANT: token.balanceOf(this) = Σ credits + Σ bonds of games not executed.
contract ToleranceGame is IToleranceGame, ReentrancyGuardTransient {
    using Address for address;
    using CreditBook for CreditBook.Book;
    using SafeERC20 for IERC20;
    using Turns for uint256;

    uint256 private constant BPS = 10_000;
    uint256 private constant REWARD_CAP_BONDS = 10;
    uint256 private constant MAX_ASKS = 3;
    uint256 private constant MAX_LIST_BYTES = 4 * Derive.MAX_LISTED;
    /// Turns of a game at most: three questions and answers, accusation, plea and restatement,
    /// eight rounds of 32 down a trace of 2^41 chunks to its values, then element and part.
    uint256 public constant MAX_TURNS = 29;
    uint256 private constant CLAIM_BYTES = 21 * 32;
    uint256 private constant RECEIPT_BYTES = 14 * 32;
    uint256 private constant MAX_PARTS = type(uint16).max;
    uint256 private constant GROUP_BYTES = 128; // of stated partial sums, see _statement
    uint256 private constant LISTED = (1 << 136) - 1; // of a place: `_listed` of its list

    IERC20 public immutable token;
    address public immutable taskRegistry;
    IMinerRegistry public immutable minerRegistry;
    ITraceJudge public immutable judge;
    IRowJudge public immutable rowJudge;
    uint96 public immutable bond;
    uint16 public immutable bondBps;
    uint32 public immutable turnSeconds;
    uint32 public immutable payoutDelaySeconds;
    uint16 public immutable slashBps;

    /// A round of the descent writes `turn` (see Turns) and `node`; the accuser's half reads the
    /// second word as well. From when a child is picked until it is opened, `turn` holds its level
    /// and index.
    struct Dispute {
        uint256 turn;
        address accuser;
        uint48 chunks;
        uint8 asks;
        bool mayPlead;
        uint32 number;
        bytes32 binding;
        bytes32 node;
        bytes32 opening;
    }

    mapping(DisputeId id => Dispute) private _games;
    CreditBook.Book private _credits;

    /// @dev `taskRegistry_` may be an address foretold; the others are deployed already.
    constructor(
        IERC20 token_,
        address taskRegistry_,
        IMinerRegistry minerRegistry_,
        ITraceJudge judge_,
        IRowJudge rowJudge_,
        Params memory p
    ) {
        bool shares =
            p.slashBps != 0 && p.slashBps <= BPS && p.bondBps <= BPS;
        if (p.turnSeconds == 0 || !shares) {
            revert ParamsInvalid();
        }
        token = token_;
        taskRegistry = taskRegistry_;
        minerRegistry = minerRegistry_;
        judge = judge_;
        rowJudge = rowJudge_;
        bond = p.bond;
        bondBps = p.bondBps;
        turnSeconds = p.turnSeconds;
        payoutDelaySeconds = p.payoutDelaySeconds;
        slashBps = p.slashBps;
        uint256 longest = MAX_TURNS * p.turnSeconds + p.payoutDelaySeconds;
        if (longest > minerRegistry_.maxDisputeSeconds()) {
            revert DisputeTooLong(longest, minerRegistry_.maxDisputeSeconds());
        }
    }

    /// Of moves that the other side has to read.
    modifier byKey() {
        Senders.requireKey();
        _;
    }

    // --- TaskRegistry ---

    function open(DisputeRef calldata ref) external nonReentrant returns (DisputeId id) {
        if (msg.sender != taskRegistry) revert NotTaskRegistry(msg.sender);
        id = disputeIdOf(ref.job, ref.stage, ref.receiptHash, ref.right);
        Dispute storage g = _games[id];
        if (g.turn != 0) revert DisputeExists(id);
        _turn(g, Turns.first(ref.operator), Phase.Opened, 0);
        (g.accuser, g.number) = (ref.challenger, ref.number);
        g.binding = keccak256(abi.encode(ref.modelId, ref.receiptHash));
        uint256 due = _bondOf(ref.accused, ref.number);
        emit GameOpened(
            id,
            ref.job,
            ref.accused,
            ref.stage,
            ref.right,
            ref.challenger,
            ref.requester,
            ref.modelId,
            ref.receiptHash,
            ref.requestsRoot,
            due
        );

        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(ref.challenger, address(this), due);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != due) revert TokenShortfall(received, due);
    }

    // --- the accuser ---

    function accuse(
        DisputeId id,
        ModelId model,
        StageReceipt calldata receipt,
        Claim calldata claim,
        SignedRequest calldata signed,
        bytes32[] calldata below
    ) external byKey {
        // A served token is accused together with the order that says how it was to be drawn.
        if (claim.how != 0) revert ITraceJudge.ClaimInvalid();
        _accuse(id, model, receipt, claim, signed, below);
    }

    function accuseToken(
        DisputeId id,
        ModelId model,
        StageReceipt calldata receipt,
        Claim calldata claim,
        SignedRequest calldata signed,
        bytes32[] calldata below,
        Drawn calldata drawn
    ) external byKey {
        // INVARIANT: nobody but the accused names a seed.
        if (claim.how == 0 || claim.how == Derive.PLEADED) revert ITraceJudge.ClaimInvalid();
        _accuse(id, model, receipt, claim, signed, below);
        rowJudge.checkDrawn(claim, receipt.orderHash, drawn);
        if (drawn.order.samplingRoot == 0) {
            _games[id].opening = keccak256(abi.encode(drawn.opening));
        }
    }

    function ask(
        DisputeId id,
        StageReceipt calldata receipt,
        SignedRows calldata rows,
        SignedRequest calldata signed,
        RowSpot[] calldata spots
    ) external byKey {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Opened);
        if (g.asks == MAX_ASKS) revert AskedEnough();
        _requireRows(g, receipt, rows, signed);
        rowJudge.checkAsked(rows, spots);
        g.asks += 1;
        g.node = keccak256(abi.encode(rows, spots));
        emit Asked(id, _turn(g, turn, Phase.Asked, 0));
    }

    function proveMalformed(
        DisputeId id,
        StageReceipt calldata receipt,
        SignedRows calldata rows,
        SignedRequest calldata signed,
        RowSpot calldata spot,
        RowOpening calldata opening
    ) external {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Opened);
        _requireRows(g, receipt, rows, signed);
        if (!rowJudge.isMalformed(rows, spot, opening)) revert RowSound();
        _rule(id, g, turn, Status.Fault);
    }

    function openNode(DisputeId id, bytes32[] calldata below, bytes32[] calldata siblings)
        external
        byKey
    {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Opening);
        (uint256 chunks, uint256 level, uint256 index) = (g.chunks, turn.level(), turn.index());
        if (level <= Chunks.STEP_LEVELS) revert ValuesDue();
        bytes32 hash = _folded(chunks, level, index, below);
        _openChild(g, chunks, level, index, hash, siblings);
        uint256 where = Turns.atNode(level, below.length, index);
        emit NodeOpened(id, _turn(g, turn, Phase.Picking, where));
    }

    function openChunks(
        DisputeId id,
        bytes calldata data,
        bytes calldata sizes,
        bytes32[] calldata siblings
    ) external byKey {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Opening);
        (uint256 chunks, uint256 level, uint256 index) = (g.chunks, turn.level(), turn.index());
        if (level > Chunks.STEP_LEVELS) revert HashesDue();
        // Of another length than the layout has, none of a chunk's values can ever be proven.
        if (sizes.length != _nodes(chunks, 0, level, index)) revert OpeningWrong();
        bytes32 hash = Chunks.fold(Chunks.leaves(data, sizes), level);
        _openChild(g, chunks, level, index, hash, siblings);
        // Nothing is below values: the accused points next.
        uint256 where = Turns.atNode(0, 1, index << level);
        emit ChunksShown(id, _turn(g, turn, Phase.Picking, where));
    }

    function restate(DisputeId id, ModelId model, Claim calldata claim, bytes32[] calldata below)
        external
        byKey
    {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Pleaded);
        // INVARIANT: rows, layers, window and tolerance are those that were accused.
        bool same = claim.how == Derive.PLEADED && claim.key0 == turn.where()
            && _accusedHash(model, claim, g.node) == g.binding;
        if (!same) revert ClaimMismatch();
        (uint256 chunks, uint256 endsAt) = _state(g, turn, model, claim, below);
        emit Restated(id, chunks, endsAt);
    }

    function prove(DisputeId id, ModelId model, Claim calldata claim, Evidence calldata evidence)
        external
    {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Proving);
        _requireClaim(g, model, claim);
        // INVARIANT: an accuser answers the accused's list, and brings none of its own.
        bytes32 place = g.node;
        if (claim.how <= Derive.AHEAD && _listed(evidence.tokens) != uint256(place) & LISTED) {
            revert ListMismatch();
        }
        _ruleBy(
            id, g, turn, abi.decode(_judged(ITraceJudge.rule.selector, place), (ITraceJudge.Fault))
        );
    }

    function expand(DisputeId id, bytes calldata stated) external byKey {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Proving);
        // Wrong sums are not checked here: none can be proven, nor that they add up.
        uint256 parts = stated.length / Layouts.VALUE_BYTES;
        if (parts == 0 || parts > MAX_PARTS || stated.length % Layouts.VALUE_BYTES != 0) {
            revert NoParts();
        }
        g.node = _statement(g.node & ~bytes32(LISTED), stated); // an element's list has no use
        emit Expanded(id, _turn(g, turn, Phase.PickingPart, Turns.atSums(parts, 0)));
    }

    function proveSum(
        DisputeId id,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        bytes calldata stated
    ) external {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.ProvingPart);
        _requireClaim(g, model, claim);
        evidence; // read by the judge
        if (turn.part() != turn.parts()) revert PartDue(turn.part());
        if (_statement(Places.packed(place), stated) != g.node) revert StatedMismatch();
        _ruleBy(
            id, g, turn, abi.decode(_judged(ITraceJudge.ruleSum.selector, 0), (ITraceJudge.Fault))
        );
    }

    function provePart(
        DisputeId id,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        Opening calldata stated
    ) external {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.ProvingPart);
        _requireClaim(g, model, claim);
        evidence; // read by the judge
        uint256 number = turn.part();
        // INVARIANT: behind the last sum that was stated there is none, whatever the place has.
        if (number == turn.parts()) revert SumDue();
        bytes32 part = bytes32(_stated(g, number, place, stated)) | bytes32(number);
        _ruleBy(
            id,
            g,
            turn,
            abi.decode(_judged(ITraceJudge.rulePart.selector, part), (ITraceJudge.Fault))
        );
    }

    // --- the accused ---

    function pick(DisputeId id, uint8 child) external {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.Picking);
        uint256 level = turn.level();
        if (level == 0 || child >= turn.children()) revert ChildUnknown(child);
        uint256 step = _step(level);
        uint256 where;
        unchecked {
            where = Turns.atNode(level - step, 1, (turn.index() << step) + child);
        }
        emit Picked(id, child, _turn(g, turn, Phase.Opening, where));
    }

    function plead(DisputeId id, uint8 seed) external {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.Picking);
        // At the root, which is then still at the node.
        if (!g.mayPlead) revert NoPlea();
        if (turn.level() != Chunks.height(g.chunks)) revert PleaOver();
        emit Pleaded(id, seed, _turn(g, turn, Phase.Pleaded, seed));
    }

    function point(DisputeId id, Place calldata place) external {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.Picking);
        _point(id, g, turn, place, 0);
    }

    function pointWith(DisputeId id, Place calldata place, bytes calldata tokens) external byKey {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.Picking);
        // INVARIANT: whoever must answer a list can: it has to be given again with the answer.
        if (tokens.length == 0 || tokens.length > MAX_LIST_BYTES) revert ListInvalid();
        _point(id, g, turn, place, _listed(tokens));
    }

    function pickPart(DisputeId id, uint16 part) external {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.PickingPart);
        uint256 parts = turn.parts();
        if (part > parts) revert ITraceJudge.PartUnknown(part, parts);
        emit PartPicked(id, part, _turn(g, turn, Phase.ProvingPart, Turns.atSums(parts, part)));
    }

    function showOpening(
        DisputeId id,
        Order calldata order,
        RequestOpening calldata shown,
        RequestOpening calldata opening,
        bytes calldata signature
    ) external {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.Picking);
        if (g.opening != keccak256(abi.encode(shown))) revert OpeningMismatch();
        rowJudge.checkOtherOpening(order, shown, opening, signature);
        _rule(id, g, turn, Status.NoFault);
    }

    function reveal(
        DisputeId id,
        SignedRows calldata rows,
        RowSpot[] calldata spots,
        RowOpening[] calldata openings
    ) external byKey {
        (Dispute storage g, uint256 turn) = _accusedTurn(id, Phase.Asked);
        if (keccak256(abi.encode(rows, spots)) != g.node) revert AskMismatch();
        rowJudge.checkShown(rows, spots, openings);
        emit Revealed(id, _turn(g, turn, Phase.Opened, 0));
    }

    // --- anyone ---

    function timeout(DisputeId id) external {
        Dispute storage g = _games[id];
        uint256 turn = g.turn;
        Phase phase = turn.phase();
        if (phase == Phase.None || phase >= Phase.Ruled) revert WrongPhase(phase);
        if (block.timestamp <= turn.endsAt()) revert ClockRunning(turn.endsAt());
        bool accusedSilent =
            phase == Phase.Asked || phase == Phase.Picking || phase == Phase.PickingPart;
        _rule(id, g, turn, accusedSilent ? Status.Fault : Status.NoFault);
    }

    function execute(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        external
        nonReentrant
    {
        // INVARIANT: the id is of exactly this job, stage, receipt and right.
        DisputeId id = disputeIdOf(job, stage, receiptHash, right);
        Dispute storage g = _games[id];
        uint256 turn = g.turn;
        if (turn.phase() != Phase.Ruled) revert WrongPhase(turn.phase());
        (uint256 payoutAt, Status verdict) = (turn.endsAt(), turn.status());
        if (block.timestamp < payoutAt) revert PayoutNotReady(payoutAt);
        g.turn = turn.next(Phase.Executed, verdict, payoutAt, turn.where());

        // INVARIANT: the bond is credited once: to the accused if the accuser lost, else back.
        address accused = minerRegistry.ownerOf(turn.operator());
        uint256 due = _bondOf(accused, g.number);
        _credits.add(verdict == Status.NoFault ? accused : g.accuser, due);
        bool fault = verdict == Status.Fault;
        uint256 slashed = minerRegistry.closeDispute(
            accused, g.number, fault ? slashBps : 0, REWARD_CAP_BONDS * due
        );
        emit GameExecuted(id, verdict, slashed);
        ITaskRegistry(taskRegistry).resolve(job, stage, receiptHash, right, fault);
    }

    function withdrawCredit() external nonReentrant returns (uint256 amount) {
        amount = _credits.take(msg.sender);
        if (amount == 0) revert NoCredit();
        emit CreditWithdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    // --- reads ---

    function maxDisputeSeconds() external view returns (uint256) {
        return MAX_TURNS * turnSeconds + payoutDelaySeconds;
    }

    function gameOf(DisputeId id) external view returns (Game memory found) {
        Dispute storage g = _games[id];
        uint256 turn = g.turn;
        found.accused = minerRegistry.ownerOf(turn.operator());
        found.phase = turn.phase();
        found.status = turn.status();
        found.endsAt = uint40(turn.endsAt());
        uint256 level = turn.level();
        if (found.phase == Phase.Pleaded) {
            found.child = uint8(turn.where());
        } else if (level == Turns.SUMS) {
            found.parts = uint16(turn.parts());
            found.part = uint16(turn.part());
        } else {
            uint256 step = found.phase == Phase.Opening ? _stepTo(g.chunks, level) : 0;
            found.child = uint8(turn.index() & ((1 << step) - 1));
            found.level = uint8(level + step);
            found.index = uint48(turn.index() >> step);
        }
        found.accuser = g.accuser;
        found.chunks = g.chunks;
        found.asks = g.asks;
        found.binding = g.binding;
        found.node = g.node;
        found.opening = g.opening;
    }

    function creditOf(address account) external view returns (uint256) {
        return _credits.units[account];
    }

    function disputeIdOf(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        public
        view
        returns (DisputeId)
    {
        return DisputeId.wrap(keccak256(abi.encode(address(this), job, stage, receiptHash, right)));
    }

    /// What the accuser pays at the opening; the same until the dispute is closed.
    function _bondOf(address accused, uint32 number) private view returns (uint256) {
        return Bonds.due(minerRegistry, accused, number, bond, bondBps);
    }

    // --- internals: turns ---

    function _inTime(DisputeId id, Phase need)
        private
        view
        returns (Dispute storage g, uint256 turn)
    {
        g = _games[id];
        turn = g.turn;
        if (turn.phase() != need) revert WrongPhase(turn.phase());
        if (block.timestamp > turn.endsAt()) revert ClockOver(turn.endsAt());
    }

    function _accuserTurn(DisputeId id, Phase need)
        private
        view
        returns (Dispute storage g, uint256 turn)
    {
        (g, turn) = _inTime(id, need);
        if (msg.sender != g.accuser) revert NotTurn(msg.sender);
    }

    /// Of the operator that signed the receipt; or of its owner, or another operator of the owner:
    /// a key may be rotated while a dispute runs.
    function _accusedTurn(DisputeId id, Phase need)
        private
        view
        returns (Dispute storage g, uint256 turn)
    {
        (g, turn) = _inTime(id, need);
        address operator = turn.operator();
        if (msg.sender == operator) return (g, turn);
        address owner = minerRegistry.ownerOf(operator);
        bool same = msg.sender == owner || minerRegistry.ownerOf(msg.sender) == owner;
        if (!same) revert NotTurn(msg.sender);
    }

    /// INVARIANT: every turn has its own full clock, so no last-second move shortens another's.
    function _turn(Dispute storage g, uint256 turn, Phase phase, uint256 where)
        private
        returns (uint256 endsAt)
    {
        unchecked {
            endsAt = block.timestamp + turnSeconds;
        }
        g.turn = turn.next(phase, Status.Open, endsAt, where);
    }

    function _ruleBy(DisputeId id, Dispute storage g, uint256 turn, ITraceJudge.Fault fault)
        private
    {
        if (fault == ITraceJudge.Fault.Nobody) return _rule(id, g, turn, Status.NoRuling);
        bool guilty = fault == ITraceJudge.Fault.Accused;
        _rule(id, g, turn, guilty ? Status.Fault : Status.NoFault);
    }

    function _rule(DisputeId id, Dispute storage g, uint256 turn, Status verdict) private {
        uint256 payoutAt = block.timestamp + payoutDelaySeconds;
        g.turn = turn.next(Phase.Ruled, verdict, payoutAt, turn.where());
        // What was on trial is not looked at again.
        delete g.binding;
        delete g.node;
        emit GameRuled(id, verdict, payoutAt);
    }

    // --- internals: moves ---

    function _accuse(
        DisputeId id,
        ModelId model,
        StageReceipt calldata receipt,
        Claim calldata claim,
        SignedRequest calldata signed,
        bytes32[] calldata below
    ) private {
        (Dispute storage g, uint256 turn) = _accuserTurn(id, Phase.Opened);
        _requireReceipt(g, model, receipt);
        // A claim has no place for what is inside: that is signed, whatever it is.
        bytes32 innerRoot = signed.inner.length == 0 ? signed.leaf.innerRoot : bytes32(0);
        SignedRows memory rows =
            SignedRows(model, claim.leaf, claim.layerFrom, claim.layerTo, innerRoot);
        _requireRequest(receipt, rows, signed);
        (uint256 chunks, uint256 endsAt) = _state(g, turn, model, claim, below);
        emit Accused(id, chunks, endsAt);
    }

    /// What is on trial from now on, and its trace down to what is below the root.
    function _state(
        Dispute storage g,
        uint256 turn,
        ModelId model,
        Claim calldata claim,
        bytes32[] calldata below
    ) private returns (uint256 chunks, uint256 endsAt) {
        g.binding = _claimHash(model, claim);
        chunks = _checkedClaim(model, claim);
        bool mayPlead = claim.how == 0;
        (g.chunks, g.mayPlead) = (uint48(chunks), mayPlead);
        uint256 level = Chunks.height(chunks);
        if (_folded(chunks, level, 0, below) != claim.traceRoot) revert OpeningWrong();
        g.node = claim.traceRoot;
        endsAt = _turn(g, turn, Phase.Picking, Turns.atNode(level, below.length, 0));
    }

    function _point(
        DisputeId id,
        Dispute storage g,
        uint256 turn,
        Place calldata place,
        uint256 listed
    ) private {
        // Not checked: the first proof of anything ends a game in which nothing was found.
        g.node = Places.packed(place) | bytes32(listed);
        emit PointedAt(id, place, _turn(g, turn, Phase.Proving, turn.where()));
    }

    // --- internals: what is on trial ---

    function _requireReceipt(Dispute storage g, ModelId model, StageReceipt calldata receipt)
        private
        view
    {
        if (_receiptHash(model, receipt) != g.binding) revert ReceiptMismatch();
    }

    /// keccak256(abi.encode(model, receipt's hash)). Words are hashed as they stand in the call:
    /// TaskRegistry has hashed sound ones, and no others have their hash.
    function _receiptHash(ModelId model, StageReceipt calldata receipt)
        private
        pure
        returns (bytes32 hash)
    {
        bytes32 typeHash = Eip712Types.STAGE_RECEIPT_TYPEHASH;
        assembly ("memory-safe") {
            let place := mload(0x40)
            mstore(place, typeHash)
            calldatacopy(add(place, 32), receipt, RECEIPT_BYTES)
            mstore(32, keccak256(place, add(RECEIPT_BYTES, 32)))
            mstore(0, model)
            hash := keccak256(0, 64)
        }
    }

    /// INVARIANT: layers, request and rows are those that the accused signed: all of the stage, or
    /// one of its spans.
    function _requireRequest(
        StageReceipt calldata receipt,
        SignedRows memory rows,
        SignedRequest calldata signed
    ) private view {
        RequestLeaf calldata leaf = signed.leaf;
        if (!Receipts.isUnder(receipt, leaf, signed.position, signed.proof)) {
            revert RequestUnproven();
        }
        if (signed.inner.length != 0) {
            rowJudge.checkSpan(rows, receipt.layerFrom, receipt.layerTo, leaf, signed.inner);
            return;
        }
        if (rows.layerFrom != receipt.layerFrom || rows.layerTo != receipt.layerTo) {
            revert ReceiptMismatch();
        }
        RequestRows memory found = rows.leaf;
        bool same = found.requestIndex == leaf.requestIndex && found.inRoot == leaf.inRoot
            && found.outRoot == leaf.outRoot && found.tokensIn == leaf.tokensIn
            && found.tokensOut == leaf.tokensOut && rows.innerRoot == leaf.innerRoot;
        if (!same) revert RequestUnproven();
    }

    function _requireRows(
        Dispute storage g,
        StageReceipt calldata receipt,
        SignedRows calldata rows,
        SignedRequest calldata signed
    ) private view {
        _requireReceipt(g, rows.model, receipt);
        _requireRequest(receipt, rows, signed);
    }

    /// 17 bytes of a list's hash, 0 for none: enough that nobody finds another list for it.
    function _listed(bytes calldata tokens) private pure returns (uint256) {
        return tokens.length == 0 ? 0 : uint256(keccak256(tokens)) >> 120;
    }

    /// What the judge says to this call's own bytes, with `first` where the dispute's id stood.
    ///
    /// SAFETY: our own contract without state, and the claim is the one that it checked.
    function _judged(bytes4 selector, bytes32 first) private view returns (bytes memory) {
        return address(judge).functionStaticCall(abi.encodePacked(selector, first, msg.data[36:]));
    }

    // --- internals: partial sums ---

    /// What the accuser stated of a place: H(place ‖ hash of each group of sixteen partial sums).
    function _statement(bytes32 place, bytes calldata stated) private pure returns (bytes32 hash) {
        assembly ("memory-safe") {
            let list := mload(0x40)
            mstore(list, place)
            let to := add(list, 32)
            let size := GROUP_BYTES
            let from := stated.offset
            let left := stated.length
            for {} left { left := sub(left, size) } {
                if lt(left, size) { size := left }
                // A group lies where later hashes will, and is read before they are written.
                calldatacopy(to, from, size)
                mstore(to, keccak256(to, size))
                to := add(to, 32)
                from := add(from, size)
            }
            hash := keccak256(list, sub(to, list))
        }
    }

    /// INVARIANT: the sum is the one that was picked and stated: the hash is over all groups.
    function _stated(
        Dispute storage g,
        uint256 part,
        Place calldata place,
        Opening calldata opening
    ) private view returns (bytes8) {
        uint256 start = part * Layouts.VALUE_BYTES;
        uint256 group = start / GROUP_BYTES;
        bytes32[] calldata others = opening.siblings;
        if (group > others.length) revert StatedMismatch();
        bytes32 found = keccak256(
            abi.encodePacked(
                Places.packed(place), others[:group], keccak256(opening.data), others[group:]
            )
        );
        if (found != g.node) revert StatedMismatch();
        return bytes8(opening.data[start % GROUP_BYTES:]);
    }

    // --- internals: the descent ---

    /// What is on trial: keccak256(abi.encode(model, claim)), hashed as it stands in the call.
    function _claimHash(ModelId model, Claim calldata claim) private pure returns (bytes32 hash) {
        assembly ("memory-safe") {
            let place := mload(0x40)
            mstore(place, model)
            calldatacopy(add(place, 32), claim, CLAIM_BYTES)
            hash := keccak256(place, add(CLAIM_BYTES, 32))
        }
    }

    /// The same of the claim as it was accused, which a restated one comes from.
    function _accusedHash(ModelId model, Claim calldata claim, bytes32 root)
        private
        pure
        returns (bytes32 hash)
    {
        assembly ("memory-safe") {
            let place := mload(0x40)
            mstore(place, model)
            calldatacopy(add(place, 32), claim, CLAIM_BYTES)
            mstore(add(place, 352), 0) // how
            mstore(add(place, 576), 0) // key0
            mstore(add(place, 672), root)
            hash := keccak256(place, add(CLAIM_BYTES, 32))
        }
    }

    /// Chunks of the claim's trace. The judge is sent the claim as it stands in the call.
    ///
    /// INVARIANT: each word is of its type, so that the accused can read what the judge did.
    function _checkedClaim(ModelId model, Claim calldata claim) private view returns (uint256) {
        bytes calldata words = msg.data[:CLAIM_BYTES];
        bool sound;
        assembly ("memory-safe") {
            words.offset := claim
            // Of four bytes: in the leaf, positions, windowFrom, and from `preferred` to `key1`.
            let four := or(calldataload(claim), calldataload(add(claim, 96)))
            four := or(four, or(calldataload(add(claim, 128)), calldataload(add(claim, 224))))
            four := or(four, or(calldataload(add(claim, 256)), calldataload(add(claim, 352))))
            four := or(four, or(calldataload(add(claim, 384)), calldataload(add(claim, 416))))
            four := or(four, or(calldataload(add(claim, 448)), calldataload(add(claim, 480))))
            four := or(four, or(calldataload(add(claim, 512)), calldataload(add(claim, 544))))
            four := or(four, calldataload(add(claim, 576)))
            // layerFrom and layerTo; tolerance and how.
            let two := or(calldataload(add(claim, 160)), calldataload(add(claim, 192)))
            let one := or(calldataload(add(claim, 288)), calldataload(add(claim, 320)))
            sound := iszero(or(shr(32, four), or(shr(16, two), shr(8, one))))
        }
        require(sound);
        bytes memory asked = abi.encodePacked(IRowJudge.checkClaim.selector, model, words);
        return abi.decode(address(rowJudge).functionStaticCall(asked), (uint256));
    }

    function _requireClaim(Dispute storage g, ModelId model, Claim calldata claim) private view {
        if (_claimHash(model, claim) != g.binding) revert ClaimMismatch();
    }

    function _step(uint256 level) private pure returns (uint256) {
        return level < Chunks.STEP_LEVELS ? level : Chunks.STEP_LEVELS;
    }

    /// How many nodes of level `below` there are, `step` levels beneath node number `index`.
    function _nodes(uint256 chunks, uint256 below, uint256 step, uint256 index)
        private
        pure
        returns (uint256)
    {
        unchecked {
            uint256 left = Chunks.width(chunks, below) - (index << step); // there is such a node
            return left < 1 << step ? left : 1 << step;
        }
    }

    /// Levels from the picked child to the node opened before: five, or all below the root.
    function _stepTo(uint256 chunks, uint256 level) private pure returns (uint256) {
        return _step(Chunks.height(chunks) - level);
    }

    /// The hash of a node by what is said to be below it.
    function _folded(uint256 chunks, uint256 level, uint256 index, bytes32[] calldata below)
        private
        view
        returns (bytes32)
    {
        uint256 step = _step(level);
        if (below.length != _nodes(chunks, level - step, step, index)) revert OpeningWrong();
        return Chunks.fold(below, step);
    }

    /// INVARIANT: what is opened is the picked child of the node that was opened before.
    function _openChild(
        Dispute storage g,
        uint256 chunks,
        uint256 level,
        uint256 index,
        bytes32 hash,
        bytes32[] calldata siblings
    ) private {
        uint256 step = _stepTo(chunks, level);
        uint256 count = _nodes(chunks, level, step, index >> step);
        bytes32 top = Chunks.climb(hash, index & ((1 << step) - 1), count, siblings);
        if (top != g.node) revert OpeningWrong();
        g.node = hash;
    }
}
