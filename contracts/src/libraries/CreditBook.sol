// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Money that waits to be pulled: nothing is pushed, so no recipient makes a payment revert.
library CreditBook {
    /// Burned money waits here like any credit, so that burning cannot revert.
    address internal constant BURN_ADDRESS = 0x000000000000000000000000000000000000dEaD;

    struct Book {
        mapping(address account => uint256) units;
    }

    /// A credit to address(0) could never be pulled: it is burned.
    function add(Book storage self, address account, uint256 amount) internal {
        if (amount == 0) return;
        self.units[account == address(0) ? BURN_ADDRESS : account] += amount;
    }

    /// Everything of `account`, which then has nothing. Zero if it had nothing.
    function take(Book storage self, address account) internal returns (uint256 amount) {
        amount = self.units[account];
        if (amount != 0) self.units[account] = 0;
    }
}
