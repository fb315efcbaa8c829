// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Who gets how much (docs/protocol.md §4)? No storage, no signatures. All amounts are in nano
/// base units, as prices are, so that a share below a unit is a share.
library Split {
    /// Nano units of one base unit.
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

    /// units·(nIn·priceIn + nOut·priceOut), exactly; below 2¹¹⁵ for any order.
    function cost(
        uint256 units,
        uint256 tokensIn,
        uint256 tokensOut,
        uint256 priceIn,
        uint256 priceOut
    ) internal pure returns (uint256) {
        return units * (tokensIn * priceIn + tokensOut * priceOut);
    }

    /// What of a stage's gross goes to the matcher and to the protocol.
    ///
    /// INVARIANT: fees, and the gross less fees, never fall as the gross grows, so no step between
    /// two totals is negative. Two floors would break that: at 5 % and 1 %, 100 leaves 94 and 99
    /// leaves 95.
    function feesOf(uint256 gross, uint256 matcherFeeBps, uint256 protocolFeeBps)
        internal
        pure
        returns (uint256 matcherFee, uint256 protocolFee)
    {
        // SAFETY: a gross is below 2¹¹⁵, so nothing overflows.
        unchecked {
            uint256 bps = matcherFeeBps + protocolFeeBps;
            if (gross == 0 || bps == 0) return (0, 0);
            uint256 fees = gross * bps / BPS;
            matcherFee = fees * matcherFeeBps / bps;
            protocolFee = fees - matcherFee;
        }
    }

    /// Shares since (`paidIn`, `paidOut`), zero if all is paid at once. A stage whose bit is set in
    /// `faultMask` is paid nothing and pays no fees.
    ///
    /// INVARIANT: shares are differences of functions of the totals, so any steps pay what one
    /// would; Σ pay + matcherFee + protocolFee + withheld == Σ gross == cost(Σ units).
    function shares(uint256[] memory units, Terms memory terms, uint256 faultMask)
        internal
        pure
        returns (Shares memory result)
    {
        uint256 count = units.length;
        result.gross = new uint256[](count);
        result.pay = new uint256[](count);
        // SAFETY: units, tokens, prices and bps have 16, 32, 64 and 16 bits, so nothing overflows.
        unchecked {
            uint256 perUnit = terms.tokensIn * terms.priceIn + terms.tokensOut * terms.priceOut;
            uint256 paidPerUnit = terms.paidIn * terms.priceIn + terms.paidOut * terms.priceOut;
            for (uint256 i; i < count; ++i) {
                uint256 total = units[i] * perUnit;
                uint256 paid = units[i] * paidPerUnit;
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
}
