// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Exp} from "./Exp.sol";
import {Reals} from "./Real.sol";

/// What is ln x, to more bits than a float64 has, in integers? Twin:
/// core/dispute/referee/transcend.py.
///
/// Q120. Absolute error below 2^-107, and below 2^-112 near one. INVARIANT: m < 2^121, z < 2^118,
/// products stay below 2^241. Hence unchecked.
library Log {
    int256 private constant POINT = 120;
    int256 private constant UNIT = 1 << 120;
    int256 private constant SQRT_HALF = 0xB504F333F9DE6484597D89B3754ABE; // ⌊√½ · 2^120⌋
    int256 private constant TERMS = 23;

    /// ln(mantissa · 2^exponent) in Q120. `mantissa` must be positive and below 2^250.
    function lnFixed(int256 mantissa, int256 exponent) internal pure returns (int256) {
        unchecked {
            int256 k = Reals.bitLength(mantissa);
            int256 m = Reals.shifted(mantissa, POINT - k);
            k += exponent;
            if (m < SQRT_HALF) (m, k) = (2 * m, k - 1);
            // ln m = 2 artanh z with z = (m − 1) / (m + 1), |z| < 0.172
            int256 z = ((m < UNIT ? UNIT - m : m - UNIT) << uint256(POINT)) / (m + UNIT);
            int256 square = (z * z) >> uint256(POINT);
            int256 total;
            for (int256 n = 2 * TERMS + 1; n > 0; n -= 2) {
                total = UNIT / n + ((square * total) >> uint256(POINT));
            }
            int256 part = (2 * z * total) >> uint256(POINT);
            return k * Exp.LN2 + (m < UNIT ? -part : part);
        }
    }
}
