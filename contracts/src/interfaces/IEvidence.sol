// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Order, RequestLeaf, Stage, StageReceipt} from "../types/Signed.sol";

/// Which of a stage's own signed words contradict each other, or the order (docs/trust.md §7)?
///
/// Each call convicts one stage in one transaction: no bond, no answer, no judge. It reads what the
/// accused signed, and for `prompt` the order. Anyone may call, at any time; the reward goes to the
/// requester of record. A stage already at fault in the job is refused (`StageAlreadyAtFault`).
///
/// INVARIANT: nothing that another party can sign convicts a stage that follows docs/protocol.md.
interface IEvidence {
    enum Kind {
        Equivocation,
        Counts,
        Rows,
        Roots,
        Prompt,
        Fed
    }

    /// Which tree of rows a root is of; a last stage's output has two.
    enum Side {
        In,
        Out,
        Tokens,
        States
    }

    /// One request as a stage signed it: a receipt, and the request's leaf under `requestsRoot`.
    /// A stage's word of a request is a receipt over this one.
    struct Told {
        StageReceipt receipt;
        bytes signature;
        RequestLeaf leaf;
        uint256 position; // among the receipt's requests
        bytes32[] proof;
    }

    /// Tokens of all requests up to one, as the leaf beside that request's says.
    struct Sums {
        uint32 tokensIn;
        uint32 tokensOut;
        bytes32[] proof;
    }

    /// A token id, u32le, as row `at` of a tree of ids.
    struct Id {
        uint32 at;
        bytes4 id;
        bytes32[] proof;
    }

    /// A tree of token ids behind a commitment: a prompt's with its salt, an answer's with the root
    /// of its state rows.
    struct Ids {
        bytes32 root;
        uint32 count;
        bytes32 beside;
        bytes32[] proof; // of the commitment's leaf, under the order's or the receipt's inputRoot
    }

    error NotProven();

    /// Two different leaves of one request of the plan. So a stage that signs for other rows than
    /// it sent is convicted, by its word of them.
    function equivocation(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata one,
        Told calldata other
    ) external;

    /// Sums that do not follow from the request before and this one, or are not the receipt's;
    /// requests that do not ascend, or that the order does not have. The first request of a receipt
    /// has none before it: what is said of it is not read.
    function counts(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Sums calldata sums,
        RequestLeaf calldata before,
        bytes32[] calldata beforeProof,
        Sums calldata sumsBefore
    ) external;

    /// More or fewer rows under a root than the leaf's counts make: nIn + nOut − 1, and nOut ids
    /// and state rows of a last stage. `top` as in H(0x02 ‖ u32be count ‖ top); `beside` is the
    /// other half of a last stage's outRoot.
    function rows(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Side side,
        uint32 count,
        bytes32 top,
        bytes32 beside
    ) external;

    /// Another leaf under inputRoot or outputRoot than the request's own.
    function roots(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        bool isOutput,
        bytes32 leafHash,
        bytes32[] calldata proof
    ) external;

    /// A first stage that was fed another id than the order's prompt has there, or that counted
    /// another number of them (then `fed` is not read). Not of an open order.
    function prompt(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Ids calldata ordered,
        Id calldata asked,
        Id calldata fed
    ) external;

    /// A first stage that was fed another id than the answer has that it signed as its input, or
    /// that counted another number of them (then `fed_` is not read).
    function fed(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Ids calldata answer,
        Id calldata drawn,
        Id calldata fed_
    ) external;
}
