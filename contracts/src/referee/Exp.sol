// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Real, Reals} from "./Real.sol";

/// What is e^x, to more bits than a float64 has, in integers? Twin:
/// core/dispute/referee/transcend.py.
///
/// Fixed point with 120 bits ("Q120"). Relative error below 2^-104 for |x| ≤ 4096. INVARIANT: |x| ≤
/// 2^132, partial sums are below 2^122, products below 2^243. Hence unchecked.
library Exp {
    using Reals for Real;

    uint256 internal constant POINT = 120;
    int256 internal constant UNIT = 1 << 120;
    int256 internal constant LN2 = 0xB17217F7D1CF79ABC9E3B39803F2F6; // ⌊ln 2 · 2^120⌋

    int256 private constant LIMIT_BITS = 12; // e^-4096 is far below any float64
    uint256 private constant TERMS = 28;

    /// `x` in Q120, towards zero, saturated at ±2^12.
    function toFixed(Real memory x) internal pure returns (int256) {
        if (x.m == 0) return 0;
        if (x.top() > LIMIT_BITS) {
            int256 limit = UNIT << uint256(LIMIT_BITS);
            return x.m < 0 ? -limit : limit;
        }
        return Reals.shifted(x.m, x.e + int256(POINT));
    }

    /// e^(x / 2^120), mantissa in Q120 between 1 and 2. `x` must lie within ±2^132.
    function expFixed(int256 x) internal pure returns (Real memory) {
        unchecked {
            int256 k = x / LN2;
            int256 rest = x - k * LN2;
            if (rest < 0) (k, rest) = (k - 1, rest + LN2);
            int256 total = UNIT;
            // Horner: 1 + r/1 (1 + r/2 (1 + …)), rest in [0, ln 2)
            for (int256 n = int256(TERMS); n > 0; --n) {
                total = UNIT + ((rest * total) >> POINT) / n;
            }
            return Real(total, k - int256(POINT));
        }
    }

    function exp(Real memory x) internal pure returns (Real memory) {
        return expFixed(toFixed(x));
    }

    /// e^-|x|.
    function decay(Real memory x) internal pure returns (Real memory) {
        return exp(x.magnitude().neg());
    }

    /// a / b in Q120, saturated at 2^12, for a ≥ 0 and b > 0 of at most 60 bits with a/b ≥ 2^-62.
    function quotientFixed(Real memory a, Real memory b) internal pure returns (int256) {
        if (a.m == 0) return 0;
        if (a.top() - b.top() >= LIMIT_BITS) return UNIT << uint256(LIMIT_BITS);
        return Reals.shifted(a.m, a.e - b.e + int256(POINT)) / b.m;
    }
}
