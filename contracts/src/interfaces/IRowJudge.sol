// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelId} from "../types/Ids.sol";
import {Order, RequestLeaf, RequestOpening} from "../types/Signed.sol";
import {Claim, RowOpening} from "./ITraceJudge.sol";

/// The rows of one request that a stage signed for, and what they are rows of.
struct SignedRows {
    ModelId model;
    RequestLeaf leaf;
    uint16 layerFrom;
    uint16 layerTo;
}

/// Rows that entered a stage or left it (token ids of a last stage), or a last stage's state rows.
enum Side {
    In,
    Out,
    States
}

/// One part of 1 KiB of one row; a shorter row is its own only part.
struct RowSpot {
    Side side;
    uint32 row;
    uint16 part;
}

/// How an accused token was ordered and served; `opening` and `signature` of an open order.
struct Drawn {
    Order order;
    bytes sampling;
    bytes32[] proof;
    RequestOpening opening;
    bytes signature;
    RowOpening served;
    bytes tokens; // that are ahead of one outside top-k, whose hash is `Claim.listed`
}

/// What do a claim, signed rows and sampling bytes say by themselves? No state, no money: a game
/// asks. Twins: core/dispute/trace/judge.py, tests/twins/game/rows.py and draw.py.
interface IRowJudge {
    error SpotUnknown();
    error OrderMismatch();
    error SamplingUnproven();
    /// Parameters that change logits or candidates in a way that only audits and juries judge.
    error SamplingUnjudged();
    error DrawMismatch();
    error OpeningUnsigned();
    error OpeningUnrelated();

    /// Chunks of the claim's trace. Reverts ClaimInvalid unless rows, layers and tolerance exist.
    function checkClaim(ModelId model, Claim calldata claim) external view returns (uint256 chunks);

    /// Reverts unless one to six places are named that there are.
    function checkAsked(SignedRows calldata rows, RowSpot[] calldata spots) external view;

    /// Reverts unless the openings are what the stage signed for, at these places and whole.
    function checkShown(
        SignedRows calldata rows,
        RowSpot[] calldata spots,
        RowOpening[] calldata openings
    ) external view;

    /// Did the stage sign there what is no part of a row of numbers, or no token? Reverts unless it
    /// signed this.
    function isMalformed(
        SignedRows calldata rows,
        RowSpot calldata spot,
        RowOpening calldata opening
    ) external view returns (bool);

    /// Reverts unless the claim's token was served, and is judged as it was ordered.
    function checkDrawn(Claim calldata claim, bytes32 orderHash, Drawn calldata drawn)
        external
        view;

    /// Reverts unless this opens the request that `shown` opened, with other parameters.
    function checkOtherOpening(
        Order calldata order,
        RequestOpening calldata shown,
        RequestOpening calldata opening,
        bytes calldata signature
    ) external view;
}
