// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Checkpoints} from "@openzeppelin/contracts/utils/structs/Checkpoints.sol";

/// Who was on a list at the end of a past block, and how is one of them drawn, never twice?
///
/// Places 0 … n − 1 are taken without a gap: who leaves is replaced by the last one. Each keeps its
/// history, so that a known draw hash is not moved by who comes or goes after it. There is no limit
/// to n, so nobody can keep others out.
library Roll {
    using Checkpoints for Checkpoints.Trace160;

    struct Book {
        mapping(uint256 place => Checkpoints.Trace160) holders;
        Checkpoints.Trace160 count;
    }

    /// Places not drawn yet: 0 … left − 1, but where `from` says that another one moved in.
    struct Urn {
        uint256 left;
        uint256 moves;
        uint256[] from;
        uint256[] to;
    }

    function enter(Book storage self, address holder) internal returns (uint256 place) {
        place = self.count.latest();
        self.holders[place].push(uint96(block.number), uint160(holder));
        self.count.push(uint96(block.number), uint160(place + 1));
    }

    /// Take the place back. @return moved who has it now; zero if nobody
    function strike(Book storage self, uint256 place) internal returns (address moved) {
        uint256 last = self.count.latest() - 1;
        self.count.push(uint96(block.number), uint160(last));
        if (place == last) return address(0);
        uint160 holder = self.holders[last].latest();
        self.holders[place].push(uint96(block.number), holder);
        return address(holder);
    }

    function countAt(Book storage self, uint96 blockNumber) internal view returns (uint256) {
        return self.count.upperLookupRecent(blockNumber);
    }

    /// @dev `place` is below `countAt(blockNumber)`
    function holderAt(Book storage self, uint256 place, uint96 blockNumber)
        internal
        view
        returns (address)
    {
        return address(self.holders[place].upperLookupRecent(blockNumber));
    }

    /// An urn of `count` places, from which `draws` are taken at most.
    function urn(uint256 count, uint256 draws) internal pure returns (Urn memory u) {
        u.left = count;
        (u.from, u.to) = (new uint256[](draws), new uint256[](draws));
    }

    /// Draw a place by `random`, each that is left with the same chance. @dev `left` is not zero
    function draw(Urn memory u, uint256 random) internal pure returns (uint256 place) {
        uint256 spot = random % u.left; // left < 2^32: a bias below 2^-224
        uint256 last = --u.left;
        (place,) = _find(u, spot);
        (uint256 tail,) = _find(u, last);
        (, uint256 i) = _find(u, spot);
        (u.from[i], u.to[i]) = (spot, tail);
        if (i == u.moves) ++u.moves;
    }

    /// What stands at `spot`, and where that is noted or would be.
    function _find(Urn memory u, uint256 spot) private pure returns (uint256 place, uint256 i) {
        for (; i < u.moves; ++i) {
            if (u.from[i] == spot) return (u.to[i], i);
        }
        return (spot, i);
    }
}
