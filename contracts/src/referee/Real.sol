// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";

/// m · 2^e. Not normalised: equal values may have different fields. |m| < 2^251.
struct Real {
    int256 m;
    int256 e;
}

/// Numbers of any size, with the same bits in two languages. Twin: core/dispute/referee/real.py.
///
/// Sums and products are exact up to 250 bits; bits past that are dropped towards zero, at most
/// 2^-124 of the larger operand.
///
/// INVARIANT: mantissas stay below 2^251, and exponents are sums of fewer than a hundred numbers
/// below 2^14, so nothing overflows. Hence unchecked.
library Reals {
    int256 private constant FACTOR_BITS = 125; // two such factors make a product of 250 bits
    int256 private constant SUM_BITS = 250;
    int256 private constant KEPT_BITS = 251;

    function one() internal pure returns (Real memory) {
        return Real(1, 0);
    }

    function mul(Real memory a, Real memory b) internal pure returns (Real memory) {
        unchecked {
            (int256 am, int256 ae) = _trim(a.m, a.e, FACTOR_BITS);
            (int256 bm, int256 be) = _trim(b.m, b.e, FACTOR_BITS);
            return Real(am * bm, ae + be);
        }
    }

    /// a + b, exact unless their bits lie more than 250 apart.
    function add(Real memory a, Real memory b) internal pure returns (Real memory) {
        if (a.m == 0) return b;
        if (b.m == 0) return a;
        (Real memory high, Real memory low) = a.e >= b.e ? (a, b) : (b, a);
        unchecked {
            int256 apart = high.e - low.e;
            int256 left = SUM_BITS - bitLength(high.m);
            if (left > apart) left = apart;
            if (left < 0) left = 0;
            (int256 m, int256 e) = _trim(
                shifted(high.m, left) + shifted(low.m, left - apart), high.e - left, KEPT_BITS
            );
            return Real(m, e);
        }
    }

    function neg(Real memory a) internal pure returns (Real memory) {
        unchecked {
            return Real(-a.m, a.e);
        }
    }

    function sub(Real memory a, Real memory b) internal pure returns (Real memory) {
        return add(a, neg(b));
    }

    function magnitude(Real memory a) internal pure returns (Real memory) {
        return a.m < 0 ? neg(a) : a;
    }

    function times(Real memory a, int256 factor) internal pure returns (Real memory) {
        return mul(a, Real(factor, 0));
    }

    /// a · 2^exponent.
    function scaled(Real memory a, int256 exponent) internal pure returns (Real memory) {
        unchecked {
            return Real(a.m, a.e + exponent);
        }
    }

    /// The t for which 2^(t−1) ≤ |a| < 2^t; `a` must not be zero.
    function top(Real memory a) internal pure returns (int256) {
        unchecked {
            return bitLength(a.m) + a.e;
        }
    }

    /// a ≤ b; exact for mantissas of up to 125 bits.
    function atMost(Real memory a, Real memory b) internal pure returns (bool) {
        return sub(a, b).m <= 0;
    }

    /// m · 2^left, dropped bits towards zero.
    function shifted(int256 m, int256 left) internal pure returns (int256) {
        unchecked {
            if (left >= 0) return m << uint256(left);
            return m < 0 ? -int256(uint256(-m) >> uint256(-left)) : m >> uint256(-left);
        }
    }

    /// Bits of |m|; 0 for 0.
    function bitLength(int256 m) internal pure returns (int256) {
        if (m == 0) return 0;
        unchecked {
            return int256(Math.log2(uint256(m < 0 ? -m : m))) + 1;
        }
    }

    function _trim(int256 m, int256 e, int256 bits) private pure returns (int256, int256) {
        unchecked {
            int256 excess = bitLength(m) - bits;
            return excess > 0 ? (shifted(m, -excess), e + excess) : (m, e);
        }
    }
}
