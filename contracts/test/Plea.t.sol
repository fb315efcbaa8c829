// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../src/interfaces/IArbitrator.sol";
import {Drawn, SignedRequest} from "../src/interfaces/IRowJudge.sol";
import {Claim, ITraceJudge} from "../src/interfaces/ITraceJudge.sol";
import {IToleranceGame} from "../src/interfaces/IToleranceGame.sol";
import {Place} from "../src/trace/Layout.sol";
import {DisputeId, ModelId} from "../src/types/Ids.sol";
import {GameFixture, ScriptedRowJudge} from "./fixtures/GameFixture.sol";

/// The plea: who may make it, when, and what the accuser must answer. That each move has its phase,
/// player and clock is in ToleranceGame.t.sol.
contract PleaTest is GameFixture {
    bytes4 private constant OVER = IToleranceGame.PleaOver.selector;
    bytes4 private constant NONE = IToleranceGame.NoPlea.selector;
    bytes4 private constant OTHER = IToleranceGame.ClaimMismatch.selector;

    function restated() private returns (IArbitrator.DisputeRef memory r, DisputeId id) {
        (r, id) = gameIn(IToleranceGame.Phase.Pleaded);
        act(challenger, restateCall(id));
    }

    function refusePlea(DisputeId id, bytes4 why) private {
        expectRefused(operator, pleadCall(id), abi.encodeWithSelector(why));
    }

    // --- pleading ---

    function test_plead_keepsTheRootAndNamesTheSeed() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        uint256 endsAt = vm.getBlockTimestamp() + TURN_SECONDS;
        vm.expectEmit(address(game));
        emit IToleranceGame.Pleaded(id, SEED, endsAt);
        act(operator, pleadCall(id));
        IToleranceGame.Game memory g = game.gameOf(id);
        vm.assertTrue(g.phase == IToleranceGame.Phase.Pleaded);
        vm.assertEq(uint256(g.child), SEED);
        vm.assertEq(uint256(g.endsAt), endsAt);
        vm.assertEq(uint256(g.chunks), 1 << LEVELS);
        vm.assertEq(g.node, nodes[LEVELS]);
        vm.assertEq(g.binding, keccak256(abi.encode(model(), claim())));
    }

    function test_plead_anySeed(uint8 seed) public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        act(owner, abi.encodeCall(game.plead, (id, seed)));
        vm.assertEq(uint256(game.gameOf(id).child), seed);
        Claim memory c = pleadedClaim();
        c.key0 = uint256(seed) == 255 ? 0 : uint32(seed) + 1;
        expectRefused(challenger, restateCall(id, c), abi.encodeWithSelector(OTHER));
        c.key0 = uint32(seed) + 256;
        expectRefused(challenger, restateCall(id, c), abi.encodeWithSelector(OTHER));
        c.key0 = seed;
        act(challenger, restateCall(id, c));
    }

    function test_plead_afterAnOpening_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opening);
        act(challenger, openNodeCall(id));
        refusePlea(id, OVER);
        act(operator, abi.encodeCall(game.pick, (id, 0)));
        act(challenger, openChunksCall(id));
        refusePlea(id, OVER);
    }

    function test_plead_twice_isRefused() public {
        (, DisputeId id) = restated();
        refusePlea(id, NONE);
    }

    function test_plead_ofAToken_isRefused() public {
        DisputeId id = openGame();
        act(challenger, accuseTokenCall(id));
        refusePlea(id, NONE);
    }

    // --- restating ---

    function test_restate_beginsTheDescentAgain() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Pleaded);
        skipTime(TURN_SECONDS);
        uint256 endsAt = vm.getBlockTimestamp() + TURN_SECONDS;
        vm.expectEmit(address(game));
        emit IToleranceGame.Restated(id, 2 << LEVELS, endsAt);
        act(challenger, restateCall(id));
        IToleranceGame.Game memory g = game.gameOf(id);
        vm.assertTrue(g.phase == IToleranceGame.Phase.Picking);
        vm.assertEq(uint256(g.endsAt), endsAt);
        vm.assertEq(uint256(g.chunks), 2 << LEVELS);
        vm.assertEq(uint256(g.level), LEVELS + 1);
        vm.assertEq(uint256(g.index), 0);
        vm.assertEq(g.node, nodes[LEVELS + 1]);
        vm.assertEq(g.binding, keccak256(abi.encode(model(), pleadedClaim())));
        act(operator, abi.encodeCall(game.pick, (id, 31)));
        act(challenger, openNodeCall(id));
        act(operator, abi.encodeCall(game.pick, (id, 3)));
        act(challenger, openChunksCall(id));
        act(operator, pointCall(id));
        judge.say(ITraceJudge.Fault.Accuser, 0);
        expectRefused(challenger, proveCall(id), abi.encodeWithSelector(OTHER));
        act(challenger, abi.encodeCall(game.prove, (id, model(), pleadedClaim(), evidence())));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoFault);
    }

    /// Whatever word of the claim is another one, but for its root, it is another accusation.
    function test_restate_ofAnotherClaim_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Pleaded);
        uint256 claimAt = 4 + 32 * 2; // behind the id and the model
        for (uint256 i; i < 20; ++i) {
            bytes memory data = restateCall(id);
            uint256 last = claimAt + 32 * i + 31;
            data[last] ^= 0x01;
            expectRefused(challenger, data, abi.encodeWithSelector(OTHER));
            data[last] ^= 0x01;
            data[last - 31] = 0x01; // words that are no claim's
            bool typed = i == 10 || i == 17;
            expectRefused(challenger, data, typed ? bytes("") : abi.encodeWithSelector(OTHER));
        }
        expectRefused(
            challenger,
            abi.encodeCall(
                game.restate, (id, ModelId.wrap("other"), pleadedClaim(), same(LEVELS - 4, 32))
            ),
            abi.encodeWithSelector(OTHER)
        );
        act(challenger, restateCall(id));
    }

    function test_restate_asWhatIsNoPlea_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Pleaded);
        Claim memory c = pleadedClaim();
        for (uint8 how; how < 10; ++how) {
            if (how == 4) continue;
            c.how = how;
            expectRefused(challenger, restateCall(id, c), abi.encodeWithSelector(OTHER));
        }
        expectRefused(challenger, restateCall(id, claim()), abi.encodeWithSelector(OTHER));
    }

    function test_restate_withoutWhatIsBelowItsRoot_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Pleaded);
        bytes memory wrong = abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector);
        bytes32[] memory below = same(LEVELS - 4, 32);
        below[7] = keccak256("other");
        expectRefused(
            challenger, abi.encodeCall(game.restate, (id, model(), pleadedClaim(), below)), wrong
        );
        expectRefused(
            challenger,
            abi.encodeCall(game.restate, (id, model(), pleadedClaim(), same(LEVELS - 5, 32))),
            wrong
        );
        Claim memory c = pleadedClaim();
        c.traceRoot = nodes[LEVELS];
        expectRefused(challenger, restateCall(id, c), wrong);
    }

    function test_aPleadedClaim_isNoAccusation() public {
        DisputeId id = openGame();
        bytes memory invalid = abi.encodeWithSelector(ITraceJudge.ClaimInvalid.selector);
        SignedRequest memory signed = signedRequest();
        Claim memory c = pleadedClaim();
        bytes32[] memory below = same(LEVELS - 4, 32);
        Drawn memory drawn;
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), c, signed, below)),
            invalid
        );
        expectRefused(
            challenger,
            abi.encodeCall(game.accuseToken, (id, model(), receipt(), c, signed, below, drawn)),
            invalid
        );
    }

    // --- silence ---

    function test_whoDoesNotRestate_paysTheAccused() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Pleaded);
        skipTime(TURN_SECONDS + 1);
        act(stranger, timeoutCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoFault);
        executeGame(r, id);
        vm.assertEq(game.creditOf(owner), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    function test_whoPleadsAndFallsSilent_isSlashed() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = restated();
        skipTime(TURN_SECONDS + 1);
        act(stranger, timeoutCall(id));
        executeGame(r, id);
        vm.assertEq(uint256(miners.minerOf(owner).stake), 0);
        vm.assertEq(game.creditOf(challenger), BOND);
    }

    // --- the longest game ---

    /// A game whose traces are as long as the judge lets them be.
    function deepen() private {
        rowJudge = new ScriptedRowJudge(1 << 40);
        putUpGame();
        for (uint256 i = nodes.length - 1; i < 41; ++i) {
            nodes.push(sha256(bytes.concat(hex"01", nodes[i], nodes[i])));
        }
    }

    uint256 private turns;

    /// A move in the last second of its turn.
    function late(DisputeId id, address caller, bytes memory data) private {
        vm.warp(game.gameOf(id).endsAt);
        act(caller, data);
        ++turns;
    }

    function test_theLongestGame_hasAsManyTurnsAsAreCounted() public {
        deepen();
        DisputeId id = openGame();
        uint256 openedAt = vm.getBlockTimestamp();
        judge.say(ITraceJudge.Fault.Accused, 4);
        for (uint256 i; i < 3; ++i) {
            late(id, challenger, askCall(id));
            late(id, operator, revealCall(id));
        }
        Claim memory c = claim();
        c.traceRoot = nodes[40];
        SignedRequest memory signed = signedRequest();
        late(
            id,
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), c, signed, same(35, 32)))
        );
        late(id, operator, pleadCall(id));
        (c.how, c.key0, c.traceRoot) = (4, SEED, nodes[41]);
        late(id, challenger, abi.encodeCall(game.restate, (id, model(), c, same(36, 32))));
        for (uint256 level = 36; level > 1; level -= 5) {
            late(id, operator, abi.encodeCall(game.pick, (id, 31)));
            late(
                id,
                challenger,
                abi.encodeCall(game.openNode, (id, same(level - 5, 32), way(level)))
            );
        }
        late(id, operator, abi.encodeCall(game.pick, (id, 31)));
        bytes memory data = bytes.concat(chunk, chunk);
        late(id, challenger, abi.encodeCall(game.openChunks, (id, data, hex"4040", way(1))));
        vm.assertEq(uint256(game.gameOf(id).index), (1 << 41) - 2);
        late(id, operator, pointCall(id));
        late(id, challenger, expandCall(id));
        late(id, operator, abi.encodeCall(game.pickPart, (id, 4)));
        Place memory place = Place(1, 2, 3, 0, 5);
        late(
            id,
            challenger,
            abi.encodeCall(game.proveSum, (id, model(), c, place, evidence(), stated()))
        );
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.Fault);
        vm.assertEq(turns, game.MAX_TURNS());
        vm.assertEq(game.gameOf(id).endsAt - openedAt, game.maxDisputeSeconds());
    }
}
