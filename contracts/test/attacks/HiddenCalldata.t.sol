// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../../src/interfaces/IArbitrator.sol";
import {IToleranceGame} from "../../src/interfaces/IToleranceGame.sol";
import {SenderNotKey} from "../../src/libraries/Senders.sol";
import {Place} from "../../src/trace/Layout.sol";
import {DisputeId} from "../../src/types/Ids.sol";
import {GameFixture} from "../fixtures/GameFixture.sol";

/// A party that keeps its moves in storage and makes them itself: the transaction that sets it off
/// carries three bytes, and a node that traces no calls shows nothing else.
contract HidingParty {
    address private immutable game;
    bytes private hidden;

    constructor(address game_) {
        game = game_;
    }

    function hide(bytes calldata data) external {
        hidden = data;
    }

    function go() external {
        (bool ok, bytes memory answer) = game.call(hidden);
        if (!ok) {
            assembly {
                revert(add(answer, 32), mload(answer))
            }
        }
    }
}

/// Attack: a trace's hashes stand in the calldata of the accuser's moves alone. From a contract
/// they do not stand in the transaction; the accused cannot see which child differs, names none,
/// and its whole stake is slashed for silence. The same from an accused, against the accuser's
/// bond.
contract HiddenCalldataTest is GameFixture {
    bytes private constant DELEGATION = abi.encodePacked(hex"ef0100", address(1));

    function read(uint256 number, DisputeId id) private view returns (bytes memory) {
        if (number == 0) return accuseCall(id);
        if (number == 1) return accuseTokenCall(id);
        if (number == 2) return askCall(id);
        if (number == 3) return revealCall(id);
        if (number == 4) return openNodeCall(id);
        if (number == 5) return openChunksCall(id);
        if (number == 6) return expandCall(id);
        if (number == 7) return restateCall(id);
        return abi.encodeCall(game.pointWith, (id, Place(1, 2, 0, 0, 0), "list"));
    }

    function belongs(uint256 number) private pure returns (IToleranceGame.Phase) {
        if (number <= 2) return IToleranceGame.Phase.Opened;
        if (number == 3) return IToleranceGame.Phase.Asked;
        if (number <= 5) return IToleranceGame.Phase.Opening;
        if (number == 6) return IToleranceGame.Phase.Proving;
        if (number == 7) return IToleranceGame.Phase.Pleaded;
        return IToleranceGame.Phase.Picking;
    }

    /// The whole attack: every move but this one's refusal would be in order.
    function test_anAccuserThatHidesItsHashes_doesNotMove() public {
        HidingParty hiding = new HidingParty(address(game));
        challenger = address(hiding);
        DisputeId id = openGame();
        hiding.hide(accuseCall(id));
        bytes memory refusal = abi.encodeWithSelector(SenderNotKey.selector, challenger);
        vm.expectRevert(refusal);
        hiding.go();
        skipTime(TURN_SECONDS + 1);
        act(stranger, timeoutCall(id));
        assertEqStatus(game.gameOf(id).status, IArbitrator.Status.NoFault);
    }

    function test_whatTheOtherSideReads_comesFromNoContract() public {
        for (uint256 i; i < 9; ++i) {
            (, DisputeId id) = gameIn(belongs(i));
            address player = i == 3 || i == 8 ? operator : challenger;
            bytes memory refusal = abi.encodeWithSelector(SenderNotKey.selector, player);
            bytes memory move = read(i, id);
            // Called by a contract that was called by a key.
            vm.prank(player, stranger);
            (bool ok, bytes memory answer) = address(game).call(move);
            vm.assertFalse(ok);
            vm.assertEq(answer, refusal);
            // Called by a key from within its delegated code.
            vm.etch(player, DELEGATION);
            expectRefused(player, move, refusal);
            vm.etch(player, "");
            if (i != 5) act(player, move); // hashes come first
        }
    }

    /// An owner may be a contract where its move says all in an event or in state.
    function test_whatEventsSay_comesFromAnybody() public {
        vm.etch(owner, hex"00");
        (, DisputeId id) = gameIn(IToleranceGame.Phase.Picking);
        vm.prank(owner, stranger);
        game.plead(id, SEED);
        act(challenger, restateCall(id));
        vm.prank(owner, stranger);
        game.pick(id, 3);
        act(challenger, openNodeCall(id));
        vm.prank(owner, stranger);
        game.point(id, Place(1, 2, 3, 0, 5));
        act(challenger, expandCall(id));
        vm.prank(owner, stranger);
        game.pickPart(id, 2);
        vm.assertTrue(phaseOf(IToleranceGame.Phase.ProvingPart, id));
    }
}
