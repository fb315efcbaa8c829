// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";

/// The guardian may stop newcomers for at most 7 days, then not again for 30.
///
/// Only ways in carry `whenEntriesOpen`: ways out, settlement and disputes go on during a pause.
abstract contract EntryPause is Ownable2Step {
    uint256 private constant MAX_PAUSE_SECONDS = 7 days;
    uint256 private constant PAUSE_REST_SECONDS = 30 days;

    /// @dev {guardian 160 | pausedUntil 40 | nextPauseAt 40}
    address public guardian;
    uint40 public pausedUntil;
    uint40 public nextPauseAt;

    event EntriesPausedUntil(uint256 until);
    event GuardianChanged(address indexed guardian);

    error EntriesPaused(uint256 until);
    error NotGuardian(address caller);
    error PauseTooLong(uint256 asked, uint256 max);
    error PauseNotAllowedBefore(uint256 time);

    modifier whenEntriesOpen() {
        if (block.timestamp < pausedUntil) revert EntriesPaused(pausedUntil);
        _;
    }

    constructor(address owner_, address guardian_) Ownable(owner_) {
        guardian = guardian_;
        emit GuardianChanged(guardian_);
    }

    /// Guardian: refuse new entries for `seconds_` from now.
    function pauseEntries(uint256 seconds_) external {
        if (msg.sender != guardian) revert NotGuardian(msg.sender);
        if (seconds_ > MAX_PAUSE_SECONDS) revert PauseTooLong(seconds_, MAX_PAUSE_SECONDS);
        if (block.timestamp < nextPauseAt) revert PauseNotAllowedBefore(nextPauseAt);
        pausedUntil = uint40(block.timestamp + seconds_);
        nextPauseAt = uint40(block.timestamp + seconds_ + PAUSE_REST_SECONDS);
        emit EntriesPausedUntil(pausedUntil);
    }

    /// Guardian: end the pause early. The rest before the next one is not shortened.
    function resumeEntries() external {
        if (msg.sender != guardian) revert NotGuardian(msg.sender);
        if (block.timestamp < pausedUntil) pausedUntil = uint40(block.timestamp);
        emit EntriesPausedUntil(pausedUntil);
    }

    /// Owner: name another guardian, or none (address zero). A new guardian inherits the rest time.
    function setGuardian(address guardian_) external onlyOwner {
        guardian = guardian_;
        emit GuardianChanged(guardian_);
    }
}
