// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {
    Ack,
    AuditorDelegation,
    Order,
    RequestLeaf,
    RequestOpening,
    Stage,
    StageReceipt
} from "../../src/types/Signed.sol";
import {Test} from "../Vm.sol";
import {Eip712Harness} from "../fixtures/Eip712Harness.sol";
import {Messages} from "../fixtures/Messages.sol";
import {ContractWallet, OddWallet} from "../fixtures/Wallets.sol";

contract Eip712TypesTest is Test {
    using Messages for *;

    uint256 private constant ORDER_OF_CURVE =
        0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141;

    Eip712Harness private types = new Eip712Harness();
    address private signer;
    uint256 private key;

    function setUp() public {
        (signer, key) = makeKey("signer");
    }

    // --- struct hashes agree with the field-by-field ones ---

    function testFuzz_orderHash_isOfItsFields(Order memory x) public view {
        vm.assertEq(types.order(x), x.hash());
    }

    function testFuzz_planHash_isOfItsFields(Stage[] memory x) public view {
        vm.assertEq(types.plan(x), x.hash());
        if (x.length > 0) vm.assertEq(types.stage(x[0]), x[0].hash());
    }

    function testFuzz_receiptHash_isOfItsFields(StageReceipt memory x) public view {
        vm.assertEq(types.receipt(x), x.hash());
    }

    function testFuzz_openingHash_isOfItsFields(RequestOpening memory x) public view {
        vm.assertEq(types.opening(x), x.hash());
    }

    function testFuzz_ackHash_isOfItsFields(Ack memory x) public view {
        vm.assertEq(types.ack(x), x.hash());
    }

    function testFuzz_delegationHash_isOfItsFields(AuditorDelegation memory x) public view {
        vm.assertEq(types.delegation(x), x.hash());
    }

    function testFuzz_operatorProofHash_isOfItsFields(address owner, address operator)
        public
        view
    {
        vm.assertEq(
            types.operatorProof(owner, operator), Messages.hashOperatorProof(owner, operator)
        );
    }

    function testFuzz_requestLeaf_is108Bytes(RequestLeaf memory x) public view {
        bytes memory leaf = types.requestLeaf(x);
        vm.assertEq(leaf.length, 108);
        vm.assertEq(
            leaf,
            abi.encodePacked(
                x.requestIndex, x.inRoot, x.outRoot, x.tokensIn, x.tokensOut, x.innerRoot
            )
        );
    }

    // --- domain ---

    function testFuzz_domainSeparator_followsTheChain(uint32 chain, address verifyingContract)
        public
    {
        vm.chainId(uint256(chain) + 1);
        vm.assertEq(
            types.domainSeparator(verifyingContract),
            Messages.separator(uint256(chain) + 1, verifyingContract)
        );
    }

    function testFuzz_toDigest_bindsTheDomain(bytes32 separator, bytes32 structHash) public view {
        vm.assertEq(types.toDigest(separator, structHash), Messages.digest(separator, structHash));
    }

    // --- recover: one accepted form ---

    function testFuzz_recover_findsTheKey(uint256 key_, bytes32 digest) public view {
        key_ = bound(key_, 1, ORDER_OF_CURVE - 1);
        vm.assertEq(types.recover(digest, sign(key_, digest)), vm.addr(key_));
    }

    function testFuzz_recover_ofHighS_isZero(bytes32 digest) public view {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        bytes memory other =
            abi.encodePacked(r, ORDER_OF_CURVE - uint256(s), v == 27 ? uint8(28) : uint8(27));
        vm.assertEq(types.recover(digest, other), address(0));
    }

    function testFuzz_recover_ofFlippedV_isAnother(bytes32 digest) public view {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        vm.assertNotEq(
            types.recover(digest, abi.encodePacked(r, s, v == 27 ? uint8(28) : uint8(27))), signer
        );
    }

    function testFuzz_recover_ofOtherV_isZero(bytes32 digest, uint8 v) public view {
        (, bytes32 r, bytes32 s) = vm.sign(key, digest);
        if (v == 27 || v == 28) v -= 27;
        vm.assertEq(types.recover(digest, abi.encodePacked(r, s, v)), address(0));
    }

    function testFuzz_recover_ofOtherLength_isZero(bytes32 digest, uint8 length) public view {
        if (length == 65) length = 66;
        bytes memory exact = sign(key, digest);
        bytes memory other = new bytes(length);
        for (uint256 i; i < length && i < 65; ++i) {
            other[i] = exact[i];
        }
        vm.assertEq(types.recover(digest, other), address(0));
    }

    /// EIP-2098: the same signature in 64 bytes would be a second encoding.
    function testFuzz_recover_ofCompactForm_isZero(bytes32 digest) public view {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, digest);
        bytes memory compact = abi.encodePacked(r, uint256(s) | (uint256(v - 27) << 255));
        vm.assertEq(types.recover(digest, compact), address(0));
    }

    function testFuzz_isSignedBy_whenAnyBitFlips_fails(bytes32 digest, uint256 bit) public view {
        bytes memory sig = sign(key, digest);
        vm.assertTrue(types.isSignedBy(signer, digest, sig));
        bit %= 520;
        sig[bit / 8] ^= bytes1(uint8(1 << (bit % 8)));
        vm.assertFalse(types.isSignedBy(signer, digest, sig));
    }

    function test_isSignedBy_zero_isNever() public view {
        vm.assertFalse(types.isSignedBy(address(0), keccak256("x"), ""));
        vm.assertFalse(types.isSignedBy(address(0), keccak256("x"), new bytes(65)));
        vm.assertFalse(types.isValidSigner(address(0), keccak256("x"), new bytes(65)));
    }

    // --- requesters that are contracts ---

    function test_isValidSigner_ofKey() public view {
        vm.assertTrue(types.isValidSigner(signer, keccak256("x"), sign(key, keccak256("x"))));
        vm.assertFalse(types.isValidSigner(signer, keccak256("y"), sign(key, keccak256("x"))));
    }

    function test_isValidSigner_ofContract_asksIt() public {
        ContractWallet wallet = new ContractWallet(signer);
        bytes memory sig = sign(key, keccak256("x"));
        vm.assertTrue(types.isValidSigner(address(wallet), keccak256("x"), sig));
        wallet.setSigner(address(1));
        vm.assertFalse(types.isValidSigner(address(wallet), keccak256("x"), sig));
    }

    function test_isValidSigner_ofOddContract_isFalse() public {
        bytes memory sig = sign(key, keccak256("x"));
        vm.assertFalse(types.isValidSigner(address(new OddWallet("", false)), keccak256("x"), sig));
        vm.assertFalse(
            types.isValidSigner(address(new OddWallet(hex"1626ba7e", false)), keccak256("x"), sig)
        );
        vm.assertFalse(
            types.isValidSigner(address(new OddWallet(abi.encode(1), false)), keccak256("x"), sig)
        );
        vm.assertFalse(types.isValidSigner(address(new OddWallet("", true)), keccak256("x"), sig));
        vm.assertTrue(
            types.isValidSigner(
                address(new OddWallet(abi.encode(bytes4(0x1626ba7e)), false)), keccak256("x"), sig
            )
        );
    }

    /// Operators are plain keys: a contract could change its mind about an old receipt.
    function test_isSignedBy_ofContract_isFalse() public {
        ContractWallet wallet = new ContractWallet(signer);
        vm.assertFalse(
            types.isSignedBy(address(wallet), keccak256("x"), sign(key, keccak256("x")))
        );
    }
}
