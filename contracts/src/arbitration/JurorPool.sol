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
import {StakeTree} from "../libraries/StakeTree.sol";

/// Who can be drawn as a juror, with what at stake? Stakes, fines, and the tree of draws.
///
/// A juror's weight is its stake if that is at least the minimum, else zero. Leaving stake has no
/// weight and can be fined. A slot is kept until the last unit has left; who is on a panel cannot
/// leave.
abstract contract JurorPool is IJuryArbitrator, ReentrancyGuardTransient {
    using CreditBook for CreditBook.Book;
    using SafeERC20 for IERC20;
    using StakeTree for StakeTree.Tree;

    IERC20 public immutable token;
    uint96 public immutable minJurorStake;
    uint32 public immutable jurorUnbondSeconds;

    mapping(address juror => Juror) private _jurors;
    StakeTree.Tree internal _tree;
    CreditBook.Book internal _credits;

    constructor(IERC20 token_, uint96 minJurorStake_, uint32 jurorUnbondSeconds_) {
        // A weight of zero means "not a juror"; a slot changes hands a block after its stake left.
        if (minJurorStake_ == 0 || jurorUnbondSeconds_ == 0) revert ParamsInvalid();
        token = token_;
        minJurorStake = minJurorStake_;
        jurorUnbondSeconds = jurorUnbondSeconds_;
    }

    function stakeJuror(uint256 amount) external nonReentrant {
        if (amount == 0) revert AmountZero();
        Juror storage juror = _jurors[msg.sender];
        uint256 stake = juror.stake + amount;
        if (stake < minJurorStake) revert StakeTooLow(stake, minJurorStake);
        if (juror.slot == 0) {
            if (_tree.isFull()) revert TooManyJurors(StakeTree.CAPACITY);
            juror.slot = uint16(_tree.assign(msg.sender) + 1);
        }
        juror.stake = SafeCast.toUint96(stake);
        _reweigh(juror);
        emit JurorStaked(msg.sender, amount, stake);
        _pull(msg.sender, amount);
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
        _reweigh(juror);
        emit JurorExitRequested(msg.sender, amount, juror.leaveAt);
    }

    function withdrawJuror() external nonReentrant returns (uint256 amount) {
        Juror storage juror = _jurors[msg.sender];
        amount = juror.leaving;
        if (juror.slot == 0) revert NotJuror(msg.sender);
        if (amount == 0 && juror.stake != 0) revert AmountZero();
        if (juror.openDisputes != 0) revert JurorBusy(juror.openDisputes);
        if (block.timestamp < juror.leaveAt) revert ExitNotReady(juror.leaveAt);

        juror.leaving = 0;
        juror.leaveAt = 0;
        if (juror.stake == 0) {
            _tree.vacate(juror.slot - 1);
            juror.slot = 0;
        }
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

    /// Slot of a party if it could be drawn by the tree of `blockNumber`.
    function _drawableSlot(address account, uint96 blockNumber)
        internal
        view
        returns (bool drawable, uint256 slot)
    {
        uint256 place = _jurors[account].slot;
        if (place == 0) return (false, 0);
        slot = place - 1;
        return (_tree.weightAt(slot, blockNumber) != 0, slot);
    }

    /// Has the juror still enough here to pay `amount`? False if it left since the draw's tree.
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
        _reweigh(j);
        return fromStake + fromLeaving;
    }

    function _pull(address from, uint256 amount) internal {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(from, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenShortfall(received, amount);
    }

    function _reweigh(Juror storage juror) private {
        _tree.set(juror.slot - 1, juror.stake >= minJurorStake ? juror.stake : 0);
    }
}
