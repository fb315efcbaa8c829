// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelId} from "../types/Ids.sol";
import {Order, RequestLeaf, RequestOpening, RequestRows} from "../types/Signed.sol";
import {Claim, RowOpening} from "./ITraceJudge.sol";

/// The rows of one request that a stage signed for, and what they are rows of.
struct SignedRows {
    ModelId model;
    RequestRows leaf;
    uint16 layerFrom;
    uint16 layerTo;
    bytes32 innerRoot; // of all layers of the stage; of a span zero
}

/// A request as a stage signed it under its receipt.
struct SignedRequest {
    RequestLeaf leaf;
    uint256 position; //  among the receipt's requests
    bytes32[] proof;
    bytes32[] inner; //   what `innerRoot` is over, where one of the stage's spans is on trial
}

/// Rows that entered layers or left them (token ids of a last stage), a last stage's state rows, or
/// the roots of the boundaries inside a stage: one row and part.
enum Side {
    In,
    Out,
    States,
    Inner
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
/// asks. Twins: tests/twins/game/rows.py and draw.py.
interface IRowJudge {
    error SpotUnknown();
    error SpanUnproven();
    error OrderMismatch();
    error SamplingUnproven();
    /// Parameters that change logits or candidates in a way that only audits and juries judge.
    error SamplingUnjudged();
    error DrawMismatch();
    error OpeningUnsigned();
    error OpeningUnrelated();

    /// Chunks of the claim's trace. Reverts ClaimInvalid unless rows, layers and tolerance exist.
    function checkClaim(ModelId model, Claim calldata claim) external view returns (uint256 chunks);

    /// Reverts unless rows and layers are those of one span of a stage with layers [from, to), by
    /// what it signed.
    function checkSpan(
        SignedRows calldata rows,
        uint256 from,
        uint256 to,
        RequestLeaf calldata leaf,
        bytes32[] calldata inner
    ) external view;

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
