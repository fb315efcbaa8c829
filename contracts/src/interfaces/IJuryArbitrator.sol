// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {DisputeId, JobId} from "../types/Ids.sol";
import {IArbitrator} from "./IArbitrator.sol";

/// A commit–reveal jury of staked auditors, drawn by stake from the hash of a block after the
/// opening. Each re-runs the shard itself. No quorum means no slash.
///
/// Opened → (draw) → Committing → Revealing → Ruled → Executed.
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
        NoFault
    }

    /// Fixed at deployment.
    struct Params {
        uint96 minJurorStake; //    a juror's least stake, and the base of its fines
        uint96 bond; //             what a challenger risks at least
        uint16 bondBps; //          of the accused's stake, where that is more
        uint96 fee; //              what jurors share
        uint32 commitSeconds;
        uint32 revealSeconds;
        uint32 payoutDelaySeconds;
        uint32 jurorUnbondSeconds;
        uint32 drawDelayBlocks; //  from open to the block whose hash draws
        uint16 slashBps; //         of the guilty miner's stake
        uint8 panelSize;
        uint8 quorum; //            fewer reveals: no ruling
    }

    struct Juror {
        uint96 stake;
        uint96 leaving;
        uint40 leaveAt;
        uint16 openDisputes;
        uint16 slot; //   place in the draw tree, plus one; zero: none
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
        uint96 bond;
        uint96 fee;
        uint64 snapshotBlock; // weights are those at its end
        uint32 number; //        in MinerRegistry
        Right right;
        uint8 reveals;
        uint8 votesFault;
        bytes32 receiptHash;
    }

    event JurorStaked(address indexed juror, uint256 amount, uint256 stake);
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
    error TooManyJurors(uint256 max);
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
    error NoCredit();
    error DisputeTooLong(uint256 have, uint256 max);
    error ParamsInvalid();
    error TokenShortfall(uint256 received, uint256 expected);

    function stakeJuror(uint256 amount) external;
    function requestJurorExit(uint256 amount) external;
    function withdrawJuror() external returns (uint256 amount);

    /// Anyone, once the draw block is mined. If its hash is forgotten, a new draw block is set.
    function draw(DisputeId id) external;

    /// commitment = keccak256(abi.encode(dispute, juror, vote, evidence, salt)).
    function commitVote(DisputeId id, bytes32 commitment) external;

    /// Begins when all have committed, or by `advance` after the commit clock.
    function revealVote(DisputeId id, Vote vote, bytes32 evidence, bytes32 salt) external;

    /// Move on when a clock has run out: to Revealing, to no quorum, or to Ruled. Anyone.
    function advance(DisputeId id) external;

    /// After the payout delay: slash or pay the bond, pay and fine jurors, resolve. Anyone.
    function execute(DisputeId id) external;
    function withdrawCredit() external returns (uint256 amount);

    function disputeOf(DisputeId id) external view returns (Dispute memory);
    function panelOf(DisputeId id) external view returns (address[] memory);
    function jurorOf(address juror) external view returns (Juror memory);
    function commitmentHash(DisputeId id, address juror, Vote vote, bytes32 evidence, bytes32 salt)
        external
        pure
        returns (bytes32);
    function disputeIdOf(JobId job, uint16 stage, bytes32 receiptHash, Right right)
        external
        view
        returns (DisputeId);
    function creditOf(address account) external view returns (uint256);
}
