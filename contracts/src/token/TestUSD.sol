// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// What test networks pay with: 6 decimals, minted by its owner at will.
contract TestUSD is ERC20, ERC20Permit, Ownable {
    constructor(address faucet)
        ERC20("Test US Dollar", "usd")
        ERC20Permit("Test US Dollar")
        Ownable(faucet)
    {}

    /// Faucet: owner only.
    function mint(address to, uint256 amount) external onlyOwner {
        _mint(to, amount);
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }
}
