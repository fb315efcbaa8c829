// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Arrays} from "@openzeppelin/contracts/utils/Arrays.sol";

import {IModelRegistry} from "./interfaces/IModelRegistry.sol";
import {ShaTree} from "./libraries/ShaTree.sol";
import {ModelId} from "./types/Ids.sol";

/// Which weights does a model id stand for, and what do people call it? Specification and roots
/// are checked once, a name means one model for ever. No owner.
contract ModelRegistry is IModelRegistry {
    mapping(ModelId id => ModelSpec) private _specs;
    mapping(ModelId id => bytes32[]) private _roots; // [embed, layer 0 … L−1, head]
    mapping(ModelId id => address) public registrarOf;
    mapping(address publisher => mapping(bytes32 nameHash => ModelId id)) private _named;

    uint256 private constant MOST_NAME_BYTES = 64;
    uint256 private constant MOST_PLACES = 16;

    function register(ModelSpec calldata spec, bytes32[] calldata roots)
        external
        returns (ModelId id)
    {
        id = ModelId.wrap(keccak256(abi.encode(spec)));
        if (exists(id)) revert ModelExists(id);
        if (!_isShapeValid(spec)) revert ModelShapeInvalid();
        uint256 need = uint256(spec.layers) + 2;
        if (roots.length != need) revert RootsLengthWrong(roots.length, need);

        bytes32[] memory leaves = new bytes32[](need);
        for (uint256 i; i < need; ++i) {
            leaves[i] = ShaTree.leafHash(abi.encodePacked(roots[i]));
        }
        bytes32 computed = ShaTree.root(leaves);
        if (computed != spec.weightsRoot) revert WeightsRootMismatch(computed, spec.weightsRoot);

        _specs[id] = spec;
        _roots[id] = roots;
        registrarOf[id] = msg.sender;
        emit ModelRegistered(id, msg.sender, spec.layers, spec.weightsRoot);
    }

    function publish(ModelId id, string calldata name, string[] calldata places) external {
        _known(id);
        if (!_isName(bytes(name))) revert NameInvalid(name);
        if (places.length > MOST_PLACES) revert PlacesTooMany(places.length, MOST_PLACES);
        bytes32 key = keccak256(bytes(name));
        ModelId named = _named[msg.sender][key];
        if (ModelId.unwrap(named) == 0) _named[msg.sender][key] = id;
        else if (ModelId.unwrap(named) != ModelId.unwrap(id)) revert NameTaken(named);
        emit ModelPublished(id, msg.sender, name, places);
    }

    function idOf(address publisher, string calldata name) external view returns (ModelId) {
        return _named[publisher][keccak256(bytes(name))];
    }

    function exists(ModelId id) public view returns (bool) {
        return _specs[id].layers != 0;
    }

    function specOf(ModelId id) external view returns (ModelSpec memory) {
        return _known(id);
    }

    function shapeOf(ModelId id)
        external
        view
        returns (uint16 layers, uint8 embedUnits, uint8 headUnits)
    {
        ModelSpec storage spec = _known(id);
        return (spec.layers, spec.embedUnits, spec.headUnits);
    }

    function numericsProfileOf(ModelId id) external view returns (bytes32 profile) {
        profile = _specs[id].numericsProfile;
        if (profile == 0) _known(id); // most often one word is read, not two
    }

    function shardRoot(ModelId id, uint16 from, uint16 to) external view returns (bytes32) {
        uint16 layers = _known(id).layers;
        if (from >= to || to > layers) revert LayersOutOfRange(from, to, layers);
        uint256 first = from == 0 ? 0 : uint256(from) + 1; // the first shard holds the embedding
        uint256 end = to == layers ? uint256(to) + 2 : uint256(to) + 1; // the last one the head
        bytes32[] storage all = _roots[id];
        bytes32[] memory covered = new bytes32[](end - first);
        for (uint256 i = first; i < end; ++i) {
            covered[i - first] = all[i];
        }
        return sha256(abi.encodePacked(bytes1(0x03), from, to, covered));
    }

    function partRootOf(ModelId id, uint256 part) external view returns (bytes32 root) {
        bytes32[] storage all = _roots[id];
        root = Arrays.unsafeAccess(all, part).value;
        // Beyond its end an array is zero: most often one word is read, not two.
        if (root == 0 && part >= all.length) revert PartUnknown(id, part);
    }

    function _known(ModelId id) private view returns (ModelSpec storage spec) {
        spec = _specs[id];
        if (spec.layers == 0) revert ModelUnknown(id);
    }

    /// 1 to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first, no two dots on end: one that
    /// no other can be mistaken for, and that is a safe name of a folder.
    function _isName(bytes calldata text) private pure returns (bool) {
        if (text.length == 0 || text.length > MOST_NAME_BYTES) return false;
        for (uint256 i; i < text.length; ++i) {
            bytes1 c = text[i];
            if ((c >= "a" && c <= "z") || (c >= "0" && c <= "9")) continue;
            if (i == 0 || (c != "." && c != "_" && c != "-")) return false;
            if (c == "." && text[i - 1] == ".") return false;
        }
        return true;
    }

    function _isShapeValid(ModelSpec calldata spec) private pure returns (bool) {
        return spec.layers != 0 && spec.hidden != 0 && spec.heads != 0 && spec.kvHeads != 0
            && spec.heads % spec.kvHeads == 0 && spec.ffn != 0 && spec.vocab != 0
            && spec.context != 0;
    }
}
