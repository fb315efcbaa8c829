// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Order, RequestLeaf, Stage, StageReceipt} from "../types/Signed.sol";
import {Eip712Types} from "./Eip712Types.sol";
import {Plans} from "./Plans.sol";
import {ShaTree} from "./ShaTree.sol";

/// Is a receipt what the stage's operator signed for this job, and do all tell one story?
library Receipts {
    /// One receipt of stage `index`: right job, plan and layers, signed by the plan's operator.
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
                || receipt.layerTo != stage.layerTo
        ) revert ITaskRegistry.ReceiptMismatch(index);
        receiptHash = Eip712Types.receiptHash(receipt);
        bytes32 digest = Eip712Types.toDigest(binding.separator, receiptHash);
        if (!Eip712Types.isSignedBy(stage.operator, digest, signature)) {
            revert ITaskRegistry.BadSignature(stage.operator);
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

    /// A whole pipeline's receipts: one a stage, each over every request of the order.
    ///
    /// INVARIANT: inputRoot of stage i is outputRoot of stage i − 1, so an altered activation is
    /// one stage's fault; token counts are equal and within the order's caps, so Σ gross ≤
    /// maxAmount. No partial receipt can be delivered and cut off the pay for the rest.
    function checkAll(
        Order calldata order,
        Stage[] calldata plan,
        StageReceipt[] calldata receipts,
        bytes[] calldata signatures,
        Plans.Binding memory binding
    ) internal pure {
        bool whole = receipts.length == plan.length && signatures.length == plan.length;
        if (!whole) revert ITaskRegistry.BadPlan();
        StageReceipt calldata first = receipts[0];
        checkCounts(order, first.tokensIn, first.tokensOut);
        for (uint256 i; i < receipts.length; ++i) {
            StageReceipt calldata receipt = receipts[i];
            check(receipt, signatures[i], plan[i], i, binding);
            if (receipt.requests != order.requests) revert ITaskRegistry.RequestCountMismatch(i);
            if (receipt.tokensIn != first.tokensIn || receipt.tokensOut != first.tokensOut) {
                revert ITaskRegistry.TokenCountMismatch(i);
            }
            if (i > 0 && receipt.inputRoot != receipts[i - 1].outputRoot) {
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

    /// Two leaves for one request, each under a receipt of the same stage.
    ///
    /// INVARIANT: an honest stage signs one leaf for a request of a plan.
    function checkEquivocation(
        StageReceipt[2] calldata receipts,
        RequestLeaf[2] calldata leaves,
        uint256[2] calldata positions,
        bytes32[][2] calldata proofs
    ) internal view {
        bytes32[2] memory hashes;
        for (uint256 i; i < 2; ++i) {
            hashes[i] = ShaTree.leafHash(Eip712Types.requestLeafBytes(leaves[i]));
            bool included = ShaTree.verify(
                receipts[i].requestsRoot, receipts[i].requests, positions[i], hashes[i], proofs[i]
            );
            if (!included) revert ITaskRegistry.NotEquivocation();
        }
        if (leaves[0].requestIndex != leaves[1].requestIndex || hashes[0] == hashes[1]) {
            revert ITaskRegistry.NotEquivocation();
        }
    }
}
