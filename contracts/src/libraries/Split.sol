// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Stage} from "../types/Signed.sol";
import {Plans} from "./Plans.sol";

/// Who gets how much (docs/protocol.md §4)? No storage, no signatures. All amounts are in nano
/// base units, as prices are, so that a share below a unit is a share.
library Split {
    /// Nano units of one base unit.
    uint256 internal constant NANO = 1e9;
    uint256 internal constant BPS = 10_000;

    /// Why the shares of one job are what they are.
    struct Terms {
        uint256 nanoPerUnit; //  what all tokens cost for a layer unit
        uint256 matcherFeeBps;
        uint256 protocolFeeBps;
        uint256 faultMask; //    bit i: stage i was found at fault
    }

    struct Shares {
        uint256[] pay; //        `shareOf` each stage
        uint256 matcherFee;
        uint256 protocolFee;
        uint256 withheld; //     gross of the stages at fault: back to the requester
    }

    /// What tokens cost for each layer unit, exactly; below 2⁹⁷ for any order.
    function perUnit(uint256 tokensIn, uint256 tokensOut, uint256 priceIn, uint256 priceOut)
        internal
        pure
        returns (uint256)
    {
        return tokensIn * priceIn + tokensOut * priceOut;
    }

    /// A stage's pay beside whom it is for, in one word. `nano` is below 2⁹⁶, as a lock is.
    function shareOf(address operator, uint256 nano) internal pure returns (uint256) {
        return uint256(uint160(operator)) << 96 | nano;
    }

    function operatorOf(uint256 share) internal pure returns (address) {
        return address(uint160(share >> 96));
    }

    function nanoOf(uint256 share) internal pure returns (uint256) {
        return uint96(share);
    }

    /// What of a stage's gross goes to the matcher and to the protocol.
    ///
    /// INVARIANT: fees, and the gross less fees, never fall as the gross grows. Two floors would
    /// break that: at 5 % and 1 %, 99 leaves 95 and 100 leaves 94.
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

    /// Everybody's part. A stage whose bit is set in `faultMask` is paid nothing and pays no fees.
    ///
    /// `plan` was found whole by Plans.checkTiling.
    ///
    /// INVARIANT: Σ pay + matcherFee + protocolFee + withheld == Σ units · nanoPerUnit.
    function shares(Stage[] calldata plan, Plans.Shape memory shape, Terms memory terms)
        internal
        pure
        returns (Shares memory result)
    {
        uint256[] memory pay = new uint256[](plan.length);
        result.pay = pay;
        // SAFETY: units, prices' sums and bps have 17, 97 and 16 bits, so nothing overflows.
        unchecked {
            for (uint256 i; i < plan.length; ++i) {
                Stage calldata stage = plan[i];
                uint256 nano = Plans.unitsOf(stage, shape) * terms.nanoPerUnit;
                if (terms.faultMask >> i & 1 == 1) {
                    result.withheld += nano;
                    nano = 0;
                } else {
                    (uint256 matcherFee, uint256 protocolFee) =
                        feesOf(nano, terms.matcherFeeBps, terms.protocolFeeBps);
                    result.matcherFee += matcherFee;
                    result.protocolFee += protocolFee;
                    nano -= matcherFee + protocolFee;
                }
                pay[i] = shareOf(stage.operator, nano);
            }
        }
    }
}
