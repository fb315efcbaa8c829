// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Plans} from "./libraries/Plans.sol";
import {Receipts} from "./libraries/Receipts.sol";
import {AuditorDelegation, Order, Stage, StageReceipt} from "./types/Signed.sol";

/// Are receipts those of a job, or of one stage on trial?
///
/// TaskRegistry makes one of these, for want of code space, and hands it its own calldata: hence
/// the same names and arguments. No storage, no money; what is not so reverts with ITaskRegistry's
/// errors.
contract Proofs {
    address private immutable _tasks;

    constructor() {
        _tasks = msg.sender;
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
