"""Which operators have stake, and which machines have their owners announced?

The registry's events say so: no stranger makes us ask the chain.
"""

from __future__ import annotations

from core.chain.chain import Chain, ChainEvent
from core.chain.machines import ListedMachine, kind_of
from core.protocol.errors import ChainUnreachable

REGISTRY = "MinerRegistry"
#: Blocks in one question. Nodes differ in how many they take, so it is halved where one refuses.
_FIRST_SPAN, _LEAST_SPAN, _MOST_SPAN = 10_000, 500, 1_000_000
_QUESTIONS = 8
#: Of `minerOf`: what may be withdrawn is gone.
_EXITED = 3


class StakedOperators:
    """The operators of all miners whose stake is locked, as far as the chain was read.

    Polls; owns no task. A registration costs its stake, so the set is as large as strangers pay
    for. Blocks that a reorganisation took leave an operator in it until the program ends.
    """

    def __init__(self, chain: Chain, *, start_block: int, window: int) -> None:
        """From `start_block` on; the last `window` blocks are read again at each poll."""
        self._chain, self._start, self._window = chain, start_block, window
        self._next, self._span, self._head = start_block, _FIRST_SPAN, -1
        self._operator_of: dict[str, str] = {}
        self._machines: dict[str, dict[int, ListedMachine]] = {}  # of an owner, by place

    @property
    def operators(self) -> frozenset[str]:
        """In lower case."""
        return frozenset(self._operator_of.values())

    def machines(self, owner: str) -> tuple[ListedMachine, ...]:
        """What an owner has announced and not retired, in the order of the places."""
        found = self._machines.get(owner.lower(), {})
        return tuple(found[place] for place in sorted(found))

    async def poll(self) -> frozenset[str]:
        """Read on, by a few questions at most; the operators that are known then.

        Raises ChainUnreachable, and keeps what was read.
        """
        head = await self._chain.block_number()
        if head < self._head:  # another chain behind the same address
            self._next, self._operator_of, self._machines = self._start, {}, {}
        if head == self._head and self._next > head:
            return self.operators
        self._head = head
        first = max(self._start, min(self._next, head + 1) - self._window)
        for _ in range(_QUESTIONS):
            last = min(head, first + self._span - 1)
            try:
                events = await self._chain.events(first, last, contract=REGISTRY)
            except ChainUnreachable:
                self._span = max(_LEAST_SPAN, self._span // 2)
                raise
            self._span = min(_MOST_SPAN, 2 * self._span)
            for event in events:
                await self._take_in(event)
            first = self._next = last + 1
            if first > head:
                break
        return self.operators

    async def _take_in(self, event: ChainEvent) -> None:
        owner = str(event.args.get("owner", "")).lower()
        match event.name:
            case "MinerRegistered":
                self._operator_of[owner] = str(event.args["operator"]).lower()
            case "OperatorRotated":
                self._operator_of[owner] = str(event.args["newOperator"]).lower()
            case "MachineRegistered":
                args, place = event.args, int(event.args["index"])
                machine = ListedMachine(
                    place, kind_of(args["class"]), int(args["vramMiB"]), str(args["endpointHash"])
                )
                self._machines.setdefault(owner, {})[place] = machine
            case "MachineRetired":
                self._machines.get(owner, {}).pop(int(event.args["index"]), None)
            case "Withdrawn" | "Slashed":
                miner = await self._chain.read(REGISTRY, "minerOf", event.args["owner"])
                has_none = int(miner["stake"]) + int(miner["leaving"]) == 0
                if has_none or int(miner["state"]) == _EXITED:
                    self._operator_of.pop(owner, None)
