// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {
    ReentrancyGuardTransient
} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {IJuryArbitrator} from "../interfaces/IJuryArbitrator.sol";
import {CreditBook} from "../libraries/CreditBook.sol";
import {Roll} from "../libraries/Roll.sol";

/// Who can be drawn as a juror, with what at stake? Stakes, fines, and the roll.
///
/// Every juror on the roll weighs the same. On it is who has the least stake at least and was put
/// there once that was mature; who asks to leave with all, or is fined below, is off it at once.
/// Leaving stake can be fined; who is on a panel cannot leave.
abstract contract JurorPool is IJuryArbitrator, ReentrancyGuardTransient {
    using CreditBook for CreditBook.Book;
    using SafeERC20 for IERC20;
    using Roll for Roll.Book;

    IERC20 public immutable token;
    uint96 public immutable minJurorStake;
    uint32 public immutable maturitySeconds;
    uint32 public immutable jurorUnbondSeconds;

    mapping(address juror => Juror) private _jurors;
    Roll.Book internal _roll;
    CreditBook.Book internal _credits;

    constructor(
        IERC20 token_,
        uint96 minJurorStake_,
        uint32 maturitySeconds_,
        uint32 jurorUnbondSeconds_
    ) {
        // Stake that could be drawn at once could be lent for a draw.
        if (minJurorStake_ == 0 || maturitySeconds_ == 0 || jurorUnbondSeconds_ == 0) {
            revert ParamsInvalid();
        }
        token = token_;
        minJurorStake = minJurorStake_;
        maturitySeconds = maturitySeconds_;
        jurorUnbondSeconds = jurorUnbondSeconds_;
    }

    function stakeJuror(uint256 amount) external nonReentrant {
        if (amount == 0) revert AmountZero();
        Juror storage juror = _jurors[msg.sender];
        uint256 stake = juror.stake + amount;
        if (stake < minJurorStake) revert StakeTooLow(stake, minJurorStake);
        juror.stake = SafeCast.toUint96(stake);
        if (juror.place == 0) juror.maturesAt = uint40(block.timestamp + maturitySeconds);
        emit JurorStaked(msg.sender, amount, stake);
        _pull(msg.sender, amount);
    }

    function enrol(address account) external {
        Juror storage juror = _jurors[account];
        if (juror.place != 0) revert AlreadyEnrolled(account);
        if (juror.stake < minJurorStake) revert StakeTooLow(juror.stake, minJurorStake);
        if (block.timestamp < juror.maturesAt) revert StakeImmature(juror.maturesAt);
        juror.place = SafeCast.toUint32(_roll.enter(account) + 1);
        emit JurorEnrolled(account);
    }

    function requestJurorExit(uint256 amount) external {
        Juror storage juror = _jurors[msg.sender];
        if (amount == 0) revert AmountZero();
        if (amount > juror.stake) revert ExitTooLarge(amount, juror.stake);
        uint256 rest = juror.stake - amount;
        if (rest != 0 && rest < minJurorStake) revert StakeTooLow(rest, minJurorStake);

        juror.stake = uint96(rest);
        juror.leaving += uint96(amount);
        juror.leaveAt = uint40(block.timestamp + jurorUnbondSeconds);
        _strikeIfShort(juror);
        emit JurorExitRequested(msg.sender, amount, juror.leaveAt);
    }

    function withdrawJuror() external nonReentrant returns (uint256 amount) {
        Juror storage juror = _jurors[msg.sender];
        amount = juror.leaving;
        if (amount == 0) revert AmountZero();
        if (juror.openDisputes != 0) revert JurorBusy(juror.openDisputes);
        if (block.timestamp < juror.leaveAt) revert ExitNotReady(juror.leaveAt);

        juror.leaving = 0;
        juror.leaveAt = 0;
        emit JurorWithdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    function withdrawCredit() external nonReentrant returns (uint256 amount) {
        amount = _credits.take(msg.sender);
        if (amount == 0) revert NoCredit();
        emit CreditWithdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    function jurorOf(address juror) external view returns (Juror memory) {
        return _jurors[juror];
    }

    function creditOf(address account) external view returns (uint256) {
        return _credits.units[account];
    }

    /// Has the juror still enough here to pay `amount`? False if it left since the roll was read.
    function _covers(address juror, uint256 amount) internal view returns (bool) {
        Juror storage j = _jurors[juror];
        return uint256(j.stake) + j.leaving >= amount;
    }

    function _bindJuror(address juror) internal {
        ++_jurors[juror].openDisputes;
    }

    function _unbindJuror(address juror) internal {
        --_jurors[juror].openDisputes;
    }

    /// Take at most `amount`, first of stake, then of what is leaving. Never reverts.
    function _fine(address juror, uint256 amount) internal returns (uint256 taken) {
        Juror storage j = _jurors[juror];
        uint256 fromStake = amount < j.stake ? amount : j.stake;
        uint256 fromLeaving = amount - fromStake < j.leaving ? amount - fromStake : j.leaving;
        j.stake -= uint96(fromStake);
        j.leaving -= uint96(fromLeaving);
        _strikeIfShort(j);
        return fromStake + fromLeaving;
    }

    function _pull(address from, uint256 amount) internal {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(from, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenShortfall(received, amount);
    }

    /// Off the roll with who has not the least stake any more; the last one takes its place.
    function _strikeIfShort(Juror storage juror) private {
        uint32 place = juror.place;
        if (place == 0 || juror.stake >= minJurorStake) return;
        juror.place = 0;
        address moved = _roll.strike(place - 1);
        if (moved != address(0)) _jurors[moved].place = place;
    }
}
