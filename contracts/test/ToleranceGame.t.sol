// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ToleranceGame} from "../src/ToleranceGame.sol";
import {IArbitrator} from "../src/interfaces/IArbitrator.sol";
import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {Drawn, RowSpot} from "../src/interfaces/IRowJudge.sol";
import {Claim, Evidence, ITraceJudge, RowOpening} from "../src/interfaces/ITraceJudge.sol";
import {IToleranceGame} from "../src/interfaces/IToleranceGame.sol";
import {Place} from "../src/trace/Layout.sol";
import {DisputeId, JobId, ModelId} from "../src/types/Ids.sol";
import {GameFixture} from "./fixtures/GameFixture.sol";

/// The game's own rules: phases, turns, clocks and money. Traces and evidence are tested against their twin in tests/twins.
contract ToleranceGameTest is GameFixture {
    uint256 private constant FUNCTIONS = 18;
    uint256 private constant DEMAND = 8;
    uint256 private constant OPEN_CHUNKS = 11;
    uint256 private constant PROVE = 12;
    uint256 private constant SHOW_OPENING = 16;
    uint256 private constant EXECUTE = 17;

    function callOf(uint256 number, IArbitrator.DisputeRef memory r, DisputeId id) private view returns (bytes memory) {
        if (number == 0) return accuseCall(id);
        if (number == 1) return accuseTokenCall(id);
        if (number == 2) return askCall(id);
        if (number == 3) return proveMalformedCall(id);
        if (number == 4) return revealCall(id);
        if (number == 5) return abi.encodeCall(game.pick, (id, 3));
        if (number == 6) return pointCall(id);
        if (number == 7) return abi.encodeCall(game.pointWith, (id, Place(1, 2, 0, 0, 0), "list"));
        if (number == DEMAND) return demandCall(id);
        if (number == 9) return restateCall(id);
        if (number == 10) return openNodeCall(id);
        if (number == OPEN_CHUNKS) return openChunksCall(id);
        if (number == PROVE) return proveCall(id);
        if (number == 13) return expandCall(id);
        if (number == 14) return abi.encodeCall(game.pickPart, (id, 2));
        if (number == 15) return provePartCall(id);
        if (number == SHOW_OPENING) return showOpeningCall(id);
        return abi.encodeCall(game.execute, (r.job, r.stage, r.requestsRoot, r.requester));
    }

    function belongs(uint256 number) private pure returns (IToleranceGame.Phase) {
        if (number <= 3) return IToleranceGame.Phase.Opened;
        if (number == 4) return IToleranceGame.Phase.Asked;
        if (number <= DEMAND || number == SHOW_OPENING) return IToleranceGame.Phase.Picking;
        if (number == 9) return IToleranceGame.Phase.Restating;
        if (number <= OPEN_CHUNKS) return IToleranceGame.Phase.Opening;
        if (number <= 13) return IToleranceGame.Phase.Proving;
        if (number == 14) return IToleranceGame.Phase.PickingPart;
        if (number == 15) return IToleranceGame.Phase.ProvingPart;
        return IToleranceGame.Phase.Ruled;
    }

    function isAccused(IToleranceGame.Phase phase) private pure returns (bool) {
        return phase == IToleranceGame.Phase.Asked || phase == IToleranceGame.Phase.Picking || phase == IToleranceGame.Phase.PickingPart;
    }

    function player(uint256 number) private view returns (address) {
        return isAccused(belongs(number)) ? owner : challenger;
    }

    // --- phases ---

    function test_everyFunction_worksInItsPhaseAlone() public {
        for (uint256 p = uint256(IToleranceGame.Phase.Opened); p <= uint256(IToleranceGame.Phase.Executed); ++p) {
            IToleranceGame.Phase phase = IToleranceGame.Phase(p);
            (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(phase);
            vm.assertTrue(phaseOf(phase, id));
            for (uint256 i; i < FUNCTIONS; ++i) {
                if (belongs(i) == phase) continue;
                expectRefused(player(i), callOf(i, r, id), abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, phase));
            }
        }
    }

    function test_anUnknownDispute_hasNoMoves() public {
        (IArbitrator.DisputeRef memory r,) = gameIn(IToleranceGame.Phase.Opened);
        DisputeId id = DisputeId.wrap("nothing");
        r.job = JobId.wrap("nothing");
        for (uint256 i; i < FUNCTIONS; ++i) {
            expectRefused(
                player(i), callOf(i, r, id), abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, IToleranceGame.Phase.None)
            );
        }
        expectRefused(stranger, timeoutCall(id), abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, IToleranceGame.Phase.None));
    }

    function test_timeout_afterTheRuling_isRefused() public {
        for (uint256 p = uint256(IToleranceGame.Phase.Ruled); p <= uint256(IToleranceGame.Phase.Executed); ++p) {
            (, DisputeId id) = gameIn(IToleranceGame.Phase(p));
            skipTime(30 days);
            expectRefused(stranger, timeoutCall(id), abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, IToleranceGame.Phase(p)));
        }
    }

    // --- turns ---

    function test_everyMove_isForWhoseTurnItIs() public {
        address[5] memory callers = [challenger, owner, operator, requester, stranger];
        for (uint256 i; i + 1 < FUNCTIONS; ++i) {
            (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(belongs(i));
            bool accused = isAccused(belongs(i));
            for (uint256 c; c < callers.length; ++c) {
                bool may = accused ? callers[c] == owner || callers[c] == operator : callers[c] == challenger;
                if (may) continue;
                expectRefused(callers[c], callOf(i, r, id), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, callers[c]));
            }
        }
    }

    function test_aRotatedOperator_defends() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        (address rotated, uint256 key) = makeKey("rotated");
        bytes memory proof = operatorProof(key, owner);
        vm.prank(owner);
        miners.rotateOperator(rotated, proof);
        act(rotated, pointCall(id));
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Proving, id));
    }

    function test_aPastOperator_defends_anotherMinersDoesNot() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        (address other, uint256 otherKey) = makeKey("other operator");
        address otherOwner = makeAddr("other owner");
        registerMiner(otherOwner, otherKey, STAKE);
        expectRefused(other, pointCall(id), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, other));
        expectRefused(otherOwner, pointCall(id), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, otherOwner));
        expectRefused(challenger, answered(id, 3, otherKey), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, other));
        (, uint256 key) = makeKey("rotated");
        bytes memory proof = operatorProof(key, owner);
        vm.prank(owner);
        miners.rotateOperator(vm.addr(key), proof);
        vm.assertTrue(game.gameOf(id).accused == owner);
        act(challenger, answered(id, 3, key));
        assertNode(id, LEVELS - 5, 3);
        act(operator, pointCall(id)); // what it signed before is its owner's still
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Proving, id));
    }

    function test_aSignatureThatIsNone_isNobodys() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        IToleranceGame.HandedMove memory move = IToleranceGame.HandedMove(bytes32(uint256(3)), new bytes(65));
        bytes memory nobody = abi.encodeWithSelector(IToleranceGame.NotTurn.selector, address(0));
        expectRefused(challenger, abi.encodeCall(game.openNode, (id, move, same(LEVELS - 10, 32), way(LEVELS - 5))), nobody);
        move.signature = "short";
        expectRefused(challenger, abi.encodeCall(game.openNode, (id, move, same(LEVELS - 10, 32), way(LEVELS - 5))), nobody);
    }

    /// A fork that goes on under another chain id has another domain: what was signed before it counts there no more.
    function test_signedMoves_areOfOneChain() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        bytes memory before = answered(id, 3, operatorKey);
        vm.chainId(block.chainid + 1);
        expectNotTurn(before);
        act(challenger, answered(id, 3, operatorKey));
    }

    // --- clocks ---

    function test_clocks_oneSecondBefore_onTheSecond_oneAfter() public {
        for (uint256 i; i + 1 < FUNCTIONS; ++i) {
            if (i == DEMAND || i == OPEN_CHUNKS || i == SHOW_OPENING) continue; // they have tests of their own, below
            for (uint256 delta; delta < 3; ++delta) {
                (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(belongs(i));
                if (i == PROVE) judge.say(ITraceJudge.Fault.Accused, 0);
                uint256 endsAt = game.gameOf(id).endsAt;
                vm.assertEq(endsAt, vm.getBlockTimestamp() + TURN_SECONDS);
                vm.warp(endsAt - 1 + delta);
                if (delta < 2) {
                    expectRefused(stranger, timeoutCall(id), abi.encodeWithSelector(IToleranceGame.ClockRunning.selector, endsAt));
                    act(player(i), callOf(i, r, id));
                } else {
                    expectRefused(player(i), callOf(i, r, id), abi.encodeWithSelector(IToleranceGame.ClockOver.selector, endsAt));
                    act(stranger, timeoutCall(id));
                    bool fault = isAccused(belongs(i));
                    assertEqStatus(game.status(id), fault ? IArbitrator.Status.Fault : IArbitrator.Status.NoFault);
                }
            }
        }
    }

    function test_execute_waitsForThePayoutDelay() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Ruled);
        uint256 readyAt = game.gameOf(id).endsAt;
        vm.assertEq(readyAt, vm.getBlockTimestamp() + PAYOUT_DELAY_SECONDS);
        vm.warp(readyAt - 1);
        expectRefused(stranger, callOf(EXECUTE, r, id), abi.encodeWithSelector(IToleranceGame.PayoutNotReady.selector, readyAt));
        vm.warp(readyAt);
        act(stranger, callOf(EXECUTE, r, id));
    }

    function test_maxDisputeSeconds_isAllTurnsAndThePayout() public view {
        vm.assertEq(game.maxDisputeSeconds(), 28 * uint256(TURN_SECONDS) + PAYOUT_DELAY_SECONDS);
    }

    // --- the descent ---

    function test_aDescent_goesDownFiveLevelsATime() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opening);
        expectRefused(challenger, openChunksCall(id), abi.encodeWithSelector(IToleranceGame.HashesDue.selector));
        act(challenger, openNodeCall(id));
        assertNode(id, LEVELS - 5, 3);
        act(operator, abi.encodeCall(game.pick, (id, 31)));
        bytes memory hashes = abi.encodeCall(game.openNode, (id, unhanded(), same(0, 2), way(1)));
        expectRefused(challenger, hashes, abi.encodeWithSelector(IToleranceGame.ValuesDue.selector));
        bytes memory both = bytes.concat(chunk, chunk);
        bytes memory other = abi.encodeCall(game.openChunks, (id, unhanded(), both, hex"3f41", way(1)));
        expectRefused(challenger, other, abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector));
        other = abi.encodeCall(game.openChunks, (id, unhanded(), both, hex"80", way(1)));
        expectRefused(challenger, other, abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector));
        other = abi.encodeCall(game.openChunks, (id, unhanded(), both, hex"4041", way(1)));
        expectRefused(challenger, other, abi.encodeWithSelector(ITraceJudge.HashFailed.selector));
        other = abi.encodeCall(game.openChunks, (id, unhanded(), bytes.concat(both, hex"00"), hex"4040", way(1)));
        expectRefused(challenger, other, abi.encodeWithSelector(ITraceJudge.HashFailed.selector));
        act(challenger, openChunksCall(id));
        assertNode(id, 0, (3 * 32 + 31) * 2);
        expectRefused(operator, abi.encodeCall(game.pick, (id, 0)), abi.encodeWithSelector(IToleranceGame.ChildUnknown.selector, 0));
        act(operator, pointCall(id));
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Proving, id));
    }

    function assertNode(DisputeId id, uint256 level, uint256 index) private view {
        IToleranceGame.Game memory g = game.gameOf(id);
        vm.assertEq(uint256(g.level), level);
        vm.assertEq(uint256(g.index), index);
    }

    // --- demands ---

    function test_aDemand_isAnsweredWithAnotherRoot_once() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Restating);
        bytes32 root = nodes[LEVELS];
        bytes memory mismatch = abi.encodeWithSelector(IToleranceGame.ClaimMismatch.selector);
        expectRestateRefused(id, claimed(claim()), root, same(LEVELS - 5, 31), abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector));
        Claim memory other = claim();
        other.positions = 91;
        expectRestateRefused(id, claimed(other), root, same(LEVELS - 5, 32), mismatch);
        expectRestateRefused(id, claimed(claim()), keccak256("other"), same(LEVELS - 5, 32), mismatch);
        act(challenger, restateCall(id));
        assertNode(id, LEVELS, 0);
        expectRefused(owner, demandCall(id), abi.encodeWithSelector(IToleranceGame.AlreadyExact.selector));
        act(owner, pointCall(id));
        // From here on the claim is the restated one.
        judge.say(ITraceJudge.Fault.Accuser, 0);
        bytes memory plain = abi.encodeCall(game.prove, (id, unhanded(), model(), plainClaim(), evidence()));
        expectRefused(challenger, plain, mismatch);
        act(challenger, proveCall(id));
        assertEqStatus(game.status(id), IArbitrator.Status.NoFault);
    }

    function expectRestateRefused(DisputeId id, bytes32 all, bytes32 plainRoot, bytes32[] memory below, bytes memory why) private {
        expectRefused(challenger, abi.encodeCall(game.restate, (id, unhanded(), all, plainRoot, nodes[LEVELS], below)), why);
    }

    function test_aPlainTrace_isNeverGoneDown() public {
        DisputeId id = openGame();
        bytes memory wrong = abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector);
        bytes32[] memory below = same(LEVELS - 5, 32);
        bytes32[] memory none = new bytes32[](0);
        expectRefused(challenger, abi.encodeCall(game.accuse, (id, model(), receipt(), plainClaim(), 0, none, below)), wrong);
        expectRefused(challenger, abi.encodeCall(game.accuse, (id, model(), receipt(), claim(), 0, none, none)), wrong);
        act(challenger, accusePlainCall(id));
        assertNode(id, 0, 0);
        for (uint256 child; child < 3; ++child) {
            bytes memory unknown = abi.encodeWithSelector(IToleranceGame.ChildUnknown.selector, child);
            expectRefused(operator, abi.encodeCall(game.pick, (id, uint8(child))), unknown);
            expectRefused(challenger, answered(id, child, operatorKey), unknown);
        }
        act(owner, pointCall(id));
        judge.say(ITraceJudge.Fault.Accuser, 0);
        expectRefused(challenger, proveCall(id), abi.encodeWithSelector(IToleranceGame.ClaimMismatch.selector));
        act(challenger, abi.encodeCall(game.prove, (id, unhanded(), model(), plainClaim(), evidence())));
        assertEqStatus(game.status(id), IArbitrator.Status.NoFault);
    }

    function test_demand_oneSecondBefore_onTheSecond_oneAfter() public {
        for (uint256 delta; delta < 3; ++delta) {
            for (uint256 by; by < 2; ++by) {
                DisputeId id = plainGame();
                bytes memory move = by == 0 ? demandCall(id) : restateCall(id, handed(id, IToleranceGame.Handed.Demand, 0, operatorKey));
                address caller = by == 0 ? owner : challenger;
                uint256 endsAt = game.gameOf(id).endsAt;
                vm.assertEq(endsAt, vm.getBlockTimestamp() + TURN_SECONDS);
                vm.warp(endsAt - 1 + delta);
                if (delta < 2) {
                    expectRefused(stranger, timeoutCall(id), abi.encodeWithSelector(IToleranceGame.ClockRunning.selector, endsAt));
                    act(caller, move);
                    vm.assertEq(game.gameOf(id).endsAt, vm.getBlockTimestamp() + TURN_SECONDS);
                } else {
                    expectRefused(caller, move, abi.encodeWithSelector(IToleranceGame.ClockOver.selector, endsAt));
                    act(stranger, timeoutCall(id));
                    assertEqStatus(game.status(id), IArbitrator.Status.Fault);
                }
            }
        }
    }

    function test_aSignedDemand_isPostedWithItsAnswer_once() public {
        DisputeId id = plainGame();
        IToleranceGame.HandedMove memory demanded = handed(id, IToleranceGame.Handed.Demand, 0, operatorKey);
        IToleranceGame.HandedMove memory pointed = handed(id, IToleranceGame.Handed.Point, bytes32(uint256(1) << 240), operatorKey);
        expectRefused(stranger, restateCall(id, demanded), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, stranger));
        (address other, uint256 key) = makeKey("other");
        bytes memory foreign = restateCall(id, handed(id, IToleranceGame.Handed.Demand, 0, key));
        expectRefused(challenger, foreign, abi.encodeWithSelector(IToleranceGame.NotTurn.selector, other));
        expectNotTurn(restateCall(id, pointed)); // another kind of move
        expectNotTurn(restateCall(id, handed(openGame(), IToleranceGame.Handed.Demand, 0, operatorKey))); // of another dispute
        act(challenger, restateCall(id, demanded));
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Picking, id));
        assertNode(id, LEVELS, 0);
        // What was signed about the plain trace is of no use any more, and there is nothing to demand again.
        expectNotTurn(restateCall(id, demanded));
        expectNotTurn(abi.encodeCall(game.expand, (id, pointed, model(), claim(), evidence(), stated())));
        bytes memory again = restateCall(id, handed(id, IToleranceGame.Handed.Demand, 0, operatorKey));
        expectRefused(challenger, again, abi.encodeWithSelector(IToleranceGame.AlreadyExact.selector));
        act(challenger, answered(id, 3, operatorKey));
        assertNode(id, LEVELS - 5, 3);
    }

    function test_aSignedPointing_atAPlainTrace_isOfThatClaimAlone() public {
        DisputeId id = plainGame();
        vm.assertEq(game.stateOf(id), bound(claimed(claim()), false, nodes[LEVELS]));
        IToleranceGame.HandedMove memory pointed = handed(id, IToleranceGame.Handed.Point, bytes32(uint256(1) << 240), operatorKey);
        judge.say(ITraceJudge.Fault.Accuser, 0);
        bytes memory exact = abi.encodeCall(game.prove, (id, pointed, model(), claim(), evidence()));
        expectRefused(challenger, exact, abi.encodeWithSelector(IToleranceGame.ClaimMismatch.selector));
        act(challenger, abi.encodeCall(game.prove, (id, pointed, model(), plainClaim(), evidence())));
        assertEqStatus(game.status(id), IArbitrator.Status.NoFault);
    }

    // --- rows ---

    function test_rowsAreAskedForThreeTimes() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        for (uint256 i; i < 3; ++i) {
            act(challenger, askCall(id));
            bytes memory others = abi.encodeCall(game.reveal, (id, rows(), new RowSpot[](2), new RowOpening[](2)));
            expectRefused(operator, others, abi.encodeWithSelector(IToleranceGame.AskMismatch.selector));
            act(operator, revealCall(id));
            vm.assertTrue(phaseOf(IToleranceGame.Phase.Opened, id));
        }
        expectRefused(challenger, askCall(id), abi.encodeWithSelector(IToleranceGame.AskedEnough.selector));
        act(challenger, accuseCall(id));
    }

    function test_rowsThatAreNotShown_slash() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Asked);
        skipTime(TURN_SECONDS + 1);
        act(stranger, timeoutCall(id));
        assertEqStatus(game.status(id), IArbitrator.Status.Fault);
    }

    function test_whoAsksAndAccusesOfNothing_paysTheAccused() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Asked);
        act(operator, revealCall(id));
        skipTime(TURN_SECONDS + 1);
        act(stranger, timeoutCall(id));
        executeGame(r, id);
        vm.assertEq(game.creditOf(owner), BOND);
    }

    function test_aMalformedRow_isTheRuling() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        rowJudge.say(false);
        expectRefused(challenger, proveMalformedCall(id), abi.encodeWithSelector(IToleranceGame.RowSound.selector));
        rowJudge.say(true);
        act(challenger, proveMalformedCall(id));
        assertEqStatus(game.status(id), IArbitrator.Status.Fault);
    }

    // --- tokens ---

    function test_aTokenIsAccusedWithItsOrder_aDeviationWithout() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        bytes memory invalid = abi.encodeWithSelector(ITraceJudge.ClaimInvalid.selector);
        bytes32[] memory none = new bytes32[](0);
        bytes32[] memory below = same(LEVELS - 5, 32);
        Drawn memory drawn;
        expectRefused(challenger, abi.encodeCall(game.accuse, (id, model(), receipt(), tokenClaim(), 0, none, below)), invalid);
        expectRefused(challenger, abi.encodeCall(game.accuseToken, (id, model(), receipt(), claim(), 0, none, below, drawn)), invalid);
        act(challenger, accuseTokenCall(id));
    }

    function test_aSecondOpeningOfTheRequest_isTheRequestersFault() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        expectRefused(owner, showOpeningCall(id), abi.encodeWithSelector(IToleranceGame.OpeningMismatch.selector));
        id = openGame();
        act(challenger, accuseTokenCall(id));
        act(owner, showOpeningCall(id));
        assertEqStatus(game.status(id), IArbitrator.Status.NoFault);
    }

    function test_aList_isAnsweredByItself() public {
        DisputeId id = openGame();
        act(challenger, accuseTokenCall(id));
        Place memory verdict = Place(7, 4, 0, 0, 0);
        bytes memory invalid = abi.encodeWithSelector(IToleranceGame.ListInvalid.selector);
        expectRefused(owner, abi.encodeCall(game.pointWith, (id, verdict, "")), invalid);
        expectRefused(owner, abi.encodeCall(game.pointWith, (id, verdict, new bytes(1025))), invalid);
        act(owner, abi.encodeCall(game.pointWith, (id, verdict, "list")));
        Evidence memory e = evidence();
        bytes memory mismatch = abi.encodeWithSelector(IToleranceGame.ListMismatch.selector);
        expectRefused(challenger, abi.encodeCall(game.prove, (id, unhanded(), model(), tokenClaim(), e)), mismatch);
        e.tokens = "lost";
        expectRefused(challenger, abi.encodeCall(game.prove, (id, unhanded(), model(), tokenClaim(), e)), mismatch);
        e.tokens = "list";
        act(challenger, abi.encodeCall(game.prove, (id, unhanded(), model(), tokenClaim(), e)));
    }

    // --- moves that are handed over ---

    /// `openNode` with a pick that `key` signed.
    function answered(DisputeId id, uint256 child, uint256 key) private view returns (bytes memory) {
        IToleranceGame.HandedMove memory move = handed(id, IToleranceGame.Handed.Pick, bytes32(child), key);
        return abi.encodeCall(game.openNode, (id, move, same(LEVELS - 10, 32), way(LEVELS - 5)));
    }

    function test_aSignedMove_isPostedWithItsAnswer() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        bytes memory move = answered(id, 3, operatorKey);
        expectRefused(stranger, move, abi.encodeWithSelector(IToleranceGame.NotTurn.selector, stranger));
        act(challenger, move);
        assertNode(id, LEVELS - 5, 3);
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Picking, id));
        IToleranceGame.HandedMove memory given = handed(id, IToleranceGame.Handed.Point, bytes32(uint256(1) << 240), operatorKey);
        act(challenger, abi.encodeCall(game.expand, (id, given, model(), claim(), evidence(), stated())));
        given = handed(id, IToleranceGame.Handed.PickPart, bytes32(uint256(2)), operatorKey);
        Place memory place = Place(1, 0, 0, 0, 0);
        act(challenger, abi.encodeCall(game.provePart, (id, given, model(), claim(), place, evidence(), shownPart())));
        assertEqStatus(game.status(id), IArbitrator.Status.Fault);
    }

    function test_aSignedMove_isNoBetterThanAMade() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        bytes memory beyond = answered(id, 32, operatorKey);
        expectRefused(challenger, beyond, abi.encodeWithSelector(IToleranceGame.ChildUnknown.selector, 32));
        bytes memory early = answered(id, 3, operatorKey);
        act(operator, abi.encodeCall(game.pick, (id, 3)));
        expectRefused(challenger, early, abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, IToleranceGame.Phase.Opening));
        skipTime(TURN_SECONDS + 1);
        (, id) = gameIn(IToleranceGame.Phase.Picking);
        bytes memory late = answered(id, 3, operatorKey);
        uint256 endsAt = game.gameOf(id).endsAt;
        vm.warp(endsAt + 1);
        expectRefused(challenger, late, abi.encodeWithSelector(IToleranceGame.ClockOver.selector, endsAt));
    }

    function test_aSignedMove_ofAnotherStateKindOrKey_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        bytes memory early = answered(id, 3, operatorKey);
        IToleranceGame.HandedMove memory point = handed(id, IToleranceGame.Handed.Point, bytes32(uint256(3)), operatorKey);
        expectNotTurn(abi.encodeCall(game.openNode, (id, point, same(LEVELS - 10, 32), way(LEVELS - 5))));
        (address other, uint256 key) = makeKey("other");
        expectRefused(challenger, answered(id, 3, key), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, other));
        act(operator, abi.encodeCall(game.pick, (id, 3)));
        act(challenger, openNodeCall(id));
        expectNotTurn(early);
    }

    /// A signature of something else is somebody's whom nobody knows.
    function expectNotTurn(bytes memory data) private {
        vm.prank(challenger);
        (bool ok, bytes memory answer) = address(game).call(data);
        vm.assertFalse(ok);
        vm.assertTrue(bytes4(answer) == IToleranceGame.NotTurn.selector);
    }

    function test_pick_beyondTheChildren_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        expectRefused(operator, abi.encodeCall(game.pick, (id, 32)), abi.encodeWithSelector(IToleranceGame.ChildUnknown.selector, 32));
    }

    function test_openNode_ofOtherHashes_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opening);
        bytes memory wrong = abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector);
        bytes32[] memory below = same(LEVELS - 10, 32);
        below[17] = keccak256("other");
        expectRefused(challenger, abi.encodeCall(game.openNode, (id, unhanded(), below, way(LEVELS - 5))), wrong);
        expectRefused(challenger, abi.encodeCall(game.openNode, (id, unhanded(), same(LEVELS - 10, 31), way(LEVELS - 5))), wrong);
        bytes32[] memory siblings = way(LEVELS - 5);
        siblings[2] = keccak256("other");
        expectRefused(challenger, abi.encodeCall(game.openNode, (id, unhanded(), same(LEVELS - 10, 32), siblings)), wrong);
    }

    function test_accuse_ofAnotherReceiptModelOrRequest_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        bytes memory mismatch = abi.encodeWithSelector(IToleranceGame.ReceiptMismatch.selector);
        bytes32[] memory below = same(LEVELS - 5, 32);
        bytes32[] memory none = new bytes32[](0);
        expectRefused(challenger, abi.encodeCall(game.accuse, (id, ModelId.wrap("other"), receipt(), claim(), 0, none, below)), mismatch);
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), claim(), 1, none, below)),
            abi.encodeWithSelector(IToleranceGame.RequestUnproven.selector)
        );
    }

    /// A claim is bound by its words as they stand in the call, so a number that is none of its type may not come in.
    function test_accuse_withWordsThatAreNoClaims_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        uint256 claimAt = 4 + 32 * (2 + 14); // behind the id, the model and the receipt
        for (uint256 i; i < 22; ++i) {
            if (i == 1 || i == 2 || i >= 20) continue; // hashes
            bytes memory data = accuseCall(id);
            data[claimAt + 32 * i] = 0x01;
            expectRefused(challenger, data, "");
        }
        act(challenger, accuseCall(id));
    }

    function test_restate_bindsTheClaimWithItsRootAndExact() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Restating);
        Claim memory restated = claim();
        restated.traceRoot = keccak256("other");
        bytes32[] memory below = new bytes32[](32);
        for (uint256 i; i < 32; ++i) {
            below[i] = restated.traceRoot;
        }
        for (uint256 i; i < 5; ++i) {
            restated.traceRoot = sha256(bytes.concat(hex"01", restated.traceRoot, restated.traceRoot));
        }
        bytes32 all = claimed(claim());
        act(challenger, abi.encodeCall(game.restate, (id, unhanded(), all, nodes[LEVELS], restated.traceRoot, below)));
        vm.assertEq(game.gameOf(id).binding, bound(all, true, restated.traceRoot));
        // As if it had been accused of at once.
        id = openGame();
        act(challenger, abi.encodeCall(game.accuse, (id, model(), receipt(), claim(), 0, new bytes32[](0), same(LEVELS - 5, 32))));
        vm.assertEq(game.gameOf(id).binding, bound(all, true, nodes[LEVELS]));
    }

    function test_moves_aboutAnotherClaim_areRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.ProvingPart);
        expectRefused(
            challenger,
            abi.encodeCall(game.provePart, (id, unhanded(), ModelId.wrap("other"), claim(), Place(1, 2, 3, 0, 5), evidence(), shownPart())),
            abi.encodeWithSelector(IToleranceGame.ClaimMismatch.selector)
        );
        expectRefused(
            challenger,
            abi.encodeCall(game.provePart, (id, unhanded(), model(), claim(), Place(1, 2, 3, 0, 6), evidence(), shownPart())),
            abi.encodeWithSelector(IToleranceGame.StatedMismatch.selector)
        );
    }

    // --- who may open ---

    function test_open_byAnybodyElse_isRefused() public {
        IArbitrator.DisputeRef memory r = ref();
        vm.expectRevert(abi.encodeWithSelector(IToleranceGame.NotTaskRegistry.selector, address(this)));
        game.open(r);
    }

    function test_open_twice_isRefused() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        fund(challenger, address(game), BOND);
        vm.expectRevert(abi.encodeWithSelector(IToleranceGame.DisputeExists.selector, id));
        tasks.open(game, r);
    }

    function test_open_takesTheBondAndFreezesTheMiner() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        vm.assertEq(token.balanceOf(address(game)), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 1);
        assertEqStatus(game.status(id), IArbitrator.Status.Open);
    }

    function test_constructor_refusesWhatUnbondingDoesNotCover() public {
        IToleranceGame.Params memory p = gameParams();
        p.turnSeconds = 2 hours;
        uint256 longest = 28 * uint256(p.turnSeconds) + p.payoutDelaySeconds;
        vm.expectRevert(abi.encodeWithSelector(IToleranceGame.DisputeTooLong.selector, longest, MAX_DISPUTE_SECONDS));
        new ToleranceGame(token, address(tasks), IMinerRegistry(address(miners)), judge, rowJudge, p);
        p.turnSeconds = 0;
        vm.expectRevert(IToleranceGame.ParamsInvalid.selector);
        new ToleranceGame(token, address(tasks), IMinerRegistry(address(miners)), judge, rowJudge, p);
        p = gameParams();
        p.slashBps = 10_001;
        vm.expectRevert(IToleranceGame.ParamsInvalid.selector);
        new ToleranceGame(token, address(tasks), IMinerRegistry(address(miners)), judge, rowJudge, p);
    }

    // --- money ---

    function ruledBy(ITraceJudge.Fault fault) private returns (IArbitrator.DisputeRef memory r, DisputeId id) {
        (r, id) = gameIn(IToleranceGame.Phase.ProvingPart);
        judge.say(fault, 4);
        act(challenger, provePartCall(id));
        executeGame(r, id);
    }

    function assertTold(IArbitrator.DisputeRef memory r, bool want) private view {
        (JobId job, uint16 stage, bool fault, address caller) = tasks.resolutions(tasks.count() - 1);
        vm.assertEq(JobId.unwrap(job), JobId.unwrap(r.job));
        vm.assertEq(uint256(stage), r.stage);
        vm.assertEq(fault, want);
        vm.assertEq(caller, address(game));
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 0);
    }

    function test_aLeafThatHolds_slashesTheMinerAndReturnsTheBond() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = ruledBy(ITraceJudge.Fault.Accused);
        assertEqStatus(game.status(id), IArbitrator.Status.Fault);
        assertTold(r, true);
        vm.assertEq(game.creditOf(challenger), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).stake), 0);
        vm.assertEq(miners.creditOf(challenger), STAKE * 20 / 100);
        vm.assertEq(miners.creditOf(requester), STAKE * 30 / 100);
        vm.prank(challenger);
        vm.assertEq(game.withdrawCredit(), BOND);
        vm.assertEq(token.balanceOf(challenger), BOND);
        vm.assertEq(token.balanceOf(address(game)), 0);
    }

    function test_aLeafThatFails_givesTheBondToTheMiner() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = ruledBy(ITraceJudge.Fault.Accuser);
        assertEqStatus(game.status(id), IArbitrator.Status.NoFault);
        assertTold(r, false);
        vm.assertEq(game.creditOf(owner), BOND);
        vm.assertEq(game.creditOf(challenger), 0);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    function test_aFaultOfNobody_returnsTheBondAndSlashesNobody() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = ruledBy(ITraceJudge.Fault.Nobody);
        assertEqStatus(game.status(id), IArbitrator.Status.NoRuling);
        assertTold(r, false);
        vm.assertEq(game.creditOf(challenger), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    function test_partsThatDoNotAddUp_endTheGame() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Proving);
        judge.say(ITraceJudge.Fault.Accuser, 4);
        act(challenger, expandCall(id));
        assertEqStatus(game.status(id), IArbitrator.Status.NoFault);
    }

    function test_anExecution_doesNotDependOnTheMinersMoney() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Ruled);
        slash(10_000); // somebody else was first
        executeGame(r, id);
        assertTold(r, true);
        vm.assertEq(game.creditOf(challenger), BOND);
    }

    function test_withdrawCredit_ofNothing_isRefused() public {
        vm.expectRevert(IToleranceGame.NoCredit.selector);
        game.withdrawCredit();
    }
}
