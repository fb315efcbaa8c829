// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ModelRegistry} from "../../src/ModelRegistry.sol";
import {IModelRegistry} from "../../src/interfaces/IModelRegistry.sol";
import {RowOpening} from "../../src/interfaces/ITraceJudge.sol";
import {Plans} from "../../src/libraries/Plans.sol";
import {ShaTree} from "../../src/libraries/ShaTree.sol";
import {Split} from "../../src/libraries/Split.sol";
import {Openings} from "../../src/trace/Openings.sol";
import {ModelId} from "../../src/types/Ids.sol";
import {
    Ack,
    AuditorDelegation,
    Order,
    RequestLeaf,
    RequestOpening,
    RequestWord,
    Stage,
    StageReceipt
} from "../../src/types/Signed.sol";
import {Test} from "../Vm.sol";
import {Eip712Harness} from "../fixtures/Eip712Harness.sol";
import {Acceptance, Messages, Terms} from "../fixtures/Messages.sol";
import {Trees} from "../fixtures/Trees.sol";

/// Do Solidity and Python mean the same bytes? Python writes tests/twins/vectors.json.
contract VectorsTest is Test {
    Eip712Harness private types = new Eip712Harness();
    string private json;
    uint256 private checked;

    function setUp() public {
        json = vm.readFile("tests/twins/vectors.json");
        vm.chainId(vm.parseJsonUint(json, ".chainId"));
    }

    // --- reading ---

    function num(string memory path) private view returns (uint256) {
        return vm.parseJsonUint(json, path);
    }

    function word(string memory path) private view returns (bytes32) {
        return vm.parseJsonBytes32(json, path);
    }

    function account(string memory path) private view returns (address) {
        return vm.parseJsonAddress(json, path);
    }

    function at(string memory list, uint256 i, string memory rest)
        private
        pure
        returns (string memory)
    {
        return string.concat(list, "[", vm.toString(i), "]", rest);
    }

    function has(string memory path) private view returns (bool) {
        return vm.keyExistsJson(json, path);
    }

    // --- messages ---

    function test_domain_isTheSame() public view {
        vm.assertEq(types.domainSeparator(account(".verifyingContract")), word(".domainSeparator"));
        vm.assertEq(vm.addr(num(".privateKey")), account(".address"));
    }

    function test_messages_hashAndSignTheSame() public {
        bytes32 separator = word(".domainSeparator");
        for (uint256 i; has(at(".messages", i, "")); ++i) {
            string memory base = at(".messages", i, "");
            string memory name = vm.parseJsonString(json, string.concat(base, ".type"));
            (bool onChain, bytes32 structHash) = hashOf(name, string.concat(base, ".value"));
            if (!onChain) continue;
            ++checked;
            vm.assertEq(structHash, word(string.concat(base, ".structHash")), name);
            bytes32 digest = word(string.concat(base, ".digest"));
            vm.assertEq(types.toDigest(separator, structHash), digest, name);
            bytes memory sig = vm.parseJsonBytes(json, string.concat(base, ".signature"));
            vm.assertEq(types.recover(digest, sig), account(".address"), name);
            vm.assertEq(sign(num(".privateKey"), digest), sig); // both sides sign as RFC 6979 says
        }
        vm.assertGe(checked, 10, "one of each message that the chain reads");
    }

    /// What a multisig that owns a network is asked about by EIP-1271.
    function test_networks_areSignedInTheSameDomain() public view {
        bytes32 structHash = keccak256(
            abi.encode(
                keccak256("Record(bytes32 kind,bytes32 contentHash,uint64 sequence)"),
                keccak256("NetworkFile"),
                word(".networks[0].record.contentHash"),
                num(".networks[0].file.revision")
            )
        );
        bytes32 digest = word(".networks[0].digest");
        vm.assertEq(types.toDigest(word(".domainSeparator"), structHash), digest);
        bytes memory sig = vm.parseJsonBytes(json, ".networks[0].file.signature");
        vm.assertEq(types.recover(digest, sig), account(".networks[0].file.signer"));
    }

    function hashOf(string memory name, string memory v)
        private
        view
        returns (bool onChain, bytes32)
    {
        bytes32 kind = keccak256(bytes(name));
        if (kind == keccak256("Order")) return (true, types.order(order(v)));
        if (kind == keccak256("Acceptance")) return (true, Messages.hash(acceptance(v)));
        if (kind == keccak256("RequestWord")) return (true, types.requestWord(requestWord(v)));
        if (kind == keccak256("StageReceipt")) return (true, types.receipt(receipt(v)));
        if (kind == keccak256("Terms")) return (true, Messages.hash(terms(v)));
        if (kind == keccak256("RequestOpening")) return (true, types.opening(opening(v)));
        if (kind == keccak256("Ack")) return (true, types.ack(ack(v)));
        if (kind == keccak256("AuditorDelegation")) {
            return (true, types.delegation(delegation(v)));
        }
        if (kind == keccak256("OperatorProof")) {
            return (
                true,
                types.operatorProof(
                    account(string.concat(v, ".owner")), account(string.concat(v, ".operator"))
                )
            );
        }
        vm.assertTrue(
            kind == keccak256("Hello") || kind == keccak256("Record"),
            string.concat("unknown message ", name)
        );
        return (false, 0);
    }

    function order(string memory v) private view returns (Order memory o) {
        o.requester = account(string.concat(v, ".requester"));
        o.modelId = ModelId.wrap(word(string.concat(v, ".modelId")));
        o.inputRoot = word(string.concat(v, ".inputRoot"));
        o.samplingRoot = word(string.concat(v, ".samplingRoot"));
        o.requests = uint32(num(string.concat(v, ".requests")));
        o.maxTokensIn = uint32(num(string.concat(v, ".maxTokensIn")));
        o.maxTokensOut = uint32(num(string.concat(v, ".maxTokensOut")));
        o.priceIn = uint64(num(string.concat(v, ".priceIn")));
        o.priceOut = uint64(num(string.concat(v, ".priceOut")));
        o.matcher = account(string.concat(v, ".matcher"));
        o.matcherFeeBps = uint16(num(string.concat(v, ".matcherFeeBps")));
        o.openingFee = uint64(num(string.concat(v, ".openingFee")));
        o.minStake = uint128(num(string.concat(v, ".minStake")));
        o.deadline = uint64(num(string.concat(v, ".deadline")));
        o.window = uint32(num(string.concat(v, ".window")));
        o.auditor = account(string.concat(v, ".auditor"));
        o.arbitrator = account(string.concat(v, ".arbitrator"));
        o.numericsProfile = word(string.concat(v, ".numericsProfile"));
        o.termsHash = word(string.concat(v, ".termsHash"));
        o.nonce = uint64(num(string.concat(v, ".nonce")));
    }

    function stages(string memory v) private view returns (Stage[] memory plan) {
        uint256 count;
        while (has(at(v, count, ""))) ++count;
        plan = new Stage[](count);
        for (uint256 i; i < count; ++i) {
            plan[i].operator = account(at(v, i, ".operator"));
            plan[i].layerFrom = uint16(num(at(v, i, ".layerFrom")));
            plan[i].layerTo = uint16(num(at(v, i, ".layerTo")));
        }
    }

    function acceptance(string memory v) private view returns (Acceptance memory a) {
        a.orderHash = word(string.concat(v, ".orderHash"));
        a.planHash = word(string.concat(v, ".planHash"));
        a.stage = uint16(num(string.concat(v, ".stage")));
        a.expiry = uint64(num(string.concat(v, ".expiry")));
    }

    function requestWord(string memory v) private view returns (RequestWord memory w) {
        w.orderHash = word(string.concat(v, ".orderHash"));
        w.planHash = word(string.concat(v, ".planHash"));
        w.stage = uint16(num(string.concat(v, ".stage")));
        w.requestIndex = uint32(num(string.concat(v, ".requestIndex")));
        w.inRoot = word(string.concat(v, ".inRoot"));
        w.outRoot = word(string.concat(v, ".outRoot"));
        w.tokensIn = uint32(num(string.concat(v, ".tokensIn")));
        w.tokensOut = uint32(num(string.concat(v, ".tokensOut")));
        w.answerRoot = word(string.concat(v, ".answerRoot"));
        w.innerRoot = word(string.concat(v, ".innerRoot"));
    }

    function receipt(string memory v) private view returns (StageReceipt memory r) {
        r.orderHash = word(string.concat(v, ".orderHash"));
        r.planHash = word(string.concat(v, ".planHash"));
        r.stage = uint16(num(string.concat(v, ".stage")));
        r.layerFrom = uint16(num(string.concat(v, ".layerFrom")));
        r.layerTo = uint16(num(string.concat(v, ".layerTo")));
        r.shardRoot = word(string.concat(v, ".shardRoot"));
        r.inputRoot = word(string.concat(v, ".inputRoot"));
        r.outputRoot = word(string.concat(v, ".outputRoot"));
        r.requestsRoot = word(string.concat(v, ".requestsRoot"));
        r.requests = uint32(num(string.concat(v, ".requests")));
        r.tokensIn = uint32(num(string.concat(v, ".tokensIn")));
        r.tokensOut = uint32(num(string.concat(v, ".tokensOut")));
        r.startedAt = uint64(num(string.concat(v, ".startedAt")));
        r.signedAt = uint64(num(string.concat(v, ".signedAt")));
    }

    function terms(string memory v) private view returns (Terms memory t) {
        t.inFlight = uint16(num(string.concat(v, ".inFlight")));
        t.trusted = accounts(string.concat(v, ".trusted"));
        t.avoided = accounts(string.concat(v, ".avoided"));
        t.auditBps = uint16(num(string.concat(v, ".auditBps")));
    }

    function accounts(string memory v) private view returns (address[] memory list) {
        return vm.parseJsonAddressArray(json, v);
    }

    function opening(string memory v) private view returns (RequestOpening memory r) {
        r.orderHash = word(string.concat(v, ".orderHash"));
        r.requestIndex = uint32(num(string.concat(v, ".requestIndex")));
        r.promptLeaf = word(string.concat(v, ".promptLeaf"));
        r.samplingLeaf = word(string.concat(v, ".samplingLeaf"));
    }

    function ack(string memory v) private view returns (Ack memory a) {
        a.orderHash = word(string.concat(v, ".orderHash"));
        a.planHash = word(string.concat(v, ".planHash"));
        a.resultRoot = word(string.concat(v, ".resultRoot"));
        a.tokensIn = uint32(num(string.concat(v, ".tokensIn")));
        a.tokensOut = uint32(num(string.concat(v, ".tokensOut")));
    }

    function delegation(string memory v) private view returns (AuditorDelegation memory d) {
        d.orderHash = word(string.concat(v, ".orderHash"));
        d.auditor = account(string.concat(v, ".auditor"));
        d.expiry = uint64(num(string.concat(v, ".expiry")));
    }

    function test_plans_hashTheSame() public view {
        uint256 i;
        for (; has(at(".plans", i, "")); ++i) {
            vm.assertEq(
                types.plan(stages(at(".plans", i, ".stages"))), word(at(".plans", i, ".planHash"))
            );
        }
        vm.assertGt(i, 0);
    }

    // --- trees ---

    function test_shaTrees_areTheSame() public view {
        uint256 i;
        for (; has(at(".shaTrees", i, "")); ++i) {
            bytes[] memory leaves = vm.parseJsonBytesArray(json, at(".shaTrees", i, ".leaves"));
            bytes32 root = word(at(".shaTrees", i, ".root"));
            bytes32[] memory hashes = new bytes32[](leaves.length);
            for (uint256 j; j < leaves.length; ++j) {
                hashes[j] = ShaTree.leafHash(leaves[j]);
            }
            for (uint256 j; j < leaves.length; ++j) {
                bytes32[] memory proof =
                    vm.parseJsonBytes32Array(json, at(at(".shaTrees", i, ".proofs"), j, ""));
                vm.assertTrue(this.verify(root, leaves.length, j, hashes[j], proof));
            }
            vm.assertEq(ShaTree.root(hashes), root);
        }
        vm.assertGt(i, 0);
    }

    function verify(
        bytes32 root,
        uint256 count,
        uint256 index,
        bytes32 leaf,
        bytes32[] calldata proof
    ) external view returns (bool) {
        return ShaTree.verify(root, count, index, leaf, proof);
    }

    function test_receiptRoots_areTheSame() public view {
        uint256 i;
        for (; has(at(".receiptRoots", i, "")); ++i) {
            string memory list = at(".receiptRoots", i, ".leaves");
            uint256 count;
            while (has(at(list, count, ""))) ++count;
            bytes32[3][] memory hashes = new bytes32[3][](count);
            RequestLeaf[] memory requests = new RequestLeaf[](count);
            for (uint256 j; j < count; ++j) {
                RequestLeaf memory leaf = RequestLeaf({
                    requestIndex: uint32(num(at(list, j, ".requestIndex"))),
                    inRoot: word(at(list, j, ".inRoot")),
                    outRoot: word(at(list, j, ".outRoot")),
                    tokensIn: uint32(num(at(list, j, ".tokensIn"))),
                    tokensOut: uint32(num(at(list, j, ".tokensOut"))),
                    innerRoot: word(at(list, j, ".innerRoot"))
                });
                requests[j] = leaf;
                hashes[j][0] = ShaTree.leafHash(types.requestLeaf(leaf));
                vm.assertEq(hashes[j][0], Trees.leaf(leaf));
                hashes[j][1] = ShaTree.leafHash(abi.encodePacked(leaf.requestIndex, leaf.inRoot));
                hashes[j][2] = ShaTree.leafHash(abi.encodePacked(leaf.requestIndex, leaf.outRoot));
            }
            vm.assertEq(
                ShaTree.root(Trees.requests(requests)),
                word(at(".receiptRoots", i, ".requestsRoot"))
            );
            vm.assertEq(
                ShaTree.root(column(hashes, 1)), word(at(".receiptRoots", i, ".inputRoot"))
            );
            vm.assertEq(
                ShaTree.root(column(hashes, 2)), word(at(".receiptRoots", i, ".outputRoot"))
            );
        }
        vm.assertGt(i, 0);
    }

    // --- prompts ---

    function test_prompts_areCommittedToAlike() public view {
        uint256 i;
        for (; has(at(".prompts", i, "")); ++i) {
            bytes memory ids = vm.parseJsonBytes(json, at(".prompts", i, ".ids"));
            bytes32[] memory hashes = new bytes32[](ids.length / 4);
            for (uint256 j; j < hashes.length; ++j) {
                bytes memory row = bytes.concat(bytes4(uint32(j)), ids[4 * j]);
                row = bytes.concat(row, ids[4 * j + 1], ids[4 * j + 2], ids[4 * j + 3]);
                hashes[j] = ShaTree.leafHash(row);
            }
            bytes32 salt = word(at(".prompts", i, ".salt"));
            bytes32 hidden = sha256(bytes.concat(salt, ShaTree.root(hashes)));
            bytes4 index = bytes4(uint32(num(at(".prompts", i, ".requestIndex"))));
            vm.assertEq(
                ShaTree.leafHash(bytes.concat(index, hidden)), word(at(".prompts", i, ".leaf"))
            );
        }
        vm.assertGt(i, 0);
    }

    // --- what a last stage signs ---

    function test_answers_openHalfByHalf() public {
        uint256 i;
        for (; has(at(".answers", i, "")); ++i) {
            bytes32 root = word(at(".answers", i, ".root"));
            uint256 count = num(at(".answers", i, ".count"));
            uint256 number = num(at(".answers", i, ".row"));
            uint256 rowBytes = num(at(".answers", i, ".rowBytes"));
            uint256 part = num(at(".answers", i, ".part"));
            Openings.Spot memory token =
                Openings.Spot(root, count, number, 4, 0, 4, Openings.Half.Tokens);
            Openings.Spot memory state =
                Openings.Spot(root, count, number, rowBytes, 0, 0, Openings.Half.States);
            RowOpening memory ofToken = rowOpening(at(".answers", i, ".tokens"));
            RowOpening memory ofState = rowOpening(at(".answers", i, ".states"));
            this.requirePart(token, 0, ofToken);
            this.requirePart(state, part, ofState);
            // Neither half opens as the other, or as rows whose root stands alone.
            token.half = Openings.Half.States;
            state.half = Openings.Half.Tokens;
            refused(token, 0, ofToken);
            refused(state, part, ofState);
            token.half = Openings.Half.None;
            state.half = Openings.Half.None;
            refused(token, 0, ofToken);
            refused(state, part, ofState);
        }
        vm.assertGt(i, 0);
    }

    function requirePart(Openings.Spot memory spot, uint256 part, RowOpening calldata shown)
        external
        view
    {
        Openings.requirePart(spot, part, shown);
    }

    function refused(Openings.Spot memory spot, uint256 part, RowOpening memory shown) private {
        vm.expectRevert();
        this.requirePart(spot, part, shown);
    }

    function rowOpening(string memory v) private view returns (RowOpening memory shown) {
        shown.part = vm.parseJsonBytes(json, string.concat(v, ".part"));
        shown.partSiblings = vm.parseJsonBytes32Array(json, string.concat(v, ".partSiblings"));
        shown.rowSiblings = vm.parseJsonBytes32Array(json, string.concat(v, ".rowSiblings"));
    }

    function column(bytes32[3][] memory rows, uint256 which)
        private
        pure
        returns (bytes32[] memory values)
    {
        values = new bytes32[](rows.length);
        for (uint256 i; i < rows.length; ++i) {
            values[i] = rows[i][which];
        }
    }

    // --- models ---

    function test_models_haveTheSameIds() public {
        uint256 i;
        for (; has(at(".models", i, "")); ++i) {
            vm.assertEq(
                keccak256(abi.encode(spec(at(".models", i, ".spec")))),
                word(at(".models", i, ".id"))
            );
        }
        vm.assertGt(i, 0);
    }

    function test_shards_haveTheSameRoots() public {
        ModelRegistry models = new ModelRegistry();
        uint256 i;
        for (; has(at(".shards", i, "")); ++i) {
            bytes32[] memory roots = vm.parseJsonBytes32Array(json, at(".shards", i, ".roots"));
            IModelRegistry.ModelSpec memory s = spec(".models[0].spec");
            s.layers = uint16(roots.length - 2);
            s.weightsRoot = word(at(".shards", i, ".weightsRoot"));
            ModelId id = models.register(s, roots);
            vm.assertEq(ModelId.unwrap(id), keccak256(abi.encode(s)));
            string memory list = at(".shards", i, ".shards");
            uint256 j;
            for (; has(at(list, j, "")); ++j) {
                bytes32 root = models.shardRoot(
                    id, uint16(num(at(list, j, ".from"))), uint16(num(at(list, j, ".to")))
                );
                vm.assertEq(root, word(at(list, j, ".root")));
            }
            vm.assertGt(j, 0);
        }
        vm.assertGt(i, 0);
    }

    function spec(string memory v) private view returns (IModelRegistry.ModelSpec memory s) {
        s.architecture = word(string.concat(v, ".architecture"));
        s.layers = uint16(num(string.concat(v, ".layers")));
        s.hidden = uint32(num(string.concat(v, ".hidden")));
        s.heads = uint16(num(string.concat(v, ".heads")));
        s.kvHeads = uint16(num(string.concat(v, ".kvHeads")));
        s.ffn = uint32(num(string.concat(v, ".ffn")));
        s.vocab = uint32(num(string.concat(v, ".vocab")));
        s.context = uint32(num(string.concat(v, ".context")));
        s.embedUnits = uint8(num(string.concat(v, ".embedUnits")));
        s.headUnits = uint8(num(string.concat(v, ".headUnits")));
        s.dtype = word(string.concat(v, ".dtype"));
        s.numericsProfile = word(string.concat(v, ".numericsProfile"));
        s.weightsRoot = word(string.concat(v, ".weightsRoot"));
        s.manifestHash = word(string.concat(v, ".manifestHash"));
    }

    // --- money ---

    function sharesOf(Stage[] calldata plan, Plans.Shape calldata shape, Split.Terms calldata t)
        external
        pure
        returns (Split.Shares memory)
    {
        return Split.shares(plan, shape, t);
    }

    function test_money_isTheSame() public view {
        uint256 i;
        for (; has(at(".money", i, "")); ++i) {
            string memory v = at(".money", i, "");
            Split.Terms memory t = Split.Terms({
                nanoPerUnit: Split.perUnit(
                    num(string.concat(v, ".tokensIn")),
                    num(string.concat(v, ".tokensOut")),
                    num(string.concat(v, ".priceIn")),
                    num(string.concat(v, ".priceOut"))
                ),
                matcherFeeBps: num(string.concat(v, ".matcherFeeBps")),
                protocolFeeBps: num(string.concat(v, ".protocolFeeBps")),
                faultMask: num(string.concat(v, ".faultMask"))
            });
            Split.Shares memory s = this.sharesOf(
                stages(string.concat(v, ".plan")),
                Plans.Shape(
                    num(string.concat(v, ".layers")),
                    num(string.concat(v, ".embedUnits")),
                    num(string.concat(v, ".headUnits"))
                ),
                t
            );
            vm.assertEq(
                keccak256(abi.encode(s.pay)),
                keccak256(abi.encode(vm.parseJsonUintArray(json, string.concat(v, ".shares"))))
            );
            vm.assertEq(s.matcherFee, num(string.concat(v, ".matcherFee")));
            vm.assertEq(s.protocolFee, num(string.concat(v, ".protocolFee")));
            vm.assertEq(s.withheld, num(string.concat(v, ".withheld")));
        }
        vm.assertGt(i, 0);
    }
}
