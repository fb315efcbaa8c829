"""May this key make another request now? Buckets of requests and of tokens, refilled evenly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from client.gateway.errors import RateLimited

if TYPE_CHECKING:
    from client.gateway.money.keyring import ApiKey
    from core.runtime.clock import Clock

PERIOD_S = 60.0


@dataclass
class Bucket:
    """Holds up to `size`, and is refilled with that much a minute."""

    size: int
    level: float
    seen_s: float

    def refill(self, now_s: float) -> None:
        gained = max(0.0, now_s - self.seen_s) * self.size / PERIOD_S
        self.level, self.seen_s = min(float(self.size), self.level + gained), now_s

    def wait_s(self, need: float) -> float:
        """How long until it holds so much; what is more than its size waits for a full one."""
        return max(0.0, (min(need, self.size) - self.level) * PERIOD_S / self.size)


class Limiter:
    """The buckets of the keys that were used lately. They live as long as the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}

    def take_request(self, key: ApiKey) -> None:
        """Count a request. Raises RateLimited, and counts nothing then."""
        self._take(key, "requests", key.limits.requests_per_minute, 1)

    def take_tokens(self, key: ApiKey, tokens: int) -> None:
        """Count the tokens that a request may need at most. Raises RateLimited."""
        self._take(key, "tokens", key.limits.tokens_per_minute, tokens)

    def share(self, key: ApiKey) -> tuple[float, float]:
        """The most requests and tokens that a batch takes at once: half of what a minute has."""
        limits = key.limits
        requests, tokens = limits.requests_per_minute, limits.tokens_per_minute
        return (
            math.inf if requests is None else max(1, requests // 2),
            math.inf if tokens is None else max(1, tokens // 2),
        )

    async def wait(self, key: ApiKey, requests: int, tokens: int) -> None:
        """Count them as soon as the key has room for all of them, however long that takes."""
        needs = [
            (bucket, need)
            for what, limit, need in (
                ("requests", key.limits.requests_per_minute, requests),
                ("tokens", key.limits.tokens_per_minute, tokens),
            )
            if (bucket := self._bucket(key, what, limit)) is not None
        ]
        while wait_s := max((bucket.wait_s(need) for bucket, need in needs), default=0.0):
            await self._clock.sleep(wait_s)
            for bucket, _ in needs:
                bucket.refill(self._clock.monotonic())
        for bucket, need in needs:
            bucket.level -= need

    def give_back(self, key: ApiKey, tokens: int) -> None:
        """Tokens that were counted and not needed."""
        bucket = self._bucket(key, "tokens", key.limits.tokens_per_minute)
        if bucket is not None:
            bucket.level = min(float(bucket.size), bucket.level + tokens)

    def headers(self, key: ApiKey) -> dict[str, str]:
        """`x-ratelimit-…` as official clients know them; nothing for a key without limits."""
        shown: dict[str, str] = {}
        limits = key.limits
        for what, limit in (
            ("requests", limits.requests_per_minute),
            ("tokens", limits.tokens_per_minute),
        ):
            bucket = self._bucket(key, what, limit)
            if bucket is not None:
                shown[f"x-ratelimit-limit-{what}"] = str(bucket.size)
                shown[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(bucket.level)))
                shown[f"x-ratelimit-reset-{what}"] = f"{bucket.wait_s(bucket.size):.3f}s"
        return shown

    def _take(self, key: ApiKey, what: str, limit: int | None, need: int) -> None:
        bucket = self._bucket(key, what, limit)
        if bucket is None:
            return
        wait_s = bucket.wait_s(need)
        if wait_s > 0:
            raise RateLimited(
                f"too many {what} for key '{key.name}'",
                f"{bucket.size} a minute, {need} needed, {math.floor(bucket.level)} left",
                retry_after_s=math.ceil(wait_s),
            )
        bucket.level -= need

    def _bucket(self, key: ApiKey, what: str, limit: int | None) -> Bucket | None:
        if limit is None:
            return None
        now_s, place = self._clock.monotonic(), (key.key_id, what)
        bucket = self._buckets.get(place)
        if bucket is None or bucket.size != limit:
            bucket = self._buckets[place] = Bucket(limit, float(limit), now_s)
        bucket.refill(now_s)
        return bucket
