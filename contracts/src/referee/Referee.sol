// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {ExactSum} from "./ExactSum.sol";
import {Exp} from "./Exp.sol";
import {Leaf} from "./Leaf.sol";
import {Nearest} from "./Nearest.sol";
import {Real, Reals} from "./Real.sol";
import {Verdicts} from "./Verdicts.sol";

/// Is this value of a trace the one that there is? Twins: core/dispute/referee/exact.py, check.py.
///
/// Every value is the nearest float64 to its operator's value on its own operands, zero is +0, a
/// stabiliser is the largest score: so a trace has one set of bits (docs/trust.md §5).
contract Referee is IReferee {
    using Decode for Decode.Vector;
    using Exp for Real;
    using Leaf for bytes;
    using Nearest for Real;
    using Reals for Real;

    int256 private constant Q120 = -120;
    int256 private constant TWO_ROOT = 0x19884533D436508D0FCB3C500BAB8E2; // ⌊2 √(2/π) · 2^120⌋
    int256 private constant CUBIC = (44_715 << 120) / int256(1_000_000);
    int256 private constant SHAKE_BITS = 24;
    int256 private constant SHAKE_ONE = 1 << 24;
    int256 private constant LINEAR_BELOW = -60; // there tanh z is z but for 2^-120 of it

    /// What the operands are, and which bits the result must have.
    struct Found {
        Leaf.Operands o;
        uint256 bits;
    }

    function check(Kind kind, bytes calldata params, bytes calldata operands, int256 shake)
        external
        pure
        returns (Ruling)
    {
        if (kind >= Kind.Exceeds) return Verdicts.rule(kind, params, operands);
        if (kind == Kind.Score && _isHidden(params, operands)) return _isMinusInfinity(operands);
        if (kind == Kind.Softcap && _isCapped(params, operands)) {
            return _isMinusInfinity(operands);
        }
        if (kind == Kind.Exp && _isMasked(params, operands)) {
            return
                Leaf.toRuling(
                    Leaf.trace(operands[:16], 2).trace.finite && bytes8(operands[:8]) == 0
                );
        }
        Found memory found;
        if (kind <= Kind.Squares) _sums(kind, params, operands, found);
        else if (kind <= Kind.Rope) _norms(kind, params, operands, found);
        else if (kind <= Kind.Mix) _attention(kind, params, operands, found);
        else _elements(kind, params, operands, found);
        if (found.o.flaw != Ruling.Holds) return found.o.flaw;
        if (shake != 0 && found.bits != Nearest.NONE) _shake(found, shake);
        return Leaf.toRuling(_bits(found.o.trace, 0) == found.bits);
    }

    /// A float64 has 53 bits: the product is exact and rounded once.
    function _shake(Found memory found, int256 shake) private pure {
        Real memory value = Leaf.toConstant(found.bits);
        found.bits = value.times(SHAKE_ONE + shake).scaled(-SHAKE_BITS).toBits();
    }

    // --- values ---

    function _sums(Kind kind, bytes calldata params, bytes calldata operands, Found memory found)
        private
        pure
    {
        Leaf.Operands memory o;
        if (kind == Kind.Copy) {
            params.expectWords(0);
            o = found.o = operands.trace(2);
            if (o.flaw == Ruling.Holds) found.bits = _bits(o.trace, 1);
        } else if (kind == Kind.Input) {
            params.expectWords(1);
            o = found.o = operands.split(1, Decode.F64, 0, params.word(0), 1);
            if (o.flaw == Ruling.Holds) found.bits = o.row.real(0).toBits();
        } else if (kind == Kind.Embed) {
            params.expectWords(2);
            Real memory factor = Leaf.toConstant(params.word(1));
            o = found.o = operands.traceAndModel(1, params.word(0), 1);
            if (o.flaw == Ruling.Holds) found.bits = factor.mul(o.model.real(0)).toBits();
        } else if (kind == Kind.Linear) {
            params.expectWords(2);
            uint256 n = Leaf.toTerms(params.word(1));
            o = found.o = operands.traceAndModel(1 + n, params.word(0), n);
            if (o.flaw == Ruling.Holds) {
                found.bits = ExactSum.dot(o.model, 0, o.trace, 1, n).toBits();
            }
        } else if (kind == Kind.BiasSum) {
            params.expectWords(2);
            uint256 n = params.word(1);
            if (n == 0 || n >= Leaf.MAX_TERMS) revert TermsOutOfRange(n);
            o = found.o = operands.traceAndModel(1 + n, params.word(0), 1);
            if (o.flaw == Ruling.Holds) {
                found.bits = ExactSum.sumWith(o.trace, 1, n, o.model).toBits();
            }
        } else {
            params.expectWords(1);
            uint256 n = Leaf.toTerms(params.word(0));
            o = found.o = operands.trace(1 + n);
            if (o.flaw != Ruling.Holds) return;
            if (kind == Kind.Sum) found.bits = ExactSum.sum(o.trace, 1, n).toBits();
            else found.bits = ExactSum.dot(o.trace, 1, o.trace, 1, n).toBits();
        }
    }

    function _norms(Kind kind, bytes calldata params, bytes calldata operands, Found memory found)
        private
        pure
    {
        Leaf.Operands memory o;
        params.expectWords(2);
        if (kind == Kind.NormScale) {
            uint256 n = params.word(0);
            if (n == 0 || n > type(uint32).max) revert ParamOutOfRange(n);
            Real memory mean = Leaf.toConstant(params.word(1)).times(int256(n));
            o = found.o = operands.trace(2);
            if (o.flaw != Ruling.Holds) return;
            Real memory q = o.trace.real(1);
            mean = q.add(mean);
            found.bits =
                q.m < 0 || mean.m <= 0 ? Nearest.NONE : Nearest.inverseRoot(n, mean).toBits();
        } else if (kind == Kind.Norm) {
            Real memory gain = Leaf.toFlag(params.word(1)) ? Reals.one() : Real(0, 0);
            o = found.o = operands.traceAndModel(3, params.word(0), 1);
            if (o.flaw != Ruling.Holds) return;
            found.bits =
                o.trace.real(1).mul(o.trace.real(2)).mul(gain.add(o.model.real(0))).toBits();
        } else {
            bool minus = Leaf.toFlag(params.word(1));
            o = found.o = operands.traceAndModel(3, params.word(0), 2);
            if (o.flaw != Ruling.Holds) return;
            Real memory first = o.trace.real(1).mul(o.model.real(0));
            Real memory second = o.trace.real(2).mul(o.model.real(1));
            found.bits = (minus ? first.sub(second) : first.add(second)).toBits();
        }
    }

    function _attention(
        Kind kind,
        bytes calldata params,
        bytes calldata operands,
        Found memory found
    ) private pure {
        Leaf.Operands memory o;
        if (kind == Kind.Score) {
            uint256 n = params.word(0);
            o = found.o = operands.trace(1 + 2 * n);
            if (o.flaw != Ruling.Holds) return;
            Real memory factor = Leaf.toConstant(params.word(1));
            found.bits = ExactSum.dot(o.trace, 1, o.trace, 1 + n, n).mul(factor).toBits();
        } else if (kind == Kind.Stabiliser) {
            // One of the scores; that none is larger stands or falls with their exponentials.
            params.expectWords(0);
            o = found.o = operands.trace(2);
            if (o.flaw == Ruling.Holds) found.bits = _bits(o.trace, 1);
        } else if (kind == Kind.Exp) {
            o = found.o = operands.trace(3);
            if (o.flaw != Ruling.Holds) return;
            Real memory above = o.trace.real(2).sub(o.trace.real(1));
            found.bits = above.m > 0 ? Nearest.NONE : above.exp().toBits();
        } else if (kind == Kind.Probability) {
            params.expectWords(0);
            o = found.o = operands.trace(3);
            if (o.flaw != Ruling.Holds) return;
            Real memory e = o.trace.real(1);
            Real memory z = o.trace.real(2);
            found.bits = e.m < 0 || z.m <= 0 ? Nearest.NONE : Nearest.quotient(e, z).toBits();
        } else {
            params.expectWords(1);
            uint256 n = Leaf.toTerms(params.word(0));
            o = found.o = operands.trace(1 + 2 * n);
            if (o.flaw == Ruling.Holds) {
                found.bits = ExactSum.dot(o.trace, 1, o.trace, 1 + n, n).toBits();
            }
        }
    }

    function _elements(
        Kind kind,
        bytes calldata params,
        bytes calldata operands,
        Found memory found
    ) private pure {
        Leaf.Operands memory o;
        if (kind == Kind.WhitenDifference) {
            params.expectWords(2);
            o = found.o = operands.split(2, params.word(1), 1, params.word(0), 1);
            if (o.flaw == Ruling.Holds) _whitened(found, o.row.real(0).sub(o.trace.real(1)));
            return;
        }
        if (kind >= Kind.WhitenReference) {
            params.expectWords(1);
            bool change = kind == Kind.WhitenChange;
            o = found.o = operands.traceAndModel(change ? 3 : 2, params.word(0), 1);
            if (o.flaw != Ruling.Holds) return;
            Real memory a = o.trace.real(1);
            _whitened(found, change ? a.sub(o.trace.real(2)) : a);
            return;
        }
        bool two = kind == Kind.Product || kind == Kind.Add;
        bool withConstant = kind == Kind.Scale || kind == Kind.Softcap;
        params.expectWords(withConstant ? 1 : 0);
        Real memory constant_;
        if (withConstant) constant_ = Leaf.toConstant(params.word(0));
        o = found.o = operands.trace(two ? 3 : 2);
        if (o.flaw != Ruling.Holds) return;
        Real memory x = o.trace.real(1);
        if (kind == Kind.Silu) found.bits = _gated(x, x);
        else if (kind == Kind.GeluTanh) found.bits = _gated(x, _geluArgument(x));
        else if (kind == Kind.Product) found.bits = x.mul(o.trace.real(2)).toBits();
        else if (kind == Kind.Add) found.bits = x.add(o.trace.real(2)).toBits();
        else if (kind == Kind.Scale) found.bits = constant_.mul(x).toBits();
        else found.bits = _capped(x, constant_);
    }

    function _whitened(Found memory found, Real memory dividend) private pure {
        Real memory sigma = found.o.model.real(0);
        if (sigma.m <= 0) found.o.flaw = Ruling.ModelMalformed;
        else found.bits = Nearest.quotient(dividend, sigma).toBits();
    }

    /// g / (1 + e^-x), with the exponential of −|x| so that nothing overflows.
    function _gated(Real memory g, Real memory x) private pure returns (uint256) {
        Real memory e = x.decay();
        return Nearest.quotient(x.m < 0 ? g.mul(e) : g, Reals.one().add(e)).toBits();
    }

    /// 2 √(2/π) (g + 0.044715 g³): g / (1 + e^-that) is ½ g (1 + tanh) of half of it.
    function _geluArgument(Real memory g) private pure returns (Real memory) {
        Real memory cubed = g.mul(g).mul(g).mul(Real(CUBIC, Q120));
        return g.add(cubed).mul(Real(TWO_ROOT, Q120));
    }

    /// cap · tanh(x / cap).
    function _capped(Real memory x, Real memory cap) private pure returns (uint256) {
        if (x.m == 0 || x.top() - cap.top() < LINEAR_BELOW) return x.toBits();
        // e^(−2|x| / cap)
        Real memory e = Exp.expFixed(-Exp.quotientFixed(x.magnitude().scaled(1), cap));
        Real memory capped = cap.mul(Reals.one().sub(e));
        return Nearest.quotient(x.m < 0 ? capped.neg() : capped, Reals.one().add(e)).toBits();
    }

    // --- what is no finite number ---

    function _isHidden(bytes calldata params, bytes calldata operands)
        private
        pure
        returns (bool)
    {
        params.expectWords(5);
        uint256 n = Leaf.toTerms(params.word(0));
        Leaf.toConstant(params.word(1));
        operands.expectBytes(8 * (1 + 2 * n));
        (uint256 query, uint256 key, uint256 window) =
            (params.word(2), params.word(3), params.word(4));
        // Causal, and at most `window` positions wide if that is not 0.
        return key > query || (window != 0 && query - key >= window);
    }

    function _isCapped(bytes calldata params, bytes calldata operands)
        private
        pure
        returns (bool)
    {
        params.expectWords(1);
        if (Leaf.toConstant(params.word(0)).m <= 0) revert ConstantInvalid(params.word(0));
        operands.expectBytes(16);
        return bytes8(operands[8:]) == Decode.MINUS_INFINITY;
    }

    function _isMasked(bytes calldata params, bytes calldata operands)
        private
        pure
        returns (bool)
    {
        params.expectWords(0);
        operands.expectBytes(24);
        return bytes8(operands[16:]) == Decode.MINUS_INFINITY;
    }

    function _isMinusInfinity(bytes calldata operands) private pure returns (Ruling) {
        return Leaf.toRuling(bytes8(operands[:8]) == Decode.MINUS_INFINITY);
    }

    /// Bits of float64 number `index`.
    function _bits(Decode.Vector memory v, uint256 index) private pure returns (uint256 bits) {
        uint256 place = v.start + 8 * index;
        assembly ("memory-safe") {
            bits := shr(192, mload(place))
        }
    }
}
