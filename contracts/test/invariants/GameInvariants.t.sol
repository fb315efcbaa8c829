// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ToleranceGame} from "../../src/ToleranceGame.sol";
import {IMinerRegistry} from "../../src/interfaces/IMinerRegistry.sol";
import {IToleranceGame} from "../../src/interfaces/IToleranceGame.sol";
import {Test} from "../Vm.sol";
import {GameHandler} from "./GameHandler.sol";

/// What stays true of tolerance games whatever anybody does.
contract GameInvariants is Test {
    GameHandler private handler;
    ToleranceGame private game;
    IMinerRegistry private miners;

    function setUp() public {
        handler = new GameHandler();
        (game, miners) = handler.contracts();
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function openGames() private view returns (uint256 open) {
        for (uint256 i; i < handler.count(); ++i) {
            if (game.gameOf(handler.games(i)).phase != IToleranceGame.Phase.Executed) ++open;
        }
    }

    function invariant_moneyIsBondsAndCredits() external view {
        uint256 owed = openGames() * game.bond();
        address[4] memory people = handler.people();
        for (uint256 i; i < people.length; ++i) {
            owed += game.creditOf(people[i]);
        }
        vm.assertEq(handler.balance(), owed);
    }

    function invariant_aMinerIsFrozenByItsOpenGames() external view {
        vm.assertEq(uint256(miners.minerOf(handler.minerOwner()).openDisputes), openGames());
        vm.assertEq(handler.executed() + openGames(), handler.count());
    }

    function invariant_noCallPanics() external view {
        vm.assertFalse(handler.panicked());
    }

    function invariant_whatIsOverStaysOver() external view {
        vm.assertFalse(handler.terminalMoved());
    }

    function invariant_everyTurnEndsWithinAFullClock() external view {
        for (uint256 i; i < handler.count(); ++i) {
            IToleranceGame.Game memory g = game.gameOf(handler.games(i));
            vm.assertLe(
                g.endsAt, vm.getBlockTimestamp() + game.turnSeconds(), "a clock longer than a turn"
            );
        }
    }
}
