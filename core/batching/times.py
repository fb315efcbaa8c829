"""How long does a stage take for a batch of so many rows, as far as has been measured?"""

from __future__ import annotations

from itertools import pairwise

#: A slower step is believed less than a faster one: a neighbour may have held it up.
_RISE, _FALL = 0.1, 0.3
_OLD_STEPS = 16


class StepTimes:
    """T(B): seconds of a step by rows, smoothed in buckets that widen with the size.

    Between buckets it is read off a straight line, below the smallest it is flat, above the largest the last slope goes on;
    a step never gets faster with more rows, nor a row dearer: what looks so is noise, or news that smaller steps have yet to
    hear. With one bucket known, half of its time is taken to be there for any row.
    A bucket that was seen long ago and slower than a larger one is now is forgotten: a neighbour had held those steps up, and
    a size that looks slow would not be tried again.
    """

    __slots__ = ("_buckets", "_points", "_seen", "_steps")

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[float, float]] = {}
        self._points: list[tuple[float, float]] | None = None
        self._seen: dict[int, int] = {}
        self._steps = 0

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self._buckets)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of so many rows, at least 1, took so long."""
        if rows < 1 or seconds < 0:
            raise ValueError(f"{rows} rows in {seconds} s")
        bucket = bucket_of(rows)
        before = self._buckets.get(bucket)
        if before is None:
            self._buckets[bucket] = float(rows), seconds
        else:
            weight = _RISE if seconds > before[1] else _FALL
            self._buckets[bucket] = (
                before[0] + weight * (rows - before[0]),
                before[1] + weight * (seconds - before[1]),
            )
        self._steps += 1
        self._seen[bucket] = self._steps
        for smaller in [b for b in self._buckets if b < bucket and self._is_old(b)]:
            if self._buckets[smaller][1] > self._buckets[bucket][1]:
                del self._buckets[smaller], self._seen[smaller]
        self._points = None

    def seconds(self, rows: float) -> float:
        """T(rows); 0 while nothing is known."""
        points = self._known()
        if not points:
            return 0.0
        if len(points) == 1:
            at, taken = points[0]
            return taken * (0.5 + 0.5 * rows / at)
        if rows <= points[0][0]:
            return points[0][1]
        for (x0, y0), (x1, y1) in pairwise(points):
            if rows <= x1:
                return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
        (x0, y0), (x1, y1) = points[-2:]
        return y1 + (y1 - y0) / (x1 - x0) * (rows - x1)

    def hoped(self, rows: float) -> float:
        """T(rows), and below the smallest bucket the least that is possible: the first slope goes on, as far as time in proportion to rows.

        For who decides about the size of steps. Were small ones that nobody has seen thought slow, they would never be tried.
        """
        points = self._known()
        if not points or rows >= points[0][0]:
            return self.seconds(rows)
        x0, y0 = points[0]
        in_proportion = y0 * rows / x0
        if len(points) == 1:
            return in_proportion
        x1, y1 = points[1]
        return max(in_proportion, y0 - (y1 - y0) / (x1 - x0) * (x0 - rows))

    def by_rows(self) -> dict[int, float]:
        """Seconds by bucket, for display and announcements."""
        return {bucket: self._buckets[bucket][1] for bucket in sorted(self._buckets)}

    def _is_old(self, bucket: int) -> bool:
        return self._steps - self._seen[bucket] > _OLD_STEPS

    def _known(self) -> list[tuple[float, float]]:
        points = self._points
        if points is None:
            points = []
            for rows, seconds in sorted(self._buckets.values()):
                at_least = max(seconds, points[-1][1]) if points else seconds
                points.append((rows, at_least))
            for i in reversed(range(len(points) - 1)):
                rows, seconds = points[i]
                larger, takes = points[i + 1]
                points[i] = rows, max(seconds, takes * rows / larger)
            self._points = points
        return points


def bucket_of(rows: int) -> int:
    """The size that a batch counts as: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …"""
    power = 1 << max(0, rows - 1).bit_length()
    middle = power * 3 // 4
    return middle if power >= 4 and rows <= middle else power
