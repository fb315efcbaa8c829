// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelRegistry} from "../src/ModelRegistry.sol";
import {IJuryArbitrator} from "../src/interfaces/IJuryArbitrator.sol";
import {IModelRegistry} from "../src/interfaces/IModelRegistry.sol";
import {ShaTree} from "../src/libraries/ShaTree.sol";
import {DisputeId} from "../src/types/Ids.sol";
import {StakeFixture} from "./fixtures/StakeFixture.sol";

/// What do stakes, models and disputes cost, each call its own transaction?
/// forge-config: default.isolate = true
contract StakeGasTest is StakeFixture {
    IJuryArbitrator.Vote private constant FAULT = IJuryArbitrator.Vote.Fault;
    IJuryArbitrator.Vote private constant NO_FAULT = IJuryArbitrator.Vote.NoFault;

    function snapshot(string memory step) private returns (uint256) {
        return vm.snapshotGasLastCall("StakeAndJury", step);
    }

    function test_miner_cost() public {
        registerMiner(2 * MIN_STAKE);
        snapshot("register");
        vm.startPrank(owner);
        miners.registerMachine("A", 24_576, 1_008_000, keccak256("endpoint"));
        snapshot("registerMachine");
        miners.requestExit(MIN_STAKE);
        snapshot("requestExit part");
        skipTime(UNBOND_SECONDS);
        miners.withdraw();
        snapshot("withdraw");
        vm.stopPrank();
    }

    function test_registerMachine_costInTheWorstPlace() public {
        registerMiner(MIN_STAKE);
        vm.startPrank(owner);
        for (uint256 i; i < 64; ++i) {
            miners.registerMachine("A", 1, 1, 0);
        }
        miners.retireMachine(0);
        miners.registerMachine("A", 1, 1, 0);
        vm.assertLt(snapshot("registerMachine, 63 others"), 300_000);
        vm.stopPrank();
    }

    function test_juror_cost() public {
        stakeJuror(jurorAt(0), MIN_JUROR_STAKE);
        skipBlocks(1);
        stakeUnripe(jurorAt(1), MIN_JUROR_STAKE);
        snapshot("stakeJuror");
        skipTime(MATURITY_SECONDS);
        jury.enrol(jurorAt(1));
        snapshot("enrol");
        skipBlocks(1);
        stakeUnripe(jurorAt(1), MIN_JUROR_STAKE);
        snapshot("stakeJuror, more");
        skipBlocks(1);
        vm.prank(jurorAt(1));
        jury.requestJurorExit(2 * uint256(MIN_JUROR_STAKE));
        snapshot("requestJurorExit");
        skipTime(JUROR_UNBOND_SECONDS);
        vm.prank(jurorAt(1));
        jury.withdrawJuror();
        snapshot("withdrawJuror");
    }

    function hear(IJuryArbitrator.Vote last, string memory verdict) private {
        DisputeId id = openDispute();
        snapshot("open");
        address[] memory panel;
        vm.roll(jury.disputeOf(id).drawBlock + 1);
        jury.draw(id);
        snapshot("draw 3 of 8");
        panel = jury.panelOf(id);
        for (uint256 i; i < 3; ++i) {
            commitVote(id, panel[i], i == 2 ? last : FAULT);
            if (i == 0) snapshot("commitVote");
        }
        for (uint256 i; i < 3; ++i) {
            revealVote(id, panel[i], i == 2 ? last : FAULT);
            if (i == 0) snapshot("revealVote");
        }
        execute(id);
        snapshot(string.concat("execute ", verdict));
    }

    function test_dispute_cost() public {
        registerMiner(MIN_STAKE);
        stakeJurors(8);
        hear(FAULT, "fault, unanimous");
        skipBlocks(1);
        hear(NO_FAULT, "fault, one outvoted");
    }

    /// 1024 jurors in 64 blocks, and the largest panel of them.
    function test_draw_costFromAFullRoll() public {
        token.mint(address(this), 1024 * uint256(MIN_JUROR_STAKE));
        fillRoll(16);
        registerMiner(MIN_STAKE);
        DisputeId id = openDispute();
        vm.roll(jury.disputeOf(id).drawBlock + 1);
        jury.draw(id);
        vm.assertLt(snapshot("draw 3 of 1024"), 1_000_000);
    }

    /// The last panel that there can be: 31 jurors, each of whom is then paid.
    function test_cost_ofTheLargestPanel() public {
        IJuryArbitrator.Params memory p = juryParams();
        p.panelSize = 7;
        deployJury(p);
        token.mint(address(this), 1024 * uint256(MIN_JUROR_STAKE));
        fillRoll(16);
        registerMiner(MIN_STAKE);
        DisputeId id = openDispute();
        for (uint256 level; level < 3; ++level) {
            if (level != 0) appeal(id, level == 1 ? owner : challenger);
            vm.roll(jury.disputeOf(id).drawBlock + 1);
            jury.draw(id);
            if (level == 2) snapshot("draw 31 of 1024");
            voteAll(id, jury.panelOf(id), level == 1 ? NO_FAULT : FAULT);
        }
        execute(id);
        vm.assertLt(snapshot("execute after two appeals, 53 jurors"), 6_000_000);
    }

    function test_model_cost() public {
        ModelRegistry models = new ModelRegistry();
        bytes32[] memory roots = new bytes32[](32);
        bytes32[] memory leaves = new bytes32[](32);
        for (uint256 i; i < 32; ++i) {
            roots[i] = keccak256(abi.encode(i));
            leaves[i] = ShaTree.leafHash(abi.encodePacked(roots[i]));
        }
        IModelRegistry.ModelSpec memory spec = IModelRegistry.ModelSpec({
            architecture: keccak256("llama"),
            layers: 30,
            hidden: 576,
            heads: 9,
            kvHeads: 3,
            ffn: 1536,
            vocab: 49_152,
            context: 8192,
            embedUnits: 1,
            headUnits: 2,
            dtype: keccak256("float32"),
            numericsProfile: keccak256("ANY"),
            weightsRoot: ShaTree.root(leaves),
            manifestHash: sha256("manifest")
        });
        models.register(spec, roots);
        snapshot("register model, 30 layers");
    }
}
