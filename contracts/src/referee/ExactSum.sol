// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Decode} from "./Decode.sol";
import {Real, Reals} from "./Real.sol";

/// What is the sum of at most 256 numbers, and of their magnitudes, as integers? Twin: core/protocol/referee/sums.py.
///
/// All terms are laid on one grid whose step is 2^-80 of the largest term's unit (never finer than the smallest float64), and summed
/// there. What lies below the grid is dropped towards zero, less than one step a term; `slack` holds it and the float64 underflow
/// that an honest machine may have had.
///
/// INVARIANT: a term has at most 106 bits, lies at most 80 above the step, and there are at most 257: sums stay below 2^195. Hence
/// unchecked; assembly reads and writes the array of terms without the bounds checks that its loop already makes.
library ExactSum {
    using Decode for Decode.Vector;
    using Reals for Real;

    struct Sum {
        Real total;
        Real magnitude;
        Real slack;
    }

    int256 private constant DEPTH = 80;
    int256 private constant FLOOR = -1074;
    int256 private constant ROUNDOFF_BITS = 50;

    // A term is one word: its sign, its exponent field plus whatever was added to it, and its mantissa.
    uint256 private constant SIGN_BIT = 0x8000000000000000000000000000000000000000000000000000000000000000;
    uint256 private constant MANTISSA_MASK = 0x00ffffffffffffffffffffffffffffffffffffffff;

    /// Terms, the highest exponent field among those that are not zero, and how much too large all fields are.
    struct Terms {
        uint256[] list;
        uint256 highest;
        int256 offset;
    }

    /// Σ a[i]·b[j] over `n` terms, i from `fromA` on and j from `fromB` on. `b` holds float64 values.
    function dot(Decode.Vector memory a, uint256 fromA, Decode.Vector memory b, uint256 fromB, uint256 n)
        internal
        pure
        returns (Sum memory)
    {
        Terms memory terms;
        uint256 width = Decode.widthBytes(a.format);
        terms.offset = Decode.offset(a.format) + Decode.offset(Decode.F64);
        (terms.list, terms.highest) = _products(a.start + fromA * width, a.format, b.start + fromB * 8, n);
        return _total(terms);
    }

    /// Σ v[i] over `n` float64 values from `from` on.
    ///
    /// As `_singles` and `_total` together, without a term in memory for each value: the sum of partial sums is most of a move's work.
    function sum(Decode.Vector memory v, uint256 from, uint256 n) internal pure returns (Sum memory) {
        uint256 start = v.start + from * 8;
        uint256 end = start + n * 8;
        uint256 highest = 1; // subnormals and zeros have the exponent field of the smallest normals
        assembly ("memory-safe") {
            for { let place := start } lt(place, end) { place := add(place, 8) } {
                let field := shr(245, shl(1, mload(place)))
                if gt(field, highest) { highest := field }
            }
        }
        int256 offset = Decode.offset(Decode.F64);
        int256 step = int256(highest) - DEPTH;
        if (step < FLOOR + offset) step = FLOOR + offset;
        int256 total;
        int256 magnitude;
        assembly ("memory-safe") {
            for { let place := start } lt(place, end) { place := add(place, 8) } {
                let p := mload(place)
                let field := shr(245, shl(1, p))
                let m := or(shr(204, shl(12, p)), shl(52, gt(field, 0)))
                let above := sub(add(field, iszero(field)), step)
                m := or(shl(above, m), shr(sub(0, above), m)) // one of the two shifts is out of range, see `_laid`
                magnitude := add(magnitude, m)
                let minus := sub(0, shr(255, p))
                total := add(total, sub(xor(m, minus), minus))
            }
        }
        int256 e = step - offset;
        return Sum(Real(total, e), Real(magnitude, e), Real(int256(2 * (n + 1)), e));
    }

    /// Σ v[i] over `n` float64 values from `from` on, and the one value of `last`, whose format may be a smaller one.
    function sumWith(Decode.Vector memory v, uint256 from, uint256 n, Decode.Vector memory last) internal pure returns (Sum memory) {
        Terms memory terms = _singles(v, from, n, 1);
        uint256 term = last.term(0) + (uint256(terms.offset - Decode.offset(last.format)) << Decode.EXPONENT_AT);
        terms.list[n] = term;
        uint256 field = (term & ~SIGN_BIT) >> Decode.EXPONENT_AT;
        if (term & MANTISSA_MASK != 0 && field > terms.highest) terms.highest = field;
        return _total(terms);
    }

    /// |y − c Σt| ≤ γ_n |c| Σ|t| + η with γ_n = n·u / (1 − n·u), multiplied through by (1 − n·u) / u.
    function holdsGamma(Real memory y, Sum memory found, uint256 n, Real memory factor) internal pure returns (bool) {
        int256 left = int256((1 << uint256(ROUNDOFF_BITS)) - n);
        Real memory size = factor.magnitude();
        Real memory bound = found.magnitude.mul(size).times(int256(n));
        Real memory slack = found.slack.mul(size).add(Reals.eta()).scaled(ROUNDOFF_BITS);
        return y.times(left).within(found.total.mul(factor).times(left), bound.add(slack));
    }

    function holdsGamma(Real memory y, Sum memory found, uint256 n) internal pure returns (bool) {
        return holdsGamma(y, found, n, Reals.one());
    }

    /// Products of values at `a`, of any format, and at `b`, of float64: mantissas multiply, exponent fields add, signs meet.
    ///
    /// A value stands at the top of the word read: its sign in front, so shifting left drops what lies before a part and right
    /// what follows it.
    function _products(uint256 a, uint256 formatA, uint256 b, uint256 n) private pure returns (uint256[] memory list, uint256 highest) {
        list = new uint256[](n);
        uint256 fraction = Decode.fractionBits(formatA);
        uint256 exponent = Decode.exponentBits(formatA);
        assembly ("memory-safe") {
            let step := shr(3, add(add(fraction, exponent), 1))
            let end := add(b, shl(3, n))
            for { let to := add(list, 32) } lt(b, end) { to := add(to, 32) } {
                let p := mload(a)
                let q := mload(b)
                let field := shr(sub(256, exponent), shl(1, p))
                let hidden := iszero(iszero(field))
                let m := or(shr(sub(256, fraction), shl(add(exponent, 1), p)), shl(fraction, hidden))
                field := add(field, iszero(hidden))
                let fieldB := shr(245, shl(1, q))
                hidden := iszero(iszero(fieldB))
                m := mul(m, or(shr(204, shl(12, q)), shl(52, hidden)))
                field := add(field, add(fieldB, iszero(hidden)))
                mstore(to, or(or(m, shl(160, field)), and(xor(p, q), SIGN_BIT)))
                if gt(field, highest) { if m { highest := field } }
                a := add(a, step)
                b := add(b, 8)
            }
        }
    }

    /// Terms of float64 values, with room for `spare` more.
    function _singles(Decode.Vector memory v, uint256 from, uint256 n, uint256 spare) private pure returns (Terms memory terms) {
        uint256[] memory list = new uint256[](n + spare);
        uint256 place = v.start + from * 8;
        uint256 highest;
        assembly ("memory-safe") {
            let end := add(place, shl(3, n))
            for { let to := add(list, 32) } lt(place, end) { to := add(to, 32) } {
                let p := mload(place)
                let field := shr(245, shl(1, p))
                let hidden := iszero(iszero(field))
                let m := or(shr(204, shl(12, p)), shl(52, hidden))
                field := add(field, iszero(hidden))
                mstore(to, or(or(m, shl(160, field)), and(p, SIGN_BIT)))
                if gt(field, highest) { if m { highest := field } }
                place := add(place, 8)
            }
        }
        return Terms(list, highest, Decode.offset(Decode.F64));
    }

    function _total(Terms memory terms) private pure returns (Sum memory found) {
        // The step's exponent field may not fall below the floor of float64.
        int256 field = int256(terms.highest) - DEPTH;
        if (field < FLOOR + terms.offset) field = FLOOR + terms.offset;
        (int256 total, int256 magnitude) = _laid(terms.list, uint256(field));
        int256 e = field - terms.offset;
        return Sum(Real(total, e), Real(magnitude, e), Real(int256(2 * (terms.list.length + 1)), e));
    }

    /// Σ t and Σ |t| in steps whose exponent field is `step`.
    ///
    /// Of the two shifts, the one by a negative number gives nothing, since the EVM takes it for a huge one; by zero both give the same.
    function _laid(uint256[] memory list, uint256 step) private pure returns (int256 total, int256 magnitude) {
        assembly ("memory-safe") {
            let end := add(add(list, 32), shl(5, mload(list)))
            for { let place := add(list, 32) } lt(place, end) { place := add(place, 32) } {
                let t := mload(place)
                let m := and(t, MANTISSA_MASK)
                let above := sub(shr(161, shl(1, t)), step)
                m := or(shl(above, m), shr(sub(0, above), m))
                magnitude := add(magnitude, m)
                let minus := sub(0, shr(255, t))
                total := add(total, sub(xor(m, minus), minus))
            }
        }
    }
}
