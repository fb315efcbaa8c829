// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

error ProgramUnknown(bytes32 id);

/// At which account does a ProgramStore keep a program, and what does that account hold?
///
/// Its address follows from store and hash alone. An address cannot follow from its own code and
/// from a hash, so one account is between: CREATE2 of MAKER with the hash as salt.
library ProgramHomes {
    /// First byte of a home's code, so that nobody can call a program into doing anything.
    uint256 internal constant STOP_BYTES = 1;
    /// Makes an account of the code it is called with: CALLDATASIZE, RETURNDATASIZE,
    /// RETURNDATASIZE, CALLDATACOPY, CALLDATASIZE, RETURNDATASIZE, CALLVALUE, CREATE. The store is
    /// the first caller.
    bytes internal constant MAKER = hex"67363d3d37363d34f03d5260086018f3";

    function homeOf(address store, bytes32 id) internal pure returns (address) {
        address maker = _address(abi.encodePacked(hex"ff", store, id, keccak256(MAKER)));
        // RLP of the maker and its first nonce.
        return _address(abi.encodePacked(hex"d694", maker, hex"01"));
    }

    /// The bytes under this hash, copied once. Reverts ProgramUnknown.
    function read(address store, bytes32 id) internal view returns (bytes memory program) {
        address home = homeOf(store, id);
        uint256 size = home.code.length;
        if (size == 0) revert ProgramUnknown(id);
        program = new bytes(size - STOP_BYTES);
        assembly ("memory-safe") {
            extcodecopy(home, add(program, 32), STOP_BYTES, mload(program))
        }
    }

    function _address(bytes memory made) private pure returns (address) {
        return address(uint160(uint256(keccak256(made))));
    }
}

/// The bytes of operator programs, stored once by anyone under their hash, as an account's code: a
/// kilobyte is read for what four storage words would cost.
contract ProgramStore {
    uint256 public constant MAX_BYTES = 24_000;

    event ProgramStored(bytes32 indexed id, uint256 bytes_);

    error ProgramTooLong(uint256 have, uint256 max);
    error StoreFailed();

    /// Keep `program`; its id is its hash. Storing it again does nothing.
    function store(bytes calldata program) external returns (bytes32 id) {
        if (program.length > MAX_BYTES) revert ProgramTooLong(program.length, MAX_BYTES);
        id = keccak256(program);
        if (has(id)) return id;
        // PUSH2 length, DUP1, PUSH1 10, PUSH0, CODECOPY, PUSH0, RETURN: return what follows.
        bytes memory creation = abi.encodePacked(
            hex"61",
            uint16(program.length + ProgramHomes.STOP_BYTES),
            hex"80600a5f395ff300",
            program
        );
        bytes memory maker = ProgramHomes.MAKER;
        assembly ("memory-safe") {
            let made := create2(0, add(maker, 32), mload(maker), id)
            pop(call(gas(), made, 0, add(creation, 32), mload(creation), 0, 0))
        }
        // INVARIANT: the maker's first account is made with it or never.
        if (!has(id)) revert StoreFailed();
        emit ProgramStored(id, program.length);
    }

    function has(bytes32 id) public view returns (bool) {
        return ProgramHomes.homeOf(address(this), id).code.length != 0;
    }

    /// The bytes under this hash. Reverts ProgramUnknown.
    function load(bytes32 id) external view returns (bytes memory) {
        return ProgramHomes.read(address(this), id);
    }
}
