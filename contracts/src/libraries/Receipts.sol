// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Order, RequestLeaf, Stage, StageReceipt} from "../types/Signed.sol";
import {Eip712Types} from "./Eip712Types.sol";
import {Plans} from "./Plans.sol";
import {ShaTree} from "./ShaTree.sol";
import {Words} from "./Words.sol";

/// Is a receipt what the stage's operator signed for this job, and do all tell one story?
library Receipts {
    /// One receipt of stage `index`: right job, plan and layers, signed by the plan's operator as a
    /// whole, or by its words of each request (see Words).
    /// @return receiptHash EIP-712 struct hash
    function check(
        StageReceipt calldata receipt,
        bytes calldata signature,
        Stage calldata stage,
        uint256 index,
        Plans.Binding memory binding
    ) internal pure returns (bytes32 receiptHash) {
        if (
            receipt.orderHash != binding.orderHash || receipt.planHash != binding.planHash
                || receipt.stage != index || receipt.layerFrom != stage.layerFrom
                || receipt.layerTo != stage.layerTo || !_areTimesHeld(receipt)
        ) revert ITaskRegistry.ReceiptMismatch(index);
        receiptHash = Eip712Types.receiptHash(receipt);
        if (Words.areWords(signature)) {
            Words.check(receipt, signature, stage.operator, binding);
            return receiptHash;
        }
        bytes32 digest = Eip712Types.toDigest(binding.separator, receiptHash);
        if (!Eip712Types.isSignedBy(stage.operator, digest, signature)) {
            revert ITaskRegistry.BadSignature(stage.operator);
        }
    }

    /// Do 63 bits hold both times?
    ///
    /// SAFETY: nothing else reads them, and they are hashed as they stand in calldata. A stage that
    /// signed more bits would be paid for a receipt that no auditor's tools can read.
    function _areTimesHeld(StageReceipt calldata receipt) private pure returns (bool held) {
        assembly ("memory-safe") {
            let both := or(calldataload(add(receipt, 0x180)), calldataload(add(receipt, 0x1a0)))
            held := iszero(shr(63, both))
        }
    }

    /// As `check`, for the stage that the receipt itself names.
    function checkOf(
        Stage[] calldata plan,
        StageReceipt calldata receipt,
        bytes calldata signature,
        Plans.Binding memory binding
    ) internal pure returns (bytes32 receiptHash) {
        uint16 stage = receipt.stage;
        if (stage >= plan.length) revert ITaskRegistry.StageOutOfRange(stage, plan.length);
        return check(receipt, signature, plan[stage], stage, binding);
    }

    /// A whole pipeline's receipts: one a stage, all over the same requests; by the deadline over
    /// every request of the order.
    ///
    /// INVARIANT: inputRoot of stage i is outputRoot of stage i − 1, and that of the first the last
    /// one's, so an altered activation or token is one stage's fault; token counts are equal and
    /// within the order's caps, so Σ gross ≤ maxAmount. No partial receipt can be delivered while
    /// more can be done.
    function checkAll(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata signatures,
        Plans.Binding memory binding
    ) internal view {
        bool whole = receipts.length == plan.length && signatures.length == plan.length;
        if (!whole) revert ITaskRegistry.BadPlan();
        StageReceipt calldata first = receipts[0];
        checkCounts(order, first.tokensIn, first.tokensOut);
        uint32 requests = block.timestamp > order.deadline ? first.requests : order.requests;
        for (uint256 i; i < receipts.length; ++i) {
            StageReceipt calldata receipt = receipts[i];
            check(receipt, signatures[i], plan[i], i, binding);
            if (receipt.requests != requests) revert ITaskRegistry.RequestCountMismatch(i);
            if (receipt.tokensIn != first.tokensIn || receipt.tokensOut != first.tokensOut) {
                revert ITaskRegistry.TokenCountMismatch(i);
            }
            uint256 before = i == 0 ? receipts.length - 1 : i - 1;
            if (receipt.inputRoot != receipts[before].outputRoot) {
                revert ITaskRegistry.ReceiptChainBroken(i);
            }
        }
    }

    /// INVARIANT: counts are within what the order locked money for.
    function checkCounts(Order calldata order, uint32 tokensIn, uint32 tokensOut) internal pure {
        if (tokensIn > order.maxTokensIn) {
            revert ITaskRegistry.OverCap(tokensIn, order.maxTokensIn);
        }
        if (tokensOut > order.maxTokensOut) {
            revert ITaskRegistry.OverCap(tokensOut, order.maxTokensOut);
        }
    }

    /// Is `leaf` that of the receipt's request number `position`? Beside it under `requestsRoot`
    /// stand the sums up to this request, so there are two leaves a request.
    function isUnder(
        StageReceipt calldata receipt,
        RequestLeaf calldata leaf,
        uint256 position,
        bytes32[] calldata proof
    ) internal view returns (bool) {
        if (position >= receipt.requests) return false;
        bytes32 hash = ShaTree.leafHash(Eip712Types.requestLeafBytes(leaf));
        uint256 count = 2 * uint256(receipt.requests);
        return ShaTree.verify(receipt.requestsRoot, count, 2 * position, hash, proof);
    }
}
