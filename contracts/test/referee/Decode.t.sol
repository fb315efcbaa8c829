// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../../src/interfaces/IReferee.sol";
import {Decode} from "../../src/referee/Decode.sol";
import {Real} from "../../src/referee/Real.sol";
import {Test} from "../Vm.sol";
import {Operands} from "./Operands.sol";

contract DecodeHarness {
    function all(bytes calldata raw, uint256 format)
        external
        pure
        returns (Real[] memory values, bool finite)
    {
        Decode.Vector memory v = Decode.vector(raw, Decode.toFormat(format));
        values = new Real[](v.count);
        for (uint256 i; i < v.count; ++i) {
            values[i] = Decode.real(v, i);
        }
        return (values, v.finite);
    }
}

contract DecodeTest is Test {
    DecodeHarness private immutable harness = new DecodeHarness();

    function one(uint256 bits, uint256 format)
        private
        view
        returns (Real memory value, bool finite)
    {
        Real[] memory values;
        (values, finite) = harness.all(Operands.le(bits, Decode.widthBytes(format)), format);
        return (values[0], finite);
    }

    function assertValue(uint256 bits, uint256 format, int256 m, int256 e) private view {
        (Real memory value, bool finite) = one(bits, format);
        vm.assertTrue(finite);
        vm.assertTrue(value.m == m && value.e == e);
    }

    function test_real_ofOne_isItsHiddenBit() public view {
        assertValue(0x3f80, Decode.BF16, 1 << 7, -7);
        assertValue(0x3c00, Decode.FP16, 1 << 10, -10);
        assertValue(0x3f800000, Decode.FP32, 1 << 23, -23);
        assertValue(0x3ff0000000000000, Decode.F64, 1 << 52, -52);
    }

    function test_real_ofTheSmallest_isOneUnit() public view {
        assertValue(1, Decode.BF16, 1, -133);
        assertValue(1, Decode.FP16, 1, -24);
        assertValue(1, Decode.FP32, 1, -149);
        assertValue(0x8000000000000001, Decode.F64, -1, -1074);
    }

    function test_real_ofTheLargest_hasAllBits() public view {
        assertValue(0x7f7f, Decode.BF16, 255, 120);
        assertValue(0xfbff, Decode.FP16, -2047, 5);
        assertValue(0x7f7fffff, Decode.FP32, (1 << 24) - 1, 104);
        assertValue(0x7fefffffffffffff, Decode.F64, (1 << 53) - 1, 971);
    }

    function test_real_ofEitherZero_isZero() public view {
        for (uint256 format; format <= Decode.F64; ++format) {
            (Real memory value,) = one(0, format);
            vm.assertTrue(value.m == 0);
            (value,) = one(1 << (8 * Decode.widthBytes(format) - 1), format);
            vm.assertTrue(value.m == 0);
        }
    }

    /// Fields taken apart by plain division, for any bits of any format.
    function test_real_isSignFieldAndFraction(uint256 bits, uint256 format) public view {
        format = bound(format, 0, Decode.F64);
        uint256 width = 8 * Decode.widthBytes(format);
        bits = bits % (1 << width);
        uint256 fractions = 1 << Decode.fractionBits(format);
        uint256 fields = 1 << Decode.exponentBits(format);
        uint256 field = (bits / fractions) % fields;
        (Real memory value, bool finite) = one(bits, format);
        vm.assertEq(finite, field != fields - 1);
        if (!finite) return;
        int256 m = int256(bits % fractions + (field == 0 ? 0 : fractions));
        vm.assertTrue(value.m == (bits >> (width - 1) == 1 ? -m : m));
        vm.assertTrue(
            value.e
                == int256(field == 0 ? 1 : field) - int256(fields / 2 - 1)
                    - int256(Decode.fractionBits(format))
        );
    }

    /// An infinity or NaN is found in any lane, and what follows a run is not looked at.
    function test_finite_findsAnyLane(uint256 seed, uint256 count, uint256 place, uint256 format)
        public
        view
    {
        format = bound(format, 0, Decode.F64);
        count = bound(count, 1, 40);
        place = bound(place, 0, count - 1);
        uint256 width = Decode.widthBytes(format);
        uint256 infinity = ((1 << Decode.exponentBits(format)) - 1) << Decode.fractionBits(format);
        bytes memory raw;
        bytes memory spoilt;
        for (uint256 i; i < count; ++i) {
            uint256 bits = uint256(keccak256(abi.encode(seed, i)));
            bytes memory value = Operands.le(bits & ~(1 << Decode.fractionBits(format)), width);
            raw = bytes.concat(raw, value);
            spoilt = bytes.concat(spoilt, i == place ? Operands.le(bits | infinity, width) : value);
        }
        (, bool finite) = harness.all(raw, format);
        vm.assertTrue(finite);
        (, finite) = harness.all(spoilt, format);
        vm.assertFalse(finite);
    }

    function test_toFormat_unknown_reverts() public {
        vm.expectRevert(abi.encodeWithSelector(IReferee.FormatUnknown.selector, 4));
        harness.all("", 4);
    }
}
