// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "../../src/interfaces/IReferee.sol";
import {Claim, ITraceJudge} from "../../src/interfaces/ITraceJudge.sol";
import {Derive} from "../../src/trace/Derive.sol";
import {Place} from "../../src/trace/Layout.sol";
import {Programs} from "../../src/trace/Program.sol";
import {Shake} from "../../src/trace/Shake.sol";
import {Test} from "../Vm.sol";
import {ToyProgram} from "../fixtures/ToyProgram.sol";
import {TraceLens} from "./TraceLens.sol";

/// A pleaded trace against numbers made by hand: ten positions of the toy's layers 1 and 2, whose
/// chunks are 20 to enter, 2 + 20 of a layer of the second type, and 20 + 40 + 10 + 32 + 20 + 20 of
/// one of the first. A pass has 184. What ends the trace has 3·8 + 3 + 3, over a window of four.
contract PleadedTraceTest is Test {
    uint256 private constant PASS = 184;
    uint8 private constant SEED = 77;

    TraceLens private lens = new TraceLens(ToyProgram.bytesOf(ToyProgram.toy()));

    function claim() private pure returns (Claim memory c) {
        c.layerFrom = 1;
        c.layerTo = 3;
        c.positions = 10;
        c.windowFrom = 6;
        c.how = 4;
        c.key0 = SEED;
    }

    function assertSection(uint256 section, uint256 op, uint256 sectionType, uint256 base)
        private
        view
    {
        (uint256 foundType, uint256 found) = lens.sectionOf(claim(), section, op);
        vm.assertEq(foundType, sectionType);
        vm.assertEq(found, base);
    }

    // --- layout ---

    function test_aPleadedTrace_isTwoPassesAndAnEnd() public view {
        (uint256 sections, uint256 chunks) = lens.layoutOf(claim());
        vm.assertEq(sections, 7);
        vm.assertEq(chunks, 2 * PASS + 30);
        Claim memory accused = claim();
        accused.how = 0;
        (sections, chunks) = lens.layoutOf(accused);
        vm.assertEq(sections, 4);
        vm.assertEq(chunks, PASS + 20);
    }

    /// Whatever layers and positions the stage has: one row of 16 and the logits of nine tokens.
    function test_aTokensTrace_isAStateRowAndTheHead() public view {
        Claim memory c = tokenClaim();
        for (uint32 positions = 10; positions < 13; ++positions) {
            c.positions = positions;
            c.layerFrom = uint16(positions - 10);
            (uint256 sections, uint256 chunks) = lens.layoutOf(c);
            vm.assertEq(sections, 2);
            vm.assertEq(chunks, 2 + 2);
        }
        (uint256 first,) = lens.sectionOf(c, 0, 0);
        (uint256 second, uint256 base) = lens.sectionOf(c, 1, 0);
        vm.assertEq(first, Programs.FROM_ROWS);
        vm.assertEq(second, Programs.HEAD);
        vm.assertEq(base, 2);
        vm.assertFalse(lens.contains(c, Place(0, 0, 1, 0, 0)));
        vm.assertFalse(lens.contains(c, Place(2, 0, 0, 0, 0)));
    }

    function test_whatEntersATokensTrace_isARowThatTheStageSigned() public view {
        (, Derive.Leaf memory leaf) = lens.wholeOf(tokenClaim(), Place(0, 0, 0, 0, 5));
        vm.assertTrue(leaf.row.used && leaf.row.isOut);
        vm.assertEq(leaf.row.column, 5);
        (, leaf) = lens.wholeOf(claim(), Place(0, 0, 7, 0, 5));
        vm.assertTrue(leaf.row.used && !leaf.row.isOut);
    }

    function test_aLogit_readsTheRowAndTheHead() public view {
        (uint256 parts,) = lens.wholeOf(tokenClaim(), Place(1, 0, 0, 0, 8));
        vm.assertEq(parts, 2);
        Derive.Leaf memory leaf = lens.partOf(tokenClaim(), Place(1, 0, 0, 0, 8), 1);
        assertRun(leaf.runs[0], 0, 16, 8, 8);
        vm.assertEq(leaf.weights.part, 5); // behind embedding and four layers
        vm.assertEq(leaf.weights.row, 8);
    }

    function tokenClaim() private pure returns (Claim memory c) {
        c = claim();
        (c.layerTo, c.how, c.key0) = (4, 1, 0);
    }

    function test_eachSection_hasItsTypeAndPlace() public view {
        for (uint256 pass; pass < 2; ++pass) {
            (uint256 first, uint256 base) = (3 * pass, PASS * pass);
            assertSection(first, 0, Programs.FROM_ROWS, base);
            assertSection(first + 1, 0, Programs.FIRST_LAYER_TYPE + 1, base + 20);
            assertSection(first + 1, 1, Programs.FIRST_LAYER_TYPE + 1, base + 22);
            assertSection(first + 2, 0, Programs.FIRST_LAYER_TYPE, base + 42);
            assertSection(first + 2, 5, Programs.FIRST_LAYER_TYPE, base + 42 + 122);
        }
        assertSection(6, 0, Programs.PLEADED, 2 * PASS);
        assertSection(6, 3, Programs.PLEADED, 2 * PASS + 24);
        assertSection(6, 10, Programs.PLEADED, 2 * PASS + 30);
    }

    function test_fromTheFirstLayer_bothPassesBeginWithTokens() public view {
        Claim memory c = claim();
        c.layerFrom = 0;
        for (uint256 section; section < 8; section += 4) {
            (uint256 sectionType,) = lens.sectionOf(c, section, 0);
            vm.assertEq(sectionType, Programs.FROM_TOKENS);
        }
        (uint256 sections, uint256 chunks) = lens.layoutOf(c);
        vm.assertEq(sections, 9);
        vm.assertEq(chunks, 2 * (PASS + 142) + 30);
    }

    function test_behindTheEnd_isNothing() public {
        vm.expectRevert(ITraceJudge.PlaceUnknown.selector);
        lens.sectionOf(claim(), 7, 0);
        vm.assertFalse(lens.contains(claim(), Place(7, 0, 0, 0, 0)));
        vm.assertFalse(lens.contains(claim(), Place(6, 11, 0, 0, 0)));
        vm.assertTrue(lens.contains(claim(), Place(5, 5, 9, 0, 15)));
        vm.assertFalse(lens.contains(claim(), Place(5, 6, 0, 0, 0)));
        vm.assertTrue(lens.contains(claim(), Place(6, 2, 3, 0, 15)));
        vm.assertFalse(lens.contains(claim(), Place(6, 2, 4, 0, 0)));
    }

    /// A deviation has one verdict, or two if it was pleaded; a token's index is a token.
    function test_verdicts_haveOnePlaceEach() public view {
        Claim memory c = claim();
        for (uint32 index; index < 10; ++index) {
            c.how = 4;
            vm.assertEq(lens.contains(c, Place(6, 9, 0, 0, index)), index == 0);
            vm.assertEq(lens.contains(c, Place(6, 10, 0, 0, index)), index == 0);
            c.how = 0;
            vm.assertEq(lens.contains(c, Place(3, 6, 0, 0, index)), index == 0);
            vm.assertEq(lens.contains(tokenClaim(), Place(1, 1, 0, 0, index)), index < 9);
        }
    }

    // --- leaves ---

    function wholeOf(Place memory place) private view returns (Derive.Leaf memory leaf) {
        (, leaf) = lens.wholeOf(claim(), place);
    }

    function assertRun(
        Derive.Run memory r,
        uint256 firstChunk,
        uint256 length,
        uint256 start,
        uint256 count
    ) private pure {
        vm.assertEq(r.firstChunk, firstChunk);
        vm.assertEq(r.length, length);
        vm.assertEq(r.start, start);
        vm.assertEq(r.count, count);
    }

    function test_aSecondPass_readsTheSameRowsAndWeights() public view {
        Derive.Leaf memory leaf = wholeOf(Place(3, 0, 4, 0, 5));
        vm.assertTrue(leaf.kind == IReferee.Kind.Input && leaf.row.used && !leaf.row.isOut);
        vm.assertEq(leaf.row.row, 4);
        vm.assertEq(leaf.row.column, 5);
        for (uint16 section = 2; section < 6; section += 3) {
            leaf = lens.partOf(claim(), Place(section, 0, 4, 0, 5), 1);
            vm.assertEq(leaf.weights.part, 3); // that of layer 2
            vm.assertEq(leaf.weights.tensor, 0);
            vm.assertEq(leaf.weights.row, 5);
            vm.assertEq(leaf.weights.column, 8);
        }
        // What the layer before makes in the same pass, its fifth row of two chunks.
        assertRun(leaf.runs[0], PASS + 22 + 8, 16, 8, 8);
        leaf = lens.partOf(claim(), Place(2, 0, 4, 0, 5), 1);
        assertRun(leaf.runs[0], 22 + 8, 16, 8, 8);
    }

    function test_aSecondPassOfTokens_readsTheEmbedding() public view {
        Claim memory c = claim();
        c.layerFrom = 0;
        (, Derive.Leaf memory leaf) = lens.wholeOf(c, Place(4, 0, 4, 0, 5));
        vm.assertTrue(leaf.kind == IReferee.Kind.Embed && leaf.byToken && leaf.row.row == 4);
        vm.assertEq(leaf.weights.part, 0);
        vm.assertEq(leaf.weights.column, 5);
    }

    function test_theEnd_comparesTheFirstPassWithTheRowsAndWithTheSecond() public view {
        uint256 exact = 42 + 122 + 2 * 7; // the last layer's last operator, row 6 + 1
        Derive.Leaf memory leaf = wholeOf(Place(6, 0, 1, 0, 5));
        vm.assertTrue(leaf.kind == IReferee.Kind.WhitenDifference && leaf.row.isOut);
        vm.assertEq(leaf.row.row, 7);
        vm.assertEq(leaf.params, abi.encode(2, 2));
        vm.assertEq(leaf.runs.length, 1);
        assertRun(leaf.runs[0], exact, 16, 5, 1);
        leaf = wholeOf(Place(6, 1, 1, 0, 5));
        vm.assertTrue(leaf.kind == IReferee.Kind.WhitenReference && !leaf.row.used);
        assertRun(leaf.runs[0], exact, 16, 5, 1);
        leaf = wholeOf(Place(6, 2, 1, 0, 5));
        vm.assertTrue(leaf.kind == IReferee.Kind.WhitenChange && !leaf.row.used);
        vm.assertEq(leaf.params, abi.encode(2));
        vm.assertEq(leaf.runs.length, 2);
        assertRun(leaf.runs[0], PASS + exact, 16, 5, 1);
        assertRun(leaf.runs[1], exact, 16, 5, 1);
        vm.assertEq(leaf.weights.part, Derive.TABLES);
        vm.assertEq(leaf.weights.row, 3); // σ of the boundary before layer 3
        vm.assertEq(leaf.weights.column, 5);
    }

    function test_theVerdicts_areByTAndByK() public view {
        Derive.Leaf memory leaf = wholeOf(Place(6, 9, 0, 0, 0));
        vm.assertEq(leaf.params, abi.encode(1e8));
        assertRun(leaf.runs[0], 2 * PASS + 27, 1, 0, 1);
        assertRun(leaf.runs[1], 2 * PASS + 28, 1, 0, 1);
        leaf = wholeOf(Place(6, 10, 0, 0, 0));
        vm.assertEq(leaf.params, abi.encode(16e12));
        assertRun(leaf.runs[0], 2 * PASS + 27, 1, 0, 1);
        assertRun(leaf.runs[1], 2 * PASS + 29, 1, 0, 1);
    }

    // --- shakes ---

    function shakeOf(Place memory place) private view returns (int256) {
        return wholeOf(place).shake;
    }

    function test_theSecondPassIsShaken_butForCopiesAndStabilisers() public view {
        for (uint8 op; op < 6; ++op) {
            Place memory place = Place(5, op, 0, 0, 3);
            bool still = op == 2 || op == 3;
            if (op == 2) place.index = 1;
            int256 expected = still ? int256(0) : Shake.units(SEED, 24, place, op == 1 ? 10 : 16);
            vm.assertTrue(shakeOf(place) == expected);
            vm.assertTrue(still || expected != 0);
            place.section = 2;
            vm.assertTrue(shakeOf(place) == 0);
        }
        vm.assertTrue(shakeOf(Place(3, 0, 4, 0, 5)) != 0);
        vm.assertTrue(shakeOf(Place(4, 0, 0, 0, 5)) != 0);
        for (uint8 op; op < 11; ++op) {
            vm.assertTrue(shakeOf(Place(6, op, 0, 0, 0)) == 0);
        }
    }

    /// A value of many terms is shaken when its partial sums are added up, and not before.
    function test_partialSums_areNotShaken() public view {
        Place memory place = Place(5, 0, 4, 0, 5);
        (uint256 parts, Derive.Leaf memory leaf) = lens.wholeOf(claim(), place);
        vm.assertEq(parts, 2);
        vm.assertTrue(leaf.kind == IReferee.Kind.Sum);
        vm.assertTrue(leaf.shake == Shake.units(SEED, 24, place, 16));
        for (uint256 number; number < 2; ++number) {
            vm.assertTrue(lens.partOf(claim(), place, number).shake == 0);
        }
    }

    function test_aShake_isOfTheSeedAndTheProgramsBits() public {
        ToyProgram.Toy memory t = ToyProgram.toy();
        t.hidden = 8192;
        t.headDim = 4096;
        t.ownBits = 9;
        lens = new TraceLens(ToyProgram.bytesOf(t));
        Place memory place = Place(4, 1, 9, 0, 8000);
        Claim memory c = claim();
        for (uint32 seed; seed < 256; seed += 51) {
            c.key0 = seed;
            (, Derive.Leaf memory leaf) = lens.wholeOf(c, place);
            vm.assertTrue(leaf.shake == Shake.units(seed, 9, place, 8192));
        }
    }
}
