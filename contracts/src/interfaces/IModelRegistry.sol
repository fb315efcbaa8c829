// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelId} from "../types/Ids.sol";

/// A model's shape, precision and weights, identified by their hash. Anyone registers and names
/// one, and neither changes.
interface IModelRegistry {
    struct ModelSpec {
        bytes32 architecture; //    keccak256 of the family's name, e.g. "llama"
        uint16 layers;
        uint32 hidden;
        uint16 heads;
        uint16 kvHeads;
        uint32 ffn;
        uint32 vocab;
        uint32 context;
        uint8 embedUnits; //        layer units charged for the embedding
        uint8 headUnits; //         layer units charged for final norm and lm_head
        bytes32 dtype; //           keccak256 of "float32", "bfloat16", ...
        bytes32 numericsProfile; // keccak256 of the profile's name
        bytes32 weightsRoot; //     SHA-256 Merkle root over roots [embed, layer 0 … L−1, head]
        bytes32 manifestHash; //    SHA-256 of the manifest file (config, tokenizer, tensor names)
    }

    event ModelRegistered(
        ModelId indexed id, address indexed registrar, uint16 layers, bytes32 weightsRoot
    );

    /// From now on `publisher`/`name` is this model. `places` say where its files are, as URIs; a
    /// later event of the same name replaces them.
    event ModelPublished(
        ModelId indexed id, address indexed publisher, string name, string[] places
    );

    error ModelUnknown(ModelId id);
    error ModelExists(ModelId id);
    error ModelShapeInvalid();
    error RootsLengthWrong(uint256 have, uint256 need);
    error WeightsRootMismatch(bytes32 computed, bytes32 claimed);
    error LayersOutOfRange(uint16 from, uint16 to, uint16 layers);
    error PartUnknown(ModelId id, uint256 part);
    error NameInvalid(string name);
    error NameTaken(ModelId id);
    error PlacesTooMany(uint256 have, uint256 most);

    /// Register a model. `roots` are the layers + 2 roots under `spec.weightsRoot`, in order.
    /// @return id keccak256(abi.encode(spec))
    function register(ModelSpec calldata spec, bytes32[] calldata roots)
        external
        returns (ModelId id);

    /// Give a registered model a name of the sender's own, and say where its files are. A name is
    /// one model's for ever: a later version has another. The same name again brings other places.
    /// Reverts ModelUnknown, NameInvalid (1 to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit
    /// first, no two dots on end), NameTaken, PlacesTooMany.
    function publish(ModelId id, string calldata name, string[] calldata places) external;

    /// The model that a publisher's name means, 0 for none.
    function idOf(address publisher, string calldata name) external view returns (ModelId);

    /// Who registered it first: anyone may register any model, so it says nothing of its maker.
    function registrarOf(ModelId id) external view returns (address);

    function exists(ModelId id) external view returns (bool);

    /// @dev Reverts ModelUnknown.
    function specOf(ModelId id) external view returns (ModelSpec memory);

    /// Everything money needs, one storage read. Reverts ModelUnknown.
    function shapeOf(ModelId id)
        external
        view
        returns (uint16 layers, uint8 embedUnits, uint8 headUnits);

    function numericsProfileOf(ModelId id) external view returns (bytes32);

    /// Commitment to the weights of layers [from, to): SHA-256 as in docs/protocol.md §3.
    function shardRoot(ModelId id, uint16 from, uint16 to) external view returns (bytes32);

    /// One of the roots that were registered: embed, layer 0 … L−1, head. Reverts PartUnknown.
    function partRootOf(ModelId id, uint256 part) external view returns (bytes32);
}
