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
        uint256 paidIn; //       tokens that were paid before
        uint256 paidOut;
        uint256 tokensIn; //     tokens in all, no fewer
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
    function unitsOf(
        uint256 from,
        uint256 to,
        uint256 layers,
        uint256 embedUnits,
        uint256 headUnits
    ) internal pure returns (uint256) {
        return (to - from) + (from == 0 ? embedUnits : 0) + (to == layers ? headUnits : 0);
    }

    /// ⌊units·(nIn·priceIn + nOut·priceOut) / 10⁹⌋. Below 2¹⁷·2·2³²·2⁶⁴ / 10⁹ < 2⁸⁵ for all that an order can say: it
    /// neither overflows here nor outgrows the uint96 of a lock.
    function cost(
        uint256 units,
        uint256 tokensIn,
        uint256 tokensOut,
        uint256 priceIn,
        uint256 priceOut
    ) internal pure returns (uint256) {
        return units * (tokensIn * priceIn + tokensOut * priceOut) / NANO;
    }

    /// What of a stage's gross goes to the matcher and to the protocol.
    ///
    /// INVARIANT: both fees, and the gross less both, never fall as the gross grows, so what is due for a step between two totals
    /// is never negative. Two floors side by side would not promise that: at 5 % and 1 % a gross of 100 would leave the stage
    /// 94, one of 99 would leave it 95.
    function feesOf(uint256 gross, uint256 matcherFeeBps, uint256 protocolFeeBps)
        internal
        pure
        returns (uint256 matcherFee, uint256 protocolFee)
    {
        uint256 bps = matcherFeeBps + protocolFeeBps;
        if (bps == 0) return (0, 0);
        uint256 fees = gross * bps / BPS;
        matcherFee = fees * matcherFeeBps / bps;
        protocolFee = fees - matcherFee;
    }

    /// Shares of what a job has come to since it was paid up to (`paidIn`, `paidOut`), which are zero if all is paid at once.
    /// A stage whose bit is set in `faultMask` is paid nothing and pays no fees.
    ///
    /// INVARIANT: every share is a difference of two functions of the totals, so any number of steps pays what one step would;
    /// Σ pay + matcherFee + protocolFee + withheld == Σ gross, and Σ gross of all steps ≤ cost(Σ units) of the totals, because
    /// Σ of floors ≤ floor of Σ.
    function shares(uint256[] memory units, Terms memory terms, uint256 faultMask)
        internal
        pure
        returns (Shares memory result)
    {
        uint256 count = units.length;
        result.gross = new uint256[](count);
        result.pay = new uint256[](count);
        uint256 perUnit = terms.tokensIn * terms.priceIn + terms.tokensOut * terms.priceOut;
        uint256 paidPerUnit = terms.paidIn * terms.priceIn + terms.paidOut * terms.priceOut;
        for (uint256 i; i < count; ++i) {
            uint256 total = units[i] * perUnit / NANO;
            uint256 paid = units[i] * paidPerUnit / NANO;
            result.gross[i] = total - paid;
            if (faultMask >> i & 1 == 1) {
                result.withheld += total - paid;
                continue;
            }
            (uint256 matcherFee, uint256 protocolFee) =
                feesOf(total, terms.matcherFeeBps, terms.protocolFeeBps);
            (uint256 matcherHad, uint256 protocolHad) =
                feesOf(paid, terms.matcherFeeBps, terms.protocolFeeBps);
            matcherFee -= matcherHad;
            protocolFee -= protocolHad;
            result.pay[i] = total - paid - matcherFee - protocolFee;
            result.matcherFee += matcherFee;
            result.protocolFee += protocolFee;
        }
    }
}
