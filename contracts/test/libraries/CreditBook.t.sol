// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {CreditBook} from "../../src/libraries/CreditBook.sol";
import {Test} from "../Vm.sol";

contract CreditBookTest is Test {
    using CreditBook for CreditBook.Book;

    CreditBook.Book private book;

    function testFuzz_take_returnsWhatWasAddedOnce(address account, uint128 a, uint128 b) public {
        vm.assume(account != address(0));
        book.add(account, a);
        book.add(account, b);
        vm.assertEq(book.take(account), uint256(a) + b);
        vm.assertEq(book.take(account), 0);
    }

    function test_add_whenToNobody_isBurned() public {
        book.add(address(0), 5);
        vm.assertEq(book.take(address(0)), 0);
        vm.assertEq(book.take(CreditBook.BURN_ADDRESS), 5);
    }
}
