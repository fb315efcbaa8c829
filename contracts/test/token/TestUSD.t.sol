// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";

import {TestUSD} from "../../src/token/TestUSD.sol";
import {Test} from "../Vm.sol";

contract TestUSDTest is Test {
    TestUSD private token = new TestUSD(address(this));

    function test_token_isCountedInMillionths() public view {
        vm.assertEq(uint256(token.decimals()), 6);
        vm.assertEq(token.symbol(), "usd");
    }

    function test_mint_whenOwner_creates() public {
        address account = makeAddr("account");
        token.mint(account, 7);
        vm.assertEq(token.balanceOf(account), 7);
        vm.assertEq(token.totalSupply(), 7);
    }

    function test_mint_whenStranger_reverts() public {
        address stranger = makeAddr("stranger");
        vm.expectRevert(
            abi.encodeWithSelector(Ownable.OwnableUnauthorizedAccount.selector, stranger)
        );
        vm.prank(stranger);
        token.mint(stranger, 1);
    }
}
