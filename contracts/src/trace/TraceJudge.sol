// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IModelRegistry} from "../interfaces/IModelRegistry.sol";
import {IReferee} from "../interfaces/IReferee.sol";
import {Claim, Evidence, ITraceJudge, Opening} from "../interfaces/ITraceJudge.sol";
import {Decode} from "../referee/Decode.sol";
import {ModelId} from "../types/Ids.sol";
import {Derive} from "./Derive.sol";
import {Layouts, Place, Places} from "./Layout.sol";
import {Openings} from "./Openings.sol";
import {Programs} from "./Program.sol";
import {ProgramHomes, ProgramStore} from "./ProgramStore.sol";

/// What does the chain rule on opened evidence? See ITraceJudge.
///
/// INVARIANT: the program that the model's id names says which operands and weights, and their
/// values come from roots that were committed before: the accuser chooses nothing.
contract TraceJudge is ITraceJudge {
    using Derive for Derive.Scene;
    using Layouts for Layouts.Layout;
    using Programs for Programs.Program;

    IModelRegistry private immutable _models;
    address private immutable _programs;
    IReferee private immutable _referee;

    uint256 private constant TOKEN_BYTES = 4;
    uint256 private constant VALUE_BYTES = 8;

    constructor(IModelRegistry models, ProgramStore programs, IReferee referee_) {
        _models = models;
        _programs = address(programs);
        _referee = referee_;
    }

    function rule(bytes32 place, ModelId model, Claim calldata claim, Evidence calldata evidence)
        external
        view
        returns (Fault)
    {
        return _ruleValue(model, claim, Places.unpacked(place), evidence, msg.data[:0]);
    }

    function ruleSum(
        bytes32,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        bytes calldata stated
    ) external view returns (Fault) {
        return _ruleValue(model, claim, place, evidence, stated);
    }

    function rulePart(
        bytes32 part,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        Opening calldata
    ) external view returns (Fault) {
        Derive.Scene memory s = _scene(model, claim, place);
        uint256 parts = s.parts();
        uint256 number = uint16(uint256(part));
        if (number >= parts) revert PartUnknown(number, parts);
        return _rule(model, s, claim, s.part(number), abi.encodePacked(bytes8(part)), evidence);
    }

    // --- internals ---

    function _ruleValue(
        ModelId model,
        Claim calldata claim,
        Place memory place,
        Evidence calldata evidence,
        bytes calldata stated
    ) private view returns (Fault) {
        Derive.Scene memory s = _scene(model, claim, place);
        if (!s.exists) return Fault.Accused;
        if (s.op.kind == uint256(IReferee.Kind.Greedy)) {
            Fault fault = _name(s, claim, evidence);
            if (fault != Fault.Nobody) return fault;
        } else if (evidence.witness >= claim.positions) {
            revert EvidenceInvalid();
        }
        uint256 parts = s.parts();
        if (stated.length != parts * VALUE_BYTES) revert PartsDue(parts);
        bytes memory first = bytes.concat(_result(s, claim, evidence), stated);
        return _rule(model, s, claim, s.whole(parts, evidence.witness), first, evidence);
    }

    /// Rows that the stage was fed.
    function _rows(Claim calldata claim) private pure returns (uint256) {
        return uint256(claim.leaf.tokensIn) + claim.leaf.tokensOut - 1;
    }

    /// The token of a list that is looked at: the accused names one of the accuser's, the accuser
    /// one of the accused's. A list that is not `topK` ascending tokens is its author's fault.
    function _name(Derive.Scene memory s, Claim calldata claim, Evidence calldata evidence)
        private
        pure
        returns (Fault)
    {
        bool outside = claim.how == Derive.OUTSIDE_TOP_K;
        bytes calldata tokens = evidence.tokens;
        if (!outside && (claim.how != Derive.AHEAD || tokens.length == 0)) return Fault.Nobody;
        if (outside && keccak256(tokens) != claim.listed) revert EvidenceInvalid();
        uint256 number = outside ? s.place.index : evidence.witness;
        uint256 own = outside ? claim.served : claim.preferred;
        bool sound = tokens.length == TOKEN_BYTES * uint256(claim.topK) && tokens.length != 0;
        uint256 next; // the least that the next token may be
        for (uint256 i; sound && i < tokens.length; i += TOKEN_BYTES) {
            uint256 token = uint32(bytes4(tokens[i:i + TOKEN_BYTES]));
            sound = token >= next && token < s.frame.program.vocab && token != own;
            next = token + 1;
            if (i == TOKEN_BYTES * number) s.choice.named = token;
        }
        if (!sound) return outside ? Fault.Accuser : Fault.Accused;
        if (number < claim.topK) return Fault.Nobody;
        if (!outside) revert EvidenceInvalid();
        return Fault.Accused; // who named none of them
    }

    /// A model's operator program.
    function _bytesOf(ModelId model) private view returns (bytes memory) {
        return ProgramHomes.read(_programs, _models.numericsProfileOf(model));
    }

    /// Structs are filled in the scene itself: one that is returned is memory written twice.
    function _scene(ModelId model, Claim calldata claim, Place memory place)
        private
        view
        returns (Derive.Scene memory s)
    {
        Programs.Program memory p = s.frame.program;
        Programs.parse(p, _bytesOf(model));
        Derive.Choice memory choice = s.choice;
        choice.named = Derive.NOBODY;
        choice.key0 = claim.key0;
        if (claim.how == 0 || claim.how == Derive.PLEADED) {
            (,, choice.tolerance) = p.tolerance(claim.tolerance);
        } else {
            choice.how = claim.how;
            choice.minP = claim.minP;
            choice.topK = claim.topK;
            choice.preferred = claim.preferred;
            choice.served = claim.served;
            choice.step = claim.step;
            choice.temperature = claim.temperature;
            choice.key1 = claim.key1;
        }
        Derive.lay(s.frame, claim);
        s.set(place);
    }

    /// The value on trial, out of the trace; nothing for a verdict.
    function _result(Derive.Scene memory s, Claim calldata claim, Evidence calldata evidence)
        private
        view
        returns (bytes calldata)
    {
        if (s.op.form == Layouts.VERDICT) return evidence.result.data[:0];
        Layouts.Shape memory shape = s.frame.shapeOf(s.op.form);
        Derive.Run memory r;
        r.length = shape.length;
        r.start = s.place.index;
        r.count = 1;
        r.firstChunk = s.frame.baseOf(s.place.section, s.place.op)
            + (uint256(s.place.row) * shape.segments + s.place.segment)
            * Layouts.segmentChunks(shape.length);
        return Openings.run(claim.traceRoot, s.frame.chunks, r, evidence.result);
    }

    function _rule(
        ModelId model,
        Derive.Scene memory s,
        Claim calldata claim,
        Derive.Leaf memory leaf,
        bytes memory operands,
        Evidence calldata evidence
    ) private view returns (Fault) {
        if (evidence.runs.length != leaf.runs.length) {
            revert EvidenceInvalid();
        }
        uint256 chunks = s.frame.chunks;
        for (uint256 i; i < leaf.runs.length; ++i) {
            operands = bytes.concat(
                operands, Openings.run(claim.traceRoot, chunks, leaf.runs[i], evidence.runs[i])
            );
        }
        if (leaf.padding != 0) {
            operands = bytes.concat(operands, new bytes(VALUE_BYTES * leaf.padding));
        }
        bytes memory row;
        if (leaf.row.used) row = _row(s, claim, leaf, evidence);
        if (leaf.weights.used) {
            if (leaf.byToken) {
                leaf.weights.row = _toToken(row);
                row = "";
                // A token that the model has not is the fault of who sent it.
                if (leaf.weights.row >= leaf.weights.rows) return Fault.Nobody;
            }
            operands = bytes.concat(
                operands,
                Openings.weights(
                    _partRoot(model, s, leaf.weights.part), leaf.weights, evidence.weights
                )
            );
        }
        if (row.length != 0) operands = bytes.concat(operands, row);
        IReferee.Ruling ruling = _referee.check(leaf.kind, leaf.params, operands, leaf.shake);
        if (ruling == IReferee.Ruling.Holds) return Fault.Accused;
        if (ruling == IReferee.Ruling.Fails) return Fault.Accuser;
        bool signedByAccused = ruling == IReferee.Ruling.RowMalformed && leaf.row.isOut;
        return signedByAccused ? Fault.Accused : Fault.Nobody;
    }

    function _row(
        Derive.Scene memory s,
        Claim calldata claim,
        Derive.Leaf memory leaf,
        Evidence calldata evidence
    ) private view returns (bytes memory) {
        Openings.Spot memory spot;
        spot.root = leaf.row.isOut ? claim.leaf.outRoot : claim.leaf.inRoot;
        spot.rows = _rows(claim);
        spot.row = leaf.row.row;
        if (leaf.row.isOut && claim.layerTo == s.frame.program.layers) {
            // Its state rows: one for each token, the first of the prompt's last position.
            spot.rows = claim.leaf.tokensOut;
            if (s.choice.how != 0) spot.row = uint256(claim.positions) - 1; // an accused token's
            spot.row = spot.row + 1 - claim.leaf.tokensIn;
            spot.half = Openings.Half.States;
        }
        uint256 width = TOKEN_BYTES;
        if (leaf.byToken) {
            spot.rowBytes = TOKEN_BYTES;
        } else {
            width = Decode.widthBytes(Decode.toFormat(s.frame.program.rowFormat));
            spot.rowBytes = s.frame.program.hidden * width;
        }
        spot.start = leaf.row.column * width;
        spot.count = width;
        return Openings.row(spot, evidence.row);
    }

    /// A token id, little-endian.
    function _toToken(bytes memory row) private pure returns (uint256) {
        return uint256(uint8(row[0])) | uint256(uint8(row[1])) << 8 | uint256(uint8(row[2])) << 16
            | uint256(uint8(row[3])) << 24;
    }

    function _partRoot(ModelId model, Derive.Scene memory s, uint256 part)
        private
        view
        returns (bytes32)
    {
        return part == Derive.TABLES ? s.frame.program.tablesRoot : _models.partRootOf(model, part);
    }
}
