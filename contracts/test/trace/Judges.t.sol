// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEscrow} from "../../src/interfaces/IEscrow.sol";
import {IModelRegistry} from "../../src/interfaces/IModelRegistry.sol";
import {Claim, Evidence, ITraceJudge, Opening} from "../../src/interfaces/ITraceJudge.sol";
import {Referee} from "../../src/referee/Referee.sol";
import {Place} from "../../src/trace/Layout.sol";
import {ProgramStore} from "../../src/trace/ProgramStore.sol";
import {RowJudge} from "../../src/trace/RowJudge.sol";
import {Shake} from "../../src/trace/Shake.sol";
import {TraceJudge} from "../../src/trace/TraceJudge.sol";
import {ModelId} from "../../src/types/Ids.sol";
import {RequestRows} from "../../src/types/Signed.sol";
import {Test} from "../Vm.sol";
import {ToyProgram} from "../fixtures/ToyProgram.sol";
import {Trees} from "../fixtures/Trees.sol";
import {Operands} from "../referee/Operands.sol";

/// Every model's program is the one that a test sets.
contract OneProfile {
    bytes32 public profile;

    function set(bytes32 profile_) external {
        profile = profile_;
    }

    function numericsProfileOf(ModelId) external view returns (bytes32) {
        return profile;
    }
}

/// The real judges on claims and leaves of the toy program: ten positions of its layers 1 and 2.
contract JudgesTest is Test {
    uint256 private constant PASS = 184; // chunks of one pass, see Pleaded.t.sol
    uint256 private constant CHUNKS = 2 * PASS + 30;
    uint8 private constant SEED = 77;
    ModelId private constant MODEL = ModelId.wrap("toy");

    OneProfile private profiles = new OneProfile();
    ProgramStore private programs = new ProgramStore();
    TraceJudge private judge;
    RowJudge private rowJudge;
    bytes32[] private leaves;

    function setUp() public {
        IModelRegistry models = IModelRegistry(address(profiles));
        judge = new TraceJudge(models, programs, new Referee());
        rowJudge = new RowJudge(models, programs, address(0), IEscrow(address(0)));
        use(ToyProgram.toy());
        for (uint256 i; i < CHUNKS; ++i) {
            leaves.push(keccak256(abi.encode(i)));
        }
    }

    function use(ToyProgram.Toy memory t) private {
        profiles.set(programs.store(ToyProgram.bytesOf(t)));
    }

    function claim(uint8 how) private pure returns (Claim memory c) {
        c.leaf = RequestRows(0, keccak256("in"), keccak256("out"), 8, 30);
        c.layerFrom = 1;
        c.layerTo = 3;
        c.positions = 10;
        c.windowFrom = 6;
        c.how = how;
        if (how == 4) c.key0 = SEED;
    }

    // --- claims ---

    function refused(Claim memory c) private {
        vm.expectRevert(ITraceJudge.ClaimInvalid.selector);
        rowJudge.checkClaim(MODEL, c);
    }

    function test_aClaim_saysHowManyChunksItsTraceHas() public view {
        vm.assertEq(rowJudge.checkClaim(MODEL, claim(0)), PASS + 20);
        vm.assertEq(rowJudge.checkClaim(MODEL, claim(4)), CHUNKS);
    }

    function test_aSeed_isOfWhatWasPleadedAndOfOneByte() public {
        Claim memory c = claim(0);
        c.key0 = 1;
        refused(c);
        c = claim(4);
        c.key0 = 0;
        rowJudge.checkClaim(MODEL, c);
        c.key0 = 255;
        rowJudge.checkClaim(MODEL, c);
        c.key0 = 256;
        refused(c);
        c.key0 = type(uint32).max;
        refused(c);
        refused(claim(5));
        refused(claim(255));
    }

    /// A restated claim is judged by the same rows, layers, window and tolerance.
    function test_aPleadedClaim_isOfWhatADeviationIsOf() public {
        for (uint8 how; how <= 4; how += 4) {
            Claim memory c = claim(how);
            c.layerFrom = 3;
            refused(c);
            c = claim(how);
            c.layerTo = 5;
            refused(c);
            c = claim(how);
            c.positions = 0;
            refused(c);
            c.positions = 38; // 8 + 30 − 1 rows
            refused(c);
            c = claim(how);
            c.windowFrom = 10;
            refused(c);
            c = claim(how);
            c.tolerance = 1;
            refused(c);
            c = claim(how);
            c.layerTo = 4; // the last stage signs rows from the prompt's last on
            refused(c);
            c.windowFrom = 7;
            rowJudge.checkClaim(MODEL, c);
            c = claim(how);
            c.leaf.tokensOut = 0;
            refused(c);
        }
    }

    /// Chunks of scores: 2^16 positions have 2^29 a head. Where a trace of one pass is short
    /// enough, so is the one of two.
    function test_whatCanBeAccused_canBePleaded() public {
        ToyProgram.Toy memory t = ToyProgram.toy();
        (t.heads, t.headDim) = (2047, 8);
        use(t);
        Claim memory c = claim(0);
        (c.leaf.tokensIn, c.positions, c.windowFrom) = (1 << 17, 1 << 16, (1 << 16) - 4);
        uint256 one = rowJudge.checkClaim(MODEL, c);
        vm.assertLe(one, 1 << 40);
        (c.how, c.key0) = (4, 255);
        uint256 two = rowJudge.checkClaim(MODEL, c);
        vm.assertGt(two, 1 << 40);
        vm.assertLe(two, 1 << 41);
        vm.assertEq(two, 2 * (one - 20) + 30);
        (t.heads, t.headDim) = (2048, 8);
        use(t);
        refused(c);
        (c.how, c.key0) = (0, 0);
        refused(c);
    }

    function test_aTrace_hasAtMost131072Positions() public {
        Claim memory c = claim(0);
        (c.leaf.tokensIn, c.positions, c.windowFrom) = (1 << 18, 1 << 17, (1 << 17) - 4);
        rowJudge.checkClaim(MODEL, c);
        c.positions += 1;
        refused(c);
    }

    // --- leaves ---

    function put(uint256 chunk, bytes memory data) private {
        leaves[chunk] = Trees.leaf(data);
    }

    function shown(uint256 chunk, bytes memory data) private view returns (Opening memory) {
        return Opening(data, Trees.proof(leaves, chunk));
    }

    /// Eight values, all zero but number `index`.
    function eight(uint256 index, uint64 bits) private pure returns (bytes memory data) {
        data = new bytes(64);
        bytes memory value = Operands.le64(bits);
        for (uint256 i; i < 8; ++i) {
            data[8 * index + i] = value[i];
        }
    }

    function packed(Place memory place) private pure returns (bytes32) {
        return
            bytes32(
                abi.encodePacked(place.section, place.op, place.row, place.segment, place.index)
            );
    }

    /// x + x in layer 1, position 3, channel 5, of the pass whose first chunk is `base`.
    function judgeSum(uint16 section, uint256 base, uint64 x, uint64 y)
        private
        returns (ITraceJudge.Fault)
    {
        uint256 from = base + 2 * 3;
        uint256 to = base + 22 + 2 * 3;
        put(from, eight(5, x));
        put(to, eight(5, y));
        Claim memory c = claim(4);
        c.traceRoot = Trees.top(leaves);
        Evidence memory e;
        e.result = shown(to, eight(5, y));
        e.runs = new Opening[](2);
        e.runs[0] = e.runs[1] = shown(from, eight(5, x));
        return judge.rule(packed(Place(section, 1, 3, 0, 5)), MODEL, c, e);
    }

    function test_aValueOfTheSecondPass_isRightOnlyIfShaken() public {
        uint64 three = Operands.f64(3);
        uint64 six = Operands.f64(6);
        int256 shake = Shake.units(SEED, 24, Place(4, 1, 3, 0, 5), 16);
        uint64 due = Operands.f64(6 * ((1 << 24) + shake), -24);
        vm.assertTrue(judgeSum(1, 0, three, six) == ITraceJudge.Fault.Accused);
        vm.assertTrue(judgeSum(1, 0, three, due) == ITraceJudge.Fault.Accuser);
        vm.assertTrue(judgeSum(4, PASS, three, due) == ITraceJudge.Fault.Accused);
        vm.assertTrue(judgeSum(4, PASS, three, six) == ITraceJudge.Fault.Accuser);
        uint64 other = Operands.f64(6 * ((1 << 24) - shake), -24);
        vm.assertTrue(judgeSum(4, PASS, three, other) == ITraceJudge.Fault.Accuser);
    }

    /// Verdict `op` of the end, with D² and the square sum that it reads, `behind` chunks later.
    function judgeVerdict(uint8 op, uint256 behind, int256 deviation, int256 sum)
        private
        returns (ITraceJudge.Fault)
    {
        bytes memory d = Operands.le64(Operands.f64(deviation));
        bytes memory s = Operands.le64(Operands.f64(sum));
        uint256 from = 2 * PASS + 27;
        put(from, d);
        put(from + behind, s);
        Claim memory c = claim(4);
        c.traceRoot = Trees.top(leaves);
        Evidence memory e;
        e.runs = new Opening[](2);
        e.runs[0] = shown(from, d);
        e.runs[1] = shown(from + behind, s);
        return judge.rule(packed(Place(6, op, 0, 0, 0)), MODEL, c, e);
    }

    /// T is 10^-4 and K is 16: fault is more than either.
    function test_theVerdicts_compareWithTheRowsAndWithTheChange() public {
        vm.assertTrue(judgeVerdict(9, 1, 1, 1e8 - 1) == ITraceJudge.Fault.Accused);
        vm.assertTrue(judgeVerdict(9, 1, 1, 1e8) == ITraceJudge.Fault.Accuser);
        vm.assertTrue(judgeVerdict(10, 2, 257, 1) == ITraceJudge.Fault.Accused);
        vm.assertTrue(judgeVerdict(10, 2, 256, 1) == ITraceJudge.Fault.Accuser);
    }

    /// There is a third verdict nowhere: who points at one finds nothing.
    function test_aPlaceThatThereIsNot_isTheAccusedsFault() public view {
        Evidence memory e;
        bytes32 place = packed(Place(6, 11, 0, 0, 0));
        vm.assertTrue(judge.rule(place, MODEL, claim(4), e) == ITraceJudge.Fault.Accused);
        place = packed(Place(7, 0, 0, 0, 0));
        vm.assertTrue(judge.rule(place, MODEL, claim(4), e) == ITraceJudge.Fault.Accused);
        place = packed(Place(4, 0, 0, 0, 0)); // none of a trace of one pass
        vm.assertTrue(judge.rule(place, MODEL, claim(0), e) == ITraceJudge.Fault.Accused);
    }

    /// A program of another version, or cut before its tolerances, makes no sense.
    function test_programs_areOfVersionThree() public {
        bytes memory program = ToyProgram.bytesOf(ToyProgram.toy());
        program[0] = 0x02;
        profiles.set(programs.store(program));
        vm.expectRevert(ITraceJudge.ProgramInvalid.selector);
        rowJudge.checkClaim(MODEL, claim(0));
        program = new bytes(83);
        program[0] = 0x03;
        profiles.set(programs.store(program));
        vm.expectRevert(ITraceJudge.ProgramInvalid.selector);
        rowJudge.checkClaim(MODEL, claim(0));
    }
}
