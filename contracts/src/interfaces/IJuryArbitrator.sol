// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {DisputeId, JobId} from "../types/Ids.sol";
import {IArbitrator} from "./IArbitrator.sol";

/// A commit–reveal jury of staked auditors, drawn from the hash of a block after the opening. Each
/// re-runs the shard itself. A ruling takes two thirds of the panel; else nobody is at fault.
///
/// Opened → (draw) → Committing → Revealing → Ruled → Executed. Ruled → (appeal) → Opened, twice at
/// most: before a panel of 2n + 1, for a bond that doubles. The last panel's ruling is the one.
interface IJuryArbitrator is IArbitrator {
    enum Phase {
        None,
        Opened, //      waiting for the draw block
        Committing,
        Revealing,
        Ruled, //       verdict fixed, payout after the delay
        Executed
    }

    enum Vote {
        None,
        Fault,
        NoFault,
        Unmeasured // for neither side: neither paid nor fined where there is a ruling
    }

    /// Fixed at deployment.
    struct Params {
        uint96 minJurorStake; //    a juror's least stake, and the base of its fines
        uint96 bond; //             what a challenger risks at least
        uint16 bondBps; //          of the accused's stake, where that is more
        uint96 seatFee; //          what the jurors of a panel share, for each of its seats
        uint32 commitSeconds;
        uint32 revealSeconds;
        uint32 appealSeconds; //    from a ruling that may be appealed
        uint32 payoutDelaySeconds; // from one that may not
        uint32 bondSeconds; //      how long a bond pays for freezing, without a ruling
        uint32 maturitySeconds; //  from staking to the roll
        uint32 jurorUnbondSeconds; // at least the longest dispute
        uint32 drawDelayBlocks; //  from open to the block whose hash draws
        uint16 slashBps; //         of the guilty miner's stake
        uint8 panelSize; //         of the first panel
    }

    struct Juror {
        uint96 stake;
        uint96 leaving;
        uint40 leaveAt;
        uint16 openDisputes;
        uint32 place; //     on the roll, plus one; zero: not on it
        uint40 maturesAt; // from when it may be enrolled
    }

    /// By whom the panel of a level above the first one was asked for, and for which ruling.
    struct Appeal {
        address by;
        bool asksFault;
    }

    /// Packing, a line a slot.
    struct Dispute {
        JobId job;
        address accused;
        uint16 stage;
        Phase phase;
        Status status;
        uint64 drawBlock;
        address challenger;
        uint40 phaseEndsAt;
        uint40 payoutAt;
        uint8 panel;
        uint8 commits;
        uint96 bond; //          the challenger's; an appeal's is twice that of the level below
        uint96 fee; //           the challenger's; an appeal's has the size of its panel
        uint64 snapshotBlock; // the roll is that at its end, for appeals too
        uint32 number; //        in MinerRegistry
        Right right;
        uint8 reveals;
        uint8 votesFault;
        uint8 votesNoFault;
        uint8 level; //          of the panel: appeals so far
        uint40 since; //         opened, or appealed
        uint32 frozenSeconds; // that the challenger's side asked for
        bytes32 receiptHash;
    }

    event JurorStaked(address indexed juror, uint256 amount, uint256 stake);
    event JurorEnrolled(address indexed juror);
    event JurorExitRequested(address indexed juror, uint256 amount, uint256 leaveAt);
    event JurorWithdrawn(address indexed juror, uint256 amount);
    event DisputeOpened(
        DisputeId indexed dispute,
        JobId indexed job,
        address indexed accused,
        uint16 stage,
        address challenger,
        bytes32 receiptHash,
        uint256 bond,
        uint256 drawBlock
    );
    event DisputeAppealed(
        DisputeId indexed dispute,
        uint8 level,
        address indexed by,
        bool asksFault,
        uint256 bond,
        uint256 fee,
        uint256 drawBlock
    );
    event DrawMissed(DisputeId indexed dispute, uint256 newDrawBlock);
    event JurorDrawn(DisputeId indexed dispute, address indexed juror, uint256 commitUntil);
    event VoteCommitted(DisputeId indexed dispute, address indexed juror, bytes32 commitment);
    event RevealStarted(DisputeId indexed dispute, uint256 revealUntil);
    event VoteRevealed(
        DisputeId indexed dispute, address indexed juror, Vote vote, bytes32 evidence
    );
    event DisputeRuled(
        DisputeId indexed dispute,
        Status status,
        uint8 votesFault,
        uint8 votesNoFault,
        uint256 payoutAt
    );
    event DisputeExecuted(DisputeId indexed dispute, Status status, uint256 slashed);
    event JurorRewarded(DisputeId indexed dispute, address indexed juror, uint256 amount);
    event JurorPenalised(
        DisputeId indexed dispute, address indexed juror, uint256 amount, bool silent
    );
    event CreditWithdrawn(address indexed account, uint256 amount);

    error NotTaskRegistry(address caller);
    error WrongPhase(Phase have);
    error StakeTooLow(uint256 have, uint256 need);
    error AmountZero();
    error AlreadyEnrolled(address juror);
    error StakeImmature(uint256 until);
    error JurorBusy(uint256 openDisputes);
    error ExitTooLarge(uint256 asked, uint256 stake);
    error ExitNotReady(uint256 when);
    error DisputeExists(DisputeId dispute);
    error DrawTooEarly(uint256 atBlock);
    error NotJuror(address caller);
    error AlreadyCommitted(address juror);
    error AlreadyRevealed(address juror);
    error CommitmentMismatch();
    error VoteInvalid();
    error ClockOver(uint256 when);
    error ClockRunning(uint256 until);
    error PayoutNotReady(uint256 when);
    error NotParty(address caller);
    error NotAppealable(uint8 level);
    error AppealPointless(Status have);
    error AppealOver(uint256 when);
    error NoCredit();
    error UnbondTooShort(uint256 have, uint256 need);
    error DisputeTooLong(uint256 have, uint256 max);
    error ParamsInvalid();
    error TokenShortfall(uint256 received, uint256 expected);

    /// Add stake. Off the roll its maturity begins anew.
    function stakeJuror(uint256 amount) external;

    /// Put `juror` on the roll, from which panels are drawn, once its stake is mature. Anyone.
    function enrol(address juror) external;
    function requestJurorExit(uint256 amount) external;
    function withdrawJuror() external returns (uint256 amount);

    /// Anyone, once the draw block is mined. If its hash is forgotten, a new draw block is set.
    function draw(DisputeId id) external;

    /// commitment = keccak256(abi.encode(dispute, level, juror, vote, evidence, salt)).
    function commitVote(DisputeId id, bytes32 commitment) external;

    /// Begins when all have committed, or by `advance` after the commit clock.
    function revealVote(DisputeId id, Vote vote, bytes32 evidence, bytes32 salt) external;

    /// Move on when a clock has run out: to Revealing or to Ruled. Anyone.
    function advance(DisputeId id) external;

    /// Bring a ruling before a panel of twice as many and one, for twice the bond and a fee for
    /// each of its seats. Challenger and victim may, for fault; the accused and its operators,
    /// against it; before the payout, twice at most, and only where the roll can fill the panel.
    function appeal(DisputeId id) external;

    /// After the payout delay: slash or pay the bond, pay and fine jurors, resolve. Anyone.
    function execute(DisputeId id) external;
    function withdrawCredit() external returns (uint256 amount);

    function disputeOf(DisputeId id) external view returns (Dispute memory);
    /// The panel that sits, or sat last.
    function panelOf(DisputeId id) external view returns (address[] memory);
    /// That of so many appeals.
    function panelAt(DisputeId id, uint256 level) external view returns (address[] memory);
    function appealsOf(DisputeId id) external view returns (Appeal[] memory);
    /// What the next appeal takes.
    function appealCostOf(DisputeId id) external view returns (uint256 bond, uint256 fee);
    function isAppealable(DisputeId id) external view returns (bool);
    function jurorOf(address juror) external view returns (Juror memory);
    function commitmentHash(
        DisputeId id,
        uint8 level,
        address juror,
        Vote vote,
        bytes32 evidence,
        bytes32 salt
    ) external pure returns (bytes32);
    function disputeIdOf(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        external
        view
        returns (DisputeId);
    function creditOf(address account) external view returns (uint256);
}
