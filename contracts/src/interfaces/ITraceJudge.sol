// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IReferee} from "./IReferee.sol";
import {Place} from "../trace/Layout.sol";
import {ModelId} from "../types/Ids.sol";
import {RequestLeaf} from "../types/Signed.sol";

/// What an accuser says: over these rows of this request, by this trace, the stage was too far off. docs/trust.md; twin:
/// core/protocol/trace/judge.py.
struct Claim {
    RequestLeaf leaf;
    uint16 layerFrom;
    uint16 layerTo;
    uint32 positions; //   rows that the trace covers, from the first
    uint32 windowFrom; //  the deviation is over rows [windowFrom, positions)
    uint8 tolerance; //    which of the program's
    bool exact; //         the trace is the canonical one: every value is judged to the bit
    uint8 how; //          0: a deviation is accused; else a token, by what: see Derive
    uint32 preferred; //   for tokens: which should have been drawn, which was, at which step, how
    uint32 served;
    uint32 step;
    uint32 temperature;
    uint32 minP;
    uint32 topK;
    uint32 key0;
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

/// Is opened evidence what was committed, and what does the referee make of it? No state, no money: a game asks.
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

    /// Chunks of the trace that a claim is about. Reverts ClaimInvalid unless the claim is about rows, layers and a tolerance that exist.
    function checkClaim(ModelId model, Claim calldata claim) external view returns (uint256 chunks);

    /// Whose fault it is by the value at `place`. If the value is of many terms, `stated` are its partial sums, 8 bytes each, and it is
    /// judged whether they add up; `parts` is how many then, else 0. A place that there is not is the accused's fault, who named it.
    function rule(ModelId model, Claim calldata claim, Place calldata place, Evidence calldata evidence, bytes calldata stated)
        external
        view
        returns (Fault fault, uint256 parts);

    /// Whose fault it is by partial sum `part`, of which `stated` was stated.
    function rulePart(
        ModelId model,
        Claim calldata claim,
        Place calldata place,
        uint256 part,
        Evidence calldata evidence,
        bytes8 stated
    ) external view returns (Fault);
}
