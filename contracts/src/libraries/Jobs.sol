// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ITaskRegistry} from "../interfaces/ITaskRegistry.sol";
import {Plans} from "./Plans.sol";

/// What does a job's one word say, and how does it change? By hand, because the compiler reads and
/// writes each field of a struct by itself: 2,500 gas a call.
///
/// From the lowest bit: deadline 32, finalAt 32, tokensIn 32, tokensOut 32, faultMask 64,
/// openDisputes 16, layers 16, embedUnits 8, headUnits 8, state 8, isSpenders 8. Fields mean what
/// ITaskRegistry.Job says.
library Jobs {
    uint256 private constant FINAL_AT = 32;
    uint256 private constant TOKENS_IN = 64;
    uint256 private constant TOKENS_OUT = 96;
    uint256 private constant FAULT_MASK = 128;
    uint256 private constant OPEN_DISPUTES = 192;
    uint256 private constant SHAPE = 208;
    uint256 private constant STATE = 240;
    uint256 private constant IS_SPENDERS = 248;

    uint256 private constant ONE_DISPUTE = 1 << OPEN_DISPUTES;
    uint256 private constant COUNTS = uint256(type(uint64).max) << TOKENS_IN;

    // --- what it says ---

    function deadline(uint256 job) internal pure returns (uint256) {
        return uint32(job);
    }

    function finalAt(uint256 job) internal pure returns (uint256) {
        return uint32(job >> FINAL_AT);
    }

    function tokensIn(uint256 job) internal pure returns (uint32) {
        return uint32(job >> TOKENS_IN);
    }

    function tokensOut(uint256 job) internal pure returns (uint32) {
        return uint32(job >> TOKENS_OUT);
    }

    function faultMask(uint256 job) internal pure returns (uint64) {
        return uint64(job >> FAULT_MASK);
    }

    function isAtFault(uint256 job, uint256 stage) internal pure returns (bool) {
        return stage < 64 && job >> (FAULT_MASK + stage) & 1 != 0;
    }

    function openDisputes(uint256 job) internal pure returns (uint16) {
        return uint16(job >> OPEN_DISPUTES);
    }

    function layers(uint256 job) internal pure returns (uint16) {
        return uint16(job >> SHAPE);
    }

    function embedUnits(uint256 job) internal pure returns (uint8) {
        return uint8(job >> (SHAPE + 16));
    }

    function headUnits(uint256 job) internal pure returns (uint8) {
        return uint8(job >> (SHAPE + 24));
    }

    function shape(uint256 job) internal pure returns (Plans.Shape memory) {
        return Plans.Shape(layers(job), embedUnits(job), headUnits(job));
    }

    /// SAFETY: `with` alone writes it, so it is one of them.
    function state(uint256 job) internal pure returns (ITaskRegistry.State found) {
        assembly ("memory-safe") {
            found := and(shr(STATE, job), 0xff)
        }
    }

    function isSpenders(uint256 job) internal pure returns (bool) {
        return job >> IS_SPENDERS != 0;
    }

    /// An Ack or a delivery has counted something.
    function isCounted(uint256 job) internal pure returns (bool) {
        return finalAt(job) != 0;
    }

    function told(uint256 job) internal pure returns (ITaskRegistry.Job memory) {
        return ITaskRegistry.Job({
            deadline: uint32(job),
            finalAt: uint32(job >> FINAL_AT),
            tokensIn: tokensIn(job),
            tokensOut: tokensOut(job),
            faultMask: faultMask(job),
            openDisputes: openDisputes(job),
            layers: layers(job),
            embedUnits: embedUnits(job),
            headUnits: headUnits(job),
            state: state(job),
            isSpenders: isSpenders(job)
        });
    }

    // --- how it changes ---

    /// A job of a model of this shape, in no state yet.
    function create(uint256 shape_, uint32 deadline_) internal pure returns (uint256) {
        return shape_ << SHAPE | deadline_;
    }

    /// A model's shape as `create` wants it.
    function shapeOf(uint16 layers_, uint8 embedUnits_, uint8 headUnits_)
        internal
        pure
        returns (uint32)
    {
        return uint32(layers_) | uint32(embedUnits_) << 16 | uint32(headUnits_) << 24;
    }

    function with(uint256 job, ITaskRegistry.State state_) internal pure returns (uint256) {
        return job & ~(uint256(type(uint8).max) << STATE) | uint256(state_) << STATE;
    }

    function ofSpender(uint256 job) internal pure returns (uint256) {
        return job | 1 << IS_SPENDERS;
    }

    function withDeadline(uint256 job, uint256 when) internal pure returns (uint256) {
        return job & ~uint256(type(uint32).max) | uint32(when);
    }

    function withFinalAt(uint256 job, uint256 when) internal pure returns (uint256) {
        return job & ~(uint256(type(uint32).max) << FINAL_AT) | uint256(uint32(when)) << FINAL_AT;
    }

    /// Each count is the most that was said of it, so no word takes back what another counted.
    function withMost(uint256 job, uint32 tokensIn_, uint32 tokensOut_)
        internal
        pure
        returns (uint256)
    {
        (uint32 hadIn, uint32 hadOut) = (tokensIn(job), tokensOut(job));
        uint256 mostIn = tokensIn_ > hadIn ? tokensIn_ : hadIn;
        uint256 mostOut = tokensOut_ > hadOut ? tokensOut_ : hadOut;
        return job & ~COUNTS | mostIn << TOKENS_IN | mostOut << TOKENS_OUT;
    }

    function withFault(uint256 job, uint256 stage) internal pure returns (uint256) {
        return job | 1 << (FAULT_MASK + stage);
    }

    /// One more dispute. INVARIANT: what a delivery waits to be paid is frozen by it.
    function disputed(uint256 job) internal pure returns (uint256) {
        assert(openDisputes(job) != type(uint16).max);
        job += ONE_DISPUTE;
        return state(job) == ITaskRegistry.State.Delivered
            ? with(job, ITaskRegistry.State.Disputed)
            : job;
    }

    /// One dispute less, and its verdict.
    function resolved(uint256 job, uint256 stage, bool fault) internal pure returns (uint256) {
        job -= ONE_DISPUTE;
        if (fault) job = withFault(job, stage);
        bool free = state(job) == ITaskRegistry.State.Disputed && openDisputes(job) == 0;
        return free ? with(job, ITaskRegistry.State.Delivered) : job;
    }
}
