// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";

/// Does a token move exactly what it is told to move?
///
/// Nobody deploys this. A node runs it at a holder's address, in a call that changes nothing.
contract TokenProbe {
    using SafeERC20 for IERC20;

    /// Moves `amount` twice, by `transfer` and by `transferFrom`, as the contracts do.
    /// @return sent what the holder lost in all
    /// @return received what `to` has more in all
    function probe(IERC20 token, address to, uint256 amount)
        external
        returns (uint256 sent, uint256 received)
    {
        uint256 mine = token.balanceOf(address(this));
        uint256 theirs = token.balanceOf(to);
        token.safeTransfer(to, amount);
        token.forceApprove(address(this), amount);
        token.safeTransferFrom(address(this), to, amount);
        sent = mine - token.balanceOf(address(this));
        received = token.balanceOf(to) - theirs;
    }
}
