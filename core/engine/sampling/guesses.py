"""Which tokens will probably come next, by what was said before?

(prompt look-up, `docs/protocol.md` §7)

The first stage feeds guesses ahead of the answer, and the last stage, which makes the same ones,
draws as if there were none and keeps what fits. Nothing but time depends on how good they are.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Guesses that one step carries at most: eight rows cost little more than one.
MOST_GUESSES = 7
_FIRST_GUESSES = 3
#: How many last tokens are looked for, the longer run first.
_RUNS = (3, 2)


class Guesser:
    """What follows the last tokens of one request, if they were said in this order before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        """The next token is known."""
        at = len(self._tokens)
        for run in _RUNS:
            if at >= run:
                self._after[tuple(self._tokens[at - run :])] = at
        self._tokens.append(token)

    def guess(self, most: int) -> list[int]:
        """What followed where the last three tokens, or else two, were last said: `most` tokens or
        none. Where that reaches the end it goes on with the guesses themselves. Fewer guesses are
        the first of more.
        """
        for run in _RUNS:
            place = self._after.get(tuple(self._tokens[-run:]))
            if place is None:
                continue
            found: list[int] = []
            for at in range(place, place + most):
                known = at < len(self._tokens)
                found.append(self._tokens[at] if known else found[at - len(self._tokens)])
            return found
        return []


class Boldness:
    """How many guesses the next step should carry: more while they are right."""

    def __init__(self) -> None:
        self.guesses = _FIRST_GUESSES

    def heard(self, right: int, of: int) -> None:
        """How many of a step's guesses were right."""
        if right == of:
            self.guesses = min(MOST_GUESSES, max(self.guesses, 2 * of))
        else:
            self.guesses = max(1, right, self.guesses // 2)
