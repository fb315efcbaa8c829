// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// What does an account of a ProgramStore hold? Whoever reads it itself has the bytes copied once.
library ProgramHomes {
    /// First byte of a home's code, so that nobody can call a program into doing anything.
    uint256 internal constant STOP_BYTES = 1;

    function read(address home) internal view returns (bytes memory program) {
        program = new bytes(home.code.length - STOP_BYTES);
        assembly ("memory-safe") {
            extcodecopy(home, add(program, 32), STOP_BYTES, mload(program))
        }
    }
}

/// Where are the bytes of an operator program? Anyone may put them here, once; they stand under their hash, so nobody can put others.
///
/// Kept as the code of an account: a game reads a kilobyte for what four storage words would cost.
contract ProgramStore {
    mapping(bytes32 id => address) private _homes;

    uint256 public constant MAX_BYTES = 24_000;

    event ProgramStored(bytes32 indexed id, uint256 bytes_);

    error ProgramUnknown(bytes32 id);
    error ProgramTooLong(uint256 have, uint256 max);
    error StoreFailed();

    /// Keep `program`; its id is its hash. Storing it again does nothing.
    function store(bytes calldata program) external returns (bytes32 id) {
        if (program.length > MAX_BYTES) revert ProgramTooLong(program.length, MAX_BYTES);
        id = keccak256(program);
        if (_homes[id] != address(0)) return id;
        // PUSH2 length, DUP1, PUSH1 10, PUSH0, CODECOPY, PUSH0, RETURN: ten bytes that return what follows them.
        bytes memory creation = abi.encodePacked(hex"61", uint16(program.length + ProgramHomes.STOP_BYTES), hex"80600a5f395ff300", program);
        address home;
        assembly ("memory-safe") {
            home := create(0, add(creation, 32), mload(creation))
        }
        if (home == address(0)) revert StoreFailed();
        _homes[id] = home;
        emit ProgramStored(id, program.length);
    }

    function has(bytes32 id) external view returns (bool) {
        return _homes[id] != address(0);
    }

    /// The account whose code the bytes under this hash are, for ProgramHomes to read. Reverts ProgramUnknown.
    function homeOf(bytes32 id) public view returns (address home) {
        home = _homes[id];
        if (home == address(0)) revert ProgramUnknown(id);
    }

    /// The bytes under this hash. Reverts ProgramUnknown.
    function load(bytes32 id) external view returns (bytes memory) {
        return ProgramHomes.read(homeOf(id));
    }
}
