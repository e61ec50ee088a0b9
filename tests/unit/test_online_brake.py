"""A migration is held back by people, by busy servers and by a throttle, and says by which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from queuekeeper.migration.online import brake
from queuekeeper.migration.online.brake import Brake, Limits, Load, reason_to_wait
from queuekeeper.migration.online.cohorts import Control

FREE = Control(paused=False, clients_per_s=None, held_back="", canary=(), rehearsed_at=None)
IDLE = Load(redis_ms=0.2, postgres_ms=0.5, memory_percent=None)
LIMITS = Limits(redis_ms=20, postgres_ms=50, memory_percent=90)
WORK_S = 0.01
"""What it takes to move a client here."""


@pytest.mark.parametrize(
    ("control", "load", "reason"),
    [
        (FREE, IDLE, ""),
        (FREE, replace(IDLE, redis_ms=19.9, postgres_ms=49.9, memory_percent=89.9), ""),
        (FREE, replace(IDLE, redis_ms=20), "Redis answers within 20 ms, the limit is 20 ms"),
        (FREE, replace(IDLE, postgres_ms=75), "PostgreSQL answers within 75 ms, the limit is 50 ms"),
        (
            FREE,
            replace(IDLE, memory_percent=90),
            "Redis uses 90 % of its memory, the limit is 90 %: make room, or raise maxmemory",
        ),
        # What a person wants comes first.
        (
            replace(FREE, paused=True),
            replace(IDLE, redis_ms=99),
            "paused by a person: queuekeeper run resume lets it go on",
        ),
        (replace(FREE, clients_per_s=5), IDLE, ""),
    ],
)
def test_reason_names_what_is_too_much_and_its_limit(control: Control, load: Load, reason: str) -> None:
    assert reason_to_wait(control, load, LIMITS) == reason


class People:
    """What people want, which may change at any time, and what they are told."""

    def __init__(self) -> None:
        self.control = FREE
        self.load = IDLE
        self.looks = 0
        self.told: list[str] = []

    def look(self) -> tuple[Control, Load]:
        """Say what is wanted now."""
        self.looks += 1
        return self.control, self.load

    def brake(self) -> Brake:
        """Return a brake that asks them."""
        return Brake(look=self.look, tell=self.told.append, limits=LIMITS)


class _Over(Exception):
    """The time of a test is over."""


def passed(people: People, *, seconds: float, meanwhile: Callable[[], None] = lambda: None, at_s: float = 0.0) -> int:
    """Return how many clients a brake lets pass in a time, and do something in its midst.

    The time goes on by what is waited and worked alone: how busy this machine is changes nothing.
    """
    now_s, due = 0.0, [meanwhile]

    async def go_on(for_s: float) -> None:
        nonlocal now_s
        now_s += for_s
        if due and now_s >= at_s:
            due.pop()()
        if now_s >= seconds:
            raise _Over
        await asyncio.sleep(0)

    async def to_thread(work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)

    async def run() -> int:
        held, count = people.brake(), 0

        async def work() -> None:
            nonlocal count
            with suppress(_Over):
                while True:
                    await held()
                    count += 1
                    await go_on(WORK_S)

        await asyncio.gather(*(work() for _ in range(4)))
        return count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brake, "time", SimpleNamespace(monotonic=lambda: now_s))
        patch.setattr(brake, "asyncio", SimpleNamespace(sleep=go_on, to_thread=to_thread, Lock=asyncio.Lock))
        return asyncio.run(run())


def test_nothing_is_held_back_without_a_reason_and_servers_are_asked_once_a_second() -> None:
    people = People()

    assert passed(people, seconds=3.5) == pytest.approx(3.5 / WORK_S, abs=10)
    assert people.looks == 4
    assert people.told == []


def test_a_throttle_counts_for_all_who_move_together() -> None:
    people = People()
    people.control = replace(FREE, clients_per_s=20)

    assert passed(people, seconds=5.0) == pytest.approx(100, abs=5)
    assert people.told == ["throttled to 20 clients/s"]


def test_paused_and_resumed_within_two_seconds() -> None:
    people = People()
    people.control = replace(FREE, paused=True)

    def resume() -> None:
        assert people.told == ["paused by a person: queuekeeper run resume lets it go on"]
        people.control = FREE

    assert passed(people, seconds=2.3, at_s=0.3, meanwhile=resume) > 100
    assert people.told[1:] == [""]


def test_a_busy_server_is_waited_for_and_told_about_once() -> None:
    people = People()
    people.load = replace(IDLE, redis_ms=30)

    assert passed(people, seconds=1.2) == 0
    assert people.looks >= 2
    assert people.told == ["Redis answers within 30 ms, the limit is 20 ms"]
