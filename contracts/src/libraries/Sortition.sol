// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {StakeTree} from "./StakeTree.sol";

/// How is a slot drawn by its weight, never twice, and never an excluded one? Excluded stretches
/// are cut out of the line, a point is drawn, and the cuts before it are put back.
library Sortition {
    using StakeTree for StakeTree.Tree;

    /// The stretches cut out, in order of their start, no slot twice.
    struct Cuts {
        StakeTree.Span[] spans;
        uint256 count;
        uint256 weight;
    }

    function noCuts(uint256 room) internal pure returns (Cuts memory cuts) {
        cuts.spans = new StakeTree.Span[](room);
    }

    /// @dev `span.slot` is not among the cuts yet, and there is room.
    function cut(Cuts memory cuts, StakeTree.Span memory span) internal pure {
        uint256 i = cuts.count;
        for (; i != 0 && cuts.spans[i - 1].start > span.start; --i) {
            cuts.spans[i] = cuts.spans[i - 1];
        }
        cuts.spans[i] = span;
        ++cuts.count;
        cuts.weight += span.weight;
    }

    /// Draw a slot by `random` and cut it out. Needs `cuts.weight < totalAt(blockNumber)`.
    function draw(
        StakeTree.Tree storage tree,
        uint96 blockNumber,
        uint256 total,
        Cuts memory cuts,
        uint256 random
    ) internal view returns (uint256 slot) {
        uint256 point = random % (total - cuts.weight); // total < 2^106: a bias below 2^-150
        for (uint256 i; i < cuts.count && point >= cuts.spans[i].start; ++i) {
            point += cuts.spans[i].weight;
        }
        StakeTree.Span memory span = tree.find(point, blockNumber);
        cut(cuts, span);
        return span.slot;
    }
}
