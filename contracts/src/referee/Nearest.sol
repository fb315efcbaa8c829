// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

import {Real, Reals} from "./Real.sol";

/// Which float64 is nearest to a number, a quotient or an inverse root, ties to even?
///
/// Zero is +0. Quotients and roots are cut at 124 bits or more before they are rounded, enough to
/// round as IEEE-754 has it. Twin: core/dispute/referee/nearest.py. INVARIANT: mantissas are below
/// 2^251, shifted ones below 2^252. Hence unchecked.
library Nearest {
    using Reals for Real;

    /// In place of bits where the nearest is an infinity, or no number is right.
    uint256 internal constant NONE = type(uint256).max;

    int256 private constant MANTISSA_BITS = 53;
    int256 private constant LOWEST = -1074;
    int256 private constant HIGHEST = 971; // exponent of the last bit of the largest float64
    int256 private constant WORK_BITS = 125;
    uint256 private constant HIDDEN = 1 << 52;

    /// The bits of the float64 nearest to `x`.
    function toBits(Real memory x) internal pure returns (uint256) {
        if (x.m == 0) return 0;
        unchecked {
            uint256 m = uint256(x.m < 0 ? -x.m : x.m);
            int256 unit = x.top() - MANTISSA_BITS;
            if (unit < LOWEST) unit = LOWEST;
            int256 drop = unit - x.e;
            if (drop > 252) return 0;
            if (drop <= 0) {
                m <<= uint256(-drop);
            } else {
                uint256 half = 1 << uint256(drop - 1);
                uint256 rest = m & (2 * half - 1);
                m >>= uint256(drop);
                if (rest > half || (rest == half && m & 1 == 1)) ++m;
                if (m == 2 * HIDDEN) (m, unit) = (HIDDEN, unit + 1);
            }
            if (m == 0) return 0;
            if (unit > HIGHEST) return NONE;
            if (m >= HIDDEN) m = (uint256(unit - LOWEST + 1) << 52) | (m - HIDDEN);
            return x.m < 0 ? m | (1 << 63) : m;
        }
    }

    /// a / b, cut towards zero; `b` must be positive.
    function quotient(Real memory a, Real memory b) internal pure returns (Real memory) {
        if (a.m == 0) return Real(0, 0);
        (int256 am, int256 ae) = _full(a);
        unchecked {
            int256 excess = Reals.bitLength(b.m) - WORK_BITS;
            (int256 bm, int256 be) =
                excess > 0 ? (Reals.shifted(b.m, -excess), b.e + excess) : (b.m, b.e);
            return Real((am << uint256(WORK_BITS)) / bm, ae - be - WORK_BITS);
        }
    }

    /// (n / mean)^½, cut towards zero; both must be positive.
    function inverseRoot(uint256 n, Real memory mean) internal pure returns (Real memory) {
        (int256 am, int256 ae) = _full(Real(int256(n), 0));
        (int256 bm, int256 be) = _full(mean);
        unchecked {
            int256 e = ae - be - WORK_BITS;
            int256 widened = WORK_BITS - 1 - (e & 1);
            uint256 square = uint256((am << uint256(WORK_BITS)) / bm) << uint256(widened);
            return Real(int256(Math.sqrt(square)), (e - widened) / 2);
        }
    }

    /// `a`, which is not zero, with exactly 125 bits of mantissa.
    function _full(Real memory a) private pure returns (int256 m, int256 e) {
        unchecked {
            int256 missing = WORK_BITS - Reals.bitLength(a.m);
            return (Reals.shifted(a.m, missing), a.e - missing);
        }
    }
}
