"""A handler that takes too long fails in the middle of its work, in a thread and in an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from queuekeeper.errors import TimeLimitExceeded, UsageError
from queuekeeper.fanout import Attempt, Failed, FanoutMessage, Handler, Middleware, RetryRules
from queuekeeper.service.limits import limited

pytestmark = pytest.mark.unit

MESSAGE = FanoutMessage(
    queue="orders", consumer="billing", id=1, body=b"", content_type=None, headers={}, order_key=None,
    published_ms=0, attempt=1, stalls=0, expires_at_ms=10**12,
)  # fmt: skip


class Witness(Middleware):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def after(self, message: FanoutMessage, *, duration_s: float) -> None:
        self.seen.append("done")

    def error(self, message: FanoutMessage, error: Exception, *, duration_s: float, is_final: bool) -> None:
        self.seen.append((type(error), is_final))


def attempt(work: Any, *, witness: Witness, **rules: Any) -> Attempt:
    handler = Handler(work=work, rules=RetryRules(first_delay_ms=10, jitter=0, **rules))
    return Attempt(handler, MESSAGE, middleware=(witness,), draw=lambda: 0.0, now_s=time.monotonic)


def awaited(made: Attempt) -> Failed:
    async def run() -> Failed | None:
        return await made.run_async()

    failed = asyncio.run(run())
    assert failed is not None
    return failed


def for_ever(_: FanoutMessage) -> None:
    while True:
        with suppress(Exception):
            time.sleep(0.001)


async def for_ever_async(_: FanoutMessage) -> None:
    await asyncio.Event().wait()


def test_handler_in_a_thread_is_ended_although_it_catches_every_exception() -> None:
    witness = Witness()

    result = attempt(for_ever, witness=witness, time_limit_ms=50).run()

    assert result == Failed(
        delay_ms=10, max_attempts=5, reason="TimeLimitExceeded: the handler took longer than its 0.05 s"
    )
    assert witness.seen == [(TimeLimitExceeded, False)]


def test_coroutine_is_cancelled_and_a_limit_can_make_a_dead_letter() -> None:
    witness = Witness()

    made = attempt(for_ever_async, witness=witness, time_limit_ms=50, dead_on=(TimeLimitExceeded,))
    result = awaited(made)

    assert (result.max_attempts, result.reason) == (1, "TimeLimitExceeded: the handler took longer than its 0.05 s")
    assert witness.seen == [(TimeLimitExceeded, True)]


def test_time_out_of_a_handlers_own_is_not_taken_for_the_limit() -> None:
    async def times_out(_: FanoutMessage) -> None:
        raise TimeoutError("the bank")

    result = awaited(attempt(times_out, witness=Witness(), time_limit_ms=60_000))

    assert result.reason == "TimeoutError: the bank"


def test_handler_that_is_quick_enough_is_left_alone_and_nothing_comes_later() -> None:
    witness = Witness()
    quick = attempt(lambda _: None, witness=witness, time_limit_ms=600_000)

    assert [quick.run() for _ in range(100)] == [None] * 100
    assert witness.seen == ["done"] * 100


def test_limit_ends_only_the_thread_that_it_is_for() -> None:
    ended: list[str] = []
    go_on = threading.Event()

    def patient() -> None:
        limited(go_on.wait, limit_s=600.0)
        ended.append("patient")

    def hasty() -> None:
        with pytest.raises(TimeLimitExceeded):
            limited(for_ever, MESSAGE, limit_s=0.02)
        ended.append("hasty")

    threads = [threading.Thread(target=each) for each in (patient, hasty)]
    for thread in threads:
        thread.start()
    threads[1].join()
    go_on.set()
    threads[0].join()

    assert ended == ["hasty", "patient"]


def test_wrong_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="time_limit_ms is 0: it must be 1 to"):
        RetryRules(time_limit_ms=0)
