// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {SignatureChecker} from "@openzeppelin/contracts/utils/cryptography/SignatureChecker.sol";

import {
    Ack,
    AuditorDelegation,
    Order,
    RequestLeaf,
    RequestOpening,
    RequestWord,
    Stage,
    StageReceipt
} from "../types/Signed.sol";

/// What exactly is signed: EIP-712 types, struct hashes, the one domain, and who signed.
///
/// Structs but Plan hold static value types alone, so their hash is `keccak256(abi.encode(typeHash,
/// struct))`. Twin: core/protocol/signing.py; vectors: tests/twins/vectors.json.
library Eip712Types {
    bytes32 internal constant DOMAIN_TYPEHASH = keccak256(
        "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
    );
    bytes32 internal constant NAME_HASH = keccak256("Headrace");
    bytes32 internal constant VERSION_HASH = keccak256("1");

    bytes32 internal constant ORDER_TYPEHASH = keccak256(
        "Order(address requester,bytes32 modelId,bytes32 inputRoot,bytes32 samplingRoot,"
        "uint32 requests,uint32 maxTokensIn,uint32 maxTokensOut,uint64 priceIn,uint64 priceOut,"
        "address matcher,uint16 matcherFeeBps,uint64 openingFee,uint128 minStake,uint64 deadline,"
        "uint32 window,address auditor,address arbitrator,bytes32 numericsProfile,"
        "bytes32 termsHash,uint64 nonce)"
    );
    bytes32 internal constant STAGE_TYPEHASH =
        keccak256("Stage(address operator,uint16 layerFrom,uint16 layerTo)");
    bytes32 internal constant PLAN_TYPEHASH =
        keccak256("Plan(Stage[] stages)Stage(address operator,uint16 layerFrom,uint16 layerTo)");
    bytes32 internal constant STAGE_RECEIPT_TYPEHASH = keccak256(
        "StageReceipt(bytes32 orderHash,bytes32 planHash,uint16 stage,uint16 layerFrom,"
        "uint16 layerTo,bytes32 shardRoot,bytes32 inputRoot,bytes32 outputRoot,"
        "bytes32 requestsRoot,uint32 requests,uint32 tokensIn,uint32 tokensOut,uint64 startedAt,"
        "uint64 signedAt)"
    );
    bytes32 internal constant REQUEST_WORD_TYPEHASH = keccak256(
        "RequestWord(bytes32 orderHash,bytes32 planHash,uint16 stage,uint32 requestIndex,"
        "bytes32 inRoot,bytes32 outRoot,uint32 tokensIn,uint32 tokensOut,bytes32 answerRoot,"
        "bytes32 innerRoot)"
    );
    bytes32 internal constant REQUEST_OPENING_TYPEHASH = keccak256(
        "RequestOpening(bytes32 orderHash,uint32 requestIndex,bytes32 promptLeaf,"
        "bytes32 samplingLeaf)"
    );
    bytes32 internal constant ACK_TYPEHASH = keccak256(
        "Ack(bytes32 orderHash,bytes32 planHash,bytes32 resultRoot,uint32 tokensIn,"
        "uint32 tokensOut)"
    );
    bytes32 internal constant AUDITOR_DELEGATION_TYPEHASH =
        keccak256("AuditorDelegation(bytes32 orderHash,address auditor,uint64 expiry)");
    bytes32 internal constant OPERATOR_PROOF_TYPEHASH =
        keccak256("OperatorProof(address owner,address operator)");

    /// Half the order of secp256k1: an s above it is the other form of the same signature.
    uint256 internal constant MAX_S =
        0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;

    // --- struct hashes ---

    function orderHash(Order calldata order) internal pure returns (bytes32) {
        uint256 head;
        assembly ("memory-safe") {
            head := order
        }
        return _hash(ORDER_TYPEHASH, head, 20 * 32);
    }

    function stageHash(Stage calldata stage) internal pure returns (bytes32) {
        uint256 head;
        assembly ("memory-safe") {
            head := stage
        }
        return _hash(STAGE_TYPEHASH, head, 3 * 32);
    }

    function planHash(Stage[] calldata plan) internal pure returns (bytes32 result) {
        bytes32 typeHash = PLAN_TYPEHASH;
        bytes32 stageType = STAGE_TYPEHASH;
        // Stages stand in calldata as the three words that are hashed.
        assembly ("memory-safe") {
            let stage := mload(0x40)
            let hashes := add(stage, 128)
            mstore(stage, stageType)
            for { let i := 0 } lt(i, plan.length) { i := add(i, 1) } {
                calldatacopy(add(stage, 32), add(plan.offset, mul(i, 96)), 96)
                mstore(add(hashes, shl(5, i)), keccak256(stage, 128))
            }
            mstore(stage, typeHash)
            mstore(add(stage, 32), keccak256(hashes, shl(5, plan.length)))
            result := keccak256(stage, 64)
        }
    }

    function receiptHash(StageReceipt calldata receipt) internal pure returns (bytes32) {
        uint256 head;
        assembly ("memory-safe") {
            head := receipt
        }
        return _hash(STAGE_RECEIPT_TYPEHASH, head, 14 * 32);
    }

    function wordHash(RequestWord memory word) internal pure returns (bytes32) {
        return keccak256(abi.encode(REQUEST_WORD_TYPEHASH, word));
    }

    function openingHash(RequestOpening calldata opening) internal pure returns (bytes32) {
        return keccak256(abi.encode(REQUEST_OPENING_TYPEHASH, opening));
    }

    function ackHash(Ack calldata ack) internal pure returns (bytes32) {
        return keccak256(abi.encode(ACK_TYPEHASH, ack));
    }

    function delegationHash(AuditorDelegation calldata delegation)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(AUDITOR_DELEGATION_TYPEHASH, delegation));
    }

    function operatorProofHash(address owner, address operator) internal pure returns (bytes32) {
        return keccak256(abi.encode(OPERATOR_PROOF_TYPEHASH, owner, operator));
    }

    /// The 108 bytes of a leaf under `StageReceipt.requestsRoot` (docs/protocol.md §3).
    function requestLeafBytes(RequestLeaf calldata leaf) internal pure returns (bytes memory) {
        return abi.encodePacked(
            leaf.requestIndex,
            leaf.inRoot,
            leaf.outRoot,
            leaf.tokensIn,
            leaf.tokensOut,
            leaf.innerRoot
        );
    }

    /// The hash of a struct of static values, from its words in calldata. A word with bits that its
    /// type has not hashes otherwise than the value, so only a cheat signs it.
    function _hash(bytes32 typeHash, uint256 head, uint256 length)
        private
        pure
        returns (bytes32 result)
    {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore(free, typeHash)
            calldatacopy(add(free, 32), head, length)
            result := keccak256(free, add(length, 32))
        }
    }

    // --- domain and signatures ---

    /// Computed each time: after a fork that changes the chain id, old signatures do not count.
    function domainSeparator(address verifyingContract) internal view returns (bytes32) {
        return keccak256(
            abi.encode(DOMAIN_TYPEHASH, NAME_HASH, VERSION_HASH, block.chainid, verifyingContract)
        );
    }

    function toDigest(bytes32 separator, bytes32 structHash) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(hex"1901", separator, structHash));
    }

    /// The key that signed `digest`, or zero: 65 bytes r‖s‖v with low s and v 27 or 28 alone, so
    /// that a signature has one encoding.
    function recover(bytes32 digest, bytes calldata signature) internal pure returns (address) {
        if (signature.length != 65) return address(0);
        bytes32 s = bytes32(signature[32:64]);
        uint8 v = uint8(signature[64]);
        if (uint256(s) > MAX_S || (v != 27 && v != 28)) return address(0);
        return ecrecover(digest, v, bytes32(signature[:32]), s);
    }

    /// Did the plain key `signer` sign? Never true for address(0).
    function isSignedBy(address signer, bytes32 digest, bytes calldata signature)
        internal
        pure
        returns (bool)
    {
        return signer != address(0) && recover(digest, signature) == signer;
    }

    /// Did a requester sign: its key, or, if it has code, the contract by ERC-1271 at this moment.
    function isValidSigner(address signer, bytes32 digest, bytes calldata signature)
        internal
        view
        returns (bool)
    {
        if (isSignedBy(signer, digest, signature)) return true;
        return signer.code.length != 0
            && SignatureChecker.isValidERC1271SignatureNowCalldata(signer, digest, signature);
    }
}
