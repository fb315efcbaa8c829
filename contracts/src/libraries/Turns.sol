// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IArbitrator} from "../interfaces/IArbitrator.sol";
import {IToleranceGame} from "../interfaces/IToleranceGame.sol";

/// What a move of a dispute reads and writes, in one word: {operator 160 | phase 4 | status 3 |
/// endsAt 36 | where 53}, where `where` is a node {level 6 | children less one 5 | index 42},
/// stated partial sums {SUMS 6 | 0 15 | parts 16 | part 16}, or the seed of a plea. The accused is
/// known by the operator that signed.
library Turns {
    /// Stands where a node has its level.
    uint256 internal constant SUMS = 63;

    uint256 private constant OPERATOR_AT = 96;
    uint256 private constant PHASE_AT = 92;
    uint256 private constant STATUS_AT = 89;
    uint256 private constant ENDS_AT = 53;
    uint256 private constant LEVEL_AT = 47;
    uint256 private constant CHILDREN_AT = 42;
    uint256 private constant PARTS_AT = 16;

    function operator(uint256 turn) internal pure returns (address) {
        return address(uint160(turn >> OPERATOR_AT));
    }

    function phase(uint256 turn) internal pure returns (IToleranceGame.Phase) {
        return IToleranceGame.Phase((turn >> PHASE_AT) & 0xf);
    }

    function status(uint256 turn) internal pure returns (IArbitrator.Status) {
        return IArbitrator.Status((turn >> STATUS_AT) & 0x7);
    }

    function endsAt(uint256 turn) internal pure returns (uint256) {
        return (turn >> ENDS_AT) & ((1 << 36) - 1);
    }

    function where(uint256 turn) internal pure returns (uint256) {
        return turn & ((1 << ENDS_AT) - 1);
    }

    function level(uint256 turn) internal pure returns (uint256) {
        return (turn >> LEVEL_AT) & 0x3f;
    }

    /// Nodes in the opening below the node, where the accused may pick one.
    function children(uint256 turn) internal pure returns (uint256) {
        unchecked {
            return ((turn >> CHILDREN_AT) & 31) + 1;
        }
    }

    function index(uint256 turn) internal pure returns (uint256) {
        return turn & ((1 << CHILDREN_AT) - 1);
    }

    /// Partial sums that were stated.
    function parts(uint256 turn) internal pure returns (uint256) {
        return uint16(turn >> PARTS_AT);
    }

    /// The partial sum that was picked; `parts` where it is said that they do not add up.
    function part(uint256 turn) internal pure returns (uint256) {
        return uint16(turn);
    }

    function atNode(uint256 level_, uint256 children_, uint256 index_)
        internal
        pure
        returns (uint256)
    {
        unchecked {
            return level_ << LEVEL_AT | (children_ - 1) << CHILDREN_AT | index_;
        }
    }

    function atSums(uint256 parts_, uint256 part_) internal pure returns (uint256) {
        return SUMS << LEVEL_AT | parts_ << PARTS_AT | part_;
    }

    /// The word of the same operator's dispute as it stands next.
    function next(
        uint256 turn,
        IToleranceGame.Phase phase_,
        IArbitrator.Status status_,
        uint256 endsAt_,
        uint256 where_
    ) internal pure returns (uint256) {
        return turn >> OPERATOR_AT << OPERATOR_AT | uint256(phase_) << PHASE_AT | uint256(status_)
            << STATUS_AT | endsAt_ << ENDS_AT | where_;
    }

    function first(address operator_) internal pure returns (uint256) {
        return uint256(uint160(operator_)) << OPERATOR_AT;
    }
}
