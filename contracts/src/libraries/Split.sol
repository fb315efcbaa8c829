// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Who gets how much: the money arithmetic of docs/protocol.md §4, with no storage and no signatures.
///
/// Every division floors; what the floors leave goes back to the requester, never to a miner, a matcher or a caller.
library Split {
    /// Prices are nano base units per token per layer unit: a large model's price per layer is below one base unit.
    uint256 internal constant NANO = 1e9;
    uint256 internal constant BPS = 10_000;

    /// Why the shares of one job are what they are.
    struct Terms {
        uint256 tokensIn;
        uint256 tokensOut;
        uint256 priceIn;
        uint256 priceOut;
        uint256 matcherFeeBps;
        uint256 protocolFeeBps;
    }

    struct Shares {
        uint256[] gross; //      what the requester pays for each stage
        uint256[] pay; //        what of it the stage's owner gets
        uint256 matcherFee;
        uint256 protocolFee;
        uint256 withheld; //     gross of the stages at fault: back to the requester
    }

    /// Layer units of layers [from, to) of a model with `layers`.
    function unitsOf(uint256 from, uint256 to, uint256 layers, uint256 embedUnits, uint256 headUnits) internal pure returns (uint256) {
        return (to - from) + (from == 0 ? embedUnits : 0) + (to == layers ? headUnits : 0);
    }

    /// ⌊units·(nIn·priceIn + nOut·priceOut) / 10⁹⌋. Below 2¹⁷·2·2³²·2⁶⁴ / 10⁹ < 2⁸⁵ for all that an order can say: it
    /// neither overflows here nor outgrows the uint96 of a lock.
    function cost(uint256 units, uint256 tokensIn, uint256 tokensOut, uint256 priceIn, uint256 priceOut) internal pure returns (uint256) {
        return units * (tokensIn * priceIn + tokensOut * priceOut) / NANO;
    }

    function fee(uint256 amount, uint256 bps) internal pure returns (uint256) {
        return amount * bps / BPS;
    }

    /// Shares of a job. A stage whose bit is set in `faultMask` is paid nothing and pays no fees.
    ///
    /// INVARIANT: Σ pay + matcherFee + protocolFee + withheld == Σ gross ≤ cost(Σ units), because Σ of floors ≤ floor of Σ.
    function shares(uint256[] memory units, Terms memory terms, uint256 faultMask) internal pure returns (Shares memory result) {
        uint256 count = units.length;
        result.gross = new uint256[](count);
        result.pay = new uint256[](count);
        uint256 perUnit = terms.tokensIn * terms.priceIn + terms.tokensOut * terms.priceOut;
        for (uint256 i; i < count; ++i) {
            uint256 gross = units[i] * perUnit / NANO;
            result.gross[i] = gross;
            if (faultMask >> i & 1 == 1) {
                result.withheld += gross;
                continue;
            }
            uint256 matcherFee = fee(gross, terms.matcherFeeBps);
            uint256 protocolFee = fee(gross, terms.protocolFeeBps);
            result.pay[i] = gross - matcherFee - protocolFee;
            result.matcherFee += matcherFee;
            result.protocolFee += protocolFee;
        }
    }

    /// Stage's total out of a session that has paid `cumulative` so far. On totals, never on differences: what a stage gets for
    /// a step is the difference of two totals, so any number of steps pays what one step would.
    function sessionTotal(uint256 cumulative, uint256 matcherFeeBps, uint256 units, uint256 totalUnits) internal pure returns (uint256) {
        return (cumulative - fee(cumulative, matcherFeeBps)) * units / totalUnits;
    }
}
