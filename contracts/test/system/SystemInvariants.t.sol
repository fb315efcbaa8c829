// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEscrow} from "../../src/interfaces/IEscrow.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {ITaskRegistry} from "../../src/interfaces/ITaskRegistry.sol";
import {TestUSD} from "../../src/token/TestUSD.sol";
import {DisputeId, JobId} from "../../src/types/Ids.sol";
import {Test} from "../Vm.sol";
import {SystemHandler} from "./SystemHandler.sol";

/// What always holds for the whole suite, and that all can leave with their money.
contract SystemInvariants is Test {
    struct Selectors {
        address addr;
        bytes4[] selectors;
    }

    SystemHandler private handler;
    TestUSD private token;
    IEscrow private escrow;
    IMinerRegistry private miners;
    IJuryArbitrator private jury;

    function setUp() public {
        handler = new SystemHandler();
        (address token_, address escrow_, address miners_, address jury_) = handler.contracts();
        token = TestUSD(token_);
        escrow = IEscrow(escrow_);
        miners = IMinerRegistry(miners_);
        jury = IJuryArbitrator(jury_);
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function moves() private view returns (bytes4[] memory list) {
        list = new bytes4[](38);
        list[0] = handler.wait.selector;
        list[1] = handler.sleep.selector;
        list[2] = handler.openJob.selector;
        list[3] = handler.matchJob.selector;
        list[4] = handler.cancel.selector;
        list[5] = handler.expire.selector;
        list[6] = handler.ack.selector;
        list[7] = handler.deliver.selector;
        list[8] = handler.finalize.selector;
        list[9] = handler.disputeStage.selector;
        list[10] = handler.hear.selector;
        list[11] = handler.hearToTheEnd.selector;
        list[12] = handler.equivocate.selector;
        list[13] = handler.equivocate.selector;
        list[14] = handler.runJob.selector;
        list[15] = handler.deposit.selector;
        list[16] = handler.requestWithdraw.selector;
        list[17] = handler.withdraw.selector;
        list[18] = handler.withdraw.selector;
        list[19] = handler.withdrawCredits.selector;
        list[20] = handler.openSession.selector;
        list[21] = handler.requestClose.selector;
        list[22] = handler.requestExit.selector;
        list[23] = handler.withdrawStake.selector;
        list[24] = handler.recover.selector;
        // Sessions go on: more than one Ack of each. A miner that asked to leave fetches its stake.
        list[25] = handler.ack.selector;
        list[26] = handler.withdrawStake.selector;
        list[27] = handler.ack.selector;
        list[28] = handler.collect.selector;
        list[29] = handler.collectFees.selector;
        list[30] = handler.openAgain.selector;
        list[31] = handler.settleByAnotherPlan.selector;
        list[32] = handler.matchAsAnother.selector;
        list[33] = handler.expireByAnotherPlan.selector;
        list[34] = handler.runSession.selector;
        list[35] = handler.requestClose.selector;
        list[36] = handler.expire.selector;
        list[37] = handler.finalize.selector;
    }

    function targetSelectors() public view returns (Selectors[] memory targets) {
        targets = new Selectors[](1);
        targets[0] = Selectors(address(handler), moves());
    }

    /// One invariant of many claims: forge repeats its whole campaign for every invariant function.
    function invariant_system() public view {
        escrowMoneyIsConserved();
        spendersAreHeldToTheirLimits();
        minerMoneyIsConserved();
        juryMoneyIsConserved();
        disputesAreCounted();
        honestMinersAreUnharmed();
        vm.assertFalse(handler.terminalMoved(), "a job left its end");
        vm.assertFalse(handler.paidWrongly(), "a settlement paid otherwise than the page says");
        vm.assertFalse(handler.stakeLeftEarly(), "stake left while its receipts could be disputed");
        string memory broken = handler.broken();
        vm.assertTrue(bytes(broken).length == 0, string.concat("got around: ", broken));
        vm.assertFalse(handler.panicked(), "arithmetic failed where a rule should have refused");
    }

    /// 10⁹·(token.balanceOf(Escrow) − Σ thawing) = Σ balances + Σ earned + Σ fees + Σ job locks, in
    /// nano units.
    function escrowMoneyIsConserved() private view {
        uint256 books;
        address[] memory all = handler.holders();
        for (uint256 i; i < all.length; ++i) {
            books += heldBy(all[i]) + 1e9 * uint256(escrow.thawOf(all[i]).amount);
        }
        for (uint256 i; i < handler.taskCount(); ++i) {
            books += handler.lockedAt(i);
        }
        vm.assertEq(books, 1e9 * token.balanceOf(address(escrow)));
    }

    function heldBy(address holder) private view returns (uint256) {
        IEscrow.Holdings memory held = escrow.nanoOf(holder);
        return held.balance + held.earned + held.matcherFees + held.protocolFees;
    }

    /// A spender has used what its jobs were paid and have locked, never above its limit.
    function spendersAreHeldToTheirLimits() private view {
        for (uint256 i; i < handler.REQUESTERS(); ++i) {
            address spender = handler.spenderAt(i);
            uint256 used = handler.paidFor(spender);
            for (uint256 k; k < handler.taskCount(); ++k) {
                JobId id = handler.taskAt(k);
                if (escrow.jobSpenderOf(id) != spender) continue;
                used += handler.lockedAt(k);
            }
            IEscrow.Spender memory s = escrow.spenderOf(handler.requesterAt(i), spender);
            vm.assertEq(uint256(s.usedNano), used);
            vm.assertLe(used, 1e9 * uint256(s.limit));
        }
    }

    function minerMoneyIsConserved() private view {
        uint256 books;
        for (uint256 i; i < handler.MINERS(); ++i) {
            IMinerRegistry.Miner memory m = miners.minerOf(handler.minerAt(i));
            books += uint256(m.stake) + m.leaving + miners.poolOf(handler.minerAt(i)).units;
        }
        address[] memory all = handler.accounts();
        for (uint256 i; i < all.length; ++i) {
            books += miners.creditOf(all[i]);
        }
        vm.assertEq(books, token.balanceOf(address(miners)));
    }

    function juryMoneyIsConserved() private view {
        uint256 books;
        for (uint256 i; i < 5; ++i) {
            IJuryArbitrator.Juror memory juror = jury.jurorOf(handler.jurorAt(i));
            books += uint256(juror.stake) + juror.leaving;
        }
        address[] memory all = handler.accounts();
        for (uint256 i; i < all.length; ++i) {
            books += jury.creditOf(all[i]);
        }
        for (uint256 i; i < handler.hearingCount(); ++i) {
            (DisputeId id,,) = handler.hearings(i);
            IJuryArbitrator.Dispute memory d = jury.disputeOf(id);
            if (d.phase != IJuryArbitrator.Phase.Executed) books += uint256(d.bond) + d.fee;
        }
        vm.assertEq(books, token.balanceOf(address(jury)));
    }

    /// Open disputes are those that the jury has not executed; a job is Disputed while it has one.
    function disputesAreCounted() private view {
        uint256 open;
        for (uint256 i; i < handler.taskCount(); ++i) {
            ITaskRegistry.Job memory job = handler.jobAt(i);
            vm.assertEq(
                job.state == ITaskRegistry.State.Disputed,
                job.openDisputes > 0 && job.state != ITaskRegistry.State.Settled
                    && job.state != ITaskRegistry.State.Matched
            );
            open += job.openDisputes;
        }
        uint256 undecided;
        for (uint256 i; i < handler.hearingCount(); ++i) {
            (DisputeId id,,) = handler.hearings(i);
            if (jury.disputeOf(id).phase != IJuryArbitrator.Phase.Executed) ++undecided;
        }
        vm.assertEq(open, undecided);
        uint256 frozen;
        for (uint256 i; i < handler.MINERS(); ++i) {
            frozen += miners.minerOf(handler.minerAt(i)).openDisputes;
        }
        vm.assertEq(open, frozen);
    }

    /// No requester, juror, matcher or cheat gets an honest miner slashed or jailed.
    function honestMinersAreUnharmed() private view {
        for (uint256 i = handler.CHEATS(); i < handler.MINERS(); ++i) {
            IMinerRegistry.Miner memory m = miners.minerOf(handler.minerAt(i));
            vm.assertEq(uint256(m.strikes), 0);
            vm.assertEq(uint256(m.jailUntil), 0);
        }
    }

    /// Liveness: time and strangers end all jobs and disputes, and owners take every whole unit.
    function afterInvariant() public {
        goHome();
    }

    function goHome() private {
        handler.drain();
        uint256 left; // of everybody less than a unit
        address[] memory all = handler.holders();
        for (uint256 i; i < all.length; ++i) {
            IEscrow.Holdings memory held = escrow.nanoOf(all[i]);
            vm.assertTrue(held.balance < 1e9 && held.earned < 1e9, "money stuck in Escrow");
            vm.assertTrue(
                held.matcherFees < 1e9 && held.protocolFees < 1e9, "fees stuck in Escrow"
            );
            left += heldBy(all[i]);
        }
        vm.assertEq(1e9 * token.balanceOf(address(escrow)), left, "money stuck in Escrow");
        vm.assertEq(token.balanceOf(address(miners)), 0, "money stuck in MinerRegistry");
        vm.assertEq(token.balanceOf(address(jury)), 0, "money stuck in JuryArbitrator");
    }

    // --- the campaign is no pretence ---

    function play(bytes32 random) private {
        bytes4[] memory list = moves();
        bytes4 move = list[uint256(random) % list.length];
        if (uint256(random) >> 200 & 7 == 0) move = handler.runJob.selector;
        if (uint256(random) >> 200 & 7 == 1) move = handler.hearToTheEnd.selector;
        bytes memory arguments = abi.encode(
            keccak256(abi.encode(random, 1)),
            keccak256(abi.encode(random, 2)),
            keccak256(abi.encode(random, 3)),
            keccak256(abi.encode(random, 4))
        );
        (bool ok,) = address(handler).call(bytes.concat(move, arguments));
        vm.assertTrue(ok, "a move of the handler itself failed");
    }

    /// Random moves do succeed at every step of every story, and the invariants hold along the way.
    function test_randomMoves_reachEverything() public {
        string[37] memory steps = [
            "open",
            "openMatched",
            "matchJob",
            "cancel",
            "expire",
            "settleAck",
            "deliver",
            "finalize",
            "dispute",
            "draw",
            "commit",
            "reveal",
            "advance",
            "execute",
            "ruled fault",
            "ruled no fault",
            "no ruling",
            "equivocation",
            "deposit",
            "requestWithdraw",
            "withdraw",
            "withdrawCredit",
            "openSession",
            "openMatched by a spender",
            "acknowledge",
            "requestClose",
            "expire acknowledged",
            "requestExit",
            "withdrawStake",
            "addStake",
            "unjail",
            "collect",
            "collectFees",
            "an order opens once",
            "a job is paid by its own plan",
            "the order's matcher matches",
            "a job expires by its own plan"
        ];
        uint256[37] memory times;
        for (uint256 run; run < 12; ++run) {
            uint256 fresh = vm.snapshotState();
            bytes32 random = keccak256(abi.encode("campaign", run));
            for (uint256 i; i < 100; ++i) {
                random = keccak256(abi.encode(random));
                play(random);
                if (i % 20 == 19) invariant_system();
            }
            for (uint256 i; i < steps.length; ++i) {
                times[i] += handler.happened(steps[i]);
            }
            goHome();
            vm.revertToState(fresh);
        }
        for (uint256 i; i < steps.length; ++i) {
            vm.assertGe(times[i], 1, string.concat("never happened: ", steps[i]));
        }
    }
}
