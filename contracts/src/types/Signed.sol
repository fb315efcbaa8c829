// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelId} from "./Ids.sol";

/// What people and machines sign. Fields are in the order of the EIP-712 type strings in
/// libraries/Eip712Types.sol (docs/protocol.md §2).

/// What a requester buys: a batch of requests against one model, with every cap it will pay. An
/// order whose two roots are zero is open: each request begins with a RequestOpening.
struct Order {
    address requester;
    ModelId modelId;
    bytes32 inputRoot; //      Merkle root over salted prompt commitments
    bytes32 samplingRoot; //   Merkle root over sampling parameters, seeds included
    uint32 requests;
    uint32 maxTokensIn; //     whole batch
    uint32 maxTokensOut; //    whole batch
    uint64 priceIn; //         nano base units per token per layer unit
    uint64 priceOut;
    address matcher; //        who may match; zero: the requester
    uint16 matcherFeeBps;
    uint64 openingFee; //      base units to the matcher, whatever comes of the job
    uint128 minStake; //       every stage's miner has at least this
    uint64 deadline; //        seconds; receipts are due
    uint32 window; //          seconds between delivery and payment in which a dispute may open
    address auditor; //        who beside the requester may dispute; zero: nobody
    address arbitrator; //     who decides
    bytes32 numericsProfile;
    bytes32 termsHash; //      struct hash of Terms; zero: none
    uint64 nonce;
}

/// One shard's place in a pipeline.
struct Stage {
    address operator;
    uint16 layerFrom;
    uint16 layerTo;
}

/// What a stage says it did, over one or many requests of a job.
struct StageReceipt {
    bytes32 orderHash;
    bytes32 planHash;
    uint16 stage;
    uint16 layerFrom;
    uint16 layerTo;
    bytes32 shardRoot;
    bytes32 inputRoot; //      equals the previous stage's outputRoot
    bytes32 outputRoot;
    bytes32 requestsRoot;
    uint32 requests;
    uint32 tokensIn;
    uint32 tokensOut;
    uint64 startedAt;
    uint64 signedAt;
}

/// A stage's word to the next one about a request that it finished: the leaf that every receipt of
/// its has for it, and of a first stage the answer that it received. Words of several requests are
/// worth a receipt over these (libraries/Words.sol).
struct RequestWord {
    bytes32 orderHash;
    bytes32 planHash;
    uint16 stage;
    uint32 requestIndex;
    bytes32 inRoot;
    bytes32 outRoot;
    uint32 tokensIn;
    uint32 tokensOut;
    bytes32 answerRoot; //     the last stage's outRoot, of a first stage; else zero
    bytes32 innerRoot;
}

/// A leaf under `StageReceipt.requestsRoot`; the leaf after it holds the sums up to it.
struct RequestLeaf {
    uint32 requestIndex;
    bytes32 inRoot;
    bytes32 outRoot;
    uint32 tokensIn;
    uint32 tokensOut;
    bytes32 innerRoot; //      over the boundaries inside the stage; zero where it has none
}

/// A request's rows where they entered layers of a stage and where they left them: all layers of
/// the stage, as its RequestLeaf says, or one span of them (docs/protocol.md §3).
struct RequestRows {
    uint32 requestIndex;
    bytes32 inRoot;
    bytes32 outRoot;
    uint32 tokensIn;
    uint32 tokensOut;
}

/// One request of an open order: what a batch fixes by its two roots.
struct RequestOpening {
    bytes32 orderHash;
    uint32 requestIndex;
    bytes32 promptLeaf; //     leaf hashes as they would be under inputRoot and samplingRoot
    bytes32 samplingLeaf;
}

/// The requester is content: pay now. Counts of an open order are cumulative.
struct Ack {
    bytes32 orderHash;
    bytes32 planHash;
    bytes32 resultRoot;
    uint32 tokensIn;
    uint32 tokensOut;
}

/// The requester lets someone else dispute this order.
struct AuditorDelegation {
    bytes32 orderHash;
    address auditor;
    uint64 expiry;
}
