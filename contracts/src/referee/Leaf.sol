// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {Real} from "./Real.sol";

/// How is a leaf taken apart into words and three runs? Twin: core/dispute/referee/leaf.py.
library Leaf {
    /// Decoded operands; use them only if `flaw` is Holds, else it is the ruling.
    struct Operands {
        Decode.Vector trace;
        Decode.Vector model;
        Decode.Vector row;
        IReferee.Ruling flaw;
    }

    uint256 internal constant MAX_TERMS = 256;

    function expectWords(bytes calldata params, uint256 count) internal pure {
        if (params.length != 32 * count) revert IReferee.ParamsLength(params.length, 32 * count);
    }

    /// Word number `index`; the length has been checked.
    function word(bytes calldata params, uint256 index) internal pure returns (uint256) {
        return uint256(bytes32(params[32 * index:32 * index + 32]));
    }

    function toFlag(uint256 value) internal pure returns (bool) {
        if (value > 1) revert IReferee.FlagInvalid(value);
        return value == 1;
    }

    function toTerms(uint256 n) internal pure returns (uint256) {
        if (n == 0 || n > MAX_TERMS) revert IReferee.TermsOutOfRange(n);
        return n;
    }

    /// A finite float64 given by its bits in a parameter.
    function toConstant(uint256 bits) internal pure returns (Real memory) {
        uint256 limit = (1 << Decode.exponentBits(Decode.F64)) - 1;
        uint256 field = (bits >> Decode.fractionBits(Decode.F64)) & limit;
        if (bits > type(uint64).max || field == limit) revert IReferee.ConstantInvalid(bits);
        uint256 packed = Decode.pack(bits, Decode.fractionBits(Decode.F64), limit, 64);
        int256 m = int256(packed & Decode.MANTISSA);
        int256 e =
            int256((packed & ~Decode.SIGN) >> Decode.EXPONENT_AT) - Decode.offset(Decode.F64);
        return Real(packed & Decode.SIGN == 0 ? m : -m, e);
    }

    function expectBytes(bytes calldata operands, uint256 want) internal pure {
        if (operands.length != want) revert IReferee.OperandsLength(operands.length, want);
    }

    /// Operands of `count` trace values alone.
    function trace(bytes calldata operands, uint256 count)
        internal
        pure
        returns (Operands memory)
    {
        return split(operands, count, Decode.F64, 0, Decode.F64, 0);
    }

    /// Operands of trace and model values.
    function traceAndModel(bytes calldata operands, uint256 count, uint256 format, uint256 models)
        internal
        pure
        returns (Operands memory)
    {
        return split(operands, count, format, models, Decode.F64, 0);
    }

    /// A malformed row convicts its signer whatever the trace; a malformed model acquits.
    function split(
        bytes calldata operands,
        uint256 traceCount,
        uint256 modelFormat,
        uint256 modelCount,
        uint256 rowFormat,
        uint256 rowCount
    ) internal pure returns (Operands memory found) {
        uint256 modelAt = 8 * traceCount;
        uint256 rowAt = modelAt + Decode.widthBytes(Decode.toFormat(modelFormat)) * modelCount;
        expectBytes(operands, rowAt + Decode.widthBytes(Decode.toFormat(rowFormat)) * rowCount);
        found.row = Decode.vector(operands[rowAt:], rowFormat);
        found.model = Decode.vector(operands[modelAt:rowAt], modelFormat);
        found.trace = Decode.vector(operands[:modelAt], Decode.F64);
        if (!found.row.finite) found.flaw = IReferee.Ruling.RowMalformed;
        else if (!found.model.finite) found.flaw = IReferee.Ruling.ModelMalformed;
        else if (found.trace.finite) found.flaw = IReferee.Ruling.Holds;
    }

    function toRuling(bool holds) internal pure returns (IReferee.Ruling) {
        return holds ? IReferee.Ruling.Holds : IReferee.Ruling.Fails;
    }
}
