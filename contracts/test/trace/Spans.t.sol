// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEscrow} from "../../src/interfaces/IEscrow.sol";
import {IModelRegistry} from "../../src/interfaces/IModelRegistry.sol";
import {IRowJudge, RowSpot, Side, SignedRows} from "../../src/interfaces/IRowJudge.sol";
import {ITraceJudge, RowOpening} from "../../src/interfaces/ITraceJudge.sol";
import {ProgramStore} from "../../src/trace/ProgramStore.sol";
import {RowJudge} from "../../src/trace/RowJudge.sol";
import {ModelId} from "../../src/types/Ids.sol";
import {RequestLeaf, RequestRows} from "../../src/types/Signed.sol";
import {Test} from "../Vm.sol";
import {ToyProgram} from "../fixtures/ToyProgram.sol";
import {OneProfile} from "./Judges.t.sol";

/// Are these rows one span of a stage, by what it signed? A stage of layers [from, to) of which
/// every `span` have a boundary between them.
contract SpansTest is Test {
    ModelId private constant MODEL = ModelId.wrap("model");

    OneProfile private profiles = new OneProfile();
    ProgramStore private programs = new ProgramStore();
    RowJudge private judge;

    function setUp() public {
        IModelRegistry models = IModelRegistry(address(profiles));
        judge = new RowJudge(models, programs, address(0), IEscrow(address(0)));
    }

    struct Scene {
        uint256 from;
        uint256 to;
        uint256 span;
        RequestLeaf leaf;
        bytes32[] inner;
    }

    function scene(uint16 from, uint16 layers, uint8 span) private returns (Scene memory s) {
        s.from = from % 500;
        s.span = uint256(span) % 40 + 1;
        s.to = s.from + s.span + 1 + layers % 200;
        ToyProgram.Toy memory t = ToyProgram.toy();
        t.span = uint8(s.span);
        profiles.set(programs.store(ToyProgram.bytesOf(t)));
        s.inner = new bytes32[]((s.to - s.from - 1) / s.span);
        for (uint256 i; i < s.inner.length; ++i) {
            s.inner[i] = keccak256(abi.encode("inside", i));
        }
        bytes32 innerRoot = sha256(abi.encodePacked(hex"05", s.inner));
        s.leaf = RequestLeaf(3, keccak256("in"), keccak256("out"), 40, 60, innerRoot);
    }

    function spanOf(Scene memory s, uint256 number) private pure returns (SignedRows memory) {
        uint256 start = s.from + number * s.span;
        uint256 end = start + s.span < s.to ? start + s.span : s.to;
        RequestLeaf memory l = s.leaf;
        RequestRows memory rows = RequestRows(
            l.requestIndex,
            number == 0 ? l.inRoot : s.inner[number - 1],
            number == s.inner.length ? l.outRoot : s.inner[number],
            l.tokensIn,
            l.tokensOut
        );
        return SignedRows(MODEL, rows, uint16(start), uint16(end), 0);
    }

    function refuse(Scene memory s, SignedRows memory rows) private {
        vm.expectRevert(IRowJudge.SpanUnproven.selector);
        judge.checkSpan(rows, s.from, s.to, s.leaf, s.inner);
    }

    function testFuzz_eachSpan_isOne(uint16 from, uint16 layers, uint8 span, uint8 number) public {
        Scene memory s = scene(from, layers, span);
        judge.checkSpan(
            spanOf(s, uint256(number) % (s.inner.length + 1)), s.from, s.to, s.leaf, s.inner
        );
    }

    function testFuzz_nothingElse_isASpan(uint16 from, uint16 layers, uint8 span, uint8 number)
        public
    {
        Scene memory s = scene(from, layers, span);
        uint256 which = uint256(number) % (s.inner.length + 1);
        for (uint256 i; i < 13; ++i) {
            SignedRows memory rows = spanOf(s, which);
            if (i == 0) rows.leaf.requestIndex += 1;
            if (i == 1) rows.leaf.inRoot = keccak256("other");
            if (i == 2) rows.leaf.outRoot = keccak256("other");
            if (i == 3) rows.leaf.tokensIn += 1;
            if (i == 4) rows.leaf.tokensOut -= 1;
            if (i == 5) rows.layerTo += 1;
            if (i == 6) rows.layerTo -= 1;
            if (i == 7) rows.layerFrom += 1;
            if (i == 8) rows.layerFrom += uint16(s.span); // another span's layers
            if (i == 9) rows.innerRoot = s.leaf.innerRoot;
            if (i == 10) rows.layerFrom = uint16(s.to);
            if (i == 11) (rows.layerFrom, rows.layerTo) = (uint16(s.from), uint16(s.to));
            if (i == 12 && s.from == 0) continue;
            if (i == 12) (rows.layerFrom, rows.layerTo) = (uint16(s.from - 1), uint16(s.from));
            refuse(s, rows);
        }
    }

    function testFuzz_otherRoots_areNotWhatWasSigned(uint16 from, uint16 layers, uint8 span)
        public
    {
        Scene memory s = scene(from, layers, span);
        SignedRows memory rows = spanOf(s, 0);
        bytes32[] memory signed = s.inner;
        s.inner = new bytes32[](signed.length + 1);
        refuse(s, rows);
        s.inner = new bytes32[](signed.length - 1);
        refuse(s, rows);
        s.inner = new bytes32[](signed.length);
        refuse(s, rows);
        (s.inner, s.leaf.innerRoot) = (signed, 0);
        refuse(s, rows);
    }

    function test_aProgramWithoutSpans_hasNone() public {
        Scene memory s = scene(0, 3, 0);
        SignedRows memory rows = spanOf(s, 0);
        profiles.set(programs.store(ToyProgram.bytesOf(ToyProgram.toy())));
        refuse(s, rows);
    }

    // --- the roots inside a stage, shown ---

    function whole(Scene memory s) private pure returns (SignedRows memory) {
        RequestLeaf memory l = s.leaf;
        RequestRows memory rows =
            RequestRows(l.requestIndex, l.inRoot, l.outRoot, l.tokensIn, l.tokensOut);
        return SignedRows(MODEL, rows, uint16(s.from), uint16(s.to), l.innerRoot);
    }

    function inside(uint32 row, uint16 part) private pure returns (RowSpot[] memory spots) {
        spots = new RowSpot[](1);
        spots[0] = RowSpot(Side.Inner, row, part);
    }

    function testFuzz_theRootsInside_areShown(uint16 from, uint16 layers, uint8 span) public {
        Scene memory s = scene(from, layers, span);
        judge.checkAsked(whole(s), inside(0, 0));
        RowOpening[] memory shown = new RowOpening[](1);
        shown[0].part = abi.encodePacked(s.inner);
        judge.checkShown(whole(s), inside(0, 0), shown);

        for (uint256 i; i < 3; ++i) {
            bytes memory part = abi.encodePacked(s.inner);
            if (i == 0) part[0] ^= 0x01;
            if (i == 1) part = bytes.concat(part, bytes32(0));
            if (i == 2) part = "";
            shown[0].part = part;
            vm.expectRevert(ITraceJudge.EvidenceInvalid.selector);
            judge.checkShown(whole(s), inside(0, 0), shown);
        }
        // What nobody can show: a stage that signed nothing of what is inside it.
        s.leaf.innerRoot = 0;
        judge.checkAsked(whole(s), inside(0, 0));
        shown[0].part = abi.encodePacked(s.inner);
        vm.expectRevert(ITraceJudge.EvidenceInvalid.selector);
        judge.checkShown(whole(s), inside(0, 0), shown);
    }

    function test_whatIsNotInside_isNotAskedFor() public {
        Scene memory s = scene(0, 3, 1);
        SignedRows[4] memory rows = [spanOf(s, 0), spanOf(s, 1), whole(s), whole(s)];
        for (uint256 i; i < 4; ++i) {
            RowSpot[] memory spots = inside(i == 2 ? 1 : 0, i == 3 ? 1 : 0);
            vm.expectRevert(IRowJudge.SpotUnknown.selector);
            judge.checkAsked(rows[i], spots);
        }
        RowOpening memory opening;
        RowSpot memory spot = inside(0, 0)[0];
        SignedRows memory all = whole(s);
        vm.expectRevert(IRowJudge.SpotUnknown.selector);
        judge.isMalformed(all, spot, opening);
        all.leaf.tokensOut = 0;
        RowSpot[] memory one = inside(0, 0);
        vm.expectRevert(IRowJudge.SpotUnknown.selector);
        judge.checkAsked(all, one);
    }
}
