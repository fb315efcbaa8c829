// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JuryArbitrator} from "../../src/arbitration/JuryArbitrator.sol";
import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {StakeFixture} from "../fixtures/StakeFixture.sol";

/// What people do with MinerRegistry and the jury, called by forge at random. A call that a rule
/// forbids fails; one that panics is remembered.
contract StakeHandler is StakeFixture {
    uint256 public constant MINERS = 4;
    uint256 public constant JURORS = 16; // enough for two appeals

    bool public panicked;
    bool public leftEarly;
    uint256 public executed;
    uint256 public appealed;
    uint256 public slashed;
    uint256 public shared; // of it, credits that were withdrawn, but for the burned half
    DisputeId[] public disputes;
    mapping(address owner => uint256 time) public lastExitRequest;
    mapping(DisputeId id => mapping(address juror => IJuryArbitrator.Vote)) private voted;

    constructor() {
        StakeFixture.setUp();
        for (uint256 i; i < MINERS; ++i) {
            registerMiner(minerAt(i), 3000 + i, 2 * MIN_STAKE);
        }
        for (uint256 i; i < JURORS; ++i) {
            stakeUnripe(jurorAddressAt(i), uint256(MIN_JUROR_STAKE) * (1 + i));
        }
        skipTime(MATURITY_SECONDS);
        for (uint256 i; i < JURORS; ++i) {
            jury.enrol(jurorAddressAt(i));
        }
        skipBlocks(1);
    }

    function setUp() public override {} // forge would call it again as an action

    // --- who there is ---

    function minerAt(uint256 i) public pure returns (address) {
        return address(uint160(0x1000 + i % MINERS));
    }

    function jurorAddressAt(uint256 i) public pure returns (address) {
        return address(uint160(0x2000 + i % JURORS));
    }

    /// Everyone who can own a credit.
    function accounts() public view returns (address[] memory all) {
        all = new address[](MINERS + JURORS + 3);
        for (uint256 i; i < MINERS; ++i) {
            all[i] = minerAt(i);
        }
        for (uint256 i; i < JURORS; ++i) {
            all[MINERS + i] = jurorAddressAt(i);
        }
        (all[MINERS + JURORS], all[MINERS + JURORS + 1], all[MINERS + JURORS + 2]) =
        (requester, challenger, BURN);
    }

    function disputeCount() external view returns (uint256) {
        return disputes.length;
    }

    function contracts() external view returns (IMinerRegistry, JuryArbitrator) {
        return (miners, jury);
    }

    function tokenBalance(address account) external view returns (uint256) {
        return token.balanceOf(account);
    }

    function minimumStake() external pure returns (uint256) {
        return MIN_STAKE;
    }

    function act(address caller, address target, bytes memory data) private returns (bool ok) {
        bytes memory answer;
        vm.prank(caller);
        (ok, answer) = target.call(data);
        if (!ok && answer.length >= 4 && bytes4(answer) == bytes4(keccak256("Panic(uint256)"))) {
            panicked = true;
        }
    }

    // --- time ---

    function wait(uint256 seconds_, uint256 blocks) external {
        skipTime(bound(seconds_, 1, 2 days));
        skipBlocks(bound(blocks, 1, 4));
    }

    function sleep(uint256 seconds_) external {
        skipTime(bound(seconds_, 2 days, 10 days));
        skipBlocks(300); // hashes are forgotten meanwhile
    }

    function pause(uint256 seconds_) external {
        act(
            guardian,
            address(miners),
            abi.encodeCall(miners.pauseEntries, (bound(seconds_, 0, 8 days)))
        );
    }

    // --- miners ---

    function register(uint256 who, uint256 amount) external {
        address owner_ = minerAt(who);
        uint256 key = 3000 + who % MINERS;
        amount = bound(amount, MIN_STAKE, 10 * MIN_STAKE);
        fund(owner_, address(miners), amount);
        bytes memory proof = operatorProof(key, owner_);
        act(
            owner_, address(miners), abi.encodeCall(miners.register, (amount, vm.addr(key), proof))
        );
    }

    function addStake(uint256 who, uint256 amount) external {
        amount = bound(amount, 1, 2 * MIN_STAKE);
        fund(minerAt(who), address(miners), amount);
        act(minerAt(who), address(miners), abi.encodeCall(miners.addStake, (amount)));
    }

    function requestExit(uint256 who, uint256 amount, bool all) external {
        address owner_ = minerAt(who);
        uint256 stake = miners.minerOf(owner_).stake;
        amount = all ? stake : bound(amount, 0, stake);
        if (act(owner_, address(miners), abi.encodeCall(miners.requestExit, (amount)))) {
            lastExitRequest[owner_] = vm.getBlockTimestamp();
        }
    }

    function cancelExit(uint256 who) external {
        act(minerAt(who), address(miners), abi.encodeCall(miners.cancelExit, ()));
    }

    function withdraw(uint256 who) external {
        address owner_ = minerAt(who);
        IMinerRegistry.Miner memory before = miners.minerOf(owner_);
        if (!act(owner_, address(miners), abi.encodeCall(miners.withdraw, ()))) return;
        bool early = vm.getBlockTimestamp() < lastExitRequest[owner_] + UNBOND_SECONDS;
        if (early || before.openDisputes != 0 || before.jailUntil != 0) leftEarly = true;
    }

    function unjail(uint256 who) external {
        act(minerAt(who), address(miners), abi.encodeCall(miners.unjail, ()));
    }

    /// TaskRegistry slashes for equivocation, without a dispute.
    function slashAtOnce(uint256 who, uint16 bps, uint256 cap, uint256 victimCap) external {
        address owner_ = minerAt(who);
        uint256 before = staked();
        vm.prank(address(tasks));
        uint32 number = miners.openDispute(owner_, address(tasks), requester, requester, victimCap);
        bytes memory data = abi.encodeCall(miners.closeDispute, (owner_, number, bps, cap));
        if (!act(address(tasks), address(miners), data)) panicked = true; // it never reverts
        slashed += before - staked();
    }

    // --- jurors ---

    function stakeAsJuror(uint256 who, uint256 amount) external {
        amount = bound(amount, 1, 3 * uint256(MIN_JUROR_STAKE));
        fund(jurorAddressAt(who), address(jury), amount);
        act(jurorAddressAt(who), address(jury), abi.encodeCall(jury.stakeJuror, (amount)));
    }

    function enrol(uint256 who) external {
        act(stranger, address(jury), abi.encodeCall(jury.enrol, (jurorAddressAt(who))));
    }

    function requestJurorExit(uint256 who, uint256 amount, bool all) external {
        uint256 stake = jury.jurorOf(jurorAddressAt(who)).stake;
        amount = all ? stake : bound(amount, 0, stake);
        act(jurorAddressAt(who), address(jury), abi.encodeCall(jury.requestJurorExit, (amount)));
    }

    function withdrawJuror(uint256 who) external {
        act(jurorAddressAt(who), address(jury), abi.encodeCall(jury.withdrawJuror, ()));
    }

    // --- disputes ---

    /// A hearing without delays: the bits of `course` say who keeps silent and where it stops.
    function hear(uint256 who, uint256 course) external {
        open(who, course % 8 == 0);
        if (disputes.length == 0) return;
        uint256 which = disputes.length - 1;
        skipBlocks(DRAW_DELAY_BLOCKS + 1);
        draw(which);
        hearPanel(which, course);
        for (uint256 level; level < 2 && course >> (42 + level) & 1 == 1; ++level) {
            appeal(which, course >> (44 + level));
            skipBlocks(DRAW_DELAY_BLOCKS + 1);
            draw(which);
            hearPanel(which, uint256(keccak256(abi.encode(course, level))));
        }
        if (course >> 41 & 1 == 1) skipTime(APPEAL_SECONDS);
        executeOne(which);
    }

    function hearPanel(uint256 which, uint256 course) private {
        for (uint256 seat; seat < 15; ++seat) {
            // Most say the same, so that panels rule.
            bool astray = (course >> (64 + 4 * seat)) % 8 == 0;
            if ((course >> (128 + 3 * seat)) % 8 != 0) {
                commitOne(which, seat, (course >> 16) + (astray ? 1 : 0));
            }
        }
        if (course >> 24 & 1 == 1) skipTime(COMMIT_SECONDS + 1);
        advance(which);
        for (uint256 seat; seat < 15; ++seat) {
            if ((course >> (180 + 3 * seat)) % 8 != 0) revealOne(which, seat);
        }
        if (course >> 40 & 1 == 1) skipTime(REVEAL_SECONDS + 1);
        advance(which);
    }

    function appeal(uint256 which, uint256 side) public {
        if (disputes.length == 0) return;
        DisputeId id = disputes[which % disputes.length];
        address by = side % 2 == 0 ? challenger : jury.disputeOf(id).accused;
        (uint256 bond, uint256 fee) = jury.appealCostOf(id);
        fund(by, address(jury), bond + fee);
        if (act(by, address(jury), abi.encodeCall(jury.appeal, (id)))) ++appealed;
    }

    /// Bonds and fees of a dispute's levels so far.
    function heldFor(DisputeId id) external view returns (uint256 held) {
        IJuryArbitrator.Dispute memory d = jury.disputeOf(id);
        for (uint256 level; level <= d.level; ++level) {
            held += (uint256(d.bond) << level) + (4 << level) * uint256(SEAT_FEE) - SEAT_FEE;
        }
    }

    function open(uint256 who, bool jurorIsParty) public {
        IArbitrator.DisputeRef memory ref = disputeRef();
        ref.accused = minerAt(who);
        ref.parties[0] = ref.accused;
        if (jurorIsParty) ref.parties[1] = jurorAddressAt(who);
        fund(challenger, address(jury), uint256(BOND) + FEE);
        tasks.lock(who % 2 == 0 ? type(uint256).max : MIN_STAKE / 10);
        if (act(stranger, address(tasks), abi.encodeCall(tasks.open, (miners, jury, ref)))) {
            disputes.push(jury.disputeIdOf(ref.job, ref.stage, ref.receiptHash, ref.right));
        }
    }

    function draw(uint256 which) public {
        if (disputes.length == 0) return;
        DisputeId id = disputes[which % disputes.length];
        act(stranger, address(jury), abi.encodeCall(jury.draw, (id)));
    }

    function commitOne(uint256 which, uint256 seat, uint256 choice) public {
        if (disputes.length == 0) return;
        DisputeId id = disputes[which % disputes.length];
        address[] memory panel = jury.panelOf(id);
        if (panel.length == 0) return;
        address juror = panel[seat % panel.length];
        IJuryArbitrator.Vote vote = IJuryArbitrator.Vote(1 + choice % 2);
        if (act(
                juror,
                address(jury),
                abi.encodeCall(jury.commitVote, (id, commitment(id, juror, vote)))
            )) {
            voted[id][juror] = vote;
        }
    }

    function commitAll(uint256 which, uint256 choices) external {
        for (uint256 seat; seat < 15; ++seat) {
            commitOne(which, seat, choices >> seat);
        }
    }

    function revealOne(uint256 which, uint256 seat) public {
        if (disputes.length == 0) return;
        DisputeId id = disputes[which % disputes.length];
        address[] memory panel = jury.panelOf(id);
        if (panel.length == 0) return;
        address juror = panel[seat % panel.length];
        bytes memory data = abi.encodeCall(
            jury.revealVote, (id, voted[id][juror], bytes32("evidence"), bytes32("salt"))
        );
        act(juror, address(jury), data);
    }

    function revealAll(uint256 which) external {
        for (uint256 seat; seat < 15; ++seat) {
            revealOne(which, seat);
        }
    }

    function advance(uint256 which) public {
        if (disputes.length == 0) return;
        DisputeId id = disputes[which % disputes.length];
        act(stranger, address(jury), abi.encodeCall(jury.advance, (id)));
    }

    function executeOne(uint256 which) public {
        if (disputes.length == 0) return;
        DisputeId id = disputes[which % disputes.length];
        uint256 before = staked();
        if (act(stranger, address(jury), abi.encodeCall(jury.execute, (id)))) ++executed;
        slashed += before - staked();
    }

    function serve(uint256 who, uint256 count) external {
        miners.serve(minerAt(who), bound(count, 0, 100));
    }

    function staked() public view returns (uint256 sum) {
        for (uint256 i; i < MINERS; ++i) {
            IMinerRegistry.Miner memory miner = miners.minerOf(minerAt(i));
            sum += uint256(miner.stake) + miner.leaving;
        }
    }

    // --- credits ---

    function withdrawCredits(uint256 who) external {
        address[] memory all = accounts();
        address account = all[who % all.length];
        uint256 credit = miners.creditOf(account);
        if (act(account, address(miners), abi.encodeCall(miners.withdrawCredit, ()))) {
            if (account != BURN) shared += credit;
        }
        act(account, address(jury), abi.encodeCall(jury.withdrawCredit, ()));
    }

    // --- the end: everyone goes home ---

    /// A stranger ends every dispute, then every owner takes its own. Reverts if anyone is stuck.
    function drain() external {
        for (uint256 i; i < disputes.length; ++i) {
            endDispute(disputes[i]);
        }
        for (uint256 i; i < MINERS; ++i) {
            uint256 stake = miners.minerOf(minerAt(i)).stake;
            if (stake == 0) continue;
            vm.prank(minerAt(i));
            miners.requestExit(stake);
        }
        for (uint256 i; i < JURORS; ++i) {
            uint256 stake = jury.jurorOf(jurorAddressAt(i)).stake;
            if (stake == 0) continue;
            vm.prank(jurorAddressAt(i));
            jury.requestJurorExit(stake);
        }
        skipTime(UNBOND_SECONDS + JUROR_UNBOND_SECONDS + JAIL_SECONDS);
        for (uint256 i; i < MINERS; ++i) {
            goHome(minerAt(i));
            miners.serve(minerAt(i), type(uint256).max);
        }
        for (uint256 i; i < JURORS; ++i) {
            if (jury.jurorOf(jurorAddressAt(i)).leaving == 0) continue;
            vm.prank(jurorAddressAt(i));
            jury.withdrawJuror();
        }
        address[] memory all = accounts();
        for (uint256 i; i < all.length; ++i) {
            vm.startPrank(all[i]);
            if (miners.creditOf(all[i]) != 0) miners.withdrawCredit();
            if (jury.creditOf(all[i]) != 0) jury.withdrawCredit();
            vm.stopPrank();
        }
    }

    function endDispute(DisputeId id) private {
        vm.startPrank(stranger);
        if (phaseOf(id) == IJuryArbitrator.Phase.Opened) {
            uint256 at_ = jury.disputeOf(id).drawBlock + 1;
            if (at_ > vm.getBlockNumber()) vm.roll(at_);
            jury.draw(id);
            if (phaseOf(id) == IJuryArbitrator.Phase.Opened) {
                vm.roll(jury.disputeOf(id).drawBlock + 1); // the first was a missed draw
                jury.draw(id);
            }
        }
        while (
            phaseOf(id) != IJuryArbitrator.Phase.Ruled
                && phaseOf(id) != IJuryArbitrator.Phase.Executed
        ) {
            skipTime(COMMIT_SECONDS + REVEAL_SECONDS);
            jury.advance(id);
        }
        if (phaseOf(id) == IJuryArbitrator.Phase.Ruled) {
            skipTime(APPEAL_SECONDS);
            jury.execute(id);
        }
        vm.stopPrank();
    }

    function goHome(address owner_) private {
        IMinerRegistry.Miner memory miner = miners.minerOf(owner_);
        vm.startPrank(owner_);
        if (miner.jailUntil != 0 && miner.state == IMinerRegistry.State.Cooldown) miners.unjail();
        if (miner.state == IMinerRegistry.State.Cooldown) miners.withdraw();
        vm.stopPrank();
    }
}
