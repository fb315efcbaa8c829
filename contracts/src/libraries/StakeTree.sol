// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Checkpoints} from "@openzeppelin/contracts/utils/structs/Checkpoints.sol";

/// Who held which weight at the end of a past block, and which slot does a number fall on?
///
/// A sum tree of 1024 slots, four children a node, five levels. Every node keeps its history, so
/// that a known draw hash is not moved by stakes or fines after it. O(log n).
library StakeTree {
    using Checkpoints for Checkpoints.Trace160;

    uint256 internal constant CAPACITY = 1024; // 4 ** LEVELS
    uint256 internal constant LEVELS = 5;

    struct Tree {
        mapping(uint256 node => Checkpoints.Trace160) sums; // node = level << 16 | index
        mapping(uint256 slot => Checkpoints.Trace160) holders; // who had the slot
        uint16[] free; //                                         given back, to be used first
        uint16 used; //                                           slots ever given out
    }

    /// A stretch of the line [0, total) that belongs to one slot.
    struct Span {
        uint256 slot;
        uint256 start;
        uint256 weight;
    }

    function isFull(Tree storage self) internal view returns (bool) {
        return self.free.length == 0 && self.used == CAPACITY;
    }

    /// Give `holder` a slot. The tree must not be full.
    function assign(Tree storage self, address holder) internal returns (uint256 slot) {
        uint256 freed = self.free.length;
        if (freed != 0) {
            slot = self.free[freed - 1];
            self.free.pop();
        } else {
            slot = self.used;
            self.used = uint16(slot + 1);
        }
        self.holders[slot].push(uint96(block.number), uint160(holder));
    }

    /// Take the slot back. Its weight must be zero.
    function vacate(Tree storage self, uint256 slot) internal {
        self.holders[slot].push(uint96(block.number), 0);
        self.free.push(uint16(slot));
    }

    function set(Tree storage self, uint256 slot, uint96 weight) internal {
        uint160 old = self.sums[_node(LEVELS, slot)].latest();
        if (old == weight) return;
        uint256 index = slot;
        for (uint256 level = LEVELS; level != 0; --level) {
            Checkpoints.Trace160 storage sum = self.sums[_node(level, index)];
            // SAFETY: old is part of every sum above its slot.
            sum.push(uint96(block.number), sum.latest() + weight - old);
            index >>= 2;
        }
    }

    function totalAt(Tree storage self, uint96 blockNumber) internal view returns (uint256 total) {
        for (uint256 i; i < 4; ++i) {
            total += _sumAt(self, 1, i, blockNumber);
        }
    }

    function weightAt(Tree storage self, uint256 slot, uint96 blockNumber)
        internal
        view
        returns (uint256)
    {
        return _sumAt(self, LEVELS, slot, blockNumber);
    }

    function holderAt(Tree storage self, uint256 slot, uint96 blockNumber)
        internal
        view
        returns (address)
    {
        return address(self.holders[slot].upperLookupRecent(blockNumber));
    }

    /// Where the slot lay on the line.
    function spanAt(Tree storage self, uint256 slot, uint96 blockNumber)
        internal
        view
        returns (Span memory span)
    {
        span.slot = slot;
        span.weight = weightAt(self, slot, blockNumber);
        uint256 index = slot;
        for (uint256 level = LEVELS; level != 0; --level) {
            for (uint256 sibling = index & ~uint256(3); sibling < index; ++sibling) {
                span.start += _sumAt(self, level, sibling, blockNumber);
            }
            index >>= 2;
        }
    }

    /// The slot on which `point` fell. `point` is below `totalAt(blockNumber)`.
    function find(Tree storage self, uint256 point, uint96 blockNumber)
        internal
        view
        returns (Span memory span)
    {
        uint256 index;
        for (uint256 level = 1; level <= LEVELS; ++level) {
            index <<= 2;
            uint256 last = index + 3;
            for (;;) {
                span.weight = _sumAt(self, level, index, blockNumber);
                if (point < span.start + span.weight) break;
                span.start += span.weight;
                assert(index != last);
                ++index;
            }
        }
        span.slot = index;
    }

    function _sumAt(Tree storage self, uint256 level, uint256 index, uint96 blockNumber)
        private
        view
        returns (uint256)
    {
        return self.sums[_node(level, index)].upperLookupRecent(blockNumber);
    }

    function _node(uint256 level, uint256 index) private pure returns (uint256) {
        return (level << 16) | index;
    }
}
