// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IMinerRegistry} from "./interfaces/IMinerRegistry.sol";
import {IModelRegistry} from "./interfaces/IModelRegistry.sol";
import {ITaskRegistry} from "./interfaces/ITaskRegistry.sol";
import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Plans} from "./libraries/Plans.sol";
import {Receipts} from "./libraries/Receipts.sol";
import {Acceptance, AuditorDelegation, Order, Stage, StageReceipt} from "./types/Signed.sol";

/// Is a pipeline sound and accepted? Are receipts those of a job, or of one stage on trial?
///
/// TaskRegistry makes one of these, for want of code space, and hands it its own calldata: hence
/// the same names and arguments. No storage, no money; what is not so reverts with ITaskRegistry's
/// errors.
contract Proofs {
    address private immutable _tasks;
    IMinerRegistry private immutable _miners;
    IModelRegistry private immutable _models;

    constructor(IMinerRegistry miners, IModelRegistry models) {
        _tasks = msg.sender;
        _miners = miners;
        _models = models;
    }

    /// A pipeline that covers the model, of miners that may work and accepted their places.
    function openMatched(
        Order calldata order,
        bytes calldata,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) external view {
        _checkPlan(order, plan, acceptances, acceptanceSigs);
    }

    /// As `openMatched`.
    function matchJob(
        Order calldata order,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) external view {
        _checkPlan(order, plan, acceptances, acceptanceSigs);
    }

    /// One receipt of every stage, over every request of the order.
    function deliver(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata sigs
    ) external view {
        Receipts.checkAll(order, plan, receipts, sigs, _binding(order, plan));
    }

    /// @return receiptHash EIP-712 struct hash of the receipt that the stage's operator signed
    function dispute(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt calldata receipt,
        bytes calldata receiptSig,
        AuditorDelegation calldata,
        bytes calldata
    ) external view returns (bytes32 receiptHash) {
        Plans.Binding memory binding = _binding(order, plan);
        return Receipts.checkOf(plan, receipt, receiptSig, binding);
    }

    function _checkPlan(
        Order calldata order,
        Stage[] calldata plan,
        Acceptance[] calldata acceptances,
        bytes[] calldata acceptanceSigs
    ) private view {
        (uint16 layers,,) = _models.shapeOf(order.modelId);
        Plans.checkTiling(plan, layers);
        Plans.checkWorkers(plan, _miners, order.minStake);
        Plans.checkAcceptances(plan, acceptances, acceptanceSigs, _binding(order, plan));
    }

    function _binding(Order calldata order, Stage[] calldata plan)
        private
        view
        returns (Plans.Binding memory)
    {
        return Plans.Binding({
            orderHash: Eip712Types.orderHash(order),
            planHash: Eip712Types.planHash(plan),
            separator: Eip712Types.domainSeparator(_tasks)
        });
    }
}
