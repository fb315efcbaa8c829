// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {JuryArbitrator} from "../../src/arbitration/JuryArbitrator.sol";
import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IJuryArbitrator} from "../../src/interfaces/IJuryArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {Test} from "../Vm.sol";
import {StakeHandler} from "./StakeHandler.sol";

/// What always holds for stakes and disputes, and that at the end all can leave with their money.
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

    /// One invariant of nine claims: forge repeats its campaign for every invariant function.
    function invariant_stakesAndDisputes() public view {
        minerMoneyIsConserved();
        slashesAreSharedByHalf();
        poolsAreServedInOrder();
        juryMoneyIsConserved();
        freezesEqualOpenDisputes();
        executedDisputesAreFinal();
        workersHaveTheMinimum();
        vm.assertFalse(handler.leftEarly(), "stake left before its clock, in jail, or frozen");
        vm.assertFalse(handler.panicked(), "arithmetic failed where a rule should have refused");
    }

    /// token.balanceOf(MinerRegistry) = Σ (stake + leaving) + Σ pools + Σ credits.
    function minerMoneyIsConserved() private view {
        uint256 books;
        for (uint256 i; i < handler.MINERS(); ++i) {
            IMinerRegistry.Miner memory miner = miners.minerOf(handler.minerAt(i));
            books += uint256(miner.stake) + miner.leaving;
            books += miners.poolOf(handler.minerAt(i)).units;
        }
        address[] memory accounts = handler.accounts();
        for (uint256 i; i < accounts.length; ++i) {
            books += miners.creditOf(accounts[i]);
        }
        vm.assertEq(books, handler.tokenBalance(address(miners)));
    }

    /// To anybody but the burn address go at most halves of what was slashed.
    function slashesAreSharedByHalf() private view {
        uint256 shared = handler.shared();
        address[] memory accounts = handler.accounts();
        for (uint256 i; i + 1 < accounts.length; ++i) {
            shared += miners.creditOf(accounts[i]); // the last account is the burn address
        }
        for (uint256 i; i < handler.MINERS(); ++i) {
            shared += miners.poolOf(handler.minerAt(i)).units;
        }
        vm.assertLe(shared, handler.slashed() / 2);
    }

    /// Every dispute is closed once, none younger than an open one is served, and nothing is left
    /// in a pool whose disputes are all over.
    function poolsAreServedInOrder() private view {
        for (uint256 i; i < handler.MINERS(); ++i) {
            address owner = handler.minerAt(i);
            IMinerRegistry.Pool memory pool = miners.poolOf(owner);
            uint256 open;
            for (uint32 number; number < pool.opened; ++number) {
                IMinerRegistry.Dispute memory d = miners.disputeOf(owner, number);
                if (d.arbitrator != address(0)) ++open;
                if (number < pool.served) vm.assertEq(d.challenger, address(0));
            }
            vm.assertEq(open, uint256(miners.minerOf(owner).openDisputes));
            if (pool.served == pool.opened) vm.assertEq(uint256(pool.units), 0);
        }
    }

    /// token.balanceOf(jury) = Σ (stake + leaving) + Σ credits + Σ (bonds + fees) of open disputes.
    function juryMoneyIsConserved() private view {
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
            if (d.phase != IJuryArbitrator.Phase.Executed) {
                books += handler.heldFor(handler.disputes(i));
            }
        }
        vm.assertEq(books, handler.tokenBalance(address(jury)));
    }

    /// Frozen miners and bound jurors are exactly those of disputes not executed.
    function freezesEqualOpenDisputes() private view {
        uint256[] memory frozen = new uint256[](handler.MINERS());
        uint256[] memory bound_ = new uint256[](handler.JURORS());
        for (uint256 i; i < handler.disputeCount(); ++i) {
            DisputeId id = handler.disputes(i);
            IJuryArbitrator.Dispute memory d = jury.disputeOf(id);
            if (d.phase == IJuryArbitrator.Phase.Executed) continue;
            for (uint256 m; m < frozen.length; ++m) {
                if (d.accused == handler.minerAt(m)) ++frozen[m];
            }
            for (uint256 level; level <= d.level; ++level) {
                address[] memory panel = jury.panelAt(id, level);
                for (uint256 p; p < panel.length; ++p) {
                    ++bound_[uint160(panel[p]) - uint160(handler.jurorAddressAt(0))];
                }
            }
        }
        for (uint256 m; m < frozen.length; ++m) {
            vm.assertEq(uint256(miners.minerOf(handler.minerAt(m)).openDisputes), frozen[m]);
        }
        for (uint256 j; j < bound_.length; ++j) {
            vm.assertEq(uint256(jury.jurorOf(handler.jurorAddressAt(j)).openDisputes), bound_[j]);
        }
    }

    /// Verdicts are final: once executed, a dispute keeps a verdict and never comes back.
    function executedDisputesAreFinal() private view {
        uint256 executed;
        for (uint256 i; i < handler.disputeCount(); ++i) {
            IJuryArbitrator.Dispute memory d = jury.disputeOf(handler.disputes(i));
            if (d.phase == IJuryArbitrator.Phase.Executed) ++executed;
            bool hasVerdict =
                d.status != IArbitrator.Status.Open && d.status != IArbitrator.Status.None;
            bool ended = d.phase == IJuryArbitrator.Phase.Ruled
                || d.phase == IJuryArbitrator.Phase.Executed;
            vm.assertEq(hasVerdict, ended);
        }
        vm.assertEq(executed, handler.executed());
    }

    /// Who may work has the minimum at stake.
    function workersHaveTheMinimum() private view {
        for (uint256 i; i < handler.MINERS(); ++i) {
            IMinerRegistry.Miner memory miner = miners.minerOf(handler.minerAt(i));
            bool works = miner.state == IMinerRegistry.State.Active && miner.jailUntil == 0
                && miner.openDisputes == 0;
            vm.assertEq(miners.canWork(miner.operator, 0), works);
            if (works) vm.assertGe(uint256(miner.stake), handler.minimumStake());
            if (miner.state == IMinerRegistry.State.Exited) {
                vm.assertEq(uint256(miner.stake) + miner.leaving, 0);
            }
        }
    }

    /// Liveness: strangers end every dispute and owners take every unit.
    function afterInvariant() public {
        handler.drain();
        vm.assertEq(handler.tokenBalance(address(miners)), 0, "money stuck in MinerRegistry");
        vm.assertEq(handler.tokenBalance(address(jury)), 0, "money stuck in JuryArbitrator");
    }
}
