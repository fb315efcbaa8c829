// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IEscrow} from "../interfaces/IEscrow.sol";
import {IModelRegistry} from "../interfaces/IModelRegistry.sol";
import {Drawn, IRowJudge, RowSpot, Side, SignedRows} from "../interfaces/IRowJudge.sol";
import {Claim, ITraceJudge, RowOpening} from "../interfaces/ITraceJudge.sol";
import {Eip712Types} from "../libraries/Eip712Types.sol";
import {ShaTree} from "../libraries/ShaTree.sol";
import {Decode} from "../referee/Decode.sol";
import {JobId, ModelId} from "../types/Ids.sol";
import {Order, RequestLeaf, RequestOpening} from "../types/Signed.sol";
import {Derive} from "./Derive.sol";
import {Layouts} from "./Layout.sol";
import {Openings} from "./Openings.sol";
import {Programs} from "./Program.sol";
import {ProgramHomes, ProgramStore} from "./ProgramStore.sol";

/// See IRowJudge, which names the twins.
contract RowJudge is IRowJudge {
    using Decode for Decode.Vector;
    using Programs for Programs.Program;

    uint256 private constant TOKEN_BYTES = 4;
    uint256 private constant MAX_SPOTS = 6;
    uint256 private constant PART_BYTES = Openings.PART_BYTES;

    // Sampling bytes, docs/protocol.md §5.1.
    uint256 private constant VERSION = 2;
    uint256 private constant HEAD_BYTES = 58;
    uint256 private constant OWN_INDEX = type(uint32).max;
    uint256 private constant MICRO = 1e6;

    IModelRegistry private immutable _models;
    address private immutable _programs;
    address private immutable _taskRegistry;
    IEscrow private immutable _escrow;

    /// What the rows of one boundary are.
    struct Boundary {
        bytes32 root;
        uint256 count;
        uint256 rowBytes;
        uint256 vocab; // 0 unless they are token ids
        uint256 format;
        Openings.Half half;
    }

    constructor(
        IModelRegistry models,
        ProgramStore programs,
        address taskRegistry,
        IEscrow escrow
    ) {
        _models = models;
        _programs = address(programs);
        _taskRegistry = taskRegistry;
        _escrow = escrow;
    }

    // --- claims ---

    function checkClaim(ModelId model, Claim calldata claim)
        external
        view
        returns (uint256 chunks)
    {
        Layouts.Layout memory l;
        Programs.Program memory p = l.program;
        _parse(p, model);
        (uint256 positions, uint256 layerTo) = (claim.positions, claim.layerTo);
        uint256 tokensOut = claim.leaf.tokensOut;
        bool sound = claim.layerFrom < layerTo && layerTo <= p.layers && positions != 0
            && tokensOut != 0 && positions < claim.leaf.tokensIn + tokensOut
            && positions <= Layouts.MAX_POSITIONS && positions <= p.context;
        if (!sound) revert ITraceJudge.ClaimInvalid();
        bool pleaded = claim.how == Derive.PLEADED;
        if (claim.how == 0 || pleaded) _checkWindow(p, claim);
        else _checkChoice(p, claim);
        Derive.lay(l, claim);
        chunks = l.chunks;
        if (chunks > Layouts.MAX_CHUNKS << (pleaded ? 1 : 0)) revert ITraceJudge.ClaimInvalid();
    }

    function _checkWindow(Programs.Program memory p, Claim calldata claim) private pure {
        (uint256 from, uint256 positions, uint256 layerTo) =
            (claim.windowFrom, claim.positions, claim.layerTo);
        uint256 entry = claim.tolerance;
        // The last stage signs rows of the positions that it drew at, from the prompt's last on.
        bool signed = layerTo != p.layers || from + 1 >= claim.leaf.tokensIn;
        if (!signed || from >= positions || entry >= p.tolerances) {
            revert ITraceJudge.ClaimInvalid();
        }
        uint256 window = positions - from;
        (uint256 maxDepth, uint256 minRows,) = p.tolerance(entry);
        // Zero where nobody has pleaded, so that a restated claim says all of the first one.
        bool seeded = claim.key0 <= (claim.how == 0 ? 0 : type(uint8).max);
        bool fits = window <= Layouts.MAX_WINDOW_ROWS && window >= minRows
            && layerTo - claim.layerFrom <= maxDepth;
        if (!fits || !seeded) revert ITraceJudge.ClaimInvalid();
    }

    function _checkChoice(Programs.Program memory p, Claim calldata claim) private pure {
        bool drawn = claim.layerTo == p.layers && claim.positions >= claim.leaf.tokensIn
            && claim.preferred < p.vocab && claim.served < p.vocab
            && Derive.deltaOf(p.delta, claim.temperature) <= type(uint32).max
            && claim.topK <= Derive.MAX_LISTED;
        bool filtered = claim.how == Derive.AHEAD
            || (claim.temperature != 0
                && (claim.how == Derive.OUTSIDE_MIN_P
                        ? claim.minP != 0
                        : claim.how == Derive.OUTSIDE_TOP_K && claim.topK != 0));
        if (!drawn || !filtered) revert ITraceJudge.ClaimInvalid();
    }

    // --- rows ---

    function checkSpan(
        SignedRows calldata rows,
        uint256 from,
        uint256 to,
        RequestLeaf calldata leaf,
        bytes32[] calldata inner
    ) external view {
        uint256 span = _program(rows).spanOf();
        uint256 start = rows.layerFrom;
        if (span == 0 || start < from || start >= to) revert SpanUnproven();
        uint256 number = (start - from) / span;
        uint256 end = start + span < to ? start + span : to;
        bool same = (start - from) % span == 0 && rows.layerTo == end && rows.innerRoot == 0
            && inner.length + 1 == _spans(from, to, span)
            && _innerRoot(abi.encodePacked(inner)) == leaf.innerRoot;
        if (!same) revert SpanUnproven();
        same = rows.leaf.inRoot == (number == 0 ? leaf.inRoot : inner[number - 1])
            && rows.leaf.outRoot == (end == to ? leaf.outRoot : inner[number])
            && rows.leaf.requestIndex == leaf.requestIndex && rows.leaf.tokensIn == leaf.tokensIn
            && rows.leaf.tokensOut == leaf.tokensOut;
        if (!same) revert SpanUnproven();
    }

    function checkAsked(SignedRows calldata rows, RowSpot[] calldata spots) external view {
        if (spots.length == 0 || spots.length > MAX_SPOTS) revert SpotUnknown();
        Programs.Program memory p = _program(rows);
        for (uint256 i; i < spots.length; ++i) {
            if (spots[i].side == Side.Inner) _innerBytes(p, rows, spots[i]);
            else _partBytes(_boundary(p, rows, spots[i].side), spots[i]);
        }
    }

    function checkShown(
        SignedRows calldata rows,
        RowSpot[] calldata spots,
        RowOpening[] calldata openings
    ) external view {
        if (spots.length != openings.length) {
            revert ITraceJudge.EvidenceInvalid();
        }
        Programs.Program memory p = _program(rows);
        for (uint256 i; i < spots.length; ++i) {
            if (spots[i].side == Side.Inner) {
                bool same = openings[i].part.length == _innerBytes(p, rows, spots[i])
                    && _innerRoot(openings[i].part) == rows.innerRoot;
                if (!same) revert ITraceJudge.EvidenceInvalid();
                continue;
            }
            Boundary memory b = _boundary(p, rows, spots[i].side);
            if (openings[i].part.length != _partBytes(b, spots[i])) {
                revert ITraceJudge.EvidenceInvalid();
            }
            _requirePart(b, spots[i], openings[i]);
        }
    }

    function isMalformed(
        SignedRows calldata rows,
        RowSpot calldata spot,
        RowOpening calldata opening
    ) external view returns (bool) {
        if (spot.side != Side.Out && spot.side != Side.States) {
            revert SpotUnknown();
        }
        Boundary memory b = _boundary(_program(rows), rows, spot.side);
        uint256 size = _partBytes(b, spot);
        _requirePart(b, spot, opening);
        if (opening.part.length != size) return true;
        if (b.vocab != 0) return _toToken(opening.part) >= b.vocab;
        return !Decode.vector(opening.part, b.format).finite;
    }

    function _program(SignedRows calldata rows) private view returns (Programs.Program memory p) {
        _parse(p, rows.model);
    }

    /// A model's operator program into `p`.
    function _parse(Programs.Program memory p, ModelId model) private view {
        Programs.parse(p, ProgramHomes.read(_programs, _models.numericsProfileOf(model)));
    }

    function _boundary(Programs.Program memory p, SignedRows calldata rows, Side side)
        private
        pure
        returns (Boundary memory b)
    {
        bool isLast = rows.layerTo == p.layers;
        if (rows.leaf.tokensOut == 0 || (side == Side.States && !isLast)) revert SpotUnknown();
        b.root = side == Side.In ? rows.leaf.inRoot : rows.leaf.outRoot;
        b.count = uint256(rows.leaf.tokensIn) + rows.leaf.tokensOut - 1;
        b.format = Decode.toFormat(p.rowFormat);
        b.rowBytes = p.hidden * Decode.widthBytes(b.format);
        if (side == Side.In ? rows.layerFrom == 0 : side == Side.Out && isLast) {
            b.vocab = p.vocab;
            b.rowBytes = TOKEN_BYTES;
        }
        if (side != Side.In && isLast) {
            b.count = rows.leaf.tokensOut;
            b.half = side == Side.Out ? Openings.Half.Tokens : Openings.Half.States;
        }
    }

    /// How many spans a stage has.
    function _spans(uint256 from, uint256 to, uint256 span) private pure returns (uint256) {
        return (to - from + span - 1) / span;
    }

    /// Length of the roots inside the stage that `rows` are of. Reverts if it has none.
    function _innerBytes(
        Programs.Program memory p,
        SignedRows calldata rows,
        RowSpot calldata spot
    ) private pure returns (uint256) {
        uint256 span = p.spanOf();
        bool has = span != 0 && spot.row == 0 && spot.part == 0 && rows.leaf.tokensOut != 0
            && uint256(rows.layerTo) > uint256(rows.layerFrom) + span;
        if (!has) revert SpotUnknown();
        return 32 * (_spans(rows.layerFrom, rows.layerTo, span) - 1);
    }

    /// What a stage signs of the roots inside it.
    function _innerRoot(bytes memory inner) private pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x05), inner));
    }

    /// Length of the part. Reverts if there is none.
    function _partBytes(Boundary memory b, RowSpot calldata spot)
        private
        pure
        returns (uint256 size)
    {
        uint256 start = uint256(spot.part) * PART_BYTES;
        if (spot.row >= b.count || start >= b.rowBytes) revert SpotUnknown();
        size = b.rowBytes - start;
        if (size > PART_BYTES) size = PART_BYTES;
    }

    function _requirePart(Boundary memory b, RowSpot calldata spot, RowOpening calldata opening)
        private
        view
    {
        Openings.requirePart(
            Openings.Spot(b.root, b.count, spot.row, b.rowBytes, 0, 0, b.half), spot.part, opening
        );
    }

    // --- tokens ---

    function checkDrawn(Claim calldata claim, bytes32 orderHash, Drawn calldata drawn)
        external
        view
    {
        if (Eip712Types.orderHash(drawn.order) != orderHash) revert OrderMismatch();
        _requireSampling(claim.leaf.requestIndex, orderHash, drawn);
        uint256 produced = uint256(claim.positions) - claim.leaf.tokensIn; // not less: checked
        _requirePrescribed(claim, drawn.sampling, produced);
        if (claim.how == Derive.OUTSIDE_TOP_K && keccak256(drawn.tokens) != claim.listed) {
            revert DrawMismatch();
        }
        Openings.Spot memory spot = Openings.Spot(
            claim.leaf.outRoot,
            claim.leaf.tokensOut,
            produced,
            TOKEN_BYTES,
            0,
            TOKEN_BYTES,
            Openings.Half.Tokens
        );
        if (_toToken(Openings.row(spot, drawn.served)) != claim.served) revert DrawMismatch();
    }

    function checkOtherOpening(
        Order calldata order,
        RequestOpening calldata shown,
        RequestOpening calldata opening,
        bytes calldata signature
    ) external view {
        bool same = opening.orderHash == shown.orderHash
            && opening.requestIndex == shown.requestIndex;
        if (!same || opening.samplingLeaf == shown.samplingLeaf) revert OpeningUnrelated();
        if (Eip712Types.orderHash(order) != shown.orderHash) revert OrderMismatch();
        _requireSigned(order.requester, shown.orderHash, opening, signature);
    }

    /// INVARIANT: the bytes are those signed for this request, in the order or its opening.
    function _requireSampling(uint32 index, bytes32 orderHash, Drawn calldata drawn) private view {
        bytes32 leaf = ShaTree.leafHash(abi.encodePacked(index, drawn.sampling));
        Order calldata order = drawn.order;
        if (order.samplingRoot != 0) {
            if (!ShaTree.verify(order.samplingRoot, order.requests, index, leaf, drawn.proof)) {
                revert SamplingUnproven();
            }
            return;
        }
        RequestOpening calldata opening = drawn.opening;
        bool same = opening.orderHash == orderHash && opening.requestIndex == index
            && opening.samplingLeaf == leaf;
        if (!same) revert SamplingUnproven();
        _requireSigned(order.requester, orderHash, opening, drawn.signature);
    }

    /// INVARIANT: an order's requester and the spender that signed it open its requests, also after
    /// the spender is dismissed: no second opening can be made and the first disowned.
    function _requireSigned(
        address requester,
        bytes32 orderHash,
        RequestOpening calldata opening,
        bytes calldata signature
    ) private view {
        bytes32 separator = Eip712Types.domainSeparator(_taskRegistry);
        bytes32 digest = Eip712Types.toDigest(separator, Eip712Types.openingHash(opening));
        if (Eip712Types.isSignedBy(requester, digest, signature)) return;
        address spender =
            _escrow.jobSpenderOf(JobId.wrap(Eip712Types.toDigest(separator, orderHash)));
        if (!Eip712Types.isSignedBy(spender, digest, signature)) revert OpeningUnsigned();
    }

    /// INVARIANT: nothing but the draw itself stands between the logits and the token.
    function _requirePrescribed(Claim calldata claim, bytes calldata sampling, uint256 produced)
        private
        pure
    {
        if (sampling.length < HEAD_BYTES || uint8(sampling[0]) != VERSION) {
            revert SamplingUnjudged();
        }
        bool plain = _word(sampling, 25) == MICRO // top-p
            && _word(sampling, 37) == MICRO // repetition penalty
            && bytes8(sampling[41:]) == 0 // frequency and presence penalty
            && uint16(bytes2(sampling[55:])) == 0; // biases
        uint256 step = _word(sampling, 33) + produced;
        // From here on end-of-text is not masked.
        if (!plain || step < _word(sampling, 49)) revert SamplingUnjudged();
        uint256 index = _word(sampling, 29);
        if (index == OWN_INDEX) index = claim.leaf.requestIndex;
        bytes32 key = sha256(abi.encodePacked(bytes8(sampling[17:]), uint32(index)));
        bool same = claim.step == step && claim.temperature == _word(sampling, 1)
            && claim.topK == _word(sampling, 5) && claim.minP == _word(sampling, 9)
            && claim.key0 == _turned(uint256(key) >> 224)
            && claim.key1 == _turned((uint256(key) >> 192) & type(uint32).max);
        if (!same) revert DrawMismatch();
    }

    /// A u32be of the head.
    function _word(bytes calldata sampling, uint256 place) private pure returns (uint256) {
        return uint32(bytes4(sampling[place:]));
    }

    /// Bytes of a u32 the other way round.
    function _turned(uint256 x) private pure returns (uint256) {
        return (x >> 24) | ((x >> 8) & 0xff00) | ((x << 8) & 0xff0000) | ((x & 0xff) << 24);
    }

    /// A token id, little-endian.
    function _toToken(bytes calldata row) private pure returns (uint256) {
        return _turned(uint32(bytes4(row)));
    }
}
