// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../../src/interfaces/IReferee.sol";
import {Decode} from "../../src/referee/Decode.sol";
import {Referee} from "../../src/referee/Referee.sol";
import {Test} from "../Vm.sol";
import {Operands} from "./Operands.sol";

/// What does one leaf cost, executed and as its own transaction, at 256 terms where it has any?
contract RefereeGasTest is Test {
    uint256 private constant N = 256;
    uint256 private constant MOST_GAS = 500_000;
    uint256 private constant MOST_BYTES = 16_384;

    IReferee private immutable referee = new Referee();

    function snapshot(
        string memory name,
        IReferee.Kind kind,
        bytes memory params,
        bytes memory operands
    ) private {
        _snapshot(name, kind, params, operands, IReferee.Ruling.Holds);
    }

    function _snapshot(
        string memory name,
        IReferee.Kind kind,
        bytes memory params,
        bytes memory operands,
        IReferee.Ruling expected
    ) private {
        IReferee.Ruling ruling = referee.check(kind, params, operands, 0);
        uint256 execution = vm.snapshotGasLastCall("Referee", string.concat(name, " (execution)"));
        vm.assertTrue(ruling == expected, name);
        bytes memory call = abi.encodeCall(IReferee.check, (kind, params, operands, 0));
        vm.assertLe(call.length, MOST_BYTES, name);
        uint256 gas = transactionGas(call, execution);
        vm.snapshotValue("Referee", name, gas);
        vm.assertLe(gas, MOST_GAS, name);
    }

    /// Gas of a transaction with this input: EIP-2028 with the floor of EIP-7623.
    function transactionGas(bytes memory input, uint256 execution) private pure returns (uint256) {
        uint256 tokens;
        for (uint256 i; i < input.length; ++i) {
            tokens += input[i] == 0 ? 1 : 4;
        }
        uint256 standard = 4 * tokens + execution;
        uint256 least = 10 * tokens;
        return 21_000 + (standard > least ? standard : least);
    }

    function word(uint256 value) private pure returns (bytes memory) {
        return abi.encode(value);
    }

    /// `n` numbers of `width` bytes, hardly any of them zero.
    function dense(uint256 n, uint256 width, uint256 seed)
        private
        pure
        returns (bytes memory out)
    {
        for (uint256 i; i < n; ++i) {
            uint256 bits = uint256(keccak256(abi.encode(seed, i)));
            uint256 mantissa = width == 8 ? 52 : width == 4 ? 23 : 7;
            uint256 field = (width == 8 ? 1000 : 110) + (bits >> 200) % 24;
            out = bytes.concat(
                out,
                Operands.le(
                    (bits & ((1 << mantissa) - 1)) | (field << mantissa)
                        | (bits & (1 << (8 * width - 1))),
                    width
                )
            );
        }
    }

    /// A result that is not the sum costs what the sum costs.
    function snapshotDense(
        string memory name,
        IReferee.Kind kind,
        bytes memory params,
        bytes memory operands
    ) private {
        _snapshot(name, kind, params, operands, IReferee.Ruling.Fails);
    }

    function test_sums_cost() public {
        bytes memory trace = dense(1 + N, 8, 1);
        bytes memory both = bytes.concat(trace, dense(N, 8, 2));
        snapshotDense(
            "Linear bf16 n=256",
            IReferee.Kind.Linear,
            abi.encode(Decode.BF16, N),
            bytes.concat(trace, dense(N, 2, 3))
        );
        snapshotDense(
            "Linear fp32 n=256",
            IReferee.Kind.Linear,
            abi.encode(Decode.FP32, N),
            bytes.concat(trace, dense(N, 4, 3))
        );
        snapshotDense("Mix n=256", IReferee.Kind.Mix, word(N), both);
        snapshotDense(
            "Score n=256", IReferee.Kind.Score, abi.encode(N, Operands.f64(1, -4), 7, 5, 0), both
        );
        snapshotDense("Squares n=256", IReferee.Kind.Squares, word(N), trace);
        snapshotDense("Sum n=256", IReferee.Kind.Sum, word(N), trace);
        bytes memory biased = bytes.concat(dense(N, 8, 4), dense(1, 4, 5));
        snapshotDense(
            "BiasSum n=255", IReferee.Kind.BiasSum, abi.encode(Decode.FP32, N - 1), biased
        );
    }

    function test_elements_cost() public {
        uint64 six = Operands.f64(6);
        uint64 two = Operands.f64(2);
        uint64 three = Operands.f64(3);
        bytes memory six32 = Operands.le(Operands.f32(6), 4);
        snapshot("Copy", IReferee.Kind.Copy, "", Operands.le64(six, six));
        snapshot(
            "Input",
            IReferee.Kind.Input,
            word(Decode.FP32),
            bytes.concat(Operands.le64(six), six32)
        );
        snapshot(
            "Embed",
            IReferee.Kind.Embed,
            abi.encode(Decode.FP32, Operands.f64(1)),
            bytes.concat(Operands.le64(six), six32)
        );
        snapshot("Product", IReferee.Kind.Product, "", Operands.le64(six, two, three));
        snapshot("Scale", IReferee.Kind.Scale, word(two), Operands.le64(six, three));
        snapshot("Add", IReferee.Kind.Add, "", Operands.le64(six, three, three));
    }

    function test_normAndRope_cost() public {
        (uint64 one, uint64 two, uint64 six) = (Operands.f64(1), Operands.f64(2), Operands.f64(6));
        bytes memory three32 = Operands.le(Operands.f32(3), 4);
        snapshot(
            "NormScale",
            IReferee.Kind.NormScale,
            abi.encode(640, 0),
            Operands.le64(one, Operands.f64(640))
        );
        snapshot(
            "Norm",
            IReferee.Kind.Norm,
            abi.encode(Decode.FP32, 0),
            bytes.concat(Operands.le64(six, two, one), three32)
        );
        bytes memory table = bytes.concat(Operands.le(Operands.f32(1), 4), Operands.le(0, 4));
        snapshot(
            "Rope",
            IReferee.Kind.Rope,
            abi.encode(Decode.FP32, 1),
            bytes.concat(Operands.le64(two, two, six), table)
        );
    }

    function test_softmax_cost() public {
        (uint64 one, uint64 two, uint64 half) =
            (Operands.f64(1), Operands.f64(2), Operands.f64(1, -1));
        snapshot("Stabiliser", IReferee.Kind.Stabiliser, "", Operands.le64(two, two));
        uint64 eToMinus1 = 0x3fd78b56362cef38; // exp(-1)
        snapshot("Exp", IReferee.Kind.Exp, "", Operands.le64(eToMinus1, two, one));
        snapshot("Probability", IReferee.Kind.Probability, "", Operands.le64(half, one, two));
    }

    function test_activations_cost() public {
        uint64 one = Operands.f64(1);
        // 1 / (1 + 1/e)
        snapshot("Silu", IReferee.Kind.Silu, "", Operands.le64(0x3fe764d4f5d5a2bd, one));
        // 0.8411919906082768
        snapshot("GeluTanh", IReferee.Kind.GeluTanh, "", Operands.le64(0x3feaeb0b772a3ae1, one));
        snapshot(
            "Softcap", IReferee.Kind.Softcap, word(one), Operands.le64(0x3fe85efab514f394, one)
        ); // tanh 1
    }

    function test_verdicts_cost() public {
        (uint64 one, uint64 two, uint64 four) = (Operands.f64(1), Operands.f64(2), Operands.f64(4));
        bytes memory two32 = Operands.le(Operands.f32(2), 4);
        bytes memory six32 = Operands.le(Operands.f32(6), 4);
        bytes memory operands = bytes.concat(Operands.le64(two, two), two32, six32); // (6 - 2) / 2
        snapshot(
            "WhitenDifference",
            IReferee.Kind.WhitenDifference,
            abi.encode(Decode.FP32, Decode.FP32),
            operands
        );
        snapshot(
            "WhitenReference",
            IReferee.Kind.WhitenReference,
            word(Decode.FP32),
            bytes.concat(Operands.le64(one, two), two32)
        );
        snapshot(
            "WhitenChange",
            IReferee.Kind.WhitenChange,
            word(Decode.FP32),
            bytes.concat(Operands.le64(one, four, two), two32)
        );
        snapshot("Exceeds", IReferee.Kind.Exceeds, word(1e12), Operands.le64(two, one));
        snapshot("Greedy", IReferee.Kind.Greedy, word(10_000), Operands.le64(two, one));
        bytes memory filters = Operands.le64(four, four, Operands.f64(50));
        bytes memory ahead = bytes.concat(
            Operands.le64(Operands.f64(60), one), Operands.le64(Operands.f64(60), Operands.f64(30))
        );
        ahead = bytes.concat(ahead, Operands.le64(Operands.f64(50)));
        filters = abi.encode(10_000, 800_000, 1, 2, 3, 4, 5, 50_000, 50);
        snapshot("Gumbel, min-p, top-k", IReferee.Kind.Gumbel, filters, ahead);
        snapshot(
            "OutsideMinP",
            IReferee.Kind.OutsideMinP,
            abi.encode(10_000, 800_000, 50_000),
            Operands.le64(Operands.f64(9), one)
        );
    }
}
