"""Is what lies at an address the contract that was compiled here, made with these arguments?

A constructor writes its immutables into the code. Each of them is compared by name: a judge that
reads a stranger's registry differs from ours in one of these words alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from eth_abi.abi import decode
from eth_abi.exceptions import DecodingError

from core.chain.artifacts import artifact, canonical
from core.chain.rpc import RpcChain
from core.networks.plan import constructor_arguments, made_by_registry
from core.protocol.network_file import TOKEN, Parameters
from core.protocol.types import ZERO_ADDRESS

Words = dict[str, int | str]
_WORD_BYTES = 32


def immutables(contracts: Mapping[str, str], p: Parameters) -> dict[str, Words]:
    """Contract → what its constructor writes into its code, of every contract but the token."""
    at = {**contracts, **made_by_registry(contracts["TaskRegistry"])}
    token: Words = {"token": at[TOKEN]}
    tasks: Words = {"taskRegistry": at["TaskRegistry"]}
    miners: Words = {"minerRegistry": at["MinerRegistry"]}
    risk: Words = {
        "bond": p.bond,
        "bondBps": p.bond_bps,
        "slashBps": p.slash_bps,
        "payoutDelaySeconds": p.payout_delay_s,
    }
    programs: Words = {"_models": at["ModelRegistry"], "_programs": at["ProgramStore"]}
    return {
        "ModelRegistry": {},
        "Referee": {},
        "ProgramStore": {},
        "Proofs": {"_tasks": at["TaskRegistry"]},
        "Evidence": {"tasks": at["TaskRegistry"]},
        "Escrow": {**token, **tasks, "withdrawDelaySeconds": p.withdraw_delay_s},
        "MinerRegistry": {
            **token,
            **tasks,
            "minStake": p.min_stake,
            "unbondSeconds": p.unbond_s,
            "jailSeconds": p.jail_s,
            "arbitratorDelaySeconds": p.arbitrator_delay_s,
            "maxDisputeSeconds": p.max_dispute_s,
        },
        "JuryArbitrator": {
            **token,
            **tasks,
            **miners,
            **risk,
            "seatFee": p.seat_fee,
            "commitSeconds": p.commit_s,
            "revealSeconds": p.reveal_s,
            "appealSeconds": p.appeal_s,
            "bondSeconds": p.bond_s,
            "drawDelayBlocks": p.draw_delay_blocks,
            "panelSize": p.panel,
            "minJurorStake": p.min_juror_stake,
            "maturitySeconds": p.maturity_s,
            "jurorUnbondSeconds": p.juror_unbond_s,
        },
        "TraceJudge": {**programs, "_referee": at["Referee"]},
        "RowJudge": {**programs, "_taskRegistry": at["TaskRegistry"], "_escrow": at["Escrow"]},
        "ToleranceGame": {
            **token,
            **tasks,
            **miners,
            **risk,
            "judge": at["TraceJudge"],
            "rowJudge": at["RowJudge"],
            "turnSeconds": p.turn_s,
        },
        "TaskRegistry": {
            **miners,
            "escrow": at["Escrow"],
            "modelRegistry": at["ModelRegistry"],
            "evidence": at["Evidence"],
            "_proofs": at["Proofs"],
            "_maxJobSeconds": p.max_job_s,
            "_maxWindowSeconds": p.max_window_s,
            "_closeDelaySeconds": p.close_delay_s,
        },
    }


def code_faults(contract: str, code: bytes, words: Words) -> list[str]:
    """Every way in which the code differs from the artifact with these immutables; empty: none.

    Raises KeyError for an immutable of the artifact that `words` does not know.
    """
    if not code:
        return ["there is no code"]
    found = artifact(contract)
    compiled = bytes.fromhex(found["deployedBytecode"][2:])
    if len(code) != len(compiled):
        return [f"the code has {len(code)} bytes, and the contract {len(compiled)}"]
    masked, wrong = bytearray(code), []
    for name, places in found["immutables"].items():
        want = _word(words[name])
        for start in places:
            is_ = code[start : start + _WORD_BYTES]
            masked[start : start + _WORD_BYTES] = bytes(_WORD_BYTES)
            if is_ != want:
                shown = words[name]
                told = "0x" + is_[12:].hex() if isinstance(shown, str) else int.from_bytes(is_)
                wrong.append(f"{name} is {told}, not {shown}")
    if masked != compiled:
        wrong.append("the code is another one")
    return list(dict.fromkeys(wrong))


def creation_fault(
    chain: RpcChain, contract: str, data: str, contracts: Mapping[str, str], p: Parameters
) -> str:
    """How a creation's data differs from ours; empty: not at all.

    What owners may change later (owner, guardian, fee and its recipient) may have begun otherwise.
    """
    found = artifact(contract)
    if not data.lower().startswith(found["bytecode"].lower()):
        return "other code"
    tail = bytes.fromhex(data[len(found["bytecode"]) :])
    (inputs,) = [entry["inputs"] for entry in found["abi"] if entry["type"] == "constructor"] or [
        []
    ]
    try:
        told = decode([canonical(entry) for entry in inputs], tail)
    except (DecodingError, OverflowError):
        return "other arguments"
    owner = guardian = recipient = ZERO_ADDRESS
    if contract == "MinerRegistry":
        *_, owner, guardian = told[0]
    elif contract == "TaskRegistry":
        (fee, recipient, *_), owner, guardian = told[3:]
        p = msgspec.structs.replace(p, protocol_fee_bps=fee)
    ours = constructor_arguments(contracts, p, owner, guardian, recipient)[contract]
    same = chain.creation_code(contract, *ours).lower() == data.lower()
    return "" if same else "other arguments"


async def code_at(chain: RpcChain, address: str) -> bytes:
    """The code at an address, empty where there is none. Raises ChainUnreachable."""
    return await chain.raw("eth_getCode", address, "latest")


def _word(value: int | str) -> bytes:
    number = int(value, 16) if isinstance(value, str) else value
    return number.to_bytes(_WORD_BYTES)
