// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// What is an id, and of what: a job cannot be passed where a dispute is expected.

/// EIP-712 digest of the order that opened the job (domain included).
type JobId is bytes32;
/// keccak256(arbitrator, job, stage, requestsRoot of the accused receipt).
type DisputeId is bytes32;
/// keccak256(abi.encode(ModelSpec)).
type ModelId is bytes32;
