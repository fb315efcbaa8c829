"""How is a node asked, and what do its many errors become?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eth_utils.address import to_checksum_address

from core.chain.artifacts import decode_revert
from core.protocol.errors import ChainUnreachable, ContractRefused

if TYPE_CHECKING:
    from web3 import AsyncWeb3


class Node:
    """One endpoint of a chain, or several that are asked as one."""

    def __init__(self, rpc_url: str) -> None:
        """No traffic yet. Of several with commas between them what most say counts."""
        from web3 import AsyncWeb3

        from core.chain.provider import provider_of

        self.rpc_url = rpc_url
        self.web3: AsyncWeb3[Any] = AsyncWeb3(provider_of(rpc_url))
        self.eth: Any = self.web3.eth

    async def close(self) -> None:
        await self.web3.provider.disconnect()

    async def balance_wei(self, address: str) -> int:
        """ETH of an account, for gas. Raises ChainUnreachable."""
        return int(await self.guard(self.eth.get_balance(to_checksum_address(address))))

    async def base_fee(self) -> int:
        """Wei a gas that the newest block burns. Raises ChainUnreachable."""
        return int((await self.guard(self.eth.get_block("latest")))["baseFeePerGas"])

    async def transaction(self, tx_hash: str) -> Any | None:
        """What the node knows of it; None where it knows none. Raises ChainUnreachable."""
        return await self._known(self.eth.get_transaction(tx_hash))

    async def receipt(self, tx_hash: str) -> Any | None:
        """Of a transaction in a block; None where it is in none. Raises ChainUnreachable."""
        return await self._known(self.eth.get_transaction_receipt(tx_hash))

    async def nonces(self, address: str, block: str | int = "latest") -> int:
        """How many transactions an account had sent at a block. Raises ChainUnreachable."""
        asked = self.eth.get_transaction_count(to_checksum_address(address), block)
        return int(await self.guard(asked))

    async def _known(self, asked: Any) -> Any | None:
        from web3.exceptions import TransactionNotFound

        try:
            return await self.guard(asked, allow=(TransactionNotFound,))
        except TransactionNotFound:
            return None

    async def guard(
        self, awaitable: Any, label: str = "", allow: tuple[type[Exception], ...] = ()
    ) -> Any:
        """Await a web3 call, turning its many exceptions into our two."""
        import aiohttp
        from web3.exceptions import ContractLogicError, Web3Exception

        try:
            return await awaitable
        except allow:
            raise
        except ContractLogicError as error:
            data = error.data if isinstance(error.data, str) else ""
            if len(data) >= 10:
                name, args = decode_revert(data)
            else:
                name, args = (error.message or "reverted without a reason"), {}
            what = f"{label or 'the call'} was refused"
            raise ContractRefused(what, error=name, args=args) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise ChainUnreachable(f"no answer from {self.rpc_url}", why) from None
        except (Web3Exception, ValueError) as error:  # ValueError: no JSON, no numbers
            what = f"{label or 'a request'} failed at the node"
            raise ChainUnreachable(what, str(error)[:300]) from None
