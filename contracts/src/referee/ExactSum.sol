// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Decode} from "./Decode.sol";
import {Real} from "./Real.sol";

/// What is the sum of at most 257 numbers? Twin: core/dispute/referee/sums.py.
///
/// Terms are laid on one grid of step 2^-80 of the largest term's unit, never finer than the
/// smallest float64; what lies below it is dropped towards zero.
///
/// INVARIANT: a term has at most 106 bits and lies at most 80 above the step: sums stay below
/// 2^195. Hence unchecked. Float64 values are read four at a time: behind the last is a word of
/// zeros.
library ExactSum {
    using Decode for Decode.Vector;

    int256 private constant DEPTH = 80;
    int256 private constant FLOOR = -1074;
    int256 private constant MANTISSA_BITS = 53;

    // A term: its sign, its exponent field plus what was added to it, and its mantissa.
    uint256 private constant SIGN_BIT =
        0x8000000000000000000000000000000000000000000000000000000000000000;
    uint256 private constant MANTISSA_MASK = 0x00ffffffffffffffffffffffffffffffffffffffff;

    // Signs, exponent fields and smallest normals of four float64 lanes; the last one's mantissa.
    // Loops keep them on the stack: the compiler would fetch each long constant from the code.
    uint256 private constant SIGNS =
        0x8000000000000000800000000000000080000000000000008000000000000000;
    uint256 private constant FIELDS =
        0x7ff00000000000007ff00000000000007ff00000000000007ff0000000000000;
    uint256 private constant SMALLEST =
        0x0010000000000000001000000000000000100000000000000010000000000000;
    uint256 private constant MANTISSA = 0x1fffffffffffff;

    /// Terms, the highest exponent field of those not zero, and how much too large all fields are.
    struct Terms {
        uint256[] list;
        uint256 highest;
        int256 offset;
    }

    /// Σ a[i]·b[j] over `n` terms from `fromA` and `fromB` on, the last of `b`'s float64 values.
    function dot(
        Decode.Vector memory a,
        uint256 fromA,
        Decode.Vector memory b,
        uint256 fromB,
        uint256 n
    ) internal pure returns (Real memory) {
        Terms memory terms;
        uint256 width = Decode.widthBytes(a.format);
        terms.offset = Decode.offset(a.format) + Decode.offset(Decode.F64);
        (terms.list, terms.highest) =
            _products(a.start + fromA * width, a.format, b.start + fromB * 8, n);
        return _total(terms);
    }

    /// Σ v[i] over the last `n` float64 values, from `from` on: `_singles` and `_total`, four
    /// values at a time and without a list of terms.
    function sum(Decode.Vector memory v, uint256 from, uint256 n)
        internal
        pure
        returns (Real memory)
    {
        uint256 start = v.start + from * 8;
        uint256 end = start + n * 8;
        int256 offset = Decode.offset(Decode.F64);
        int256 step = int256(_highest(start, end)) - DEPTH;
        if (step < FLOOR + offset) step = FLOOR + offset;
        return Real(_lanes(start, end, step), step - offset);
    }

    /// Σ v[i] over `n` float64 values from `from` on, and `last`'s value, of any format.
    function sumWith(Decode.Vector memory v, uint256 from, uint256 n, Decode.Vector memory last)
        internal
        pure
        returns (Real memory)
    {
        Terms memory terms = _singles(v, from, n, 1);
        uint256 term = last.term(0)
            + (uint256(terms.offset - Decode.offset(last.format)) << Decode.EXPONENT_AT);
        terms.list[n] = term;
        uint256 field = (term & ~SIGN_BIT) >> Decode.EXPONENT_AT;
        if (term & MANTISSA_MASK != 0 && field > terms.highest) terms.highest = field;
        return _total(terms);
    }

    /// The highest exponent field of float64 values in [place, end), at least the normals'
    /// smallest.
    function _highest(uint256 place, uint256 end) private pure returns (uint256 highest) {
        assembly ("memory-safe") {
            let signs := SIGNS
            let fields := FIELDS
            let found := SMALLEST // the highest of each lane
            for {} lt(place, end) { place := add(place, 32) } {
                let f := and(mload(place), fields)
                // A sign is left where what was found is not below: in most words in all lanes.
                let kept := and(sub(or(found, signs), f), signs)
                if xor(kept, signs) {
                    kept := sub(shl(1, kept), shr(63, kept))
                    found := xor(f, and(xor(f, found), kept))
                }
            }
            for {} found { found := shl(64, found) } {
                let f := shr(244, found)
                if gt(f, highest) { highest := f }
            }
        }
    }

    /// Σ t of float64 values in [place, end), in steps of exponent field `step`, four at a time.
    ///
    /// A mantissa goes up by 53 bits too many and down again, and vanishes below the grid, since
    /// the EVM takes a shift by a negative number for a huge one.
    function _lanes(uint256 place, uint256 end, int256 step) private pure returns (int256 total) {
        uint256 lower;
        unchecked {
            lower = uint256(step - MANTISSA_BITS);
        }
        assembly ("memory-safe") {
            let signs := SIGNS
            let fields := FIELDS
            let mantissa := MANTISSA
            for {} lt(place, end) { place := add(place, 32) } {
                let w := mload(place)
                // In each lane: the exponent field, and below the sign the mantissa.
                let f := and(w, fields)
                let m := and(add(f, fields), signs) // of those that are normal
                let least := xor(m, signs)
                m := or(xor(w, f), shr(11, m))
                f := or(shr(52, f), shr(63, least)) // a field of zero becomes one
                {
                    let above := sub(shr(192, f), lower)
                    let t := and(shr(192, m), mantissa)
                    t := shr(53, shl(above, t))
                    let sign := sar(255, w)
                    total := add(total, sub(xor(t, sign), sign))
                }
                {
                    let above := sub(and(shr(128, f), mantissa), lower)
                    let t := and(shr(128, m), mantissa)
                    t := shr(53, shl(above, t))
                    let sign := sar(255, shl(64, w))
                    total := add(total, sub(xor(t, sign), sign))
                }
                {
                    let above := sub(and(shr(64, f), mantissa), lower)
                    let t := and(shr(64, m), mantissa)
                    t := shr(53, shl(above, t))
                    let sign := sar(255, shl(128, w))
                    total := add(total, sub(xor(t, sign), sign))
                }
                {
                    let above := sub(and(f, mantissa), lower)
                    let t := and(m, mantissa)
                    t := shr(53, shl(above, t))
                    let sign := sar(255, shl(192, w))
                    total := add(total, sub(xor(t, sign), sign))
                }
            }
        }
    }

    /// Products of values at `a`, of any format, with float64 values at `b`.
    function _products(uint256 a, uint256 formatA, uint256 b, uint256 n)
        private
        pure
        returns (uint256[] memory list, uint256 highest)
    {
        list = _list(n);
        uint256 to;
        assembly ("memory-safe") {
            to := add(list, 32)
        }
        uint256 fieldAt = 256 - Decode.exponentBits(formatA);
        highest = _multiplied(
            a,
            b,
            b + 8 * n,
            to,
            fieldAt,
            8 * Decode.widthBytes(formatA),
            (1 << Decode.fractionBits(formatA)) - 1
        );
    }

    /// Terms from address `to` on, four at a time; those beyond the last are zero. `fieldAt` and
    /// `fractions` say where in `width` bits a value at `a` has its exponent field and fraction.
    ///
    /// A value at `a` stands at the top of the word, its sign in front; values at `b` in their
    /// lanes.
    function _multiplied(
        uint256 a,
        uint256 b,
        uint256 end,
        uint256 to,
        uint256 fieldAt,
        uint256 width,
        uint256 fractions
    ) private pure returns (uint256 highest) {
        assembly ("memory-safe") {
            let mantissa := MANTISSA
            mstore(0, SIGNS)
            mstore(32, FIELDS)
            for {} lt(b, end) { b := add(b, 32) } {
                let w := mload(b)
                // As in `_lanes`.
                let f := and(w, mload(32))
                let m := and(add(f, mload(32)), mload(0))
                f := or(shr(52, f), shr(63, xor(m, mload(0)))) // a field of zero becomes one
                m := or(xor(w, and(w, mload(32))), shr(11, m))
                let p := mload(a)
                {
                    let field := shr(fieldAt, shl(1, p))
                    let t :=
                        add(
                            and(shr(sub(256, width), p), fractions),
                            mul(add(fractions, 1), gt(field, 0))
                        )
                    t := mul(t, and(shr(192, m), mantissa))
                    field := add(add(field, iszero(field)), shr(192, f))
                    if gt(field, highest) { if t { highest := field } }
                    mstore(to, or(or(t, shl(160, field)), shl(255, shr(255, xor(p, w)))))
                    p := shl(width, p)
                }
                {
                    let field := shr(fieldAt, shl(1, p))
                    let t :=
                        add(
                            and(shr(sub(256, width), p), fractions),
                            mul(add(fractions, 1), gt(field, 0))
                        )
                    t := mul(t, and(shr(128, m), mantissa))
                    field := add(add(field, iszero(field)), and(shr(128, f), mantissa))
                    if gt(field, highest) { if t { highest := field } }
                    mstore(
                        add(to, 32),
                        or(or(t, shl(160, field)), shl(255, shr(255, xor(p, shl(64, w)))))
                    )
                    p := shl(width, p)
                }
                {
                    let field := shr(fieldAt, shl(1, p))
                    let t :=
                        add(
                            and(shr(sub(256, width), p), fractions),
                            mul(add(fractions, 1), gt(field, 0))
                        )
                    t := mul(t, and(shr(64, m), mantissa))
                    field := add(add(field, iszero(field)), and(shr(64, f), mantissa))
                    if gt(field, highest) { if t { highest := field } }
                    mstore(
                        add(to, 64),
                        or(or(t, shl(160, field)), shl(255, shr(255, xor(p, shl(128, w)))))
                    )
                    p := shl(width, p)
                }
                {
                    let field := shr(fieldAt, shl(1, p))
                    let t :=
                        add(
                            and(shr(sub(256, width), p), fractions),
                            mul(add(fractions, 1), gt(field, 0))
                        )
                    t := mul(t, and(m, mantissa))
                    field := add(add(field, iszero(field)), and(f, mantissa))
                    if gt(field, highest) { if t { highest := field } }
                    mstore(
                        add(to, 96),
                        or(or(t, shl(160, field)), shl(255, shr(255, xor(p, shl(192, w)))))
                    )
                }
                a := add(a, shr(1, width))
                to := add(to, 128)
            }
        }
    }

    /// Room for `n` terms, and three of zero, so that terms can be taken four at a time.
    function _list(uint256 n) private pure returns (uint256[] memory list) {
        list = new uint256[](n + 3);
        assembly ("memory-safe") {
            mstore(list, n)
        }
    }

    /// Terms of float64 values, with room for `spare` more.
    function _singles(Decode.Vector memory v, uint256 from, uint256 n, uint256 spare)
        private
        pure
        returns (Terms memory terms)
    {
        uint256[] memory list = _list(n + spare);
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

    function _total(Terms memory terms) private pure returns (Real memory) {
        // The step's exponent field may not fall below the floor of float64.
        int256 field = int256(terms.highest) - DEPTH;
        if (field < FLOOR + terms.offset) field = FLOOR + terms.offset;
        return Real(_laid(terms.list, uint256(field)), field - terms.offset);
    }

    /// Σ t in steps of exponent field `step`, the spare room of `_list` included.
    ///
    /// Of two shifts the one by a negative number gives nothing; by zero both give the same.
    function _laid(uint256[] memory list, uint256 step) private pure returns (int256 total) {
        assembly ("memory-safe") {
            let mantissas := MANTISSA_MASK
            let end := add(add(list, 32), shl(5, mload(list)))
            for { let place := add(list, 32) } lt(place, end) { place := add(place, 128) } {
                {
                    let t := mload(place)
                    let m := and(t, mantissas)
                    let above := sub(shr(161, shl(1, t)), step)
                    m := or(shl(above, m), shr(sub(0, above), m))
                    let sign := sar(255, t)
                    total := add(total, sub(xor(m, sign), sign))
                }
                {
                    let t := mload(add(place, 32))
                    let m := and(t, mantissas)
                    let above := sub(shr(161, shl(1, t)), step)
                    m := or(shl(above, m), shr(sub(0, above), m))
                    let sign := sar(255, t)
                    total := add(total, sub(xor(m, sign), sign))
                }
                {
                    let t := mload(add(place, 64))
                    let m := and(t, mantissas)
                    let above := sub(shr(161, shl(1, t)), step)
                    m := or(shl(above, m), shr(sub(0, above), m))
                    let sign := sar(255, t)
                    total := add(total, sub(xor(m, sign), sign))
                }
                {
                    let t := mload(add(place, 96))
                    let m := and(t, mantissas)
                    let above := sub(shr(161, shl(1, t)), step)
                    m := or(shl(above, m), shr(sub(0, above), m))
                    let sign := sar(255, t)
                    total := add(total, sub(xor(m, sign), sign))
                }
            }
        }
    }
}
