// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Stage} from "../types/Signed.sol";

/// Who may work: stake, machines, operator keys, exit and slashing.
///
/// None → Active → Cooldown → Exited → Active by register. Jail is a time beside the state: a
/// jailed miner gets no work and cannot withdraw until `unjail`.
interface IMinerRegistry {
    enum State {
        None,
        Active,
        Cooldown, // all stake is leaving
        Exited
    }

    enum MachineState {
        None,
        Active,
        Retired
    }

    /// {operator 160 | stake 96} {leaving 96 | leaveAt 40 | jailUntil 40 | openDisputes 32 |
    /// machines 16 | strikes 8 | state 8}
    struct Miner {
        address operator;
        uint96 stake;
        uint96 leaving;
        uint40 leaveAt;
        uint40 jailUntil;
        uint32 openDisputes;
        uint16 machines;
        uint8 strikes;
        State state;
    }

    /// A dispute of a miner, from its opening until it is served. Packing, a line a slot.
    struct Dispute {
        address arbitrator; // who alone may close it; zero: closed
        uint96 atStake; //     stake and leaving when it was opened
        address challenger;
        uint96 toChallenger; // once convicted: what it claims of the pool
        address victim;
        uint96 toVictim; //    the most that it may get; once convicted: its claim
    }

    /// What slashes of a miner left to share, and its disputes: those with a number below `served`
    /// are over, and `opened` is the next one's number.
    struct Pool {
        uint96 units;
        uint32 opened;
        uint32 served;
    }

    /// Packing: {class 32 | vramMiB 32 | bandwidthMBps 64 | since 40 | state 8} {endpointHash}
    struct Machine {
        bytes4 class;
        uint32 vramMiB;
        uint64 bandwidthMBps;
        uint40 since;
        MachineState state;
        bytes32 endpointHash;
    }

    event MinerRegistered(address indexed owner, address indexed operator, uint256 stake);
    event OperatorRotated(
        address indexed owner, address indexed oldOperator, address indexed newOperator
    );
    event MachineRegistered(
        address indexed owner,
        uint16 indexed index,
        bytes4 class,
        uint32 vramMiB,
        uint64 bandwidthMBps,
        bytes32 endpointHash
    );
    event MachineRetired(address indexed owner, uint16 indexed index);
    event StakeAdded(address indexed owner, uint256 amount, uint256 stake);
    event ExitRequested(address indexed owner, uint256 amount, uint256 leaveAt);
    event ExitCancelled(address indexed owner, uint256 amount);
    event Withdrawn(address indexed owner, uint256 amount);
    event Frozen(
        address indexed owner,
        uint32 number,
        address arbitrator,
        address indexed challenger,
        address indexed victim,
        uint256 victimCap
    );
    /// Closed without fault.
    event Released(address indexed owner, uint32 number);
    /// Closed with fault: `amount` was taken; half was burned, the rest went to the miner's pool.
    event Slashed(address indexed owner, uint32 number, uint256 amount, uint256 burned);
    /// A convicted dispute's turn at the pool.
    event Shared(
        address indexed owner,
        uint32 number,
        address indexed challenger,
        address indexed victim,
        uint256 toChallenger,
        uint256 toVictim
    );
    event PoolBurned(address indexed owner, uint256 amount);
    event Jailed(address indexed owner, uint256 until);
    event Unjailed(address indexed owner);
    event CreditWithdrawn(address indexed account, uint256 amount);
    event ArbitratorProposed(address indexed arbitrator, uint256 activeAt);
    event ArbitratorAdded(address indexed arbitrator);
    event ArbitratorRemoved(address indexed arbitrator);

    error InvalidState(State have);
    error StakeTooLow(uint256 have, uint256 need);
    error OperatorTaken(address operator, address owner);
    error OperatorProofInvalid(address operator);
    error AmountZero();
    error ExitTooLarge(uint256 asked, uint256 stake);
    error ExitNotReady(uint256 when);
    error NothingLeaving();
    error HasOpenDisputes(uint256 count);
    error MinerJailed(uint256 until);
    error NotJailed();
    error NotTaskRegistry(address caller);
    error NotArbitrator(address caller);
    error TooManyMachines(uint256 max);
    error MachineUnknown(uint16 index);
    error UnbondTooShort(uint256 have, uint256 need);
    error ArbitratorNotReady(uint256 when);
    error ArbitratorDelayTooShort(uint256 have, uint256 need);
    error TokenShortfall(uint256 received, uint256 expected);
    error NoCredit();

    // --- owner (the miner's cold key) ---

    /// Pay `amount` of stake and name the operator key, which signs OperatorProof(owner, operator).
    /// After a full exit the same owner may register again, also with the same operator.
    function register(uint256 amount, address operator, bytes calldata operatorProof) external;

    function registerMachine(
        bytes4 class,
        uint32 vramMiB,
        uint64 bandwidthMBps,
        bytes32 endpointHash
    ) external returns (uint16 index);
    function retireMachine(uint16 index) external;
    function addStake(uint256 amount) external;

    /// Take `amount` of stake out; the rest is zero or at least the minimum. No clock gets shorter.
    function requestExit(uint256 amount) external;
    function cancelExit() external;

    /// Take what has thawed. Only the owner, with no open dispute and not in jail.
    function withdraw() external returns (uint256 amount);
    function rotateOperator(address newOperator, bytes calldata operatorProof) external;

    /// Leave jail: after its time, with stake at or above the minimum.
    function unjail() external;

    // --- TaskRegistry: who may be punished, for which dispute, by whom ---

    /// Freeze `owner` until `arbitrator` closes the dispute: no withdrawal, no new job.
    /// @param victimCap what the disputed job locked, the most that `victim` can get
    /// @return number of the owner's disputes before this one
    function openDispute(
        address owner,
        address arbitrator,
        address challenger,
        address victim,
        uint256 victimCap
    ) external returns (uint32 number);

    // --- the arbitrator of an open dispute ---

    /// Close it, once. With `bps` above zero the miner is at fault: that share of stake and leaving
    /// is taken, half of it is burned, the rest goes to the miner's pool. The dispute then claims
    /// 20 % of that share of what was at stake when it was opened for its challenger, at most
    /// `challengerCap`, and 30 % for its victim, at most `victimCap`. Never reverts for lack of
    /// funds.
    ///
    /// INVARIANT: claims are served from the pool in the order of the disputes' numbers, each when
    /// no older one is open. So the oldest dispute that convicts gets what it would have had alone,
    /// whoever convicts the miner before it closes, and later ones share what is left. To anybody
    /// but the burn address go at most half of what was taken, and each dispute's two caps.
    /// @return slashed what was taken
    function closeDispute(address owner, uint32 number, uint16 bps, uint256 challengerCap)
        external
        returns (uint256 slashed);

    // --- anyone ---

    /// Serve up to `count` closed disputes of `owner`, oldest first. Each closing serves two more,
    /// so a queue that waited for an old dispute gets shorter by itself as well. When all are
    /// served, what is left in the pool is burned.
    function serve(address owner, uint256 count) external;

    /// Pull rewards and compensations of slashes.
    function withdrawCredit() external returns (uint256 amount);

    // --- governance: who may decide disputes of new jobs; it is added only after a delay ---

    function proposeArbitrator(address arbitrator) external;

    /// After the delay, if the arbitrator's disputes end within our `maxDisputeSeconds`.
    function addArbitrator(address arbitrator) external;

    /// No job names it from now on. It decides the disputes of jobs that do, and no others.
    function removeArbitrator(address arbitrator) external;

    // --- reads ---

    function minerOf(address owner) external view returns (Miner memory);
    function machineOf(address owner, uint16 index) external view returns (Machine memory);

    /// Written once an operator: an old receipt always finds its owner. Zero: never registered.
    function ownerOf(address operator) external view returns (address);

    /// Every operator that `owner` ever named: each has pay of its own in Escrow.
    function operatorsOf(address owner) external view returns (address[] memory);

    /// Is this the current key of an Active miner, out of jail and without an open dispute, with
    /// stake ≥ both minimums?
    function canWork(address operator, uint256 minStake) external view returns (bool);

    /// Reverts with ITaskRegistry's errors unless every stage's operator `canWork` and an order may
    /// name this arbitrator.
    function requireWorkers(Stage[] calldata plan, uint256 minStake, address arbitrator)
        external
        view;
    function creditOf(address account) external view returns (uint256);
    function disputeOf(address owner, uint32 number) external view returns (Dispute memory);
    /// What the miner had at stake when this dispute, which is not over, was opened.
    function atStakeOf(address owner, uint32 number) external view returns (uint256);
    function poolOf(address owner) external view returns (Pool memory);

    /// May an order name it? What it may do is for its own disputes alone.
    function isArbitrator(address account) external view returns (bool);
    function minStake() external view returns (uint256);
    function unbondSeconds() external view returns (uint256);

    /// The EIP-712 domain's contract.
    function taskRegistry() external view returns (address);

    /// The longest dispute that unbonding was sized for.
    function maxDisputeSeconds() external view returns (uint256);
    function jailSeconds() external view returns (uint256);
}
