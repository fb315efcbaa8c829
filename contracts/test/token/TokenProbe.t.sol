// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {TestUSD} from "../../src/token/TestUSD.sol";
import {TokenProbe} from "../../src/token/TokenProbe.sol";
import {CutToken} from "../fixtures/Tokens.sol";
import {Test} from "../Vm.sol";

contract TokenProbeTest is Test {
    TokenProbe private holder = new TokenProbe();
    address private to = makeAddr("to");

    function test_probe_whenTokenIsExact_findsNoDifference() public {
        (uint256 sent, uint256 received) = _probe(new TestUSD(address(this)), 500);
        vm.assertEq(sent, 1000);
        vm.assertEq(received, 1000);
    }

    function test_probe_whenTokenKeepsACut_receivesLess() public {
        (uint256 sent, uint256 received) = _probe(new CutToken(address(this)), 500);
        vm.assertEq(sent, 1000);
        vm.assertEq(received, 990);
    }

    /// So an amount of dust tells nothing: `core/networks/token.py` asks for more.
    function test_probe_whenCutOfDustIsNothing_isBlind() public {
        (uint256 sent, uint256 received) = _probe(new CutToken(address(this)), 50);
        vm.assertEq(sent, 100);
        vm.assertEq(received, 100);
    }

    function _probe(TestUSD token, uint256 amount) private returns (uint256, uint256) {
        token.mint(address(holder), 2 * amount);
        return holder.probe(token, to, amount);
    }
}
