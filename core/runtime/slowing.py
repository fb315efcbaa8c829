"""When is a look due that is taken often while it finds changes, and seldom while it does not?"""

from __future__ import annotations

from dataclasses import dataclass

#: Between two looks: after a change, and at most.
OFTEN_S, SELDOM_S = 2.0, 60.0


@dataclass
class Slowing:
    """The time of the next look, on the clock of who looks."""

    due_s: float = float("-inf")
    _pause_s: float = OFTEN_S

    def looked(self, now_s: float, *, is_same: bool) -> None:
        """A look was taken, and found what the one before it had found, or not."""
        self._pause_s = min(2 * self._pause_s, SELDOM_S) if is_same else OFTEN_S
        self.due_s = now_s + self._pause_s

    def hurry(self) -> None:
        """The next look is due at once."""
        self.due_s = float("-inf")
