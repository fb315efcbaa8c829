// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Claim} from "../../src/interfaces/ITraceJudge.sol";
import {Derive} from "../../src/trace/Derive.sol";
import {Layouts, Place} from "../../src/trace/Layout.sol";
import {Programs} from "../../src/trace/Program.sol";

/// What layout and derivation say of a claim's trace, by one program.
contract TraceLens {
    using Derive for Derive.Scene;
    using Layouts for Layouts.Layout;
    using Programs for Programs.Program;

    bytes private _program;

    constructor(bytes memory program) {
        _program = program;
    }

    function layoutOf(Claim calldata claim)
        external
        view
        returns (uint256 sections, uint256 chunks)
    {
        Layouts.Layout memory l = _scene(claim).frame;
        return (l.sections(), l.chunks);
    }

    function sectionOf(Claim calldata claim, uint256 section, uint256 op)
        external
        view
        returns (uint256 sectionType, uint256 base)
    {
        Layouts.Layout memory l = _scene(claim).frame;
        return (l.typeOf(section), l.baseOf(section, op));
    }

    function contains(Claim calldata claim, Place calldata place) external view returns (bool) {
        return _scene(claim).frame.contains(place);
    }

    function wholeOf(Claim calldata claim, Place calldata place)
        external
        view
        returns (uint256 parts, Derive.Leaf memory leaf)
    {
        Derive.Scene memory s = _scene(claim);
        s.set(place);
        parts = s.parts();
        leaf = s.whole(parts, 0);
    }

    function partOf(Claim calldata claim, Place calldata place, uint256 number)
        external
        view
        returns (Derive.Leaf memory)
    {
        Derive.Scene memory s = _scene(claim);
        s.set(place);
        return s.part(number);
    }

    function _scene(Claim calldata claim) private view returns (Derive.Scene memory s) {
        Programs.parse(s.frame.program, _program);
        (,, s.choice.tolerance) = s.frame.program.tolerance(claim.tolerance);
        s.choice.key0 = claim.key0;
        Derive.lay(s.frame, claim);
    }
}
