// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

error SenderNotKey(address caller);

/// Does a call's calldata stand in its transaction, where everybody reads it?
library Senders {
    /// INVARIANT: what others have to read stands in a transaction's own calldata. A key with
    /// delegated code (EIP-7702) could call from within, so it is none.
    function requireKey() internal view {
        if (msg.sender != tx.origin || msg.sender.code.length != 0) {
            revert SenderNotKey(msg.sender);
        }
    }
}
