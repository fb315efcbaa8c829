// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../interfaces/IReferee.sol";
import {Decode} from "./Decode.sol";
import {ExactSum} from "./ExactSum.sol";
import {Exp} from "./Exp.sol";
import {Leaf} from "./Leaf.sol";
import {Log} from "./Log.sol";
import {Philox} from "./Philox.sol";
import {Real} from "./Real.sol";

/// Which numbers lie behind a ruling? For free calls: a dispute's page, a miner's self-test, and the comparison with the Python twin.
contract RefereeLens {
    struct Case {
        IReferee.Kind kind;
        bytes params;
        bytes operands;
    }

    /// Answer of `rulings` for a leaf on which the referee reverts.
    uint8 public constant REVERTS = 255;

    IReferee public immutable referee;

    constructor(IReferee referee_) {
        referee = referee_;
    }

    /// One byte a leaf: its ruling, or REVERTS.
    function rulings(Case[] calldata cases) external view returns (bytes memory found) {
        found = new bytes(cases.length);
        for (uint256 i; i < cases.length; ++i) {
            try referee.check(cases[i].kind, cases[i].params, cases[i].operands) returns (
                IReferee.Ruling ruling
            ) {
                found[i] = bytes1(uint8(ruling));
            } catch {
                found[i] = bytes1(REVERTS);
            }
        }
    }

    /// e^(x / 2^120) for each x, as mantissas and exponents.
    function exps(int256[] calldata x) external pure returns (Real[] memory found) {
        found = new Real[](x.length);
        for (uint256 i; i < x.length; ++i) {
            found[i] = Exp.expFixed(x[i]);
        }
    }

    /// ln(m · 2^e) in Q120 for each number.
    function logs(Real[] calldata x) external pure returns (int256[] memory found) {
        found = new int256[](x.length);
        for (uint256 i; i < x.length; ++i) {
            found[i] = Log.lnFixed(x[i].m, x[i].e);
        }
    }

    /// The Philox word and the noise, in Q120, of each token at one step.
    function noises(uint32 key0, uint32 key1, uint32 step, uint32[] calldata tokens)
        external
        pure
        returns (uint32[] memory words, int256[] memory noise)
    {
        words = new uint32[](tokens.length);
        noise = new int256[](tokens.length);
        for (uint256 i; i < tokens.length; ++i) {
            words[i] = uint32(Philox.word(step, tokens[i], key0, key1));
            noise[i] = Philox.gumbelOf(words[i]);
        }
    }

    /// Values of committed bytes; nothing if one is not finite.
    function decode(bytes calldata raw, uint256 format)
        external
        pure
        returns (Real[] memory found)
    {
        Decode.Vector memory v = Decode.vector(raw, Decode.toFormat(format));
        if (!v.finite) return found;
        found = new Real[](v.count);
        for (uint256 i; i < v.count; ++i) {
            found[i] = Decode.real(v, i);
        }
    }

    /// Σ w·x of a Linear leaf's operands, whatever its result.
    function sums(uint256 format, uint256 n, bytes calldata operands)
        external
        pure
        returns (Real memory)
    {
        Leaf.Operands memory o = Leaf.traceAndModel(operands, 1 + Leaf.toTerms(n), format, n);
        return ExactSum.dot(o.model, 0, o.trace, 1, n);
    }
}
