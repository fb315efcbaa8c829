// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Log} from "./Log.sol";

/// Which noise does a seed give a token? (docs/protocol.md §5) Twin: core/dispute/referee/noise.py.
///
/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", §3.3), two
/// logarithms.
library Philox {
    uint256 private constant M0 = 0xD2511F53;
    uint256 private constant M1 = 0xCD9E8D57;
    uint256 private constant W0 = 0x9E3779B9;
    uint256 private constant W1 = 0xBB67AE85;
    uint256 private constant MASK = 0xFFFFFFFF;
    uint256 private constant ROUNDS = 10;

    /// First of the four words of Philox4x32-10 at (c0, c1, 0, 0); all words are of 32 bits.
    function word(uint256 c0, uint256 c1, uint256 key0, uint256 key1)
        internal
        pure
        returns (uint256)
    {
        uint256 c2;
        uint256 c3;
        unchecked {
            for (uint256 i; i < ROUNDS; ++i) {
                uint256 p0 = c0 * M0;
                uint256 p1 = c2 * M1;
                (c0, c1, c2, c3) =
                ((p1 >> 32) ^ c1 ^ key0, p1 & MASK, (p0 >> 32) ^ c3 ^ key1, p0 & MASK);
                (key0, key1) = ((key0 + W0) & MASK, (key1 + W1) & MASK);
            }
        }
        return c0;
    }

    /// −ln(−ln u) with u = (word + ½) / 2^32, in Q120; off by less than 2^-78.
    function gumbelOf(uint256 word_) internal pure returns (int256) {
        return -Log.lnFixed(-Log.lnFixed(int256(2 * word_ + 1), -33), -120);
    }

    /// The noise of `token` at `step`, in Q120.
    function gumbel(uint256 key0, uint256 key1, uint256 step, uint256 token)
        internal
        pure
        returns (int256)
    {
        return gumbelOf(word(step, token, key0, key1));
    }
}
