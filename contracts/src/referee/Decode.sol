// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Real} from "./Real.sol";

/// Which numbers do committed bytes hold, exactly? Twin: core/dispute/referee/formats.py.
///
/// Values are little-endian integers times powers of two, subnormals and both zeros included.
/// Assembly turns the 4 to 16 values of a word around at once.
library Decode {
    /// Values of one run, turned to big-endian, from memory address `start` on.
    struct Vector {
        uint256 start;
        uint256 count;
        uint256 format;
        bool finite;
    }

    uint256 internal constant BF16 = 0;
    uint256 internal constant FP16 = 1;
    uint256 internal constant FP32 = 2;
    uint256 internal constant F64 = 3;

    /// A term: its sign, its exponent field plus what was added to it, and its mantissa.
    uint256 internal constant SIGN = 1 << 255;
    uint256 internal constant MANTISSA = (1 << 160) - 1;
    uint256 internal constant EXPONENT_AT = 160;

    /// The float64 −∞, the score of a masked key.
    bytes8 internal constant MINUS_INFINITY = 0x000000000000f0ff;

    uint256 private constant LANES_16 = type(uint256).max / type(uint16).max;
    uint256 private constant LANES_32 = type(uint256).max / type(uint32).max;
    uint256 private constant LANES_64 = type(uint256).max / type(uint64).max;
    uint256 private constant BYTES_OF_2 =
        0x00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff;
    uint256 private constant BYTES_OF_4 =
        0x0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff;
    uint256 private constant BYTES_OF_8 =
        0x00000000ffffffff00000000ffffffff00000000ffffffff00000000ffffffff;

    /// `code` if there is such a format.
    function toFormat(uint256 code) internal pure returns (uint256) {
        if (code > F64) revert IReferee.FormatUnknown(code);
        return code;
    }

    function widthBytes(uint256 format) internal pure returns (uint256) {
        return format == F64 ? 8 : format == FP32 ? 4 : 2;
    }

    function fractionBits(uint256 format) internal pure returns (uint256) {
        return format == F64 ? 52 : format == FP32 ? 23 : format == FP16 ? 10 : 7;
    }

    function exponentBits(uint256 format) internal pure returns (uint256) {
        return format == F64 ? 11 : format == FP16 ? 5 : 8;
    }

    /// What to take from the exponent field so that the mantissa counts units of its last bit.
    function offset(uint256 format) internal pure returns (int256) {
        return int256((1 << (exponentBits(format) - 1)) - 1 + fractionBits(format));
    }

    /// `raw` holds whole values of the format.
    function vector(bytes calldata raw, uint256 format) internal pure returns (Vector memory v) {
        uint256 width = widthBytes(format);
        v.count = raw.length / width;
        v.format = format;
        uint256 unit = (1 << fractionBits(format))
            * (width == 8 ? LANES_64 : width == 4 ? LANES_32 : LANES_16);
        (v.start, v.finite) = _turn(raw, width, unit, unit * ((1 << exponentBits(format)) - 1));
    }

    /// One value. `index` must be below the count.
    function term(Vector memory v, uint256 index) internal pure returns (uint256) {
        uint256 width = 8 * widthBytes(v.format);
        uint256 bits;
        uint256 place = v.start + index * (width / 8);
        assembly ("memory-safe") {
            bits := shr(sub(256, width), mload(place))
        }
        return pack(bits, fractionBits(v.format), (1 << exponentBits(v.format)) - 1, width);
    }

    /// The number at `index`, which must be below the count.
    function real(Vector memory v, uint256 index) internal pure returns (Real memory) {
        uint256 t = term(v, index);
        int256 m = int256(t & MANTISSA);
        return Real(t & SIGN == 0 ? m : -m, int256((t & ~SIGN) >> EXPONENT_AT) - offset(v.format));
    }

    /// A term of the bits of a value. Subnormals have the smallest normals' field and no hidden
    /// bit.
    function pack(uint256 bits, uint256 fraction, uint256 limit, uint256 width)
        internal
        pure
        returns (uint256 packed)
    {
        assembly ("memory-safe") {
            let field := and(shr(fraction, bits), limit)
            let hidden := iszero(iszero(field))
            let mantissa := or(and(bits, sub(shl(fraction, 1), 1)), shl(fraction, hidden))
            packed := or(
                shl(255, shr(sub(width, 1), bits)),
                or(shl(160, add(field, iszero(hidden))), mantissa)
            )
        }
    }

    /// Each value's bytes reversed, in fresh memory; finite if no exponent field is all ones.
    function _turn(bytes calldata raw, uint256 width, uint256 unit, uint256 exponents)
        private
        pure
        returns (uint256 start, bool finite)
    {
        uint256 suspects;
        assembly ("memory-safe") {
            start := mload(0x40)
            // 32 bytes more, for the last value is read as a whole word.
            mstore(0x40, add(start, and(add(raw.length, 0x3f), not(0x1f))))
            // On the stack, not fetched from the end of the code for each word.
            let of2 := BYTES_OF_2
            let of4 := BYTES_OF_4
            let of8 := BYTES_OF_8
            calldatacopy(start, raw.offset, raw.length)
            let end := add(start, raw.length)
            mstore(end, 0)
            let place := start
            // Most values are those of traces, eight bytes each.
            if eq(width, 8) {
                for {} lt(place, end) { place := add(place, 32) } {
                    let word := mload(place)
                    word := or(and(shr(8, word), of2), shl(8, and(word, of2)))
                    word := or(and(shr(16, word), of4), shl(16, and(word, of4)))
                    word := or(and(shr(32, word), of8), shl(32, and(word, of8)))
                    // A field of all ones plus one runs over into the sign's empty place.
                    suspects := or(suspects, add(and(word, exponents), unit))
                    mstore(place, word)
                }
            }
            for {} lt(place, end) { place := add(place, 32) } {
                let word := mload(place)
                word := or(and(shr(8, word), of2), shl(8, and(word, of2)))
                if eq(width, 4) {
                    word := or(and(shr(16, word), of4), shl(16, and(word, of4)))
                }
                suspects := or(suspects, add(and(word, exponents), unit))
                mstore(place, word)
            }
        }
        uint256 signs = exponents + unit; // per lane: all ones plus one
        finite = suspects & signs == 0;
    }
}
