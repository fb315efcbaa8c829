"""What counts of what several nodes say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.chain.agreement import (
    at_block,
    essence,
    head_of,
    is_middle,
    is_of_newest,
    middle,
    most,
)


@pytest.mark.parametrize(("nodes", "need"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_most_is_more_than_half(nodes: int, need: int) -> None:
    assert most(nodes) == need


@given(st.lists(st.integers(100, 110), min_size=2, max_size=2), st.integers(0, 10**9))
def test_one_of_three_cannot_move_the_head_beyond_honest_ones(honest: list[int], lie: int) -> None:
    head = head_of([*honest, lie], 3)
    assert head is not None and min(honest) <= head <= max(honest)
    assert head_of(honest, 3) == min(honest), "the third is silent"
    assert head_of(honest[:1], 3) is None


def test_a_request_about_the_newest_block_becomes_one_about_a_known_block() -> None:
    call = [{"to": "0x1"}, "latest"]
    assert at_block("eth_call", call, 16) == [{"to": "0x1"}, "0x10"]
    assert at_block("eth_estimateGas", [{"to": "0x1"}], 16) == [{"to": "0x1"}, "0x10"]
    assert at_block("eth_getBlockByNumber", ["latest", False], 16) == ["0x10", False]
    assert at_block("eth_call", [{}, "0x5"], 16) == [{}, "0x5"]
    assert at_block("eth_getTransactionCount", ["0x1", "pending"], 16) == ["0x1", "pending"]
    assert at_block("eth_chainId", [], 16) == []
    assert is_of_newest("eth_call", call) and not is_of_newest("eth_call", [{}, "0x5"])
    assert is_of_newest("eth_estimateGas", [{}]) and not is_of_newest("eth_chainId", [])


LOG: dict[str, Any] = {
    "address": "0xAB",
    "topics": ["0x1"],
    "data": "0x",
    "blockNumber": "0x5",
    "blockHash": "0x9",
    "transactionHash": "0x7",
    "logIndex": "0x0",
}


def test_nodes_may_differ_in_what_they_add_and_in_how_they_write() -> None:
    more = {**LOG, "address": "0xab", "blockTimestamp": "0x66", "removed": False}
    assert essence("eth_getLogs", {"result": [LOG]}) == essence("eth_getLogs", {"result": [more]})
    for name in LOG:
        other = {**LOG, name: "0xbad"}
        told = essence("eth_getLogs", {"result": [other]})
        assert told != essence("eth_getLogs", {"result": [LOG]}), name
    assert essence("eth_getLogs", {"result": []}) != essence("eth_getLogs", {"result": [LOG]})


def test_a_receipt_is_what_it_says_and_not_that_there_is_one() -> None:
    receipt = {"transactionHash": "0x7", "status": "0x1", "blockNumber": "0x5", "logs": [LOG]}
    told = essence("eth_getTransactionReceipt", {"result": receipt})
    added = {**receipt, "effectiveGasPrice": "0x3", "logs": [{**LOG, "removed": False}]}
    assert essence("eth_getTransactionReceipt", {"result": added}) == told
    for other in ({**receipt, "status": "0x0"}, {**receipt, "logs": []}, None):
        assert essence("eth_getTransactionReceipt", {"result": other}) != told


def test_blocks_are_the_same_with_their_transactions_whole_or_by_hash() -> None:
    block = {"hash": "0x1", "number": "0x5", "transactions": ["0xa", "0xb"]}
    whole = {**block, "transactions": [{"hash": "0xa", "from": "0x1"}, {"hash": "0xb"}]}
    method = "eth_getBlockByNumber"
    assert essence(method, {"result": block}) == essence(method, {"result": whole})


def test_errors_are_the_same_by_what_they_revert_with() -> None:
    one = {"error": {"code": 3, "message": "execution reverted", "data": "0xAB"}}
    two = {"error": {"code": -32000, "message": "VM Exception: revert", "data": "0xab"}}
    assert essence("eth_call", one) == essence("eth_call", two)
    assert essence("eth_call", one) != essence("eth_call", {"error": {"message": "reverted"}})
    assert essence("eth_call", one) != essence("eth_call", {"result": "0xab"})


def test_the_middle_of_numbers_is_between_honest_ones() -> None:
    def said(*numbers: int) -> str:
        return str(middle([{"result": hex(number)} for number in numbers])["result"])

    assert said(5) == hex(5)
    assert said(5, 9) == hex(5), "the lower of two: a nonce that is too high would never be mined"
    assert said(10**9, 5, 6) == said(0, 6, 7) == hex(6)
    assert is_middle("eth_estimateGas", [{}]) and is_middle(
        "eth_getTransactionCount", ["0x1", "pending"]
    )
    assert not is_middle("eth_getTransactionCount", ["0x1", "latest"])
