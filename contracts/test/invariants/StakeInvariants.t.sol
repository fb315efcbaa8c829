// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JuryArbitrator} from "../../src/arbitration/JuryArbitrator.sol";
import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {Test} from "../Vm.sol";
import {StakeHandler} from "./StakeHandler.sol";

/// What holds for stakes and disputes whatever anyone does, and that at the end everyone can go home with their money.
contract StakeInvariants is Test {
    StakeHandler private handler;
    IMinerRegistry private miners;
    JuryArbitrator private jury;

    function setUp() public {
        handler = new StakeHandler();
        (miners, jury) = handler.contracts();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    struct Selectors {
        address addr;
        bytes4[] selectors;
    }

    /// `drain` ends the world; it is not one of the moves.
    function excludeSelectors() public view returns (Selectors[] memory excluded) {
        excluded = new Selectors[](1);
        excluded[0].addr = address(handler);
        excluded[0].selectors = new bytes4[](2);
        excluded[0].selectors[0] = handler.drain.selector;
        excluded[0].selectors[1] = handler.setUp.selector;
    }

    /// token.balanceOf(MinerRegistry) = Σ (stake + leaving) + Σ credits.
    function invariant_minerMoneyIsConserved() public view {
        uint256 books;
        for (uint256 i; i < handler.MINERS(); ++i) {
            IMinerRegistry.Miner memory miner = miners.minerOf(handler.minerAt(i));
            books += uint256(miner.stake) + miner.leaving;
        }
        address[] memory accounts = handler.accounts();
        for (uint256 i; i < accounts.length; ++i) {
            books += miners.creditOf(accounts[i]);
        }
        vm.assertEq(books, handler.tokenBalance(address(miners)));
    }

    /// token.balanceOf(jury) = Σ jurors' (stake + leaving) + Σ credits + Σ (bond + fee) of disputes not executed.
    function invariant_juryMoneyIsConserved() public view {
        uint256 books;
        for (uint256 i; i < handler.JURORS(); ++i) {
            IJuryArbitrator.Juror memory juror = jury.jurorOf(handler.jurorAddressAt(i));
            books += uint256(juror.stake) + juror.leaving;
        }
        address[] memory accounts = handler.accounts();
        for (uint256 i; i < accounts.length; ++i) {
            books += jury.creditOf(accounts[i]);
        }
        for (uint256 i; i < handler.disputeCount(); ++i) {
            IJuryArbitrator.Dispute memory d = jury.disputeOf(handler.disputes(i));
            if (d.phase != IJuryArbitrator.Phase.Executed) books += uint256(d.bond) + d.fee;
        }
        vm.assertEq(books, handler.tokenBalance(address(jury)));
    }

    /// Frozen miners and bound jurors are exactly those of disputes not executed.
    function invariant_freezesEqualOpenDisputes() public view {
        for (uint256 m; m < handler.MINERS(); ++m) {
            address owner = handler.minerAt(m);
            uint256 open;
            for (uint256 i; i < handler.disputeCount(); ++i) {
                IJuryArbitrator.Dispute memory d = jury.disputeOf(handler.disputes(i));
                if (d.accused == owner && d.phase != IJuryArbitrator.Phase.Executed) ++open;
            }
            vm.assertEq(uint256(miners.minerOf(owner).openDisputes), open);
        }
        for (uint256 j; j < handler.JURORS(); ++j) {
            address juror = handler.jurorAddressAt(j);
            vm.assertEq(uint256(jury.jurorOf(juror).openDisputes), panelsOf(juror));
        }
    }

    function panelsOf(address juror) private view returns (uint256 open) {
        for (uint256 i; i < handler.disputeCount(); ++i) {
            DisputeId id = handler.disputes(i);
            if (jury.disputeOf(id).phase == IJuryArbitrator.Phase.Executed) continue;
            address[] memory panel = jury.panelOf(id);
            for (uint256 p; p < panel.length; ++p) {
                if (panel[p] == juror) ++open;
            }
        }
    }

    /// Verdicts are final: once executed, a dispute keeps a verdict and never comes back.
    function invariant_executedDisputesAreFinal() public view {
        uint256 executed;
        for (uint256 i; i < handler.disputeCount(); ++i) {
            IJuryArbitrator.Dispute memory d = jury.disputeOf(handler.disputes(i));
            if (d.phase == IJuryArbitrator.Phase.Executed) ++executed;
            bool hasVerdict = d.status != IArbitrator.Status.Open && d.status != IArbitrator.Status.None;
            bool ended = d.phase == IJuryArbitrator.Phase.Ruled || d.phase == IJuryArbitrator.Phase.Executed;
            vm.assertEq(hasVerdict, ended);
        }
        vm.assertEq(executed, handler.executed());
    }

    /// Who may work has the minimum at stake.
    function invariant_workersHaveTheMinimum() public view {
        for (uint256 i; i < handler.MINERS(); ++i) {
            IMinerRegistry.Miner memory miner = miners.minerOf(handler.minerAt(i));
            bool works = miner.state == IMinerRegistry.State.Active && miner.jailUntil == 0;
            vm.assertEq(miners.canWork(miner.operator, 0), works);
            if (works) vm.assertGe(uint256(miner.stake), handler.minimumStake());
            if (miner.state == IMinerRegistry.State.Exited) vm.assertEq(uint256(miner.stake) + miner.leaving, 0);
        }
    }

    function invariant_nobodyLeftBeforeItsClock() public view {
        vm.assertFalse(handler.leftEarly());
    }

    function invariant_noArithmeticEverFailed() public view {
        vm.assertFalse(handler.panicked());
    }

    /// Liveness: from wherever the run ended, strangers end every dispute and owners take every unit.
    function afterInvariant() public {
        handler.drain();
        vm.assertEq(handler.tokenBalance(address(miners)), 0, "money stuck in MinerRegistry");
        vm.assertEq(handler.tokenBalance(address(jury)), 0, "money stuck in JuryArbitrator");
    }
}
