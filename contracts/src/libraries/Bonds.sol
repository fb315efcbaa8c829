// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IMinerRegistry} from "../interfaces/IMinerRegistry.sol";

/// What an accuser risks.
library Bonds {
    uint256 private constant BPS = 10_000;

    /// `least`, or `bps` of what the accused had at stake when the dispute was opened: frozen time
    /// costs the accuser in proportion to what it freezes.
    /// @dev of an open dispute; a closed one has nothing at stake any more
    function due(IMinerRegistry miners, address accused, uint32 number, uint256 least, uint256 bps)
        internal
        view
        returns (uint256)
    {
        uint256 share = miners.atStakeOf(accused, number) * bps / BPS;
        return share > least ? share : least;
    }
}
