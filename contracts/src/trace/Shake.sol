// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Place} from "./Layout.sol";

/// By how much is a value of a second pass shaken? (docs/trust.md) Twin:
/// core/dispute/trace/shake.py.
///
/// About as much as float32 rounds: a sign of the value's own, and one of its 16, 256 and 4096
/// neighbours each, in segments at least twice as long. Of L neighbours it counts √L/4, as far as
/// a sum of L roundings strays.
library Shake {
    uint256 private constant UNIT_BITS = 24;
    uint256 private constant WIDEST = 4096;
    uint256 private constant SIGNS = 256; // of one hash

    /// In units of 2^-24. Reverts if `ownBits` is above 24.
    function units(uint256 seed, uint256 ownBits, Place memory place, uint256 length)
        internal
        pure
        returns (int256 shake)
    {
        shake = _sign(seed, 1, place) * int256(1 << (UNIT_BITS - ownBits));
        int256 size = 1;
        for (uint256 level = 16; level <= WIDEST && 2 * level <= length; level *= 16) {
            shake += _sign(seed, level, place) * size;
            size *= 4;
        }
    }

    function _sign(uint256 seed, uint256 level, Place memory place) private pure returns (int256) {
        uint256 number = place.index / level;
        uint256 signs = uint256(
            sha256(
                abi.encodePacked(
                    uint8(seed),
                    uint16(level),
                    place.section,
                    place.op,
                    place.row,
                    place.segment,
                    uint32(number / SIGNS)
                )
            )
        );
        return (signs >> (number % SIGNS)) & 1 == 1 ? int256(1) : -1;
    }
}
