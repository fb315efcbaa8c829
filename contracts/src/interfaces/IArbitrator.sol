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
        NoRuling // nobody is slashed
    }

    /// By which right a dispute was opened. Each has its own for a receipt: an auditor that falls
    /// silent takes nothing from the requester.
    enum Right {
        Requester,
        Auditor // the order's, or a delegate of the requester
    }

    /// What is disputed. All fields were checked by TaskRegistry against signatures before `open`.
    struct DisputeRef {
        JobId job;
        uint16 stage;
        Right right;
        uint32 number; //          of the accused's disputes in MinerRegistry, where it is open
        address accused; //        owner of the stage's miner
        address operator;
        address challenger;
        address requester;
        bytes32 receiptHash; //    EIP-712 struct hash of the accused receipt
        bytes32 requestsRoot;
        ModelId modelId;
        address[] operators; //    of every stage: neither they may judge nor their owners
        address[] parties; //      requester, challenger, spender, matcher, auditor; may be 0
    }

    /// Only TaskRegistry. Pulls the bond and fee from the challenger. The bond is a share of what
    /// the accused has at stake, and no less than a base.
    ///
    /// An arbitrator tells MinerRegistry (`closeDispute`) and TaskRegistry (`resolve`) its ruling.
    function open(DisputeRef calldata ref) external returns (DisputeId);

    /// Longest time from open to ruling executed, which unbonding outlasts.
    function maxDisputeSeconds() external view returns (uint256);
}
