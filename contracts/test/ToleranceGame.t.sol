// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ToleranceGame} from "../src/ToleranceGame.sol";
import {IArbitrator} from "../src/interfaces/IArbitrator.sol";
import {IMinerRegistry} from "../src/interfaces/IMinerRegistry.sol";
import {
    Drawn,
    IRowJudge,
    RowSpot,
    SignedRequest,
    SignedRows
} from "../src/interfaces/IRowJudge.sol";
import {
    Claim,
    Evidence,
    ITraceJudge,
    Opening,
    RowOpening
} from "../src/interfaces/ITraceJudge.sol";
import {IToleranceGame} from "../src/interfaces/IToleranceGame.sol";
import {Place} from "../src/trace/Layout.sol";
import {DisputeId, JobId, ModelId} from "../src/types/Ids.sol";
import {GameFixture, PARTS} from "./fixtures/GameFixture.sol";

/// The game's rules: phases, turns, clocks and money. Traces are tested in tests/twins.
contract ToleranceGameTest is GameFixture {
    uint256 private constant FUNCTIONS = 19;
    uint256 private constant OPEN_CHUNKS = 9;
    uint256 private constant PROVE = 10;
    uint256 private constant PROVE_SUM = 14;
    uint256 private constant SHOW_OPENING = 15;
    uint256 private constant PLEAD = 16;
    uint256 private constant RESTATE = 17;
    uint256 private constant EXECUTE = 18;

    function callOf(uint256 number, IArbitrator.DisputeRef memory r, DisputeId id)
        private
        view
        returns (bytes memory)
    {
        if (number == 0) return accuseCall(id);
        if (number == 1) return accuseTokenCall(id);
        if (number == 2) return askCall(id);
        if (number == 3) return proveMalformedCall(id);
        if (number == 4) return revealCall(id);
        if (number == 5) return abi.encodeCall(game.pick, (id, 3));
        if (number == 6) return pointCall(id);
        if (number == 7) {
            return abi.encodeCall(game.pointWith, (id, Place(1, 2, 0, 0, 0), "list"));
        }
        if (number == 8) return openNodeCall(id);
        if (number == OPEN_CHUNKS) return openChunksCall(id);
        if (number == PROVE) return proveCall(id);
        if (number == 11) return expandCall(id);
        if (number == 12) return abi.encodeCall(game.pickPart, (id, 2));
        if (number == 13) return provePartCall(id);
        if (number == PROVE_SUM) return proveSumCall(id);
        if (number == SHOW_OPENING) return showOpeningCall(id);
        if (number == PLEAD) return pleadCall(id);
        if (number == RESTATE) return restateCall(id);
        return abi.encodeCall(game.execute, (r.job, r.stage, r.receiptHash, r.right));
    }

    function belongs(uint256 number) private pure returns (IToleranceGame.Phase) {
        if (number <= 3) return IToleranceGame.Phase.Opened;
        if (number == 4) return IToleranceGame.Phase.Asked;
        if (number <= 7 || number == SHOW_OPENING || number == PLEAD) {
            return IToleranceGame.Phase.Picking;
        }
        if (number <= OPEN_CHUNKS) return IToleranceGame.Phase.Opening;
        if (number <= 11) return IToleranceGame.Phase.Proving;
        if (number == 12) return IToleranceGame.Phase.PickingPart;
        if (number <= PROVE_SUM) return IToleranceGame.Phase.ProvingPart;
        if (number == RESTATE) return IToleranceGame.Phase.Pleaded;
        return IToleranceGame.Phase.Ruled;
    }

    function isAccused(IToleranceGame.Phase phase) private pure returns (bool) {
        return phase == IToleranceGame.Phase.Asked || phase == IToleranceGame.Phase.Picking
            || phase == IToleranceGame.Phase.PickingPart;
    }

    function player(uint256 number) private view returns (address) {
        return isAccused(belongs(number)) ? owner : challenger;
    }

    // --- phases ---

    function test_everyFunction_worksInItsPhaseAlone() public {
        for (
            uint256 p = uint256(IToleranceGame.Phase.Opened);
            p <= uint256(IToleranceGame.Phase.Executed);
            ++p
        ) {
            IToleranceGame.Phase phase = IToleranceGame.Phase(p);
            (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(phase);
            vm.assertTrue(phaseOf(phase, id));
            for (uint256 i; i < FUNCTIONS; ++i) {
                if (belongs(i) == phase) continue;
                expectRefused(
                    player(i),
                    callOf(i, r, id),
                    abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, phase)
                );
            }
        }
    }

    function test_anUnknownDispute_hasNoMoves() public {
        (IArbitrator.DisputeRef memory r,) = gameIn(IToleranceGame.Phase.Opened);
        DisputeId id = DisputeId.wrap("nothing");
        r.job = JobId.wrap("nothing");
        for (uint256 i; i < FUNCTIONS; ++i) {
            expectRefused(
                player(i),
                callOf(i, r, id),
                abi.encodeWithSelector(
                    IToleranceGame.WrongPhase.selector, IToleranceGame.Phase.None
                )
            );
        }
        expectRefused(
            stranger,
            timeoutCall(id),
            abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, IToleranceGame.Phase.None)
        );
    }

    function test_timeout_afterTheRuling_isRefused() public {
        for (
            uint256 p = uint256(IToleranceGame.Phase.Ruled);
            p <= uint256(IToleranceGame.Phase.Executed);
            ++p
        ) {
            (, DisputeId id) = gameIn(IToleranceGame.Phase(p));
            skipTime(30 days);
            expectRefused(
                stranger,
                timeoutCall(id),
                abi.encodeWithSelector(IToleranceGame.WrongPhase.selector, IToleranceGame.Phase(p))
            );
        }
    }

    // --- turns ---

    function test_everyMove_isForWhoseTurnItIs() public {
        address[5] memory callers = [challenger, owner, operator, requester, stranger];
        for (uint256 i; i + 1 < FUNCTIONS; ++i) {
            (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(belongs(i));
            bool accused = isAccused(belongs(i));
            for (uint256 c; c < callers.length; ++c) {
                bool may = accused
                    ? callers[c] == owner || callers[c] == operator
                    : callers[c] == challenger;
                if (may) continue;
                expectRefused(
                    callers[c],
                    callOf(i, r, id),
                    abi.encodeWithSelector(IToleranceGame.NotTurn.selector, callers[c])
                );
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
        expectRefused(
            other, pointCall(id), abi.encodeWithSelector(IToleranceGame.NotTurn.selector, other)
        );
        expectRefused(
            otherOwner,
            pointCall(id),
            abi.encodeWithSelector(IToleranceGame.NotTurn.selector, otherOwner)
        );
        (, uint256 key) = makeKey("rotated");
        bytes memory proof = operatorProof(key, owner);
        vm.prank(owner);
        miners.rotateOperator(vm.addr(key), proof);
        vm.assertTrue(game.gameOf(id).accused == owner);
        act(vm.addr(key), abi.encodeCall(game.pick, (id, 3)));
        act(challenger, openNodeCall(id));
        assertNode(id, LEVELS - 5, 3);
        act(operator, pointCall(id));
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Proving, id));
    }

    // --- clocks ---

    function test_clocks_oneSecondBefore_onTheSecond_oneAfter() public {
        for (uint256 i; i + 1 < FUNCTIONS; ++i) {
            // They have tests of their own, below.
            if (i == OPEN_CHUNKS || i == PROVE_SUM || i == SHOW_OPENING) continue;
            for (uint256 delta; delta < 3; ++delta) {
                (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(belongs(i));
                if (i == PROVE) judge.say(ITraceJudge.Fault.Accused, 0);
                uint256 endsAt = game.gameOf(id).endsAt;
                vm.assertEq(endsAt, vm.getBlockTimestamp() + TURN_SECONDS);
                vm.warp(endsAt - 1 + delta);
                if (delta < 2) {
                    expectRefused(
                        stranger,
                        timeoutCall(id),
                        abi.encodeWithSelector(IToleranceGame.ClockRunning.selector, endsAt)
                    );
                    act(player(i), callOf(i, r, id));
                } else {
                    expectRefused(
                        player(i),
                        callOf(i, r, id),
                        abi.encodeWithSelector(IToleranceGame.ClockOver.selector, endsAt)
                    );
                    act(stranger, timeoutCall(id));
                    bool fault = isAccused(belongs(i));
                    assertEqStatus(
                        game.gameOf(id).status,
                        fault ? IArbitrator.Status.Fault : IArbitrator.Status.NoFault
                    );
                }
            }
        }
    }

    function test_execute_waitsForThePayoutDelay() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Ruled);
        uint256 readyAt = game.gameOf(id).endsAt;
        vm.assertEq(readyAt, vm.getBlockTimestamp() + PAYOUT_DELAY_SECONDS);
        vm.warp(readyAt - 1);
        expectRefused(
            stranger,
            callOf(EXECUTE, r, id),
            abi.encodeWithSelector(IToleranceGame.PayoutNotReady.selector, readyAt)
        );
        vm.warp(readyAt);
        act(stranger, callOf(EXECUTE, r, id));
    }

    function test_maxDisputeSeconds_isAllTurnsAndThePayout() public view {
        vm.assertEq(game.maxDisputeSeconds(), 29 * uint256(TURN_SECONDS) + PAYOUT_DELAY_SECONDS);
    }

    // --- the descent ---

    function test_aDescent_goesDownFiveLevelsATime() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opening);
        expectRefused(
            challenger,
            openChunksCall(id),
            abi.encodeWithSelector(IToleranceGame.HashesDue.selector)
        );
        act(challenger, openNodeCall(id));
        assertNode(id, LEVELS - 5, 3);
        act(operator, abi.encodeCall(game.pick, (id, 31)));
        bytes memory hashes = abi.encodeCall(game.openNode, (id, same(0, 2), way(1)));
        expectRefused(
            challenger, hashes, abi.encodeWithSelector(IToleranceGame.ValuesDue.selector)
        );
        bytes memory both = bytes.concat(chunk, chunk);
        bytes memory other = abi.encodeCall(game.openChunks, (id, both, hex"3f41", way(1)));
        expectRefused(
            challenger, other, abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector)
        );
        other = abi.encodeCall(game.openChunks, (id, both, hex"80", way(1)));
        expectRefused(
            challenger, other, abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector)
        );
        other = abi.encodeCall(game.openChunks, (id, both, hex"4041", way(1)));
        expectRefused(challenger, other, abi.encodeWithSelector(ITraceJudge.HashFailed.selector));
        other =
            abi.encodeCall(game.openChunks, (id, bytes.concat(both, hex"00"), hex"4040", way(1)));
        expectRefused(challenger, other, abi.encodeWithSelector(ITraceJudge.HashFailed.selector));
        act(challenger, openChunksCall(id));
        assertNode(id, 0, (3 * 32 + 31) * 2);
        expectRefused(
            operator,
            abi.encodeCall(game.pick, (id, 0)),
            abi.encodeWithSelector(IToleranceGame.ChildUnknown.selector, 0)
        );
        act(operator, pointCall(id));
        vm.assertTrue(phaseOf(IToleranceGame.Phase.Proving, id));
    }

    function assertNode(DisputeId id, uint256 level, uint256 index) private view {
        IToleranceGame.Game memory g = game.gameOf(id);
        vm.assertEq(uint256(g.level), level);
        vm.assertEq(uint256(g.index), index);
    }

    function test_accuse_withoutWhatIsBelowItsRoot_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        bytes memory wrong = abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector);
        SignedRequest memory signed = signedRequest();
        expectRefused(
            challenger,
            abi.encodeCall(
                game.accuse, (id, model(), receipt(), claim(), signed, new bytes32[](0))
            ),
            wrong
        );
        bytes32[] memory below = same(LEVELS - 5, 32);
        below[31] = keccak256("other");
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), claim(), signed, below)),
            wrong
        );
        act(challenger, accuseCall(id));
        assertNode(id, LEVELS, 0);
    }

    // --- rows ---

    function test_rowsAreAskedForThreeTimes() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        for (uint256 i; i < 3; ++i) {
            act(challenger, askCall(id));
            bytes memory others =
                abi.encodeCall(game.reveal, (id, rows(), new RowSpot[](2), new RowOpening[](2)));
            expectRefused(
                operator, others, abi.encodeWithSelector(IToleranceGame.AskMismatch.selector)
            );
            act(operator, revealCall(id));
            vm.assertTrue(phaseOf(IToleranceGame.Phase.Opened, id));
        }
        expectRefused(
            challenger, askCall(id), abi.encodeWithSelector(IToleranceGame.AskedEnough.selector)
        );
        act(challenger, accuseCall(id));
    }

    function test_rowsThatAreNotShown_slash() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Asked);
        skipTime(TURN_SECONDS + 1);
        act(stranger, timeoutCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.Fault);
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
        expectRefused(
            challenger,
            proveMalformedCall(id),
            abi.encodeWithSelector(IToleranceGame.RowSound.selector)
        );
        rowJudge.say(true);
        act(challenger, proveMalformedCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.Fault);
    }

    // --- tokens ---

    function test_aTokenIsAccusedWithItsOrder_aDeviationWithout() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        bytes memory invalid = abi.encodeWithSelector(ITraceJudge.ClaimInvalid.selector);
        SignedRequest memory signed = signedRequest();
        bytes32[] memory below = same(LEVELS - 5, 32);
        Drawn memory drawn;
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), tokenClaim(), signed, below)),
            invalid
        );
        expectRefused(
            challenger,
            abi.encodeCall(
                game.accuseToken, (id, model(), receipt(), claim(), signed, below, drawn)
            ),
            invalid
        );
        act(challenger, accuseTokenCall(id));
    }

    function test_aSecondOpeningOfTheRequest_isTheRequestersFault() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        expectRefused(
            owner,
            showOpeningCall(id),
            abi.encodeWithSelector(IToleranceGame.OpeningMismatch.selector)
        );
        id = openGame();
        act(challenger, accuseTokenCall(id));
        act(owner, showOpeningCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoFault);
    }

    function test_aList_isAnsweredByItself() public {
        DisputeId id = openGame();
        act(challenger, accuseTokenCall(id));
        Place memory verdict = Place(7, 4, 0, 0, 0);
        bytes memory invalid = abi.encodeWithSelector(IToleranceGame.ListInvalid.selector);
        expectRefused(owner, abi.encodeCall(game.pointWith, (id, verdict, "")), invalid);
        expectRefused(
            owner, abi.encodeCall(game.pointWith, (id, verdict, new bytes(1025))), invalid
        );
        act(owner, abi.encodeCall(game.pointWith, (id, verdict, "list")));
        Evidence memory e = evidence();
        bytes memory mismatch = abi.encodeWithSelector(IToleranceGame.ListMismatch.selector);
        expectRefused(
            challenger, abi.encodeCall(game.prove, (id, model(), tokenClaim(), e)), mismatch
        );
        e.tokens = "lost";
        expectRefused(
            challenger, abi.encodeCall(game.prove, (id, model(), tokenClaim(), e)), mismatch
        );
        e.tokens = "list";
        act(challenger, abi.encodeCall(game.prove, (id, model(), tokenClaim(), e)));
    }

    function test_pick_beyondTheChildren_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        expectRefused(
            operator,
            abi.encodeCall(game.pick, (id, 32)),
            abi.encodeWithSelector(IToleranceGame.ChildUnknown.selector, 32)
        );
    }

    function test_openNode_ofOtherHashes_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opening);
        bytes memory wrong = abi.encodeWithSelector(IToleranceGame.OpeningWrong.selector);
        bytes32[] memory below = same(LEVELS - 10, 32);
        below[17] = keccak256("other");
        expectRefused(
            challenger, abi.encodeCall(game.openNode, (id, below, way(LEVELS - 5))), wrong
        );
        expectRefused(
            challenger,
            abi.encodeCall(game.openNode, (id, same(LEVELS - 10, 31), way(LEVELS - 5))),
            wrong
        );
        bytes32[] memory siblings = way(LEVELS - 5);
        siblings[2] = keccak256("other");
        expectRefused(
            challenger, abi.encodeCall(game.openNode, (id, same(LEVELS - 10, 32), siblings)), wrong
        );
    }

    function test_accuse_ofAnotherReceiptModelOrRequest_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        bytes memory mismatch = abi.encodeWithSelector(IToleranceGame.ReceiptMismatch.selector);
        bytes32[] memory below = same(LEVELS - 5, 32);
        SignedRequest memory signed = signedRequest();
        expectRefused(
            challenger,
            abi.encodeCall(
                game.accuse, (id, ModelId.wrap("other"), receipt(), claim(), signed, below)
            ),
            mismatch
        );
        Claim memory other = claim();
        other.layerTo = 11;
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), other, signed, below)),
            mismatch
        );
        for (uint256 i; i < 5; ++i) {
            other = claim();
            if (i == 0) other.leaf.requestIndex += 1;
            if (i == 1) other.leaf.inRoot = keccak256("other");
            if (i == 2) other.leaf.outRoot = keccak256("other");
            if (i == 3) other.leaf.tokensIn += 1;
            if (i == 4) other.leaf.tokensOut += 1;
            expectRefused(
                challenger,
                abi.encodeCall(game.accuse, (id, model(), receipt(), other, signed, below)),
                abi.encodeWithSelector(IToleranceGame.RequestUnproven.selector)
            );
        }
        signed.position = 1;
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), claim(), signed, below)),
            abi.encodeWithSelector(IToleranceGame.RequestUnproven.selector)
        );
    }

    /// Rows inside the stage are on trial where the judge says that they are one of its spans.
    function test_accuse_ofASpan_isForTheJudge() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        SignedRequest memory signed = signedRequest();
        signed.inner = new bytes32[](2);
        Claim memory part = claim();
        (part.layerFrom, part.layerTo, part.leaf.inRoot) = (9, 10, keccak256("inside"));
        bytes32[] memory below = same(LEVELS - 5, 32);
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), part, signed, below)),
            abi.encodeWithSelector(IRowJudge.SpanUnproven.selector)
        );
        part.layerFrom = 8;
        signed.position = 1;
        expectRefused(
            challenger,
            abi.encodeCall(game.accuse, (id, model(), receipt(), part, signed, below)),
            abi.encodeWithSelector(IToleranceGame.RequestUnproven.selector)
        );
        signed.position = 0;
        act(challenger, abi.encodeCall(game.accuse, (id, model(), receipt(), part, signed, below)));
        vm.assertEq(game.gameOf(id).binding, keccak256(abi.encode(model(), part)));
    }

    function test_ask_forWhatIsInsideTheStage_saysWhatWasSigned() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        SignedRows memory other = rows();
        other.innerRoot = keccak256("other");
        expectRefused(
            challenger,
            abi.encodeCall(game.ask, (id, receipt(), other, signedRequest(), spots())),
            abi.encodeWithSelector(IToleranceGame.RequestUnproven.selector)
        );
        act(challenger, askCall(id));
    }

    /// A claim is bound by its words as they stand in the call, so each must be of its type.
    function test_accuse_withWordsThatAreNoClaims_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        uint256 claimAt = 4 + 32 * (2 + 14); // behind the id, the model and the receipt
        for (uint256 i; i < 21; ++i) {
            if (i == 1 || i == 2 || i >= 19) continue; // hashes
            bytes memory data = accuseCall(id);
            data[claimAt + 32 * i] = 0x01;
            expectRefused(challenger, data, "");
        }
        act(challenger, accuseCall(id));
    }

    function test_accuse_bindsModelAndClaim() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        vm.assertEq(game.gameOf(id).binding, keccak256(abi.encode(model(), claim())));
    }

    function test_moves_aboutAnotherClaim_areRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.ProvingPart);
        Claim memory other = claim();
        other.traceRoot = keccak256("other");
        expectRefused(
            challenger,
            abi.encodeCall(
                game.provePart, (id, model(), other, Place(1, 2, 3, 0, 5), evidence(), shownPart())
            ),
            abi.encodeWithSelector(IToleranceGame.ClaimMismatch.selector)
        );
        expectRefused(
            challenger,
            abi.encodeCall(
                game.provePart,
                (id, ModelId.wrap("other"), claim(), Place(1, 2, 3, 0, 5), evidence(), shownPart())
            ),
            abi.encodeWithSelector(IToleranceGame.ClaimMismatch.selector)
        );
        expectRefused(
            challenger,
            abi.encodeCall(
                game.provePart,
                (id, model(), claim(), Place(1, 2, 3, 0, 6), evidence(), shownPart())
            ),
            abi.encodeWithSelector(IToleranceGame.StatedMismatch.selector)
        );
    }

    // --- who may open ---

    function test_open_byAnybodyElse_isRefused() public {
        IArbitrator.DisputeRef memory r = ref();
        vm.expectRevert(
            abi.encodeWithSelector(IToleranceGame.NotTaskRegistry.selector, address(this))
        );
        game.open(r);
    }

    function test_open_twice_isRefused() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        fund(challenger, address(game), BOND);
        vm.expectRevert(abi.encodeWithSelector(IToleranceGame.DisputeExists.selector, id));
        tasks.open(miners, game, r);
    }

    function test_open_takesTheBondAndFreezesTheMiner() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        vm.assertEq(token.balanceOf(address(game)), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 1);
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.Open);
    }

    function test_constructor_refusesWhatUnbondingDoesNotCover() public {
        IToleranceGame.Params memory p = gameParams();
        p.turnSeconds = 2 hours;
        uint256 longest = 29 * uint256(p.turnSeconds) + p.payoutDelaySeconds;
        vm.expectRevert(
            abi.encodeWithSelector(
                IToleranceGame.DisputeTooLong.selector, longest, MAX_DISPUTE_SECONDS
            )
        );
        new ToleranceGame(
            token, address(tasks), IMinerRegistry(address(miners)), judge, rowJudge, p
        );
        p.turnSeconds = 0;
        vm.expectRevert(IToleranceGame.ParamsInvalid.selector);
        new ToleranceGame(
            token, address(tasks), IMinerRegistry(address(miners)), judge, rowJudge, p
        );
        p = gameParams();
        for (uint256 i; i < 3; ++i) {
            p.slashBps = i == 0 ? 10_001 : i == 1 ? 0 : 10_000;
            p.bondBps = i == 2 ? 10_001 : 0;
            vm.expectRevert(IToleranceGame.ParamsInvalid.selector);
            new ToleranceGame(
                token, address(tasks), IMinerRegistry(address(miners)), judge, rowJudge, p
            );
        }
    }

    // --- money ---

    function ruledBy(ITraceJudge.Fault fault)
        private
        returns (IArbitrator.DisputeRef memory r, DisputeId id)
    {
        (r, id) = gameIn(IToleranceGame.Phase.ProvingPart);
        judge.say(fault, 4);
        act(challenger, provePartCall(id));
        executeGame(r, id);
    }

    function assertTold(IArbitrator.DisputeRef memory r, bool want) private view {
        (
            JobId job,
            uint16 stage,
            bytes32 receiptHash,
            IArbitrator.Right right,
            bool fault,
            address caller
        ) = tasks.resolutions(tasks.count() - 1);
        vm.assertEq(receiptHash, r.receiptHash);
        vm.assertTrue(right == r.right);
        vm.assertEq(JobId.unwrap(job), JobId.unwrap(r.job));
        vm.assertEq(uint256(stage), r.stage);
        vm.assertEq(fault, want);
        vm.assertEq(caller, address(game));
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 0);
    }

    function test_aLeafThatHolds_slashesTheMinerAndReturnsTheBond() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = ruledBy(ITraceJudge.Fault.Accused);
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.Fault);
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
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoFault);
        assertTold(r, false);
        vm.assertEq(game.creditOf(owner), BOND);
        vm.assertEq(game.creditOf(challenger), 0);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    function test_aFaultOfNobody_returnsTheBondAndSlashesNobody() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = ruledBy(ITraceJudge.Fault.Nobody);
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoRuling);
        assertTold(r, false);
        vm.assertEq(game.creditOf(challenger), BOND);
        vm.assertEq(uint256(miners.minerOf(owner).stake), STAKE);
    }

    function test_partsThatDoNotAddUp_endTheGame() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.PickingPart);
        bytes memory unknown =
            abi.encodeWithSelector(ITraceJudge.PartUnknown.selector, PARTS + 1, PARTS);
        expectRefused(operator, abi.encodeCall(game.pickPart, (id, uint16(PARTS + 1))), unknown);
        act(operator, abi.encodeCall(game.pickPart, (id, uint16(PARTS))));
        expectRefused(
            challenger, provePartCall(id), abi.encodeWithSelector(IToleranceGame.SumDue.selector)
        );
        judge.say(ITraceJudge.Fault.Accuser, PARTS);
        act(challenger, proveSumCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoFault);
    }

    /// The sum is proven where it was picked, of what was stated, and not otherwise.
    function test_proveSum_ofOtherSums_isRefused() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.ProvingPart);
        expectRefused(
            challenger,
            proveSumCall(id),
            abi.encodeWithSelector(IToleranceGame.PartDue.selector, 2)
        );
        (, id) = gameIn(IToleranceGame.Phase.PickingPart);
        act(operator, abi.encodeCall(game.pickPart, (id, uint16(PARTS))));
        bytes memory mismatch = abi.encodeWithSelector(IToleranceGame.StatedMismatch.selector);
        bytes memory other = abi.encodePacked(stated(), bytes8(0));
        Place memory place = Place(1, 2, 3, 0, 5);
        expectRefused(
            challenger,
            abi.encodeCall(game.proveSum, (id, model(), claim(), place, evidence(), other)),
            mismatch
        );
        place.index = 6;
        expectRefused(
            challenger,
            abi.encodeCall(game.proveSum, (id, model(), claim(), place, evidence(), stated())),
            mismatch
        );
        act(challenger, proveSumCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.Fault);
    }

    /// Of another number of sums than the value has, none and no total can be proven.
    function test_expand_toAnotherNumber_cannotBeProven() public {
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Proving);
        bytes memory none = abi.encodeWithSelector(IToleranceGame.NoParts.selector);
        expectRefused(challenger, abi.encodeCall(game.expand, (id, "")), none);
        expectRefused(challenger, abi.encodeCall(game.expand, (id, new bytes(12))), none);
        expectRefused(challenger, abi.encodeCall(game.expand, (id, new bytes(8 << 16))), none);
        bytes memory fewer = new bytes(8);
        act(challenger, abi.encodeCall(game.expand, (id, fewer)));
        act(operator, abi.encodeCall(game.pickPart, (id, 1)));
        Place memory place = Place(1, 2, 3, 0, 5);
        Opening memory shown = Opening(fewer, new bytes32[](0));
        expectRefused(
            challenger,
            abi.encodeCall(game.provePart, (id, model(), claim(), place, evidence(), shown)),
            abi.encodeWithSelector(IToleranceGame.SumDue.selector)
        );
        expectRefused(
            challenger,
            abi.encodeCall(game.proveSum, (id, model(), claim(), place, evidence(), fewer)),
            abi.encodeWithSelector(ITraceJudge.PartsDue.selector, PARTS)
        );
    }

    function test_anExecution_doesNotDependOnTheMinersMoney() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Ruled);
        close(accuse(stranger, stranger, type(uint256).max), 10_000); // somebody else was first
        executeGame(r, id);
        assertTold(r, true);
        vm.assertEq(game.creditOf(challenger), BOND);
        vm.assertEq(miners.creditOf(challenger), STAKE * 20 / 100);
        vm.assertEq(miners.creditOf(requester), STAKE * 30 / 100);
        vm.assertEq(miners.creditOf(stranger), 0);
    }

    /// Of a large stake the bond is a share, the same at the end as at the beginning.
    function test_theBondOfALargeStake_isAShareOfIt() public {
        fund(owner, address(miners), 100_000 * USD);
        vm.prank(owner);
        miners.addStake(100_000 * USD);
        uint256 bond = (STAKE + 100_000 * USD) * BOND_BPS / 10_000;
        IArbitrator.DisputeRef memory r = ref();
        fund(challenger, address(game), bond);
        DisputeId id = tasks.open(miners, game, r);
        vm.assertEq(token.balanceOf(address(game)), bond);
        fund(owner, address(miners), 100_000 * USD);
        vm.prank(owner);
        miners.addStake(100_000 * USD);
        skipTime(TURN_SECONDS + 1);
        game.timeout(id);
        executeGame(r, id);
        vm.assertEq(game.creditOf(owner), bond);
    }

    /// Two rights to one receipt are two games.
    function test_rights_haveTheirOwnGames() public {
        (IArbitrator.DisputeRef memory r, DisputeId id) = gameIn(IToleranceGame.Phase.Opened);
        r.right = IArbitrator.Right.Auditor;
        DisputeId other = openGame(r);
        vm.assertNotEq(DisputeId.unwrap(id), DisputeId.unwrap(other));
        vm.assertEq(uint256(miners.minerOf(owner).openDisputes), 2);
        vm.assertEq(miners.disputeOf(owner, 1).arbitrator, address(game));
    }

    function test_withdrawCredit_ofNothing_isRefused() public {
        vm.expectRevert(IToleranceGame.NoCredit.selector);
        game.withdrawCredit();
    }
}
