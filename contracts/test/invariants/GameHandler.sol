// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ToleranceGame} from "../../src/ToleranceGame.sol";
import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {Claim, ITraceJudge} from "../../src/interfaces/ITraceJudge.sol";
import {IToleranceGame} from "../../src/interfaces/IToleranceGame.sol";
import {Place} from "../../src/trace/Layout.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {GameFixture} from "../fixtures/GameFixture.sol";

/// What accusers, accused and strangers do with many games, called by forge at random. A call that
/// a rule forbids fails; one that panics is remembered.
contract GameHandler is GameFixture {
    uint256 private constant MOVES = 17;

    bool public panicked;
    bool public terminalMoved;
    uint256 public executed;
    DisputeId[] public games;
    IArbitrator.DisputeRef[] private refs;

    constructor() {
        GameFixture.setUp();
    }

    function setUp() public override {} // forge would call it again as an action

    function count() external view returns (uint256) {
        return games.length;
    }

    function contracts() external view returns (ToleranceGame, IMinerRegistry) {
        return (game, miners);
    }

    function people() external view returns (address[4] memory) {
        return [challenger, owner, requester, stranger];
    }

    function minerOwner() external view returns (address) {
        return owner;
    }

    function balance() external view returns (uint256) {
        return token.balanceOf(address(game));
    }

    // --- actions ---

    function openOne() external {
        if (games.length == 24) return;
        IArbitrator.DisputeRef memory r = ref();
        games.push(openGame(r));
        refs.push(r);
    }

    function move(uint256 seed, uint256 which, uint256 who, uint256 fault) external {
        if (games.length == 0) return;
        DisputeId id = games[seed % games.length];
        judge.say(ITraceJudge.Fault(fault % 3), fault / 3 % 2 == 0 ? 0 : 4);
        address[4] memory callers = [challenger, owner, operator, stranger];
        attempt(id, callers[who % 4], callOf(which % MOVES, id, seed));
    }

    /// The move that is due, by whose turn it is.
    function play(uint256 seed, uint256 which, uint256 fault) external {
        if (games.length == 0) return;
        DisputeId id = games[seed % games.length];
        judge.say(ITraceJudge.Fault(fault % 3), which % 2 == 0 ? 0 : 4);
        IToleranceGame.Phase phase = game.gameOf(id).phase;
        uint256 number = which % 8 == 0 ? 2 : which % 16 == 1 ? 3 : 0;
        if (phase == IToleranceGame.Phase.Asked) number = 4;
        if (phase == IToleranceGame.Phase.Picking) number = which % 5 == 4 ? 15 : 5 + which % 3;
        if (phase == IToleranceGame.Phase.Pleaded) number = 16;
        if (phase == IToleranceGame.Phase.Opening) number = 8 + which % 2;
        if (phase == IToleranceGame.Phase.Proving) number = 10 + which % 2;
        if (phase == IToleranceGame.Phase.PickingPart) number = 12;
        if (phase == IToleranceGame.Phase.ProvingPart) {
            judge.say(ITraceJudge.Fault(fault % 3), 4);
            number = 13 + which % 2;
        }
        bool accused = phase == IToleranceGame.Phase.Asked || phase == IToleranceGame.Phase.Picking
            || phase == IToleranceGame.Phase.PickingPart;
        attempt(id, accused ? operator : challenger, callOf(number, id, seed));
    }

    function passTime(uint256 seconds_) external {
        skipTime(bound(seconds_, 1, TURN_SECONDS + 10));
    }

    function timeout(uint256 seed) external {
        if (games.length != 0) {
            attempt(games[seed % games.length], stranger, timeoutCall(games[seed % games.length]));
        }
    }

    function execute(uint256 seed) external {
        if (games.length == 0) return;
        uint256 number = seed % games.length;
        IArbitrator.DisputeRef memory r = refs[number];
        if (attempt(
                games[number],
                stranger,
                abi.encodeCall(game.execute, (r.job, r.stage, r.receiptHash, r.right))
            )) ++executed;
    }

    function withdraw(uint256 who) external {
        address[3] memory callers = [challenger, owner, requester];
        attempt(DisputeId.wrap(0), callers[who % 3], abi.encodeCall(game.withdrawCredit, ()));
    }

    function callOf(uint256 number, DisputeId id, uint256 seed)
        private
        view
        returns (bytes memory)
    {
        if (number == 0) return accuseCall(id);
        if (number == 1) return accuseTokenCall(id);
        if (number == 2) return askCall(id);
        if (number == 3) return proveMalformedCall(id);
        if (number == 4) return revealCall(id);
        if (number == 5) return abi.encodeCall(game.pick, (id, uint8(seed % 40)));
        if (number == 6) return pointCall(id);
        if (number == 7) {
            return abi.encodeCall(game.pointWith, (id, Place(1, 2, 3, 0, 5), "list"));
        }
        if (number == 8) return openNodeCall(id);
        if (number == 9) return openChunksCall(id);
        if (number == 15) return pleadCall(id);
        if (number == 16) return restateCall(id);
        Claim memory c = levelsOf(id) == LEVELS ? claim() : pleadedClaim();
        if (number == 10) return abi.encodeCall(game.prove, (id, model(), c, evidence()));
        if (number == 11) return abi.encodeCall(game.expand, (id, stated()));
        if (number == 12) return abi.encodeCall(game.pickPart, (id, uint16(seed % 6)));
        if (number == 14) {
            return abi.encodeCall(
                game.proveSum, (id, model(), c, Place(1, 2, 3, 0, 5), evidence(), stated())
            );
        }
        return abi.encodeCall(
            game.provePart, (id, model(), c, Place(1, 2, 3, 0, 5), evidence(), shownPart())
        );
    }

    function attempt(DisputeId id, address caller, bytes memory data) private returns (bool ok) {
        bool over = game.gameOf(id).phase == IToleranceGame.Phase.Executed;
        bytes memory answer;
        vm.prank(caller, caller);
        (ok, answer) = address(game).call(data);
        if (!ok && answer.length >= 4 && bytes4(answer) == bytes4(keccak256("Panic(uint256)"))) {
            panicked = true;
        }
        if (ok && over) terminalMoved = true;
    }
}
