"""Slows a migration down or stops it while servers are busy or a person has paused it, and says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from queuekeeper.jobs.pace import RunPaused
from queuekeeper.migration.online.cohorts import Control


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits above which a server is too busy for more work.

    :param redis_ms: slowest of several answers of Redis to a ping, in milliseconds.
    :param postgres_ms: slowest of several answers of PostgreSQL to an empty query, in milliseconds.
    :param memory_percent: share of ``maxmemory`` in use, where a limit is set.
    """

    redis_ms: float = 20.0
    postgres_ms: float = 50.0
    memory_percent: float = 90.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """How busy the servers are.

    :param memory_percent: share of ``maxmemory`` in use on the fullest master; none where no master has a limit.
    """

    redis_ms: float
    postgres_ms: float
    memory_percent: float | None


def reason_to_wait(control: Control, load: Load, limits: Limits) -> str:
    """Return why no client should be moved now, in words; empty when one may be."""
    if control.paused:
        return "paused by a person: queuekeeper run resume lets it go on"
    if load.memory_percent is not None and load.memory_percent >= limits.memory_percent:
        return (
            f"Redis uses {load.memory_percent:.0f} % of its memory, the limit is {limits.memory_percent:.0f} %: "
            "make room, or raise maxmemory"
        )
    if load.redis_ms >= limits.redis_ms:
        return f"Redis answers within {load.redis_ms:.0f} ms, the limit is {limits.redis_ms:.0f} ms"
    if load.postgres_ms >= limits.postgres_ms:
        return f"PostgreSQL answers within {load.postgres_ms:.0f} ms, the limit is {limits.postgres_ms:.0f} ms"
    return ""


class Brake:
    """Lets clients pass at the pace that people and servers allow; checks both about once a second.

    :param look: returns what people have asked for and how busy the servers are.
    :param tell: is told the reason whenever it changes.
    :param stays: whether to wait while the run is paused; otherwise :class:`RunPaused` is raised.
    """

    def __init__(
        self,
        *,
        look: Callable[[], tuple[Control, Load]],
        tell: Callable[[str], None],
        limits: Limits | None = None,
        stays: bool = True,
    ) -> None:
        self._look = look
        self._tell = tell
        self._limits = limits or Limits()
        self._stays = stays
        self._told = ""
        self._rate: float | None = None
        self._waits = False
        self._paused = False
        self._looked_s = float("-inf")
        self._free_at_s = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self) -> None:
        """Wait until another client may be moved.

        :raises RunPaused: when the run is paused and ``stays`` is false.
        """
        async with self._lock:
            while True:
                if time.monotonic() - self._looked_s >= 1.0:
                    await self._refresh()
                if not self._waits:
                    break
                if self._paused and not self._stays:
                    raise RunPaused(self._told)
                await asyncio.sleep(0.5)
            if self._rate is None:
                return
            now = time.monotonic()
            # Time that was not used allows no burst later.
            self._free_at_s = max(self._free_at_s, now)
            wait_s = self._free_at_s - now
            self._free_at_s += 1.0 / self._rate
            if wait_s > 0:
                await asyncio.sleep(wait_s)

    async def _refresh(self) -> None:
        control, load = await asyncio.to_thread(self._look)
        self._looked_s = time.monotonic()
        reason = reason_to_wait(control, load, self._limits)
        self._waits = bool(reason)
        self._paused = control.paused
        self._rate = control.clients_per_s
        if not reason and self._rate is not None:
            reason = f"throttled to {self._rate:,} clients/s"
        if reason != self._told:
            self._told = reason
            await asyncio.to_thread(self._tell, reason)
