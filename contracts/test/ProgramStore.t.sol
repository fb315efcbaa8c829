// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {ProgramHomes, ProgramStore, ProgramUnknown} from "../src/trace/ProgramStore.sol";
import {Test} from "./Vm.sol";

contract ProgramStoreTest is Test {
    ProgramStore private programs = new ProgramStore();

    function bytesOf(uint256 length) private pure returns (bytes memory program) {
        program = new bytes(length);
        for (uint256 i; i < length; ++i) {
            program[i] = bytes1(uint8(7 * i + length));
        }
    }

    function makerOf(bytes32 id) private view returns (address) {
        bytes memory made = abi.encodePacked(hex"ff", programs, id, keccak256(ProgramHomes.MAKER));
        return address(uint160(uint256(keccak256(made))));
    }

    function test_aProgram_standsUnderItsHash() public {
        uint256[5] memory lengths = [uint256(0), 1, 31, 3000, 24_000];
        for (uint256 i; i < lengths.length; ++i) {
            bytes memory program = bytesOf(lengths[i]);
            bytes32 id = keccak256(program);
            vm.assertFalse(programs.has(id));
            vm.assertTrue(programs.store(program) == id);
            vm.assertTrue(programs.has(id));
            vm.assertEq(programs.load(id), program);
            vm.assertEq(
                ProgramHomes.homeOf(address(programs), id).code, bytes.concat(hex"00", program)
            );
        }
    }

    function test_aProgram_isKeptOnce() public {
        bytes memory program = bytesOf(100);
        bytes32 id = programs.store(program);
        bytes32 hash = ProgramHomes.homeOf(address(programs), id).codehash;
        vm.assertTrue(programs.store(program) == id);
        vm.assertTrue(ProgramHomes.homeOf(address(programs), id).codehash == hash);
    }

    /// A maker makes others for anybody, but the first is there already, and alone is looked at.
    function test_whatElseIsMade_isNobodysProgram() public {
        bytes memory program = bytesOf(100);
        bytes32 id = programs.store(program);
        (bool ok,) = makerOf(id).call(hex"6001600c60003960016000f300ff");
        vm.assertTrue(ok);
        vm.assertEq(programs.load(id), program);
    }

    function test_anUnknownProgram_isRefused() public {
        bytes32 id = keccak256("nothing");
        vm.expectRevert(abi.encodeWithSelector(ProgramUnknown.selector, id));
        programs.load(id);
        // What stands in another store is not in this one.
        ProgramStore other = new ProgramStore();
        id = other.store("another's");
        vm.assertFalse(programs.has(id));
    }

    function test_aProgramTooLong_isRefused() public {
        bytes memory program = new bytes(24_001);
        vm.expectRevert(
            abi.encodeWithSelector(ProgramStore.ProgramTooLong.selector, 24_001, 24_000)
        );
        programs.store(program);
    }

    /// An account that cannot be paid for keeps no program out for good.
    function test_aStoringThatRunsOutOfGas_canBeDoneAgain() public {
        bytes memory program = bytesOf(3000);
        bytes32 id = keccak256(program);
        for (uint256 gas_ = 50_000; gas_ < 650_000; gas_ += 25_000) {
            (bool ok,) =
                address(programs).call{gas: gas_}(abi.encodeCall(programs.store, (program)));
            if (ok) break;
            vm.assertFalse(programs.has(id));
            vm.assertEq(makerOf(id).code.length, 0);
        }
        programs.store(program);
        vm.assertEq(programs.load(id), program);
    }
}
