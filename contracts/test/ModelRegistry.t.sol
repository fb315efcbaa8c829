// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelRegistry} from "../src/ModelRegistry.sol";
import {IModelRegistry} from "../src/interfaces/IModelRegistry.sol";
import {ModelId} from "../src/types/Ids.sol";
import {Test} from "./Vm.sol";

contract ModelRegistryTest is Test {
    ModelRegistry private models = new ModelRegistry();

    /// The tree of docs/protocol.md §3, written the slow way: one level at a time, into new arrays.
    function weightsRoot(bytes32[] memory roots) private pure returns (bytes32) {
        bytes32[] memory level = new bytes32[](roots.length);
        for (uint256 i; i < roots.length; ++i) {
            level[i] = sha256(abi.encodePacked(hex"00", roots[i]));
        }
        while (level.length > 1) {
            bytes32[] memory above = new bytes32[]((level.length + 1) / 2);
            for (uint256 i; i < above.length; ++i) {
                above[i] = 2 * i + 1 < level.length
                    ? sha256(abi.encodePacked(hex"01", level[2 * i], level[2 * i + 1]))
                    : level[2 * i];
            }
            level = above;
        }
        return sha256(abi.encodePacked(hex"02", uint32(roots.length), level[0]));
    }

    function rootsOf(uint256 layers) private pure returns (bytes32[] memory roots) {
        roots = new bytes32[](layers + 2);
        for (uint256 i; i < roots.length; ++i) {
            roots[i] = keccak256(abi.encode("root", i));
        }
    }

    function specOf(uint16 layers) private pure returns (IModelRegistry.ModelSpec memory spec) {
        spec.architecture = keccak256("llama");
        spec.layers = layers;
        spec.hidden = 576;
        spec.heads = 9;
        spec.kvHeads = 3;
        spec.ffn = 1536;
        spec.vocab = 49_152;
        spec.context = 8192;
        spec.embedUnits = 1;
        spec.headUnits = 2;
        spec.dtype = keccak256("float32");
        spec.numericsProfile = keccak256("ANY");
        spec.weightsRoot = weightsRoot(rootsOf(layers));
        spec.manifestHash = sha256("manifest");
    }

    function test_register_whenRootsMatch_storesAll() public {
        IModelRegistry.ModelSpec memory spec = specOf(30);
        ModelId expected = ModelId.wrap(keccak256(abi.encode(spec)));
        vm.expectEmit(address(models));
        emit IModelRegistry.ModelRegistered(expected, address(this), 30, spec.weightsRoot);
        ModelId id = models.register(spec, rootsOf(30));

        vm.assertEq(ModelId.unwrap(id), ModelId.unwrap(expected));
        vm.assertTrue(models.exists(id));
        vm.assertEq(abi.encode(models.specOf(id)), abi.encode(spec));
        (uint16 layers, uint8 embedUnits, uint8 headUnits) = models.shapeOf(id);
        vm.assertEq(uint256(layers), 30);
        vm.assertEq(uint256(embedUnits), 1);
        vm.assertEq(uint256(headUnits), 2);
        vm.assertEq(models.numericsProfileOf(id), keccak256("ANY"));
    }

    function test_numericsProfileOf_aModelWithoutOne_isZero() public {
        IModelRegistry.ModelSpec memory spec = specOf(4);
        spec.numericsProfile = 0;
        vm.assertEq(models.numericsProfileOf(models.register(spec, rootsOf(4))), bytes32(0));
    }

    function test_register_whenKnown_reverts() public {
        IModelRegistry.ModelSpec memory spec = specOf(4);
        ModelId id = models.register(spec, rootsOf(4));
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.ModelExists.selector, id));
        models.register(spec, rootsOf(4));
    }

    function test_register_whenRootsTooFewOrMany_reverts() public {
        IModelRegistry.ModelSpec memory spec = specOf(4);
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.RootsLengthWrong.selector, 5, 6));
        models.register(spec, rootsOf(3));
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.RootsLengthWrong.selector, 7, 6));
        models.register(spec, rootsOf(5));
    }

    function testFuzz_register_whenAnyRootDiffers_reverts(uint256 index, bytes32 other) public {
        bytes32[] memory roots = rootsOf(4);
        index = bound(index, 0, 5);
        if (other == roots[index]) other = ~other;
        roots[index] = other;
        IModelRegistry.ModelSpec memory spec = specOf(4);
        vm.expectRevert(
            abi.encodeWithSelector(
                IModelRegistry.WeightsRootMismatch.selector, weightsRoot(roots), spec.weightsRoot
            )
        );
        models.register(spec, roots);
    }

    function test_register_whenShapeHasAZero_reverts() public {
        for (uint256 field; field < 8; ++field) {
            IModelRegistry.ModelSpec memory spec = specOf(4);
            if (field == 0) spec.layers = 0;
            if (field == 1) spec.hidden = 0;
            if (field == 2) spec.heads = 0;
            if (field == 3) spec.kvHeads = 0;
            if (field == 4) spec.ffn = 0;
            if (field == 5) spec.vocab = 0;
            if (field == 6) spec.context = 0;
            if (field == 7) spec.kvHeads = 2; // 9 heads do not divide into 2 groups
            vm.expectRevert(IModelRegistry.ModelShapeInvalid.selector);
            models.register(spec, rootsOf(4));
        }
    }

    function test_reads_whenUnknown_revert() public {
        ModelId id = ModelId.wrap(keccak256("nothing"));
        vm.assertFalse(models.exists(id));
        bytes memory unknown = abi.encodeWithSelector(IModelRegistry.ModelUnknown.selector, id);
        vm.expectRevert(unknown);
        models.specOf(id);
        vm.expectRevert(unknown);
        models.shapeOf(id);
        vm.expectRevert(unknown);
        models.numericsProfileOf(id);
        vm.expectRevert(unknown);
        models.shardRoot(id, 0, 1);
    }

    function test_shardRoot_addsEmbeddingToTheFirstAndHeadToTheLastShard() public {
        ModelId id = models.register(specOf(3), rootsOf(3));
        bytes32[] memory r = rootsOf(3);
        vm.assertEq(
            models.shardRoot(id, 0, 3),
            sha256(abi.encodePacked(hex"03", uint16(0), uint16(3), r[0], r[1], r[2], r[3], r[4]))
        );
        vm.assertEq(
            models.shardRoot(id, 0, 1),
            sha256(abi.encodePacked(hex"03", uint16(0), uint16(1), r[0], r[1]))
        );
        vm.assertEq(
            models.shardRoot(id, 1, 2),
            sha256(abi.encodePacked(hex"03", uint16(1), uint16(2), r[2]))
        );
        vm.assertEq(
            models.shardRoot(id, 1, 3),
            sha256(abi.encodePacked(hex"03", uint16(1), uint16(3), r[2], r[3], r[4]))
        );
        vm.assertEq(
            models.shardRoot(id, 2, 3),
            sha256(abi.encodePacked(hex"03", uint16(2), uint16(3), r[3], r[4]))
        );
    }

    function test_shardRoot_whenRangeEmptyOrTooLong_reverts() public {
        ModelId id = models.register(specOf(3), rootsOf(3));
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.LayersOutOfRange.selector, 1, 1, 3));
        models.shardRoot(id, 1, 1);
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.LayersOutOfRange.selector, 2, 1, 3));
        models.shardRoot(id, 2, 1);
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.LayersOutOfRange.selector, 0, 4, 3));
        models.shardRoot(id, 0, 4);
    }

    function testFuzz_register_anyDepth(uint16 layers) public {
        layers = uint16(bound(layers, 1, 40));
        ModelId id = models.register(specOf(layers), rootsOf(layers));
        vm.assertTrue(models.exists(id));
    }

    function places(uint256 count) private pure returns (string[] memory found) {
        found = new string[](count);
        for (uint256 i; i < count; ++i) {
            found[i] = "https://models.example/tuned/";
        }
    }

    function test_publish_aName_isOneModelsForEver() public {
        ModelId id = models.register(specOf(4), rootsOf(4));
        ModelId other = models.register(specOf(5), rootsOf(5));
        vm.assertEq(models.registrarOf(id), address(this));
        vm.assertEq(ModelId.unwrap(models.idOf(address(this), "tuned-2.5_b")), bytes32(0));
        vm.expectEmit(address(models));
        emit IModelRegistry.ModelPublished(id, address(this), "tuned-2.5_b", places(2));
        models.publish(id, "tuned-2.5_b", places(2));
        vm.assertEq(ModelId.unwrap(models.idOf(address(this), "tuned-2.5_b")), ModelId.unwrap(id));

        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.NameTaken.selector, id));
        models.publish(other, "tuned-2.5_b", places(1));
        models.publish(id, "tuned-2.5_b", places(0)); // other places of the same model
        models.publish(id, "another-name", places(1));
        vm.assertEq(ModelId.unwrap(models.idOf(address(this), "another-name")), ModelId.unwrap(id));
    }

    function test_publish_namesOfTwoPublishers_areApart() public {
        ModelId id = models.register(specOf(4), rootsOf(4));
        ModelId other = models.register(specOf(5), rootsOf(5));
        models.publish(id, "tuned", places(1));
        vm.prank(address(0xBEEF));
        models.publish(other, "tuned", places(1));
        vm.assertEq(ModelId.unwrap(models.idOf(address(this), "tuned")), ModelId.unwrap(id));
        vm.assertEq(ModelId.unwrap(models.idOf(address(0xBEEF), "tuned")), ModelId.unwrap(other));
    }

    function test_publish_ofWhatIsNotRegistered_reverts() public {
        ModelId id = ModelId.wrap(keccak256("nothing"));
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.ModelUnknown.selector, id));
        models.publish(id, "tuned", places(1));
    }

    function test_publish_badNames_revert() public {
        ModelId id = models.register(specOf(4), rootsOf(4));
        string[12] memory bad = [
            "",
            ".tuned",
            "-tuned",
            "_tuned",
            "Tuned",
            "tuned ",
            "a/b",
            "a..b",
            unicode"tunéd",
            "tuned\n",
            string(new bytes(1)),
            string(new bytes(65))
        ];
        for (uint256 i; i < bad.length; ++i) {
            vm.expectRevert(abi.encodeWithSelector(IModelRegistry.NameInvalid.selector, bad[i]));
            models.publish(id, bad[i], places(1));
        }
        bytes memory long = new bytes(65);
        for (uint256 i; i < 65; ++i) {
            long[i] = "a";
        }
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.NameInvalid.selector, string(long)));
        models.publish(id, string(long), places(1));
        assembly ("memory-safe") {
            mstore(long, 64)
        }
        models.publish(id, string(long), places(1));
    }

    function test_publish_tooManyPlaces_reverts() public {
        ModelId id = models.register(specOf(4), rootsOf(4));
        models.publish(id, "tuned", places(16));
        vm.expectRevert(abi.encodeWithSelector(IModelRegistry.PlacesTooMany.selector, 17, 16));
        models.publish(id, "tuned", places(17));
    }
}
