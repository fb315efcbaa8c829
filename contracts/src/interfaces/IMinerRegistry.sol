// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

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

    /// {operator 160 | stake 96} {leaving 96 | leaveAt 40 | jailUntil 40 | openDisputes 16 |
    /// machines 16 | strikes 8 | state 8}
    struct Miner {
        address operator;
        uint96 stake;
        uint96 leaving;
        uint40 leaveAt;
        uint40 jailUntil;
        uint16 openDisputes;
        uint16 machines;
        uint8 strikes;
        State state;
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
    event Frozen(address indexed owner, uint16 openDisputes);
    event Released(address indexed owner, uint16 openDisputes);
    event Slashed(
        address indexed owner,
        address indexed challenger,
        address indexed victim,
        uint256 amount,
        uint256 toChallenger,
        uint256 toVictim,
        uint256 burned
    );
    event Jailed(address indexed owner, uint256 until);
    event Unjailed(address indexed owner);
    event CreditWithdrawn(address indexed account, uint256 amount);
    event ArbitratorProposed(address indexed arbitrator, uint256 activeAt);
    event ArbitratorAdded(address indexed arbitrator);

    error InvalidState(State have);
    error StakeTooLow(uint256 have, uint256 need);
    error OperatorTaken(address operator, address owner);
    error OperatorProofInvalid(address operator);
    error MinerUnknown(address owner);
    error AmountZero();
    error ExitTooLarge(uint256 asked, uint256 stake);
    error ExitNotReady(uint256 when);
    error NothingLeaving();
    error HasOpenDisputes(uint256 count);
    error MinerJailed(uint256 until);
    error NotJailed();
    error NotArbitrator(address caller);
    error TooManyMachines(uint256 max);
    error MachineUnknown(uint16 index);
    error UnbondTooShort(uint256 have, uint256 need);
    error ArbitratorNotReady(uint256 when);
    error TokenShortfall(uint256 received, uint256 expected);
    error NoCredit();
    error NotFrozen(address owner);

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

    // --- arbitrators on the list ---

    function freeze(address owner) external;
    function release(address owner) external;

    /// Take up to `bps` of stake and leaving, as credits: 20 % to `challenger` (at most
    /// `challengerCap`), 30 % to `victim`, the rest burned. Never reverts for lack of funds.
    /// @return amount what was taken
    function slash(
        address owner,
        uint16 bps,
        address challenger,
        uint256 challengerCap,
        address victim
    ) external returns (uint256 amount);

    // --- anyone ---

    /// Pull rewards and compensations of slashes.
    function withdrawCredit() external returns (uint256 amount);

    // --- governance: only add, only after a delay ---

    function proposeArbitrator(address arbitrator) external;

    /// After the delay, if the arbitrator's disputes end within our `maxDisputeSeconds`.
    function addArbitrator(address arbitrator) external;

    // --- reads ---

    function minerOf(address owner) external view returns (Miner memory);
    function machineOf(address owner, uint16 index) external view returns (Machine memory);

    /// Written once an operator: an old receipt always finds its owner. Zero: never registered.
    function ownerOf(address operator) external view returns (address);

    /// Is this the current key of an Active, unjailed miner with stake ≥ both minimums?
    function canWork(address operator, uint256 minStake) external view returns (bool);
    function creditOf(address account) external view returns (uint256);
    function isArbitrator(address account) external view returns (bool);
    function minStake() external view returns (uint256);
    function unbondSeconds() external view returns (uint256);

    /// The EIP-712 domain's contract.
    function taskRegistry() external view returns (address);

    /// The longest dispute that unbonding was sized for.
    function maxDisputeSeconds() external view returns (uint256);
    function jailSeconds() external view returns (uint256);
}
