// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {EntryPause} from "./EntryPause.sol";
import {IArbitrator} from "./interfaces/IArbitrator.sol";
import {IMinerRegistry} from "./interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "./interfaces/ITaskRegistry.sol";
import {CreditBook} from "./libraries/CreditBook.sol";
import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Stage} from "./types/Signed.sol";

/// Who may work, with what at stake, and who may take it? One staked account an owner key.
///
/// INVARIANT: token.balanceOf(this) = Σ (stake + leaving) + Σ pools + Σ credits.
/// INVARIANT: unbondSeconds ≥ longest job + window + dispute, and leaving stake can be slashed:
/// while a receipt can be disputed, the stake behind it is here.
/// INVARIANT: an Active miner out of jail has at least the minimum at stake.
contract MinerRegistry is IMinerRegistry, EntryPause, ReentrancyGuardTransient {
    using CreditBook for CreditBook.Book;
    using SafeERC20 for IERC20;

    struct Params {
        IERC20 token;
        address taskRegistry; //     the EIP-712 domain's contract
        address[] arbitrators; //    that orders may name from the start
        uint256 minStake;
        uint256 unbondSeconds;
        uint256 jailSeconds;
        uint256 arbitratorDelaySeconds;
        uint256 maxJobSeconds; //     from order to delivery
        uint256 maxWindowSeconds; //  from delivery to the last moment a dispute may open
        uint256 maxDisputeSeconds; // from open to verdict executed
        address owner;
        address guardian;
    }

    /// What an operator key is, so that a plan of many is checked by a read each.
    struct Operator {
        address owner; //   whom its work is paid to; for ever, also when the key is rotated away
        uint96 canStake; // at stake while it may work, else zero
    }

    uint256 private constant BPS = 10_000;
    uint256 private constant CHALLENGER_SHARE_BPS = 2_000;
    uint256 private constant VICTIM_SHARE_BPS = 3_000;
    uint256 private constant POOL_SHARE_BPS = CHALLENGER_SHARE_BPS + VICTIM_SHARE_BPS;
    uint256 private constant MAX_MACHINES = 64;
    /// Beside the closed one itself, if it is its turn: a queue gets shorter with every closing.
    uint256 private constant SERVED_A_CLOSING = 2;

    IERC20 public immutable token;
    address public immutable taskRegistry;
    uint256 public immutable minStake;
    uint256 public immutable unbondSeconds;
    uint256 public immutable jailSeconds;
    uint256 public immutable arbitratorDelaySeconds;
    uint256 public immutable maxDisputeSeconds;

    mapping(address owner => Miner) private _miners;
    mapping(address owner => mapping(uint16 index => Machine)) private _machines;
    mapping(address owner => mapping(uint32 number => Dispute)) private _disputes;
    mapping(address owner => Pool) private _pools;
    CreditBook.Book private _credits;

    mapping(address operator => Operator) private _operators;
    /// Every operator that an owner ever named, in order.
    mapping(address owner => address[]) private _named;
    mapping(address account => bool) public isArbitrator;
    /// When a proposed arbitrator may be added; zero: not proposed.
    mapping(address account => uint256 time) public arbitratorReadyAt;

    constructor(Params memory p) EntryPause(p.owner, p.guardian) {
        uint256 need = p.maxJobSeconds + p.maxWindowSeconds + p.maxDisputeSeconds;
        if (p.unbondSeconds < need) revert UnbondTooShort(p.unbondSeconds, need);
        // INVARIANT: who trusts no new arbitrator is out, with the jobs it took, before orders can
        // name it.
        need = p.unbondSeconds + p.maxJobSeconds;
        if (p.arbitratorDelaySeconds < need) {
            revert ArbitratorDelayTooShort(p.arbitratorDelaySeconds, need);
        }
        token = p.token;
        taskRegistry = p.taskRegistry;
        minStake = p.minStake;
        unbondSeconds = p.unbondSeconds;
        jailSeconds = p.jailSeconds;
        arbitratorDelaySeconds = p.arbitratorDelaySeconds;
        maxDisputeSeconds = p.maxDisputeSeconds;
        for (uint256 i; i < p.arbitrators.length; ++i) {
            isArbitrator[p.arbitrators[i]] = true;
            emit ArbitratorAdded(p.arbitrators[i]);
        }
    }

    // --- owner: in ---

    function register(uint256 amount, address operator, bytes calldata operatorProof)
        external
        nonReentrant
        whenEntriesOpen
    {
        Miner storage miner = _miners[msg.sender];
        if (miner.state != State.None && miner.state != State.Exited) {
            revert InvalidState(miner.state);
        }
        if (amount < minStake) revert StakeTooLow(amount, minStake);
        _claimOperator(operator, operatorProof);

        // Strikes, open disputes and machines outlive an exit.
        miner.operator = operator;
        miner.stake = SafeCast.toUint96(amount);
        miner.state = State.Active;
        _rank(miner);
        emit MinerRegistered(msg.sender, operator, amount);
        _pull(amount);
    }

    function addStake(uint256 amount) external nonReentrant {
        Miner storage miner = _in(State.Active);
        if (amount == 0) revert AmountZero();
        miner.stake += SafeCast.toUint96(amount);
        _rank(miner);
        emit StakeAdded(msg.sender, amount, miner.stake);
        _pull(amount);
    }

    // --- owner: machines ---

    function registerMachine(
        bytes4 class,
        uint32 vramMiB,
        uint64 bandwidthMBps,
        bytes32 endpointHash
    ) external returns (uint16 index) {
        Miner storage miner = _in(State.Active);
        if (miner.machines == MAX_MACHINES) revert TooManyMachines(MAX_MACHINES);
        // SAFETY: with n machines active, one of the places 0 … n is free.
        index = miner.machines;
        while (_machines[msg.sender][index].state == MachineState.Active) --index;
        ++miner.machines;
        _machines[msg.sender][index] = Machine({
            class: class,
            vramMiB: vramMiB,
            bandwidthMBps: bandwidthMBps,
            since: uint40(block.timestamp),
            state: MachineState.Active,
            endpointHash: endpointHash
        });
        emit MachineRegistered(msg.sender, index, class, vramMiB, bandwidthMBps, endpointHash);
    }

    function retireMachine(uint16 index) external {
        Machine storage machine = _activeMachine(index);
        machine.state = MachineState.Retired;
        --_miners[msg.sender].machines;
        emit MachineRetired(msg.sender, index);
    }

    // --- owner: keys ---

    function rotateOperator(address newOperator, bytes calldata operatorProof) external {
        Miner storage miner = _in(State.Active);
        _claimOperator(newOperator, operatorProof);
        emit OperatorRotated(msg.sender, miner.operator, newOperator);
        _operators[miner.operator].canStake = 0;
        miner.operator = newOperator;
        _rank(miner);
    }

    // --- owner: out. Never pausable, and nobody else can touch the clock ---

    function requestExit(uint256 amount) external {
        Miner storage miner = _in(State.Active);
        if (amount == 0) revert AmountZero();
        if (amount > miner.stake) revert ExitTooLarge(amount, miner.stake);
        uint256 rest = miner.stake - amount;
        if (rest != 0 && rest < minStake) revert StakeTooLow(rest, minStake);

        // INVARIANT: unbonding is constant, so an earlier request's leaveAt never comes sooner.
        miner.leaveAt = uint40(block.timestamp + unbondSeconds);
        miner.leaving += uint96(amount);
        miner.stake = uint96(rest);
        if (rest == 0) miner.state = State.Cooldown;
        _rank(miner);
        emit ExitRequested(msg.sender, amount, miner.leaveAt);
    }

    function cancelExit() external {
        Miner storage miner = _miners[msg.sender];
        if (miner.state != State.Active && miner.state != State.Cooldown) {
            revert InvalidState(miner.state);
        }
        uint96 amount = miner.leaving;
        if (amount == 0) revert NothingLeaving();
        uint96 restored = miner.stake + amount;
        // Slashed meanwhile: what is left may leave, not work.
        if (restored < minStake) revert StakeTooLow(restored, minStake);

        miner.stake = restored;
        miner.leaving = 0;
        miner.leaveAt = 0;
        miner.state = State.Active;
        _rank(miner);
        emit ExitCancelled(msg.sender, amount);
    }

    function withdraw() external nonReentrant returns (uint256 amount) {
        Miner storage miner = _miners[msg.sender];
        if (miner.state != State.Active && miner.state != State.Cooldown) {
            revert InvalidState(miner.state);
        }
        amount = miner.leaving;
        // A miner in Cooldown that lost everything withdraws nothing, and may then register anew.
        if (amount == 0 && miner.state == State.Active) revert NothingLeaving();
        if (miner.jailUntil != 0) revert MinerJailed(miner.jailUntil);
        if (miner.openDisputes != 0) revert HasOpenDisputes(miner.openDisputes);
        if (block.timestamp < miner.leaveAt) revert ExitNotReady(miner.leaveAt);

        miner.leaving = 0;
        miner.leaveAt = 0;
        if (miner.state == State.Cooldown) miner.state = State.Exited;
        emit Withdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    function unjail() external {
        Miner storage miner = _miners[msg.sender];
        if (miner.jailUntil == 0) revert NotJailed();
        if (block.timestamp < miner.jailUntil) revert MinerJailed(miner.jailUntil);
        // Who is on the way out needs no new stake to leave jail.
        if (miner.state == State.Active && miner.stake < minStake) {
            revert StakeTooLow(miner.stake, minStake);
        }
        miner.jailUntil = 0;
        _rank(miner);
        emit Unjailed(msg.sender);
    }

    // --- disputes ---

    function openDispute(
        address owner_,
        address arbitrator,
        address challenger,
        address victim,
        uint256 victimCap
    ) external returns (uint32 number) {
        if (msg.sender != taskRegistry) revert NotTaskRegistry(msg.sender);
        Miner storage miner = _miners[owner_];
        ++miner.openDisputes;
        _rank(miner);
        number = _pools[owner_].opened++;
        _disputes[owner_][number] = Dispute({
            arbitrator: arbitrator,
            atStake: _capped(uint256(miner.stake) + miner.leaving),
            challenger: challenger,
            toChallenger: 0,
            victim: victim,
            toVictim: _capped(victimCap)
        });
        emit Frozen(owner_, number, arbitrator, challenger, victim, victimCap);
    }

    function closeDispute(address owner_, uint32 number, uint16 bps, uint256 challengerCap)
        external
        returns (uint256 slashed)
    {
        Dispute memory d = _disputes[owner_][number];
        // INVARIANT: nobody is punished but whom TaskRegistry named to this arbitrator, and once.
        if (msg.sender != d.arbitrator) revert NotArbitrator(msg.sender);
        Miner storage miner = _miners[owner_];
        --miner.openDisputes;
        Pool memory pool = _pools[owner_];
        if (bps == 0) {
            delete d;
            emit Released(owner_, number);
        } else {
            uint256 share = bps > BPS ? BPS : bps;
            uint256 base = d.atStake * share / BPS;
            d.arbitrator = address(0);
            d.toChallenger = _capped(_least(base * CHALLENGER_SHARE_BPS / BPS, challengerCap));
            d.toVictim = _capped(_least(base * VICTIM_SHARE_BPS / BPS, d.toVictim));
            slashed = _slash(owner_, number, share, pool);
        }
        _rank(miner);
        if (number == pool.served) {
            delete _disputes[owner_][number];
            _pay(owner_, d, pool);
        } else {
            _disputes[owner_][number] = d; // its turn comes when older ones are closed
        }
        _serve(owner_, SERVED_A_CLOSING, pool);
    }

    function serve(address owner_, uint256 count) external {
        _serve(owner_, count, _pools[owner_]);
    }

    // --- anyone ---

    function withdrawCredit() external nonReentrant returns (uint256 amount) {
        amount = _credits.take(msg.sender);
        if (amount == 0) revert NoCredit();
        emit CreditWithdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    // --- governance ---

    function proposeArbitrator(address arbitrator) external onlyOwner {
        arbitratorReadyAt[arbitrator] = block.timestamp + arbitratorDelaySeconds;
        emit ArbitratorProposed(arbitrator, arbitratorReadyAt[arbitrator]);
    }

    function addArbitrator(address arbitrator) external onlyOwner {
        uint256 readyAt = arbitratorReadyAt[arbitrator];
        if (readyAt == 0 || block.timestamp < readyAt) revert ArbitratorNotReady(readyAt);
        uint256 disputeSeconds = IArbitrator(arbitrator).maxDisputeSeconds();
        if (disputeSeconds > maxDisputeSeconds) {
            revert UnbondTooShort(maxDisputeSeconds, disputeSeconds);
        }
        isArbitrator[arbitrator] = true;
        emit ArbitratorAdded(arbitrator);
    }

    function removeArbitrator(address arbitrator) external onlyOwner {
        if (!isArbitrator[arbitrator]) revert ITaskRegistry.ArbitratorUnknown(arbitrator);
        delete isArbitrator[arbitrator];
        delete arbitratorReadyAt[arbitrator]; // it comes back as any other: proposed, and late
        emit ArbitratorRemoved(arbitrator);
    }

    // --- reads ---

    function minerOf(address owner_) external view returns (Miner memory) {
        return _miners[owner_];
    }

    function machineOf(address owner_, uint16 index) external view returns (Machine memory) {
        return _machines[owner_][index];
    }

    function ownerOf(address operator) external view returns (address) {
        return _operators[operator].owner;
    }

    function operatorsOf(address owner_) external view returns (address[] memory) {
        return _named[owner_];
    }

    function canWork(address operator, uint256 minStake_) public view returns (bool) {
        uint256 canStake = _operators[operator].canStake;
        return canStake != 0 && canStake >= minStake_;
    }

    function requireWorkers(Stage[] calldata plan, uint256 minStake_, address arbitrator)
        external
        view
    {
        if (!isArbitrator[arbitrator]) revert ITaskRegistry.ArbitratorUnknown(arbitrator);
        for (uint256 i; i < plan.length; ++i) {
            address operator = plan[i].operator;
            if (!canWork(operator, minStake_)) revert ITaskRegistry.MinerCannotWork(operator);
        }
    }

    function disputeOf(address owner_, uint32 number) external view returns (Dispute memory) {
        return _disputes[owner_][number];
    }

    function atStakeOf(address owner_, uint32 number) external view returns (uint256) {
        return _disputes[owner_][number].atStake;
    }

    function poolOf(address owner_) external view returns (Pool memory) {
        return _pools[owner_];
    }

    function creditOf(address account) external view returns (uint256) {
        return _credits.units[account];
    }

    // --- internals: slashing ---

    /// SAFETY: no external call, no arithmetic that can fail: no recipient, token or stake reverts
    /// this.
    function _slash(address owner_, uint32 number, uint256 share, Pool memory pool)
        private
        returns (uint256 amount)
    {
        Miner storage miner = _miners[owner_];
        uint256 fromStake = miner.stake * share / BPS;
        uint256 fromLeaving = miner.leaving * share / BPS;
        amount = fromStake + fromLeaving;
        miner.stake -= uint96(fromStake);
        miner.leaving -= uint96(fromLeaving);

        // INVARIANT: half of every slash at least is burned: slashing oneself never pays.
        uint256 shared = amount * POOL_SHARE_BPS / BPS;
        pool.units += uint96(shared);
        _credits.add(CreditBook.BURN_ADDRESS, amount - shared);
        emit Slashed(owner_, number, amount, amount - shared);

        if (miner.state == State.Active || miner.state == State.Cooldown) {
            if (miner.strikes != type(uint8).max) ++miner.strikes;
            miner.jailUntil = uint40(block.timestamp + jailSeconds);
            emit Jailed(owner_, miner.jailUntil);
        }
    }

    /// SAFETY: as `_slash`; a claim that the pool cannot pay gets what is there.
    function _serve(address owner_, uint256 count, Pool memory pool) private {
        for (; count != 0 && pool.served != pool.opened; --count) {
            Dispute memory d = _disputes[owner_][pool.served];
            if (d.arbitrator != address(0)) break;
            delete _disputes[owner_][pool.served];
            _pay(owner_, d, pool);
        }
        if (pool.served == pool.opened && pool.units != 0) {
            _credits.add(CreditBook.BURN_ADDRESS, pool.units);
            emit PoolBurned(owner_, pool.units);
            pool.units = 0;
        }
        _pools[owner_] = pool;
    }

    /// The next dispute's turn at the pool. Without a challenger it was closed without fault.
    function _pay(address owner_, Dispute memory d, Pool memory pool) private {
        uint32 number = pool.served++;
        if (d.challenger == address(0)) return;
        uint256 toVictim = _least(d.toVictim, pool.units);
        uint256 toChallenger = _least(d.toChallenger, pool.units - toVictim);
        pool.units -= uint96(toVictim + toChallenger);
        _credits.add(d.victim, toVictim);
        _credits.add(d.challenger, toChallenger);
        emit Shared(owner_, number, d.challenger, d.victim, toChallenger, toVictim);
    }

    function _least(uint256 a, uint256 b) private pure returns (uint256) {
        return a < b ? a : b;
    }

    function _capped(uint256 amount) private pure returns (uint96) {
        return uint96(_least(amount, type(uint96).max));
    }

    // --- internals ---

    /// The operator key signs for this owner; else anyone could take a stranger's key.
    function _claimOperator(address operator, bytes calldata operatorProof) private {
        address owner_ = _operators[operator].owner;
        if (owner_ != address(0) && owner_ != msg.sender) revert OperatorTaken(operator, owner_);
        bytes32 digest = Eip712Types.toDigest(
            Eip712Types.domainSeparator(taskRegistry),
            Eip712Types.operatorProofHash(msg.sender, operator)
        );
        if (operator == address(0) || Eip712Types.recover(digest, operatorProof) != operator) {
            revert OperatorProofInvalid(operator);
        }
        if (owner_ == address(0)) _named[msg.sender].push(operator);
        _operators[operator].owner = msg.sender;
    }

    /// INVARIANT: an operator's `canStake` is that of its miner after every change of state, stake,
    /// jail or open disputes; an operator that was rotated away has none.
    function _rank(Miner storage miner) private {
        bool can = miner.state == State.Active && miner.jailUntil == 0 && miner.openDisputes == 0
            && miner.stake >= minStake;
        _operators[miner.operator].canStake = can ? miner.stake : 0;
    }

    function _in(State need) private view returns (Miner storage miner) {
        miner = _miners[msg.sender];
        if (miner.state != need) revert InvalidState(miner.state);
    }

    function _activeMachine(uint16 index) private view returns (Machine storage machine) {
        machine = _machines[msg.sender][index];
        if (machine.state != MachineState.Active) revert MachineUnknown(index);
    }

    function _pull(uint256 amount) private {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenShortfall(received, amount);
    }
}
