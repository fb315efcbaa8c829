// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../src/interfaces/ITaskRegistry.sol";
import {Stage} from "../src/types/Signed.sol";
import {Suite} from "./fixtures/Suite.sol";

/// Every state against every function: legal pairs pass, all others say WrongState(have).
contract TaskRegistryStatesTest is Suite {
    enum Move {
        Open,
        OpenMatched,
        MatchJob,
        Cancel,
        SettleAck,
        Deliver,
        Finalize,
        Expire,
        Dispute,
        Equivocation,
        RequestClose
    }

    uint32 private constant IN = 900_000;
    uint32 private constant OUT = 400_000;
    uint256 private constant MOVES = uint256(type(Move).max) + 1;
    uint256 private constant STATES = uint256(type(ITaskRegistry.State).max) + 1;

    function isLegal(ITaskRegistry.State have, Move move) private pure returns (bool) {
        ITaskRegistry.State none = ITaskRegistry.State.None;
        if (move == Move.Open || move == Move.OpenMatched) return have == none;
        if (move == Move.MatchJob || move == Move.Cancel) return have == ITaskRegistry.State.Open;
        if (move == Move.SettleAck) {
            return have == ITaskRegistry.State.Matched || have == ITaskRegistry.State.Delivered;
        }
        if (move == Move.Deliver) return have == ITaskRegistry.State.Matched;
        if (move == Move.Finalize) return have == ITaskRegistry.State.Delivered;
        if (move == Move.Expire) {
            return have == ITaskRegistry.State.Open || have == ITaskRegistry.State.Matched;
        }
        if (move == Move.Dispute) {
            return have == ITaskRegistry.State.Delivered || have == ITaskRegistry.State.Disputed
                || have == ITaskRegistry.State.Settled;
        }
        if (move == Move.RequestClose) return false; // of a batch
        return
            have != none && have != ITaskRegistry.State.Open
                && have != ITaskRegistry.State.Cancelled;
    }

    /// What differs in a session. `paid`: it has had an Ack.
    function isLegalOfSession(ITaskRegistry.State have, Move move, bool paid)
        private
        pure
        returns (bool)
    {
        if (move == Move.Deliver || move == Move.Finalize) return false;
        if (move == Move.RequestClose) return have == ITaskRegistry.State.Matched;
        if (move == Move.Dispute && have == ITaskRegistry.State.Matched) return paid;
        return isLegal(have, move);
    }

    function reachSession(ITaskRegistry.State want, bool paid) private returns (Deal memory deal) {
        deal = dealOf(sessionOrder(), evenPlan(3));
        reach(want == ITaskRegistry.State.Settled ? ITaskRegistry.State.Matched : want, deal);
        if (paid) settleAck(deal, IN / 2, OUT / 2);
        if (want == ITaskRegistry.State.Settled) {
            vm.prank(requester);
            tasks.requestClose(deal.order, deal.planHash);
            skipTime(CLOSE_DELAY_SECONDS + 1);
            tasks.expire(deal.order, deal.plan);
        }
    }

    function checkSession(ITaskRegistry.State have, bool paid, Move move)
        private
        returns (uint256 passed)
    {
        Deal memory deal = reachSession(have, paid);
        bytes memory why = reasonOf(deal, have, move);
        if (move == Move.Deliver && have == ITaskRegistry.State.Matched) {
            why = abi.encodeWithSelector(ITaskRegistry.NotBatch.selector);
        }
        return attempt(deal, have, move, isLegalOfSession(have, move, paid), why);
    }

    /// What an illegal move says. An order opens once; a job that has no plan is found by none, and
    /// one that has is found by it alone.
    function reasonOf(Deal memory deal, ITaskRegistry.State have, Move move)
        private
        view
        returns (bytes memory)
    {
        if (move == Move.Open || move == Move.OpenMatched) {
            return
                abi.encodeWithSelector(ITaskRegistry.NonceUsedAlready.selector, deal.order.nonce);
        }
        bool asksWithout = move == Move.MatchJob || move == Move.Cancel;
        bool asksWith = !asksWithout && move != Move.Expire && move != Move.RequestClose;
        ITaskRegistry.State seen = have;
        if (isWithoutPlan(deal) ? asksWith : asksWithout) seen = ITaskRegistry.State.None;
        return abi.encodeWithSelector(ITaskRegistry.WrongState.selector, seen);
    }

    function isWithoutPlan(Deal memory deal) private view returns (bool) {
        return tasks.jobOf(deal.id, 0).state != ITaskRegistry.State.None;
    }

    /// What the job is found by.
    function hashOf(Deal memory deal) private view returns (bytes32) {
        return isWithoutPlan(deal) ? bytes32(0) : deal.planHash;
    }

    /// 1 if the move is legal and passes; if it is not, it says why and leaves the state alone.
    function attempt(
        Deal memory deal,
        ITaskRegistry.State have,
        Move move,
        bool legal,
        bytes memory why
    ) private returns (uint256 passed) {
        assertState(deal, have);
        string memory pair = string.concat(
            "state ", vm.toString(uint256(have)), " move ", vm.toString(uint256(move))
        );
        try this.perform(move, deal) {
            vm.assertTrue(legal, pair);
            return 1;
        } catch (bytes memory reason) {
            vm.assertFalse(legal, pair);
            vm.assertEq(reason, why);
            assertState(deal, have);
        }
    }

    /// Sessions know no Delivered and no Disputed; Matched comes with and without a paid Ack.
    function test_movesOfASession_passInTheirStatesAlone() public {
        ITaskRegistry.State[7] memory have = [
            ITaskRegistry.State.None,
            ITaskRegistry.State.Open,
            ITaskRegistry.State.Matched,
            ITaskRegistry.State.Matched,
            ITaskRegistry.State.Settled,
            ITaskRegistry.State.Cancelled,
            ITaskRegistry.State.Expired
        ];
        uint256 legalPairs;
        for (uint256 i; i < have.length; ++i) {
            for (uint256 move; move < MOVES; ++move) {
                uint256 fresh = vm.snapshotState();
                legalPairs += checkSession(have[i], i == 3 || i == 4, Move(move));
                vm.revertToState(fresh);
            }
        }
        // open: 2; matchJob, cancel, expire of Open: 3; Matched: ack, expire, close, a proof: 4,
        // and with an Ack a dispute: 5; Settled: dispute, a proof; Expired: a proof.
        vm.assertEq(legalPairs, 2 + 3 + 4 + 5 + 2 + 1);
    }

    function reach(ITaskRegistry.State want) private returns (Deal memory deal) {
        deal = newDeal(3);
        reach(want, deal);
    }

    function reach(ITaskRegistry.State want, Deal memory deal) private {
        if (want == ITaskRegistry.State.None) return;
        openUnmatched(deal);
        if (want == ITaskRegistry.State.Cancelled) {
            vm.prank(requester);
            tasks.cancel(deal.order);
        }
        if (want == ITaskRegistry.State.Open || want == ITaskRegistry.State.Cancelled) return;
        matchJob(deal);
        if (want == ITaskRegistry.State.Settled) settleAck(deal, IN, OUT);
        if (want == ITaskRegistry.State.Expired) {
            vm.warp(deal.order.deadline + CLOSE_DELAY_SECONDS + 1);
            tasks.expire(deal.order, deal.plan);
        }
        if (want == ITaskRegistry.State.Delivered || want == ITaskRegistry.State.Disputed) {
            Delivery memory delivery = deliver(deal, IN, OUT);
            if (want == ITaskRegistry.State.Disputed) dispute(deal, delivery, 0);
        }
    }

    /// One call, valid but for the state; external so that its revert can be looked at.
    function perform(Move move, Deal memory deal) external {
        if (move == Move.Open) {
            fund(requester, address(escrow), unitsOf(maxNanoOf(deal.order)));
            vm.prank(requester);
            tasks.open(deal.order);
        } else if (move == Move.OpenMatched) {
            openMatched(deal);
        } else if (move == Move.MatchJob) {
            matchJob(deal);
        } else if (move == Move.Cancel) {
            vm.prank(requester);
            tasks.cancel(deal.order);
        } else if (move == Move.SettleAck) {
            settleAck(deal, IN, OUT);
        } else if (move == Move.Deliver) {
            deliver(deal, IN, OUT);
        } else if (move == Move.Finalize) {
            vm.warp(deal.order.deadline + deal.order.window + 1);
            finalize(deal);
        } else if (move == Move.Expire) {
            vm.warp(deal.order.deadline + CLOSE_DELAY_SECONDS + 1);
            tasks.expire(deal.order, isWithoutPlan(deal) ? new Stage[](0) : deal.plan);
        } else if (move == Move.Dispute) {
            dispute(deal, newDelivery(deal, IN, OUT), 1);
        } else if (move == Move.Equivocation) {
            equivocation(deal, contradiction(deal, 1));
        } else {
            bytes32 planHash = hashOf(deal);
            vm.prank(requester);
            tasks.requestClose(deal.order, planHash);
        }
    }

    function check(ITaskRegistry.State have, Move move) private returns (uint256 passed) {
        Deal memory deal = reach(have);
        bytes memory why = reasonOf(deal, have, move);
        if (move == Move.RequestClose && have == ITaskRegistry.State.Matched) {
            why = abi.encodeWithSelector(ITaskRegistry.NotSession.selector);
        }
        return attempt(deal, have, move, isLegal(have, move), why);
    }

    function test_movesOfABatch_passInTheirStatesAlone() public {
        uint256 legalPairs;
        for (uint256 have; have < STATES; ++have) {
            for (uint256 move; move < MOVES; ++move) {
                uint256 fresh = vm.snapshotState();
                legalPairs += check(ITaskRegistry.State(have), Move(move));
                vm.revertToState(fresh);
            }
        }
        vm.assertEq(legalPairs, 2 + 2 + 2 + 1 + 1 + 2 + 3 + 5);
    }

    /// Whatever is tried in a terminal state, in any order, it stays and no money moves.
    function testFuzz_terminal_staysTerminal(uint8 which, uint8[12] memory moves) public {
        ITaskRegistry.State[3] memory ends = [
            ITaskRegistry.State.Settled, ITaskRegistry.State.Cancelled, ITaskRegistry.State.Expired
        ];
        ITaskRegistry.State end = ends[which % 3];
        Deal memory deal = reach(end);
        checkTerminal(deal, end, moves);
    }

    /// As well where no plan was ever given.
    function testFuzz_expiredWithoutPlan_staysTerminal(uint8[12] memory moves) public {
        Deal memory deal = reach(ITaskRegistry.State.Open);
        vm.warp(deal.order.deadline + 1);
        tasks.expire(deal.order, new Stage[](0));
        checkTerminal(deal, ITaskRegistry.State.Expired, moves);
    }

    function checkTerminal(Deal memory deal, ITaskRegistry.State end, uint8[12] memory moves)
        private
    {
        uint256 balance = balanceNano(requester);
        uint256 held = token.balanceOf(address(escrow));
        for (uint256 i; i < moves.length; ++i) {
            Move move = Move(moves[i] % MOVES);
            try this.perform(move, deal) {} catch {}
            assertState(deal, end);
        }
        vm.assertEq(balanceNano(requester), balance);
        vm.assertEq(token.balanceOf(address(escrow)), held);
    }
}
