"""How does a miner become one on chain, change its stake, and leave with its money?

Every step is checked before anything is sent, shown with what it costs and risks, and asked about.
The owner's key pays and receives; the operator's key only proves itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import msgspec

from core.chain.chain import Chain, Sent
from core.chain.earned import earned_by
from core.chain.machines import class_of
from core.chain.rpc import RpcChain
from core.dispute.game.game_log import GAME
from core.keys.keystore import Keystore
from core.keys.passwords import read_password
from core.keys.signer import DEVNET_CHAIN_IDS, Signer
from core.protocol import signing
from core.protocol.errors import (
    ContractRefused,
    GasShort,
    StakeTooLow,
    TokenShort,
    UsageError,
    WalletMissing,
)
from core.protocol.types import ZERO_ADDRESS, ZERO_HASH
from core.protocol.units import format_duration, format_eth, format_moment
from core.runtime.commands.console import Run
from core.runtime.network.targets import route_to
from core.runtime.settings import Settings
from miner.commands.results import Leaving, Registered, Rotated, Stake, StakeChanged, WithdrawnStake
from miner.records.home import operator_wallet

REGISTRY = "MinerRegistry"
STATES = ("None", "Active", "Cooldown", "Exited")
ACTIVE, COOLDOWN = 1, 2
#: Upper bounds for the summary, before an allowance exists against which the calls could be
#: simulated. What an operator spends on a whole dispute against it: rows shown three times, and a
#: dozen moves.
DEFENCE_GAS = 2_500_000
GAS_OF = {"approve": 70_000, "register": 300_000, "registerMachine": 180_000, "addStake": 120_000}


@asynccontextmanager
async def open_chain(settings: Settings) -> AsyncIterator[RpcChain]:
    """The configured chain, checked to be the right one."""
    chain_id, rpc_url = settings.require_network()
    known, state = dict(settings.network.contracts), settings.folders.state
    chain = RpcChain(rpc_url, chain_id, known, state=state)
    try:
        await chain.check()
        yield chain
    finally:
        await chain.close()


async def register(run: Run, stake: str, operator_name: str | None) -> Registered:
    """Stake, name operator and machine. StakeTooLow, TokenShort, GasShort before it is sent."""
    settings = run.settings
    units, show = settings.token(stake), settings.show_token
    async with open_chain(settings) as chain:
        least = await chain.read(REGISTRY, "minStake")
        owner = run.unlock()
        if units < least:
            raise StakeTooLow(
                "the stake is below the minimum",
                have=units,
                need=least,
                address=owner.address,
                fix=f"miner register --stake {show(least)}",
                show=show,
                chain_id=chain.chain_id,
            )
        miner = await chain.read(REGISTRY, "minerOf", owner.address)
        if miner["state"] in (ACTIVE, COOLDOWN):
            raise UsageError(
                f"{owner.address} is registered already",
                f"state {STATES[miner['state']]}, stake {show(miner['stake'])}, operator "
                f"{miner['operator']}",
                next_step="add stake with `miner stake add AMOUNT`, or begin work with `miner "
                "start`",
            )
        await _need_tokens(run, chain, owner.address, units)
        name = operator_name or "new"
        name = operator_wallet(settings) if name == "new" else name
        existing = _existing_operator(run, name)
        gift_wei = await _short_of_a_defence(chain, existing.address if existing else None)
        gas = sum(GAS_OF[call] for call in ("approve", "register", "registerMachine"))
        fee_wei = await need_gas(chain, owner.address, gas, more_wei=gift_wei)
        if existing is not None:
            await _refuse_taken(chain, existing.address, owner.address)
        unbond_s = await chain.read(REGISTRY, "unbondSeconds")
        run.confirm(
            "Register this machine?",
            {
                "owner": f"{settings.wallet.name} {owner.address} (pays the stake, receives "
                f"payouts)",
                "operator": f"{name} {existing.address if existing else '(new)'} (signs work, "
                f"cannot withdraw)",
                "stake": f"{show(units)}, locked while registered; {format_duration(unbond_s)} to "
                f"leave",
                "at risk": "up to all of it, if a dispute finds a wrong signed result",
                "fee": f"at most {format_eth(fee_wei - gift_wei)}",
                "to the operator": f"{format_eth(gift_wei)}, the gas of one dispute: without it "
                f"an accused machine cannot answer",
            },
        )
        operator = existing or _new_operator(run, name)
        if name != operator_wallet(settings):
            from core.runtime.commands.config_file import set_value

            set_value("miner.operator", name, run.folders)
        await chain.transact(owner, "TestUSD", "approve", chain.addresses[REGISTRY], units)
        sent = await chain.transact(
            owner, REGISTRY, "register", units, operator.address, _proof(chain, owner, operator)
        )
        await chain.transact(owner, REGISTRY, "registerMachine", *announced(settings))
        if gift_wei:
            await chain.send_eth(owner, operator.address, gift_wei)
        return Registered(
            tx=sent.tx_hash,
            block=sent.block_number,
            owner=owner.address,
            operator=operator.address,
            operator_wallet=name,
            stake=show(units),
            next="miner start",
        )


async def add_stake(run: Run, amount: str) -> StakeChanged:
    """Lock more. Raises TokenShort, GasShort, UsageError when not registered."""
    settings = run.settings
    units, show = settings.token(amount), settings.show_token
    owner = run.unlock()
    async with open_chain(settings) as chain:
        miner = await registered(chain, owner.address)
        await _need_tokens(run, chain, owner.address, units)
        gas = GAS_OF["approve"] + GAS_OF["addStake"]
        fee_wei = await need_gas(chain, owner.address, gas)
        run.confirm(
            "Lock it?",
            {
                "owner": owner.address,
                "stake": f"{show(miner['stake'])} + {show(units)}",
                "at risk": "up to all of it, if a dispute finds a wrong signed result",
                "fee": f"at most {format_eth(fee_wei)}",
            },
        )
        await chain.transact(owner, "TestUSD", "approve", chain.addresses[REGISTRY], units)
        sent = await chain.transact(owner, REGISTRY, "addStake", units)
        return await _changed(sent, run, chain, owner.address)


async def stake_status(run: Run) -> Stake:
    """What the registry has of this owner."""
    owner = run.unlock()
    async with open_chain(run.settings) as chain:
        return await _stake(run, chain, owner.address)


async def withdraw(run: Run, amount: str | None) -> Leaving | WithdrawnStake:
    """First call: start the clock. Later: take what has thawed, or say when it will have.

    Raises ContractRefused (`ExitNotReady`, with the time) before unbonding is over.
    """
    settings, show = run.settings, run.settings.show_token
    owner = run.unlock()
    async with open_chain(settings) as chain:
        miner = await registered(chain, owner.address)
        if miner["leaving"] and amount is None:
            return await _take(run, chain, owner, miner)
        units = settings.token(amount) if amount is not None else miner["stake"]
        unbond_s = await chain.read(REGISTRY, "unbondSeconds")
        gas = await chain.simulate(owner.address, REGISTRY, "requestExit", units)
        run.confirm(
            "Take it out?",
            {
                "stake": f"{show(units)} of {show(miner['stake'])}",
                "until then": f"locked {format_duration(unbond_s)} more, and still at risk for "
                f"work done",
                "work": "ends now" if units == miner["stake"] else "goes on with the rest",
                "fee": f"at most {format_eth(await _fee_wei(chain, gas))}",
            },
        )
        sent = await chain.transact(owner, REGISTRY, "requestExit", units)
        miner = await chain.read(REGISTRY, "minerOf", owner.address)
        wait_s = max(0, miner["leaveAt"] - await chain.now())
        return Leaving(
            tx=sent.tx_hash,
            block=sent.block_number,
            leaving=show(miner["leaving"]),
            ready_in_s=wait_s,
            ready_at=format_moment(miner["leaveAt"]),
            next="miner withdraw",
        )


async def cancel_withdrawal(run: Run) -> StakeChanged:
    """Put what is leaving back into the stake."""
    owner = run.unlock()
    async with open_chain(run.settings) as chain:
        miner = await registered(chain, owner.address)
        await chain.simulate(owner.address, REGISTRY, "cancelExit")
        run.confirm("Keep it staked?", {"stake": run.settings.show_token(miner["leaving"])})
        sent = await chain.transact(owner, REGISTRY, "cancelExit")
        return await _changed(sent, run, chain, owner.address)


async def withdraw_credits(run: Run) -> WithdrawnStake:
    """All that is owed to the owner, to its wallet: what all its operators earned, also those
    before the present one, and what won disputes credit. Raises UsageError when there is nothing.
    """
    owner, show = run.unlock(), run.settings.show_token
    async with open_chain(run.settings) as chain:
        earned = await earned_by(chain.read, owner.address)
        owed = {
            contract: int(await chain.read(contract, "creditOf", owner.address))
            for contract in (REGISTRY, GAME)
            if contract in chain.addresses
        }
        due = {contract: units for contract, units in owed.items() if units}
        total = sum(earned.values()) + sum(due.values())
        if not total:
            raise UsageError(
                "there is nothing to withdraw",
                f"neither jobs nor won disputes owe {owner.address} anything",
                next_step="work first: `miner start`, `miner status`",
            )
        run.confirm("Withdraw it?", {"amount": show(total), "to": f"wallet {owner.address}"})
        sent = []
        if earned:
            sent.append(await chain.transact(owner, "Escrow", "collect", list(earned)))
        for contract in due:
            sent.append(await chain.transact(owner, contract, "withdrawCredit"))
        return _withdrawn(sent[-1], show(total), owner.address)


async def unjail(run: Run) -> StakeChanged:
    """Back to work after a slash. Raises ContractRefused while the time is not over."""
    owner = run.unlock()
    async with open_chain(run.settings) as chain:
        miner = await registered(chain, owner.address)
        now_s = await chain.now()
        if miner["jailUntil"] > now_s:
            raise ContractRefused(
                "the jail time is not over",
                error="MinerJailed",
                args={"until": miner["jailUntil"]},
                next_step=f"try again after {format_moment(miner['jailUntil'])}, in "
                f"{miner['jailUntil'] - now_s} s",
            )
        if not miner["jailUntil"]:
            raise UsageError(
                f"{owner.address} is not in jail",
                f"it has {miner['strikes']} strikes and may work",
                next_step="miner stake status",
            )
        await chain.simulate(owner.address, REGISTRY, "unjail")
        run.confirm("Leave jail?", {"owner": owner.address, "strikes": str(miner["strikes"])})
        sent = await chain.transact(owner, REGISTRY, "unjail")
        return await _changed(sent, run, chain, owner.address)


async def rotate_operator(run: Run, new_name: str) -> Rotated:
    """Name another operator key. Receipts of the old one stay its owner's."""
    owner = run.unlock()
    async with open_chain(run.settings) as chain:
        miner = await registered(chain, owner.address)
        existing = _existing_operator(run, new_name)
        if existing is not None:
            await _refuse_taken(chain, existing.address, owner.address)
        run.confirm(
            "Change the operator key?",
            {
                "old": miner["operator"],
                "new": f"{new_name} {existing.address if existing else '(new)'}",
                "running daemon": "must be stopped and started anew",
            },
        )
        operator = existing or _new_operator(run, new_name)
        sent = await chain.transact(
            owner, REGISTRY, "rotateOperator", operator.address, _proof(chain, owner, operator)
        )
        from core.runtime.commands.config_file import set_value

        set_value("miner.operator", new_name, run.folders)
        return Rotated(sent.tx_hash, sent.block_number, operator.address, new_name)


# --- parts ---


async def _take(run: Run, chain: Chain, owner: Signer, miner: dict[str, Any]) -> WithdrawnStake:
    show = run.settings.show_token
    wait_s = miner["leaveAt"] - await chain.now()
    if wait_s > 0:
        raise ContractRefused(
            f"{show(miner['leaving'])} cannot be taken yet",
            error="ExitNotReady",
            args={"when": miner["leaveAt"]},
            state="the stake is on its way out and still at risk for work done",
            next_step=f"run `miner withdraw` again after {format_moment(miner['leaveAt'])}, in "
            f"{wait_s} s",
        )
    await chain.simulate(owner.address, REGISTRY, "withdraw")
    run.confirm("Take it?", {"amount": show(miner["leaving"]), "to": f"wallet {owner.address}"})
    sent = await chain.transact(owner, REGISTRY, "withdraw")
    return _withdrawn(sent, show(miner["leaving"]), owner.address)


async def _stake(run: Run, chain: Chain, owner: str) -> Stake:
    miner = await chain.read(REGISTRY, "minerOf", owner)
    show, now_s = run.settings.show_token, await chain.now()
    return Stake(
        owner=owner,
        operator=miner["operator"],
        state=STATES[miner["state"]],
        stake=show(miner["stake"]),
        minimum=show(await chain.read(REGISTRY, "minStake")),
        leaving=show(miner["leaving"]),
        ready_in_s=max(0, miner["leaveAt"] - now_s) if miner["leaving"] else None,
        jailed_for_s=max(0, miner["jailUntil"] - now_s) if miner["jailUntil"] else None,
        strikes=miner["strikes"],
        open_disputes=miner["openDisputes"],
        credit=show(sum((await earned_by(chain.read, owner)).values())),
    )


async def _changed(sent: Sent, run: Run, chain: Chain, owner: str) -> StakeChanged:
    """The transaction, and what the registry has of this owner after it."""
    now = msgspec.structs.asdict(await _stake(run, chain, owner))
    return StakeChanged(tx=sent.tx_hash, block=sent.block_number, **now)


def _withdrawn(sent: Sent, amount: str, to: str) -> WithdrawnStake:
    return WithdrawnStake(sent.tx_hash, sent.block_number, amount, to)


async def registered(chain: Chain, owner: str) -> dict[str, Any]:
    """The registry's record of an owner. Raises UsageError for one that has no stake there."""
    miner: dict[str, Any] = await chain.read(REGISTRY, "minerOf", owner)
    if miner["state"] not in (ACTIVE, COOLDOWN):
        raise UsageError(
            f"{owner} is not registered",
            f"its state is {STATES[miner['state']]}",
            next_step="miner register --stake AMOUNT",
        )
    return miner


async def _need_tokens(run: Run, chain: Chain, address: str, units: int) -> None:
    have = int(await chain.read("TestUSD", "balanceOf", address))
    if have < units:
        show = run.settings.show_token
        raise TokenShort(
            "the stake cannot be paid",
            have=have,
            need=units,
            address=address,
            fix=f"send {show(units - have)} to {address}",
            show=show,
            chain_id=chain.chain_id,
        )


async def _short_of_a_defence(chain: RpcChain, operator: str | None) -> int:
    """What this operator (None: a new one) lacks to answer a dispute, in wei."""
    have = await chain.balance_wei(operator) if operator else 0
    return max(0, await _fee_wei(chain, DEFENCE_GAS) - have)


async def need_gas(chain: RpcChain, address: str, gas: int, *, more_wei: int = 0) -> int:
    """The most that so much gas costs, and `more_wei`. Raises GasShort."""
    fee_wei = await _fee_wei(chain, gas) + more_wei
    have = await chain.balance_wei(address)
    if have < fee_wei:
        raise GasShort(
            "the fee cannot be paid",
            have=have,
            need=fee_wei,
            address=address,
            fix=f"send {format_eth(fee_wei - have)} to {address}",
            show=format_eth,
            chain_id=chain.chain_id,
        )
    return fee_wei


async def _fee_wei(chain: RpcChain, gas: int) -> int:
    """The most that `transact` pays for this much gas, rounded up to 10¹² wei."""
    price = int(await chain.rpc("eth_gasPrice"), 16)
    fee_wei = gas * 125 // 100 * (2 * price + 10**9)
    return -(-fee_wei // 10**12) * 10**12


async def _refuse_taken(chain: Chain, operator: str, owner: str) -> None:
    taken_by = await chain.read(REGISTRY, "ownerOf", operator)
    if taken_by not in (ZERO_ADDRESS, owner):
        raise UsageError(
            f"operator {operator} cannot be used",
            f"it has worked for {taken_by}, and an operator never changes its owner",
            next_step="name another wallet with --operator NAME",
        )


def _existing_operator(run: Run, name: str) -> Signer | None:
    try:
        Keystore(run.settings.wallet.keystore_dir).path(name)
    except WalletMissing:
        return None
    return run.unlock(name, password_file=run.settings.miner.password_file)


def _new_operator(run: Run, name: str) -> Signer:
    settings = run.settings
    chain_id, _ = settings.require_network()
    password = read_password(
        name,
        file=settings.miner.password_file or settings.wallet.password_file,
        prompt=(lambda question: _ask_twice(run, question)) if run.can_ask else None,
    )
    # A test network's wallets open often and guard nothing.
    keystore = Keystore(settings.wallet.keystore_dir, light=chain_id in DEVNET_CHAIN_IDS)
    return keystore.create(name, password, chain_id=chain_id)


def _ask_twice(run: Run, question: str) -> str:
    first = run.ask_secret(f"{question} (new)")
    if run.ask_secret("Once more") != first:
        raise UsageError("the two passwords differ", "so no wallet was made")
    return first


def _proof(chain: Chain, owner: Signer, operator: Signer) -> str:
    proof = signing.OperatorProof(owner=owner.address, operator=operator.address)
    return signing.sign(operator, chain.domain, proof)


def announced(settings: Settings) -> tuple[str, int, int, str]:
    """What `registerMachine` takes of this machine: class, MiB, MB/s as measured now, and the hash
    of its endpoint (zero: any port). Raises UsageError for a device that is not here or is full.
    """
    from miner.records.machine import compute_device, copy_bandwidth_mb_s, memory_limit_bytes

    device = compute_device(settings.engine.device)
    limit_bytes = memory_limit_bytes(settings)
    bandwidth_mb_s = copy_bandwidth_mb_s()
    if not device.is_processor:
        import torch

        from miner.compute.compute import benchmark_devices

        try:
            bandwidth_mb_s = round(1000 * benchmark_devices(device.shares(limit_bytes))[1])
        except torch.OutOfMemoryError:
            raise UsageError(
                f"the speed of {device.title} cannot be measured",
                "its memory is taken, by a running miner or another program",
                next_step="end that, for a miner by `miner drain`, and repeat the command",
            ) from None
    return class_of(device.kind), limit_bytes // 2**20, bandwidth_mb_s, endpoint_hash(settings)


def endpoint_hash(settings: Settings) -> str:
    """The hash of what peers dial, zero where host or port are found when the miner starts."""
    miner = settings.miner
    port = miner.announce_port or miner.listen_port
    host = miner.announce_host or miner.listen_host
    if not port or not host:
        return ZERO_HASH
    endpoint = route_to(host, port)
    return "0x" + sha256(endpoint.encode()).hexdigest()
