// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {IArbitrator} from "../interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Bonds} from "../libraries/Bonds.sol";
import {CreditBook} from "../libraries/CreditBook.sol";
import {Sortition} from "../libraries/Sortition.sol";
import {StakeTree} from "../libraries/StakeTree.sol";
import {DisputeId, JobId} from "../types/Ids.sol";
import {JurorPool} from "./JurorPool.sol";

/// Did the accused stage compute what it signed? Drawn jurors re-run it, commit, reveal.
///
/// The hash of a block after the opening draws, the same for every caller of `draw`, by the weights
/// before the opening: nothing done later bends a draw. A block's proposer can withhold it, so
/// where that is worth more than a block reward, stakes must be limited.
///
/// INVARIANT: token.balanceOf(this) = Σ jurors' (stake + leaving) + Σ credits + Σ (bond + fee) of
/// disputes not executed.
contract JuryArbitrator is JurorPool {
    using CreditBook for CreditBook.Book;
    using StakeTree for StakeTree.Tree;

    struct Seat {
        address juror;
        Vote vote;
        bytes32 commitment;
    }

    /// How an execution divides the jurors' money.
    struct Division {
        uint256 fines;
        uint256 paidJurors;
        uint256 each;
    }

    uint256 private constant BPS = 10_000;
    uint256 private constant SILENT_FINE_BPS = 2_000;
    uint256 private constant MINORITY_FINE_BPS = 1_000;
    uint256 private constant REWARD_CAP_BONDS = 10;
    uint256 private constant SLOWEST_BLOCK_SECONDS = 15;
    uint256 private constant MAX_PANEL = 31;
    uint256 private constant MAX_DRAW_DELAY_BLOCKS = 200; // a chain remembers 256 hashes
    uint256 private constant MAX_ABSENTEES = 32; // jurors of the snapshot found gone in one draw

    address public immutable taskRegistry;
    IMinerRegistry public immutable minerRegistry;
    uint96 public immutable bond;
    uint16 public immutable bondBps;
    uint96 public immutable fee;
    uint32 public immutable commitSeconds;
    uint32 public immutable revealSeconds;
    uint32 public immutable payoutDelaySeconds;
    uint32 public immutable drawDelayBlocks;
    uint16 public immutable slashBps;
    uint8 public immutable panelSize;
    uint8 public immutable quorum;

    mapping(DisputeId id => Dispute) private _disputes;
    mapping(DisputeId id => Seat[]) private _seats;
    mapping(DisputeId id => uint16[] slots) private _excluded; // parties that could have been drawn

    /// @dev `minerRegistry_` is deployed already; `taskRegistry_` may be an address foretold.
    constructor(
        IERC20 token_,
        address taskRegistry_,
        IMinerRegistry minerRegistry_,
        Params memory p
    ) JurorPool(token_, p.minJurorStake, p.jurorUnbondSeconds) {
        if (p.panelSize == 0 || p.panelSize > MAX_PANEL || p.quorum == 0 || p.quorum > p.panelSize)
        {
            revert ParamsInvalid();
        }
        if (p.drawDelayBlocks == 0 || p.drawDelayBlocks > MAX_DRAW_DELAY_BLOCKS) {
            revert ParamsInvalid();
        }
        if (p.slashBps == 0 || p.slashBps > BPS || p.bondBps > BPS) revert ParamsInvalid();
        if (p.commitSeconds == 0 || p.revealSeconds == 0) {
            revert ParamsInvalid();
        }
        taskRegistry = taskRegistry_;
        minerRegistry = minerRegistry_;
        bond = p.bond;
        bondBps = p.bondBps;
        fee = p.fee;
        commitSeconds = p.commitSeconds;
        revealSeconds = p.revealSeconds;
        payoutDelaySeconds = p.payoutDelaySeconds;
        drawDelayBlocks = p.drawDelayBlocks;
        slashBps = p.slashBps;
        panelSize = p.panelSize;
        quorum = p.quorum;

        uint256 longest = _maxDisputeSeconds(p);
        if (longest > minerRegistry_.maxDisputeSeconds()) {
            revert DisputeTooLong(longest, minerRegistry_.maxDisputeSeconds());
        }
    }

    // --- TaskRegistry ---

    function open(DisputeRef calldata ref) external nonReentrant returns (DisputeId id) {
        if (msg.sender != taskRegistry) revert NotTaskRegistry(msg.sender);
        id = disputeIdOf(ref.job, ref.stage, ref.receiptHash, ref.right);
        Dispute storage d = _disputes[id];
        if (d.phase != Phase.None) revert DisputeExists(id);

        d.job = ref.job;
        d.accused = ref.accused;
        d.stage = ref.stage;
        d.phase = Phase.Opened;
        d.status = Status.Open;
        d.drawBlock = uint64(block.number + drawDelayBlocks);
        d.challenger = ref.challenger;
        d.right = ref.right;
        d.number = ref.number;
        d.bond = uint96(Bonds.due(minerRegistry, ref.accused, ref.number, bond, bondBps));
        d.fee = fee;
        d.snapshotBlock = uint64(block.number - 1);
        d.receiptHash = ref.receiptHash;
        _exclude(id, ref.operators, ref.parties);
        emit DisputeOpened(
            id,
            ref.job,
            ref.accused,
            ref.stage,
            ref.challenger,
            ref.receiptHash,
            d.bond,
            d.drawBlock
        );

        _pull(ref.challenger, uint256(d.bond) + fee);
    }

    // --- anyone: draw ---

    function draw(DisputeId id) external {
        Dispute storage d = _in(id, Phase.Opened);
        if (block.number <= d.drawBlock) revert DrawTooEarly(d.drawBlock);
        bytes32 hash = blockhash(d.drawBlock);
        if (hash == 0) {
            d.drawBlock = uint64(block.number + drawDelayBlocks);
            emit DrawMissed(id, d.drawBlock);
            return;
        }

        (address[] memory drawn, uint256 count) = _drawPanel(id, d.snapshotBlock, hash);
        if (count < quorum) return _rule(id, d, Status.NoRuling);
        d.phase = Phase.Committing;
        d.phaseEndsAt = uint40(block.timestamp + commitSeconds);
        d.panel = uint8(count);
        for (uint256 i; i < count; ++i) {
            _bindJuror(drawn[i]);
            _seats[id].push(Seat({juror: drawn[i], vote: Vote.None, commitment: 0}));
            emit JurorDrawn(id, drawn[i], d.phaseEndsAt);
        }
    }

    // --- jurors ---

    function commitVote(DisputeId id, bytes32 commitment) external {
        Dispute storage d = _in(id, Phase.Committing);
        if (block.timestamp > d.phaseEndsAt) revert ClockOver(d.phaseEndsAt);
        Seat storage seat = _seatOf(id, msg.sender);
        if (seat.commitment != 0) revert AlreadyCommitted(msg.sender);
        if (commitment == 0) revert VoteInvalid();
        seat.commitment = commitment;
        emit VoteCommitted(id, msg.sender, commitment);
        if (++d.commits == d.panel) _startReveal(id, d);
    }

    function revealVote(DisputeId id, Vote vote, bytes32 evidence, bytes32 salt) external {
        Dispute storage d = _in(id, Phase.Revealing);
        if (block.timestamp > d.phaseEndsAt) revert ClockOver(d.phaseEndsAt);
        Seat storage seat = _seatOf(id, msg.sender);
        if (seat.vote != Vote.None) revert AlreadyRevealed(msg.sender);
        if (vote == Vote.None) revert VoteInvalid();
        if (seat.commitment != commitmentHash(id, msg.sender, vote, evidence, salt)) {
            revert CommitmentMismatch();
        }
        seat.vote = vote;
        if (vote == Vote.Fault) ++d.votesFault;
        emit VoteRevealed(id, msg.sender, vote, evidence);
        if (++d.reveals == d.commits) _tally(id, d);
    }

    // --- anyone: clocks and payout ---

    function advance(DisputeId id) external {
        Dispute storage d = _disputes[id];
        if (d.phase != Phase.Committing && d.phase != Phase.Revealing) revert WrongPhase(d.phase);
        if (block.timestamp <= d.phaseEndsAt) revert ClockRunning(d.phaseEndsAt);
        if (d.phase == Phase.Revealing) return _tally(id, d);
        if (d.commits < quorum) return _rule(id, d, Status.NoRuling);
        _startReveal(id, d);
    }

    function execute(DisputeId id) external nonReentrant {
        Dispute storage d = _in(id, Phase.Ruled);
        if (block.timestamp < d.payoutAt) revert PayoutNotReady(d.payoutAt);
        d.phase = Phase.Executed;

        // INVARIANT: bond + fee + fines = what is credited below.
        uint256 feeBack = _settleJurors(id, d);
        if (d.status == Status.NoFault) {
            uint256 compensation = d.bond / 2;
            _credits.add(d.accused, compensation);
            _credits.add(CreditBook.BURN_ADDRESS, d.bond - compensation);
        } else {
            _credits.add(d.challenger, d.bond + feeBack);
        }

        bool fault = d.status == Status.Fault;
        uint256 slashed = minerRegistry.closeDispute(
            d.accused, d.number, fault ? slashBps : 0, REWARD_CAP_BONDS * d.bond
        );
        emit DisputeExecuted(id, d.status, slashed);
        ITaskRegistry(taskRegistry).resolve(d.job, d.stage, d.receiptHash, d.right, fault);
    }

    // --- reads ---

    /// Longest if each step is called as soon as it may be; stake stays frozen in any case.
    function maxDisputeSeconds() external view returns (uint256) {
        return drawDelayBlocks * SLOWEST_BLOCK_SECONDS + commitSeconds + revealSeconds
            + payoutDelaySeconds;
    }

    function disputeOf(DisputeId id) external view returns (Dispute memory) {
        return _disputes[id];
    }

    function panelOf(DisputeId id) external view returns (address[] memory panel) {
        Seat[] storage seats = _seats[id];
        panel = new address[](seats.length);
        for (uint256 i; i < panel.length; ++i) {
            panel[i] = seats[i].juror;
        }
    }

    function disputeIdOf(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        public
        view
        returns (DisputeId)
    {
        return DisputeId.wrap(keccak256(abi.encode(address(this), job, stage, receiptHash, right)));
    }

    function commitmentHash(DisputeId id, address juror, Vote vote, bytes32 evidence, bytes32 salt)
        public
        pure
        returns (bytes32)
    {
        // Names juror and dispute: nobody else can reveal it, nor elsewhere.
        return keccak256(abi.encode(id, juror, vote, evidence, salt));
    }

    // --- internals: the draw ---

    /// Remember the parties, operators and their owners that could be drawn; usually none.
    function _exclude(DisputeId id, address[] calldata operators, address[] calldata parties)
        private
    {
        uint16[] storage slots = _excluded[id];
        uint96 snapshot = uint96(block.number - 1);
        for (uint256 i; i < operators.length; ++i) {
            _excludeOne(slots, operators[i], snapshot);
            _excludeOne(slots, minerRegistry.ownerOf(operators[i]), snapshot);
        }
        for (uint256 i; i < parties.length; ++i) {
            _excludeOne(slots, parties[i], snapshot);
        }
    }

    function _excludeOne(uint16[] storage slots, address party, uint96 snapshot) private {
        (bool drawable, uint256 slot) = _drawableSlot(party, snapshot);
        if (!drawable) return;
        for (uint256 i; i < slots.length; ++i) {
            if (slots[i] == slot) return;
        }
        slots.push(uint16(slot));
    }

    /// Up to `panelSize` distinct jurors that are no party and still here.
    function _drawPanel(DisputeId id, uint96 snapshot, bytes32 hash)
        private
        view
        returns (address[] memory drawn, uint256 count)
    {
        uint16[] storage excluded = _excluded[id];
        uint256 total = _tree.totalAt(snapshot);
        uint256 tries = uint256(panelSize) + MAX_ABSENTEES;
        Sortition.Cuts memory cuts = Sortition.noCuts(excluded.length + tries);
        for (uint256 i; i < excluded.length; ++i) {
            Sortition.cut(cuts, _tree.spanAt(excluded[i], snapshot));
        }

        drawn = new address[](panelSize);
        for (uint256 i; i < tries && count < panelSize && cuts.weight < total; ++i) {
            uint256 random = uint256(keccak256(abi.encode(hash, id, i)));
            address juror =
                _tree.holderAt(Sortition.draw(_tree, snapshot, total, cuts, random), snapshot);
            if (_covers(juror, _silentFine())) drawn[count++] = juror;
        }
    }

    // --- internals: phases ---

    function _startReveal(DisputeId id, Dispute storage d) private {
        d.phase = Phase.Revealing;
        d.phaseEndsAt = uint40(block.timestamp + revealSeconds); // its own full clock
        emit RevealStarted(id, d.phaseEndsAt);
    }

    /// INVARIANT: a slash needs a quorum and a strict majority of what was revealed.
    function _tally(DisputeId id, Dispute storage d) private {
        uint256 votesNoFault = d.reveals - d.votesFault;
        if (d.reveals < quorum || d.votesFault == votesNoFault) {
            return _rule(id, d, Status.NoRuling);
        }
        _rule(id, d, d.votesFault > votesNoFault ? Status.Fault : Status.NoFault);
    }

    function _rule(DisputeId id, Dispute storage d, Status verdict) private {
        d.phase = Phase.Ruled;
        d.status = verdict;
        d.payoutAt = uint40(block.timestamp + payoutDelaySeconds);
        emit DisputeRuled(id, verdict, d.votesFault, d.reveals - d.votesFault, d.payoutAt);
    }

    // --- internals: the jurors' money ---

    /// Fine the silent and the outvoted, pay the coherent. Without a ruling nobody is outvoted.
    /// @return feeBack what of the fee was not spent
    function _settleJurors(DisputeId id, Dispute storage d) private returns (uint256 feeBack) {
        Seat[] storage seats = _seats[id];
        Division memory division;
        for (uint256 i; i < seats.length; ++i) {
            Seat storage seat = seats[i];
            _unbindJuror(seat.juror);
            if (_isPaid(seat.vote, d.status)) {
                ++division.paidJurors;
                continue;
            }
            bool silent = seat.vote == Vote.None;
            uint256 fined = _fine(seat.juror, silent ? _silentFine() : _minorityFine());
            division.fines += fined;
            emit JurorPenalised(id, seat.juror, fined, silent);
        }

        uint256 spent = d.fee;
        if (d.status == Status.NoRuling) {
            spent = seats.length == 0 ? 0 : d.fee * division.paidJurors / seats.length;
        }
        feeBack = d.fee - spent;

        uint256 pot = spent + division.fines;
        if (division.paidJurors != 0) division.each = pot / division.paidJurors;
        for (uint256 i; i < seats.length; ++i) {
            if (!_isPaid(seats[i].vote, d.status)) continue;
            _credits.add(seats[i].juror, division.each);
            emit JurorRewarded(id, seats[i].juror, division.each);
        }
        _credits.add(CreditBook.BURN_ADDRESS, pot - division.each * division.paidJurors);
    }

    function _isPaid(Vote vote, Status verdict) private pure returns (bool) {
        if (verdict == Status.Fault) return vote == Vote.Fault;
        if (verdict == Status.NoFault) return vote == Vote.NoFault;
        return vote != Vote.None;
    }

    function _silentFine() private view returns (uint256) {
        return minJurorStake * SILENT_FINE_BPS / BPS;
    }

    function _minorityFine() private view returns (uint256) {
        return minJurorStake * MINORITY_FINE_BPS / BPS;
    }

    function _maxDisputeSeconds(Params memory p) private pure returns (uint256) {
        return p.drawDelayBlocks * SLOWEST_BLOCK_SECONDS + p.commitSeconds + p.revealSeconds
            + p.payoutDelaySeconds;
    }

    function _in(DisputeId id, Phase need) private view returns (Dispute storage d) {
        d = _disputes[id];
        if (d.phase != need) revert WrongPhase(d.phase);
    }

    function _seatOf(DisputeId id, address juror) private view returns (Seat storage) {
        Seat[] storage seats = _seats[id];
        for (uint256 i; i < seats.length; ++i) {
            if (seats[i].juror == juror) return seats[i];
        }
        revert NotJuror(juror);
    }
}
