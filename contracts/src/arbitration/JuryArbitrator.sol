// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {IArbitrator} from "../interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Bonds} from "../libraries/Bonds.sol";
import {CreditBook} from "../libraries/CreditBook.sol";
import {Roll} from "../libraries/Roll.sol";
import {DisputeId, JobId} from "../types/Ids.sol";
import {JurorPool} from "./JurorPool.sol";

/// Did the accused stage compute what it signed? Drawn jurors re-run it, commit, reveal.
///
/// The hash of a block after the opening or the appeal draws, the same for every caller of `draw`,
/// from the roll before the opening: nothing done later bends a draw, and no juror enters for a
/// dispute, however often it is appealed. A block's proposer can withhold its hash, so where that
/// is worth more than a block reward, stakes must be limited.
///
/// All panels of a dispute are settled by its last ruling.
///
/// INVARIANT: token.balanceOf(this) = Σ jurors' (stake + leaving) + Σ credits + Σ (bonds + fees) of
/// disputes not executed.
contract JuryArbitrator is JurorPool {
    using CreditBook for CreditBook.Book;
    using Roll for Roll.Book;

    struct Seat {
        address juror;
        Vote vote;
        bytes32 commitment;
    }

    uint256 private constant BPS = 10_000;
    uint256 private constant SILENT_FINE_BPS = 2_000;
    uint256 private constant MINORITY_FINE_BPS = 1_000;
    uint256 private constant REWARD_CAP_BONDS = 10;
    uint256 private constant SLOWEST_BLOCK_SECONDS = 15;
    uint256 private constant MAX_APPEALS = 2;
    uint256 private constant MAX_PANEL = 31; // the last one
    uint256 private constant MAX_DRAW_DELAY_BLOCKS = 200; // a chain remembers 256 hashes
    uint256 private constant MAX_PASSED_OVER = 64; // parties, and jurors gone since, in one draw

    address public immutable taskRegistry;
    IMinerRegistry public immutable minerRegistry;
    uint96 public immutable bond;
    uint16 public immutable bondBps;
    uint96 public immutable seatFee;
    uint32 public immutable commitSeconds;
    uint32 public immutable revealSeconds;
    uint32 public immutable appealSeconds;
    uint32 public immutable payoutDelaySeconds;
    uint32 public immutable bondSeconds;
    uint32 public immutable drawDelayBlocks;
    uint16 public immutable slashBps;
    uint8 public immutable panelSize;

    mapping(DisputeId id => Dispute) private _disputes;
    mapping(DisputeId id => mapping(uint256 level => Seat[])) private _seats;
    mapping(DisputeId id => Appeal[]) private _appeals; // of level 1, of level 2
    mapping(DisputeId id => address[] parties) private _excluded; // that have stake here

    /// @dev `minerRegistry_` is deployed already; `taskRegistry_` may be an address foretold.
    constructor(
        IERC20 token_,
        address taskRegistry_,
        IMinerRegistry minerRegistry_,
        Params memory p
    ) JurorPool(token_, p.minJurorStake, p.maturitySeconds, p.jurorUnbondSeconds) {
        bool sound = p.panelSize != 0 && _sizeAt(p.panelSize, MAX_APPEALS) <= MAX_PANEL
            && p.drawDelayBlocks != 0 && p.drawDelayBlocks <= MAX_DRAW_DELAY_BLOCKS
            && p.slashBps != 0 && p.slashBps <= BPS && p.bondBps <= BPS && p.commitSeconds != 0
            && p.revealSeconds != 0 && p.appealSeconds != 0 && p.bondSeconds != 0;
        if (!sound) revert ParamsInvalid();
        taskRegistry = taskRegistry_;
        minerRegistry = minerRegistry_;
        bond = p.bond;
        bondBps = p.bondBps;
        seatFee = p.seatFee;
        commitSeconds = p.commitSeconds;
        revealSeconds = p.revealSeconds;
        appealSeconds = p.appealSeconds;
        payoutDelaySeconds = p.payoutDelaySeconds;
        bondSeconds = p.bondSeconds;
        drawDelayBlocks = p.drawDelayBlocks;
        slashBps = p.slashBps;
        panelSize = p.panelSize;

        uint256 longest = _maxDisputeSeconds(p);
        if (longest > minerRegistry_.maxDisputeSeconds()) {
            revert DisputeTooLong(longest, minerRegistry_.maxDisputeSeconds());
        }
        // INVARIANT: who was on the roll when a dispute opened is here for its last panel.
        if (p.jurorUnbondSeconds < longest) revert UnbondTooShort(p.jurorUnbondSeconds, longest);
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
        d.fee = uint96(seatFee * panelSize);
        d.snapshotBlock = uint64(block.number - 1);
        d.since = uint40(block.timestamp);
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

        _pull(ref.challenger, uint256(d.bond) + d.fee);
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

        (address[] memory drawn, uint256 count) = _drawPanel(id, d, hash);
        if (count < _needed(d.level)) return _rule(id, d, Status.NoRuling);
        Seat[] storage seats = _seats[id][d.level];
        d.phase = Phase.Committing;
        d.phaseEndsAt = uint40(block.timestamp + commitSeconds);
        d.panel = uint8(count);
        for (uint256 i; i < count; ++i) {
            _bindJuror(drawn[i]);
            seats.push(Seat({juror: drawn[i], vote: Vote.None, commitment: 0}));
            emit JurorDrawn(id, drawn[i], d.phaseEndsAt);
        }
    }

    // --- jurors ---

    function commitVote(DisputeId id, bytes32 commitment) external {
        Dispute storage d = _in(id, Phase.Committing);
        if (block.timestamp > d.phaseEndsAt) revert ClockOver(d.phaseEndsAt);
        Seat storage seat = _seatOf(id, d.level, msg.sender);
        if (seat.commitment != 0) revert AlreadyCommitted(msg.sender);
        if (commitment == 0) revert VoteInvalid();
        seat.commitment = commitment;
        emit VoteCommitted(id, msg.sender, commitment);
        if (++d.commits == d.panel) _startReveal(id, d);
    }

    function revealVote(DisputeId id, Vote vote, bytes32 evidence, bytes32 salt) external {
        Dispute storage d = _in(id, Phase.Revealing);
        if (block.timestamp > d.phaseEndsAt) revert ClockOver(d.phaseEndsAt);
        Seat storage seat = _seatOf(id, d.level, msg.sender);
        if (seat.vote != Vote.None) revert AlreadyRevealed(msg.sender);
        if (vote == Vote.None) revert VoteInvalid();
        if (seat.commitment != commitmentHash(id, d.level, msg.sender, vote, evidence, salt)) {
            revert CommitmentMismatch();
        }
        seat.vote = vote;
        if (vote == Vote.Fault) ++d.votesFault;
        if (vote == Vote.NoFault) ++d.votesNoFault;
        emit VoteRevealed(id, msg.sender, vote, evidence);
        if (++d.reveals == d.commits) _tally(id, d);
    }

    // --- anyone: clocks ---

    function advance(DisputeId id) external {
        Dispute storage d = _disputes[id];
        if (d.phase != Phase.Committing && d.phase != Phase.Revealing) revert WrongPhase(d.phase);
        if (block.timestamp <= d.phaseEndsAt) revert ClockRunning(d.phaseEndsAt);
        if (d.phase == Phase.Revealing) return _tally(id, d);
        if (d.commits < _needed(d.level)) return _rule(id, d, Status.NoRuling);
        _startReveal(id, d);
    }

    // --- the parties: appeal ---

    function appeal(DisputeId id) external nonReentrant {
        Dispute storage d = _in(id, Phase.Ruled);
        if (!isAppealable(id)) revert NotAppealable(d.level);
        if (block.timestamp >= d.payoutAt) revert AppealOver(d.payoutAt);
        bool asksFault = _asksFault(d, msg.sender);
        if (d.status == _asked(asksFault)) revert AppealPointless(d.status);

        (uint256 due, uint256 seats) = appealCostOf(id);
        _appeals[id].push(Appeal({by: msg.sender, asksFault: asksFault}));
        uint8 level = ++d.level;
        d.phase = Phase.Opened;
        d.status = Status.Open;
        d.drawBlock = uint64(block.number + drawDelayBlocks);
        d.since = uint40(block.timestamp);
        (d.panel, d.commits, d.reveals) = (0, 0, 0);
        (d.votesFault, d.votesNoFault) = (0, 0);
        emit DisputeAppealed(id, level, msg.sender, asksFault, due, seats, d.drawBlock);

        _pull(msg.sender, due + seats);
    }

    // --- anyone: payout ---

    function execute(DisputeId id) external nonReentrant {
        Dispute storage d = _in(id, Phase.Ruled);
        if (block.timestamp < d.payoutAt) revert PayoutNotReady(d.payoutAt);
        d.phase = Phase.Executed;

        // INVARIANT: bonds + fees + fines = what is credited below.
        (Status status, uint256 levels) = (d.status, d.level);
        for (uint256 level; level <= levels; ++level) {
            _settleJurors(id, level, status);
            _settlePayer(id, d, level, status);
        }

        bool fault = status == Status.Fault;
        uint256 slashed = minerRegistry.closeDispute(
            d.accused, d.number, fault ? slashBps : 0, REWARD_CAP_BONDS * d.bond
        );
        emit DisputeExecuted(id, status, slashed);
        ITaskRegistry(taskRegistry).resolve(d.job, d.stage, d.receiptHash, d.right, fault);
    }

    // --- reads ---

    /// Longest if each step is called as soon as it may be; stake stays frozen in any case.
    function maxDisputeSeconds() external view returns (uint256) {
        return (MAX_APPEALS + 1)
            * (drawDelayBlocks * SLOWEST_BLOCK_SECONDS + commitSeconds + revealSeconds)
            + MAX_APPEALS * appealSeconds + payoutDelaySeconds;
    }

    /// The jurors' fee that a challenger pays.
    function fee() external view returns (uint256) {
        return seatFee * panelSize;
    }

    function disputeOf(DisputeId id) external view returns (Dispute memory) {
        return _disputes[id];
    }

    function panelOf(DisputeId id) external view returns (address[] memory) {
        return panelAt(id, _disputes[id].level);
    }

    function panelAt(DisputeId id, uint256 level) public view returns (address[] memory panel) {
        Seat[] storage seats = _seats[id][level];
        panel = new address[](seats.length);
        for (uint256 i; i < panel.length; ++i) {
            panel[i] = seats[i].juror;
        }
    }

    function appealsOf(DisputeId id) external view returns (Appeal[] memory) {
        return _appeals[id];
    }

    /// Is there a larger panel, and are there jurors enough to fill it?
    function isAppealable(DisputeId id) public view returns (bool) {
        Dispute storage d = _disputes[id];
        uint256 level = d.level;
        return level < MAX_APPEALS
            && _roll.countAt(uint96(d.snapshotBlock))
                >= _sizeAt(panelSize, level + 1) + _excluded[id].length;
    }

    function appealCostOf(DisputeId id) public view returns (uint256 due, uint256 seats) {
        Dispute storage d = _disputes[id];
        return _costAt(d, uint256(d.level) + 1);
    }

    function disputeIdOf(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        public
        view
        returns (DisputeId)
    {
        return DisputeId.wrap(keccak256(abi.encode(address(this), job, stage, receiptHash, right)));
    }

    function commitmentHash(
        DisputeId id,
        uint8 level,
        address juror,
        Vote vote,
        bytes32 evidence,
        bytes32 salt
    ) public pure returns (bytes32) {
        // Names juror, dispute and panel: nobody else can reveal it, nor elsewhere.
        return keccak256(abi.encode(id, level, juror, vote, evidence, salt));
    }

    // --- internals: the draw ---

    /// Remember the parties, operators and their owners that have stake here; usually none.
    function _exclude(DisputeId id, address[] calldata operators, address[] calldata parties)
        private
    {
        address[] storage excluded = _excluded[id];
        for (uint256 i; i < operators.length; ++i) {
            _excludeOne(excluded, operators[i]);
            _excludeOne(excluded, minerRegistry.ownerOf(operators[i]));
        }
        for (uint256 i; i < parties.length; ++i) {
            _excludeOne(excluded, parties[i]);
        }
    }

    function _excludeOne(address[] storage excluded, address party) private {
        if (_covers(party, 1) && !_isAmong(excluded, party)) excluded.push(party);
    }

    function _isAmong(address[] storage excluded, address account) private view returns (bool) {
        uint256 count = excluded.length;
        for (uint256 i; i < count; ++i) {
            if (excluded[i] == account) return true;
        }
        return false;
    }

    /// Up to the level's size of distinct jurors that are no party and still here.
    function _drawPanel(DisputeId id, Dispute storage d, bytes32 hash)
        private
        view
        returns (address[] memory drawn, uint256 count)
    {
        address[] storage excluded = _excluded[id];
        uint96 snapshot = uint96(d.snapshotBlock);
        uint256 size = _sizeAt(panelSize, d.level);
        uint256 fine = _silentFine();
        Roll.Urn memory urn = Roll.urn(_roll.countAt(snapshot), size + MAX_PASSED_OVER);
        drawn = new address[](size);
        for (uint256 i; i < size + MAX_PASSED_OVER && count < size && urn.left != 0; ++i) {
            uint256 random = uint256(keccak256(abi.encode(hash, id, i)));
            address juror = _roll.holderAt(Roll.draw(urn, random), snapshot);
            if (_covers(juror, fine) && !_isAmong(excluded, juror)) drawn[count++] = juror;
        }
    }

    /// Of the panel after so many appeals: n, 2n + 1, 4n + 3.
    function _sizeAt(uint256 first, uint256 level) private pure returns (uint256) {
        return ((first + 1) << level) - 1;
    }

    /// Two thirds of the seats that the panel should have.
    function _needed(uint256 level) private view returns (uint256) {
        return (2 * _sizeAt(panelSize, level) + 2) / 3;
    }

    // --- internals: phases ---

    function _startReveal(DisputeId id, Dispute storage d) private {
        d.phase = Phase.Revealing;
        d.phaseEndsAt = uint40(block.timestamp + revealSeconds); // its own full clock
        emit RevealStarted(id, d.phaseEndsAt);
    }

    /// INVARIANT: no ruling without two thirds of the panel, silent and unfilled seats included.
    function _tally(DisputeId id, Dispute storage d) private {
        uint256 needed = _needed(d.level);
        Status verdict = Status.NoRuling;
        if (d.votesFault >= needed) verdict = Status.Fault;
        else if (d.votesNoFault >= needed) verdict = Status.NoFault;
        _rule(id, d, verdict);
    }

    function _rule(DisputeId id, Dispute storage d, Status verdict) private {
        d.phase = Phase.Ruled;
        d.status = verdict;
        uint256 wait = isAppealable(id) ? appealSeconds : payoutDelaySeconds;
        d.payoutAt = uint40(block.timestamp + wait);
        uint256 level = d.level;
        if (level == 0 || _appeals[id][level - 1].asksFault) {
            // The wait after a ruling is the other side's, which may appeal.
            uint256 until = verdict == Status.NoRuling ? d.payoutAt : block.timestamp;
            d.frozenSeconds += uint32(until - d.since);
        }
        emit DisputeRuled(id, verdict, d.votesFault, d.votesNoFault, d.payoutAt);
    }

    // --- internals: the parties' money ---

    /// Of a level, the bond; and the fee, which jurors have earned if there is a ruling.
    function _settlePayer(DisputeId id, Dispute storage d, uint256 level, Status status) private {
        (uint256 due, uint256 seats) = _costAt(d, level);
        (address by, bool asksFault) = (d.challenger, true);
        if (level != 0) {
            (by, asksFault) = (_appeals[id][level - 1].by, _appeals[id][level - 1].asksFault);
        }
        uint256 back = due;
        address other = asksFault ? d.accused : d.challenger;
        if (status == Status.NoRuling) {
            if (level == 0) back = due - _frozenCost(d);
            _credits.add(other, due - back);
            back += seats;
        } else if (status != _asked(asksFault)) {
            back = 0;
            uint256 burned = level == 0 ? due - due / 2 : 0;
            _credits.add(other, due - burned);
            _credits.add(CreditBook.BURN_ADDRESS, burned);
        }
        _credits.add(by, back);
    }

    /// What the challenger owes for time that ended without a ruling: of its bond by the second.
    function _frozenCost(Dispute storage d) private view returns (uint256) {
        uint256 seconds_ = d.frozenSeconds;
        return seconds_ >= bondSeconds ? d.bond : d.bond * seconds_ / bondSeconds;
    }

    function _costAt(Dispute storage d, uint256 level)
        private
        view
        returns (uint256 due, uint256 seats)
    {
        return (uint256(d.bond) << level, seatFee * _sizeAt(panelSize, level));
    }

    /// Of an appeal by `account`: for fault, or against it.
    function _asksFault(Dispute storage d, address account) private view returns (bool) {
        address accused = d.accused;
        if (account == accused || minerRegistry.ownerOf(account) == accused) return false;
        if (account == d.challenger) return true;
        if (account == minerRegistry.disputeOf(accused, d.number).victim) return true;
        revert NotParty(account);
    }

    function _asked(bool asksFault) private pure returns (Status) {
        return asksFault ? Status.Fault : Status.NoFault;
    }

    // --- internals: the jurors' money ---

    /// Fine the silent and the outvoted, pay the coherent. Without a ruling nobody is outvoted, and
    /// the fines of the silent are all that there is to share. What nobody earned is burned.
    function _settleJurors(DisputeId id, uint256 level, Status status) private {
        Seat[] storage seats = _seats[id][level];
        uint256 pot = status == Status.NoRuling ? 0 : seatFee * _sizeAt(panelSize, level);
        uint256 paid;
        for (uint256 i; i < seats.length; ++i) {
            Seat storage seat = seats[i];
            _unbindJuror(seat.juror);
            if (_isPaid(seat.vote, status)) {
                ++paid;
                continue;
            }
            if (seat.vote == Vote.Unmeasured) continue; // who cannot measure abstains, at no cost
            bool silent = seat.vote == Vote.None;
            uint256 fined = _fine(seat.juror, silent ? _silentFine() : _minorityFine());
            pot += fined;
            emit JurorPenalised(id, seat.juror, fined, silent);
        }

        uint256 each = paid == 0 ? 0 : pot / paid;
        _credits.add(CreditBook.BURN_ADDRESS, pot - each * paid);
        if (each == 0) return;
        for (uint256 i; i < seats.length; ++i) {
            if (!_isPaid(seats[i].vote, status)) continue;
            _credits.add(seats[i].juror, each);
            emit JurorRewarded(id, seats[i].juror, each);
        }
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
        return (MAX_APPEALS + 1)
            * (p.drawDelayBlocks * SLOWEST_BLOCK_SECONDS + p.commitSeconds + p.revealSeconds)
            + MAX_APPEALS * p.appealSeconds + p.payoutDelaySeconds;
    }

    function _in(DisputeId id, Phase need) private view returns (Dispute storage d) {
        d = _disputes[id];
        if (d.phase != need) revert WrongPhase(d.phase);
    }

    function _seatOf(DisputeId id, uint256 level, address juror)
        private
        view
        returns (Seat storage)
    {
        Seat[] storage seats = _seats[id][level];
        for (uint256 i; i < seats.length; ++i) {
            if (seats[i].juror == juror) return seats[i];
        }
        revert NotJuror(juror);
    }
}
