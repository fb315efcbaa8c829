// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {DisputeId, JobId, ModelId} from "../types/Ids.sol";

/// Who decides a dispute. An order names one; a miner's acceptance of the order is its consent.
interface IArbitrator {
    enum Status {
        None,
        Open,
        Fault,
        NoFault,
        NoRuling // no quorum: nobody is slashed
    }

    /// What is disputed. All fields were checked by TaskRegistry against signatures before `open`.
    struct DisputeRef {
        JobId job;
        uint16 stage;
        address accused; //        owner of the stage's miner
        address operator;
        address challenger;
        address requester;
        bytes32 receiptHash; //    EIP-712 struct hash of the accused receipt
        bytes32 requestsRoot;
        ModelId modelId;
        address[] operators; //    of every stage: neither they may judge nor their owners
        address[] parties; //      requester, challenger, matcher, auditor: nor they
    }

    /// Only TaskRegistry. Pulls the bond and fee from the challenger.
    function open(DisputeRef calldata ref) external returns (DisputeId);

    /// Longest time from open to ruling executed, which unbonding outlasts.
    function maxDisputeSeconds() external view returns (uint256);
}
