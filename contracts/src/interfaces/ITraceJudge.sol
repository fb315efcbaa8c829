// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "./IReferee.sol";
import {Place} from "../trace/Layout.sol";
import {ModelId} from "../types/Ids.sol";
import {RequestRows} from "../types/Signed.sol";

/// What an accuser says: over these rows of this request, by this trace, the stage was too far off.
/// Twin: core/dispute/trace/judge.py. ToleranceGame hashes its words where they stand in a call.
struct Claim {
    RequestRows leaf;
    uint16 layerFrom;
    uint16 layerTo;
    uint32 positions; //   rows that the trace covers, from the first; up to an accused token's
    uint32 windowFrom; //  the deviation is over rows [windowFrom, positions)
    uint8 tolerance; //    which of the program's
    uint8 how; //          0: a deviation is accused; or a token, or pleaded: see Derive
    uint32 preferred; //   for tokens: which should have been drawn, which was, at which step, how
    uint32 served;
    uint32 step;
    uint32 temperature;
    uint32 minP;
    uint32 topK;
    uint32 key0; //        of what was pleaded, the seed
    uint32 key1;
    bytes32 listed; //     hash of the tokens that are ahead of one outside top-k
    bytes32 traceRoot;
}

/// Whole chunks of a trace in one run, and the siblings on their way up.
struct Opening {
    bytes data;
    bytes32[] siblings;
}

/// One part of a row, the siblings of the part in its row, and of the row among the rows.
struct RowOpening {
    bytes part;
    bytes32[] partSiblings;
    bytes32[] rowSiblings;
}

/// One part of a tensor's row, and the tensor's place in its part of the model.
struct WeightOpening {
    RowOpening row;
    bytes name;
    bytes32 tensorRoot;
    bytes32[] tensorSiblings;
}

/// Everything that one leaf needs; what a leaf does not use stays empty.
struct Evidence {
    Opening result;
    Opening[] runs;
    WeightOpening weights;
    RowOpening row;
    uint32 witness; // the key of a stabiliser, or which token of the accused's list
    bytes tokens; //   of a list, each as u32be
}

/// Is opened evidence what was committed, and how does the referee rule? No state, no money.
interface ITraceJudge {
    enum Fault {
        Nobody, // the model, or what the stage was sent, is no number
        Accused,
        Accuser
    }

    error ProgramInvalid();
    error ClaimInvalid();
    error PlaceUnknown();
    error SiblingsWrong();
    error HashFailed();
    error EvidenceInvalid();
    error PartsDue(uint256 parts);
    error PartUnknown(uint256 part, uint256 parts);

    // A game asks with the bytes of its own call and another first word: evidence is large.

    /// As ToleranceGame.prove: whose fault is it by the value at `place`, its first 15 bytes? The
    /// accused's, if there is no such place. Reverts PartsDue if the value is of many terms.
    function rule(bytes32 place, ModelId model, Claim calldata claim, Evidence calldata evidence)
        external
        view
        returns (Fault);

    /// As ToleranceGame.proveSum: whose fault is it by how `stated` sums, 8 bytes each, add up?
    /// Reverts PartsDue unless the value has as many. The first word is not looked at.
    function ruleSum(
        bytes32 first,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        bytes calldata stated
    ) external view returns (Fault);

    /// As ToleranceGame.provePart: whose fault is it by one partial sum? `part` is {what was stated
    /// of it 8 bytes | its number in the last 2}; `stated` is not looked at.
    function rulePart(
        bytes32 part,
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        Evidence calldata evidence,
        Opening calldata stated
    ) external view returns (Fault);
}
