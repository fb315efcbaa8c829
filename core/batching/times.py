"""How long does a stage take for a batch of some rows, as far as has been measured?"""

from __future__ import annotations

from itertools import pairwise

#: A slower step is believed less than a faster one: a neighbour may have held it up.
_RISE, _FALL = 0.05, 0.15
_OLD_STEPS = 16
#: A size that ran this many times is known.
_KNOWN_STEPS = 8

#: Rows and seconds, by rows.
Points = list[tuple[float, float]]


class _Size:
    """Steps of about one size, smoothed."""

    __slots__ = ("last", "rows", "seconds", "steps")

    def __init__(self, rows: int, seconds: float) -> None:
        self.rows, self.seconds = float(rows), seconds
        self.steps = 0
        #: Number of the last step of this size among all.
        self.last = 0


class StepTimes:
    """T(B): seconds of a step by rows, smoothed in buckets that widen with the size.

    Between buckets it is read off a straight line, below the smallest it is flat, above the largest
    the last slope goes on; a step never gets faster with more rows, nor a row dearer: what looks so
    is noise, or news that smaller steps have yet to hear. With one bucket known, half of its time
    is taken to be there for any row. A bucket that was seen long ago and slower than a larger one
    is now is forgotten: a neighbour had held those steps up, and a size that looks slow would not
    be tried again.
    """

    __slots__ = ("_hoped", "_measured", "_sizes", "_steps")

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._measured: Points | None = None
        self._hoped: Points | None = None
        self._steps = 0

    def __bool__(self) -> bool:
        """Whether anything is known."""
        return bool(self._sizes)

    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` rows, at least 1, took `seconds`."""
        if rows < 1 or seconds < 0:
            raise ValueError(f"{rows} rows in {seconds} s")
        bucket = bucket_of(rows)
        size = self._sizes.get(bucket)
        if size is None:
            size = self._sizes[bucket] = _Size(rows, seconds)
        else:
            weight = _RISE if seconds > size.seconds else _FALL
            size.rows += weight * (rows - size.rows)
            size.seconds += weight * (seconds - size.seconds)
        self._steps += 1
        size.steps += 1
        size.last = self._steps
        for smaller in [b for b in self._sizes if b < bucket and self._is_old(b)]:
            if self._sizes[smaller].seconds > size.seconds:
                del self._sizes[smaller]
        self._measured = self._hoped = None

    def seconds(self, rows: float) -> float:
        """T(rows) as measured; 0 while nothing is known."""
        if self._measured is None:
            self._measured = _possible([(size.rows, size.seconds) for size in self._by_size()])
        return _on(self._measured, rows)

    def hoped(self, rows: float) -> float:
        """T(rows) for who decides about the size of steps: were sizes that hardly ran thought slow,
        they would never be tried.

        Below the smallest known bucket the least that is possible: the first slope goes on, as far
        as time in proportion to rows. What seems slower than that, or than known sizes around it,
        is believed by its share of the steps that make it known.
        """
        if self._hoped is None:
            self._hoped = _possible(self._believed())
        return _hoped_on(self._hoped, rows)

    def by_rows(self) -> dict[int, float]:
        """Seconds by bucket, for display and announcements."""
        return {bucket: self._sizes[bucket].seconds for bucket in sorted(self._sizes)}

    def _is_old(self, bucket: int) -> bool:
        return self._steps - self._sizes[bucket].last > _OLD_STEPS

    def _by_size(self) -> list[_Size]:
        return [self._sizes[bucket] for bucket in sorted(self._sizes)]

    def _believed(self) -> Points:
        sizes = self._by_size()
        known = [(size.rows, size.seconds) for size in sizes if size.steps >= _KNOWN_STEPS]
        believed = []
        for size in sizes:
            seconds = size.seconds
            if size.steps < _KNOWN_STEPS and known and size.rows < known[-1][0]:
                hoped = _hoped_on(known, size.rows)
                seconds = min(seconds, hoped + (seconds - hoped) * size.steps / _KNOWN_STEPS)
            believed.append((size.rows, seconds))
        return believed


def _possible(measured: Points) -> Points:
    """The same sizes with times that rise with rows, and no faster than they."""
    points: Points = []
    for rows, seconds in measured:
        points.append((rows, max(seconds, points[-1][1]) if points else seconds))
    for i in reversed(range(len(points) - 1)):
        rows, seconds = points[i]
        larger, takes = points[i + 1]
        points[i] = rows, max(seconds, takes * rows / larger)
    return points


def _on(points: Points, rows: float) -> float:
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


def _hoped_on(points: Points, rows: float) -> float:
    if not points or rows >= points[0][0]:
        return _on(points, rows)
    x0, y0 = points[0]
    in_proportion = y0 * rows / x0
    if len(points) == 1:
        return in_proportion
    x1, y1 = points[1]
    return max(in_proportion, y0 - (y1 - y0) / (x1 - x0) * (x0 - rows))


def bucket_of(rows: int) -> int:
    """The size that a batch counts as: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …"""
    power = 1 << max(0, rows - 1).bit_length()
    middle = power * 3 // 4
    return middle if power >= 4 and rows <= middle else power
