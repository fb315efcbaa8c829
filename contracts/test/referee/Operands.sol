// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

/// Committed bytes of numbers, little-endian, for tests of the referee.
library Operands {
    uint64 internal constant INFINITY = 0x7ff0000000000000;
    uint64 internal constant MINUS_INFINITY = 0xfff0000000000000;
    uint64 internal constant NAN = 0x7ff8000000000000;
    uint64 internal constant MINUS_ZERO = 0x8000000000000000;

    /// Bits of the float64 value · 2^exponent; |value| below 2^53, the result normal.
    function f64(int256 value, int256 exponent) internal pure returns (uint64) {
        if (value == 0) return 0;
        uint256 m = uint256(value < 0 ? -value : value);
        uint256 top = Math.log2(m);
        uint256 fraction = (m << (52 - top)) & ((1 << 52) - 1);
        uint256 field = uint256(int256(top) + exponent + 1023);
        return uint64((value < 0 ? 1 << 63 : 0) | (field << 52) | fraction);
    }

    function f64(int256 value) internal pure returns (uint64) {
        return f64(value, 0);
    }

    /// Bits of the float32 value · 2^exponent; |value| below 2^24, the result normal.
    function f32(int256 value, int256 exponent) internal pure returns (uint32) {
        if (value == 0) return 0;
        uint256 m = uint256(value < 0 ? -value : value);
        uint256 top = Math.log2(m);
        uint256 fraction = (m << (23 - top)) & ((1 << 23) - 1);
        uint256 field = uint256(int256(top) + exponent + 127);
        return uint32((value < 0 ? 1 << 31 : 0) | (field << 23) | fraction);
    }

    function f32(int256 value) internal pure returns (uint32) {
        return f32(value, 0);
    }

    /// Bytes of `bits` in reverse order, `width` bytes of them.
    function le(uint256 bits, uint256 width) internal pure returns (bytes memory out) {
        out = new bytes(width);
        _write(out, 0, bits, width);
    }

    function _write(bytes memory out, uint256 from, uint256 bits, uint256 width) private pure {
        for (uint256 i; i < width; ++i) {
            out[from + i] = bytes1(uint8(bits >> (8 * i)));
        }
    }

    function le64(uint64 a) internal pure returns (bytes memory) {
        return le(a, 8);
    }

    function le64(uint64 a, uint64 b) internal pure returns (bytes memory) {
        return bytes.concat(le(a, 8), le(b, 8));
    }

    function le64(uint64 a, uint64 b, uint64 c) internal pure returns (bytes memory) {
        return bytes.concat(le(a, 8), le(b, 8), le(c, 8));
    }

    function le64(int256[] memory values) internal pure returns (bytes memory out) {
        out = new bytes(8 * values.length);
        for (uint256 i; i < values.length; ++i) {
            _write(out, 8 * i, f64(values[i]), 8);
        }
    }

    function le32(int256[] memory values) internal pure returns (bytes memory out) {
        out = new bytes(4 * values.length);
        for (uint256 i; i < values.length; ++i) {
            _write(out, 4 * i, f32(values[i]), 4);
        }
    }

    /// Whole numbers between −10^6 and 10^6 that depend on the seed alone.
    function numbers(uint256 n, uint256 seed) internal pure returns (int256[] memory out) {
        out = new int256[](n);
        for (uint256 i; i < n; ++i) {
            out[i] = int256(uint256(keccak256(abi.encode(seed, i))) % 2_000_001) - 1_000_000;
        }
    }

    function dot(int256[] memory a, int256[] memory b) internal pure returns (int256 sum) {
        for (uint256 i; i < a.length; ++i) {
            sum += a[i] * b[i];
        }
    }
}
