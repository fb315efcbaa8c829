// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEvidence} from "./interfaces/IEvidence.sol";
import {ITaskRegistry} from "./interfaces/ITaskRegistry.sol";
import {Eip712Types} from "./libraries/Eip712Types.sol";
import {Plans} from "./libraries/Plans.sol";
import {Receipts} from "./libraries/Receipts.sol";
import {ShaTree} from "./libraries/ShaTree.sol";
import {Order, RequestLeaf, Stage} from "./types/Signed.sol";

/// Do a stage's signed words contradict each other, or the order? See IEvidence.
///
/// No storage, no money: TaskRegistry makes one of these and convicts on its word alone, after it
/// has bound order and plan to a job.
contract Evidence is IEvidence {
    ITaskRegistry public immutable tasks;

    constructor() {
        tasks = ITaskRegistry(msg.sender);
    }

    function equivocation(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata one,
        Told calldata other
    ) external {
        _requireTold(order, plan, one);
        _requireTold(order, plan, other);
        _require(one.receipt.stage == other.receipt.stage);
        _require(one.leaf.requestIndex == other.leaf.requestIndex);
        _require(_hash(one.leaf) != _hash(other.leaf));
        _convict(order, plan, one, Kind.Equivocation);
    }

    function counts(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Sums calldata sums,
        RequestLeaf calldata before,
        bytes32[] calldata beforeProof,
        Sums calldata sumsBefore
    ) external {
        _requireTold(order, plan, told);
        _requireSums(told, told.position, sums);
        uint256 tokensIn = told.leaf.tokensIn;
        uint256 tokensOut = told.leaf.tokensOut;
        bool follows = told.leaf.requestIndex < order.requests;
        if (told.position != 0) {
            _requireLeaf(told, told.position - 1, before, beforeProof);
            _requireSums(told, told.position - 1, sumsBefore);
            tokensIn += sumsBefore.tokensIn;
            tokensOut += sumsBefore.tokensOut;
            follows = follows && before.requestIndex < told.leaf.requestIndex;
        }
        follows = follows && sums.tokensIn == tokensIn && sums.tokensOut == tokensOut;
        if (told.position + 1 == told.receipt.requests) {
            follows = follows && sums.tokensIn == told.receipt.tokensIn
                && sums.tokensOut == told.receipt.tokensOut;
        }
        _require(!follows);
        _convict(order, plan, told, Kind.Counts);
    }

    function rows(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Side side,
        uint32 count,
        bytes32 top,
        bytes32 beside
    ) external {
        _requireTold(order, plan, told);
        bool isHalf = side == Side.Tokens || side == Side.States;
        bool isLast = told.receipt.stage + 1 == plan.length;
        _require(isHalf ? isLast : side == Side.In || !isLast);
        bytes32 root = ShaTree.seal(count, top);
        if (side == Side.Tokens) root = _answerRoot(root, beside);
        if (side == Side.States) root = _answerRoot(beside, root);
        _require(root == (side == Side.In ? told.leaf.inRoot : told.leaf.outRoot));
        // So that a leaf of no tokens has no number of rows that fits.
        _require(isHalf ? count != told.leaf.tokensOut : uint256(count) + 1 != _tokens(told));
        _convict(order, plan, told, Kind.Rows);
    }

    function roots(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        bool isOutput,
        bytes32 leafHash,
        bytes32[] calldata proof
    ) external {
        _requireTold(order, plan, told);
        bytes32 treeRoot = isOutput ? told.receipt.outputRoot : told.receipt.inputRoot;
        bytes32 own = isOutput ? told.leaf.outRoot : told.leaf.inRoot;
        if (!isOutput && told.receipt.stage == 0) {
            // A first stage's input is the last one's output, which only a chain of one signs here.
            _require(plan.length == 1);
            own = told.leaf.outRoot;
        }
        _require(ShaTree.verify(treeRoot, told.receipt.requests, told.position, leafHash, proof));
        _require(leafHash != _boundaryLeaf(told.leaf.requestIndex, own));
        _convict(order, plan, told, Kind.Roots);
    }

    function prompt(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Ids calldata ordered,
        Id calldata asked,
        Id calldata fed_
    ) external {
        _requireTold(order, plan, told);
        bytes32 sealed_ = sha256(abi.encodePacked(ordered.beside, ordered.root));
        _requireUnder(
            order.inputRoot,
            order.requests,
            told.leaf.requestIndex,
            _boundaryLeaf(told.leaf.requestIndex, sealed_),
            ordered.proof
        );
        _requireFedOtherwise(told, ordered, asked, fed_, 0, told.leaf.tokensIn);
        _convict(order, plan, told, Kind.Prompt);
    }

    function fed(
        Order calldata order,
        Stage[] calldata plan,
        Told calldata told,
        Ids calldata answer,
        Id calldata drawn,
        Id calldata fed_
    ) external {
        _requireTold(order, plan, told);
        _requireUnder(
            told.receipt.inputRoot,
            told.receipt.requests,
            told.position,
            _boundaryLeaf(told.leaf.requestIndex, _answerRoot(answer.root, answer.beside)),
            answer.proof
        );
        _requireFedOtherwise(told, answer, drawn, fed_, told.leaf.tokensIn, told.leaf.tokensOut);
        _convict(order, plan, told, Kind.Fed);
    }

    // --- internals ---

    function _require(bool so) private pure {
        if (!so) revert NotProven();
    }

    /// INVARIANT: the stage's operator signed this leaf, for this order, plan and place.
    function _requireTold(Order calldata order, Stage[] calldata plan, Told calldata told)
        private
        view
    {
        Plans.Binding memory binding = Plans.Binding({
            orderHash: Eip712Types.orderHash(order),
            planHash: Eip712Types.planHash(plan),
            separator: Eip712Types.domainSeparator(address(tasks))
        });
        Receipts.checkOf(plan, told.receipt, told.signature, binding);
        _requireLeaf(told, told.position, told.leaf, told.proof);
    }

    function _requireLeaf(
        Told calldata told,
        uint256 position,
        RequestLeaf calldata leaf,
        bytes32[] calldata proof
    ) private view {
        _require(Receipts.isUnder(told.receipt, leaf, position, proof));
    }

    function _requireSums(Told calldata told, uint256 position, Sums calldata sums) private view {
        bytes32 hash = ShaTree.leafHash(abi.encodePacked(sums.tokensIn, sums.tokensOut));
        _requireUnder(
            told.receipt.requestsRoot,
            2 * uint256(told.receipt.requests),
            2 * position + 1, // below requests: the request's leaf is proven there
            hash,
            sums.proof
        );
    }

    function _requireUnder(
        bytes32 root,
        uint256 count,
        uint256 index,
        bytes32 hash,
        bytes32[] calldata proof
    ) private view {
        _require(ShaTree.verify(root, count, index, hash, proof));
    }

    /// Ids `from … from + due` of a first stage's input are not these, or these are not `due`.
    function _requireFedOtherwise(
        Told calldata told,
        Ids calldata ids,
        Id calldata wanted,
        Id calldata found,
        uint256 from,
        uint256 due
    ) private view {
        _require(told.receipt.stage == 0);
        _requireUnder(ids.root, ids.count, wanted.at, _idLeaf(wanted), wanted.proof);
        if (ids.count != due) return;
        _require(found.at == from + wanted.at && found.id != wanted.id);
        // The last token of an answer is fed nowhere: its row is not under inRoot.
        uint256 tokens = _tokens(told);
        _require(tokens != 0);
        _requireUnder(told.leaf.inRoot, tokens - 1, found.at, _idLeaf(found), found.proof);
    }

    function _idLeaf(Id calldata id) private pure returns (bytes32) {
        return ShaTree.leafHash(abi.encodePacked(id.at, id.id));
    }

    function _boundaryLeaf(uint32 index, bytes32 root) private pure returns (bytes32) {
        return ShaTree.leafHash(abi.encodePacked(index, root));
    }

    function _answerRoot(bytes32 tokens, bytes32 states) private pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x04), tokens, states));
    }

    function _hash(RequestLeaf calldata leaf) private pure returns (bytes32) {
        return ShaTree.leafHash(Eip712Types.requestLeafBytes(leaf));
    }

    function _tokens(Told calldata told) private pure returns (uint256) {
        return uint256(told.leaf.tokensIn) + told.leaf.tokensOut;
    }

    function _convict(Order calldata order, Stage[] calldata plan, Told calldata told, Kind kind)
        private
    {
        tasks.convict(order, plan, told.receipt.stage, kind);
    }
}
