// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {RequestWord, StageReceipt} from "../types/Signed.sol";
import {Eip712Types} from "./Eip712Types.sol";
import {Plans} from "./Plans.sol";
import {ShaTree} from "./ShaTree.sol";

/// Are a stage's words of single requests worth this receipt?
///
/// A stage gives each word to the next one, which signs nothing without it. So a stage that keeps
/// its receipt back can be delivered, paid and disputed all the same. In the place of a signature
/// of 65 bytes stand for each request its leaf, 108 bytes, the answer that a first stage received,
/// 32 bytes, and the signature of its RequestWord.
library Words {
    uint256 private constant LEAF = 108;
    uint256 private constant SAID = LEAF + 32;
    uint256 private constant WORD = SAID + 65;

    /// Is this in the place of a signature?
    function areWords(bytes calldata signature) internal pure returns (bool) {
        return signature.length != 0 && signature.length % WORD == 0;
    }

    /// What words say together.
    struct Story {
        bytes32[] inputs;
        bytes32[] outputs;
        bytes32[] requests;
        uint32 tokensIn;
        uint32 tokensOut;
        bool ascends;
    }

    /// INVARIANT: words of some requests are worth one receipt: requests ascend, roots and counts
    /// are theirs, and what words do not say is zero.
    function check(
        StageReceipt calldata receipt,
        bytes calldata words,
        address operator,
        Plans.Binding memory binding
    ) internal pure {
        Story memory story = _read(receipt.stage, words, operator, binding);
        bool isWorth = story.ascends && receipt.requests == story.outputs.length
            && receipt.tokensIn == story.tokensIn && receipt.tokensOut == story.tokensOut
            && receipt.shardRoot == 0 && receipt.startedAt == 0 && receipt.signedAt == 0;
        isWorth = isWorth && receipt.inputRoot == ShaTree.root(story.inputs)
            && receipt.outputRoot == ShaTree.root(story.outputs)
            && receipt.requestsRoot == ShaTree.root(story.requests);
        if (!isWorth) revert ITaskRegistry.BadWords(receipt.stage);
    }

    function _read(
        uint16 stage,
        bytes calldata words,
        address operator,
        Plans.Binding memory binding
    ) private pure returns (Story memory story) {
        uint256 count = words.length / WORD;
        story.inputs = new bytes32[](count);
        story.outputs = new bytes32[](count);
        story.requests = new bytes32[](2 * count);
        story.ascends = true;
        RequestWord memory word;
        (word.orderHash, word.planHash, word.stage) = (binding.orderHash, binding.planHash, stage);
        for (uint256 i; i < count; ++i) {
            bytes calldata said = words[i * WORD:(i + 1) * WORD];
            uint32 index = uint32(bytes4(said[:4]));
            story.ascends = story.ascends && (i == 0 || word.requestIndex < index);
            word.requestIndex = index;
            word.inRoot = bytes32(said[4:36]);
            word.outRoot = bytes32(said[36:68]);
            word.tokensIn = uint32(bytes4(said[68:72]));
            word.tokensOut = uint32(bytes4(said[72:76]));
            word.innerRoot = bytes32(said[76:LEAF]);
            word.answerRoot = bytes32(said[LEAF:SAID]);
            bytes32 digest = Eip712Types.toDigest(binding.separator, Eip712Types.wordHash(word));
            if (!Eip712Types.isSignedBy(operator, digest, said[SAID:])) {
                revert ITaskRegistry.BadSignature(operator);
            }
            story.tokensIn += word.tokensIn;
            story.tokensOut += word.tokensOut;
            bytes32 received = stage == 0 ? word.answerRoot : word.inRoot;
            story.inputs[i] = ShaTree.leafHash(abi.encodePacked(index, received));
            story.outputs[i] = ShaTree.leafHash(abi.encodePacked(index, word.outRoot));
            story.requests[2 * i] = ShaTree.leafHash(said[:LEAF]);
            story.requests[2 * i + 1] =
                ShaTree.leafHash(abi.encodePacked(story.tokensIn, story.tokensOut));
        }
    }
}
