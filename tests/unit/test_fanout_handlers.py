"""Attempts of handlers, in a thread and in an event loop: limits of time, what middleware wraps."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pytest

from queuekeeper.errors import TimeLimitExceeded, UsageError
from queuekeeper.fanout import Failed, FanoutMessage, Middleware, RetryRules
from queuekeeper.service import limits
from queuekeeper.service.handlers import AsyncCalls, BlockingCalls, LoopThreadCalls
from queuekeeper.service.limits import limited
from tests.patience import PATIENCE_S

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


def run(work: Any, *middleware: Middleware, **rules: Any) -> Failed | None:
    """Attempt a message in this thread; return the failure, if there is one."""
    found = RetryRules(first_delay_ms=10, jitter=0, **rules)
    try:
        BlockingCalls[FanoutMessage](work, found, middleware=middleware).answer(MESSAGE)
    except Exception as error:
        return found.judge(MESSAGE, error, draw=lambda: 0.0)
    return None


def run_async(work: Any, *middleware: Middleware, **rules: Any) -> Failed | None:
    """Attempt a message in an event loop; return the failure, if there is one."""
    found = RetryRules(first_delay_ms=10, jitter=0, **rules)
    try:
        asyncio.run(AsyncCalls[FanoutMessage](work, found, middleware=middleware).answer(MESSAGE))
    except Exception as error:
        return found.judge(MESSAGE, error, draw=lambda: 0.0)
    return None


def for_ever(_: FanoutMessage) -> None:
    while True:
        with suppress(Exception):
            time.sleep(0.001)


async def for_ever_async(_: FanoutMessage) -> None:
    await asyncio.Event().wait()


def test_handler_in_a_thread_is_ended_although_it_catches_every_exception() -> None:
    witness = Witness()

    result = run(for_ever, witness, time_limit_ms=50)

    assert result == Failed(
        delay_ms=10, max_attempts=5, reason="TimeLimitExceeded: the handler took longer than its 0.05 s"
    )
    assert witness.seen == [(TimeLimitExceeded, False)]


def test_coroutine_is_cancelled_and_a_limit_can_make_a_dead_letter() -> None:
    witness = Witness()

    result = run_async(for_ever_async, witness, time_limit_ms=50, dead_on=(TimeLimitExceeded,))

    assert result is not None
    assert (result.max_attempts, result.reason) == (1, "TimeLimitExceeded: the handler took longer than its 0.05 s")
    assert witness.seen == [(TimeLimitExceeded, True)]


def test_time_out_of_a_handlers_own_is_not_taken_for_the_limit() -> None:
    async def times_out(_: FanoutMessage) -> None:
        raise TimeoutError("the bank")

    result = run_async(times_out, Witness(), time_limit_ms=60_000)

    assert result is not None
    assert result.reason == "TimeoutError: the bank"


def test_time_that_a_handler_in_a_thread_has_used_is_not_given_again_to_what_it_returns() -> None:
    def slow(message: FanoutMessage) -> Any:
        return for_ever_async(message)

    # It begins at 0 s, and returns what is to be awaited 700 s later.
    calls = LoopThreadCalls(slow, RetryRules(time_limit_ms=600_000), now_s=iter([0.0, 700.0]).__next__)

    with pytest.raises(TimeLimitExceeded, match=r"longer than its 600 s"):
        asyncio.run(calls.answer_in_thread(MESSAGE))


def test_handler_that_is_quick_enough_is_left_alone_and_nothing_comes_later() -> None:
    witness = Witness()

    assert [run(lambda _: None, witness, time_limit_ms=600_000) for _ in range(100)] == [None] * 100
    assert witness.seen == ["done"] * 100


def test_time_that_is_up_while_a_handler_ends_keeps_no_later_one_from_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, raise_in = threading.Event(), limits._raise_in

    def raise_late(thread_id: int, kind: type[BaseException] | None) -> None:
        if kind is not None:
            ends.set()
            while not any(frame.name == "end" for frame in traceback.extract_stack(sys._current_frames()[thread_id])):
                time.sleep(0.001)
            # So long it stays where it is now.
            time.sleep(0.05)
        raise_in(thread_id, kind)

    monkeypatch.setattr(limits, "_raise_in", raise_late)
    done: list[str] = []

    def work() -> None:
        with suppress(TimeLimitExceeded):
            limited(ends.wait, limit_s=0.01)
        limited(done.append, "the next one", limit_s=600.0)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert done == ["the next one"]


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


@pytest.mark.parametrize("rules", [{}, {"time_limit_ms": 600_000}], ids=["", "limited"])
def test_message_is_not_done_when_its_handler_only_makes_a_coroutine(rules: dict[str, Any]) -> None:
    witness = Witness()

    result = run(for_ever_async, witness, **rules)

    assert result is not None
    assert result.reason.startswith("UsageError: the handler has made a coroutine that nobody awaits here")
    assert witness.seen == [(UsageError, False)]


def test_plain_function_in_an_event_loop_works_once() -> None:
    witness, seen = Witness(), list[int]()

    assert run_async(lambda message: seen.append(message.id), witness) is None

    assert (seen, witness.seen) == ([1], ["done"])


def test_wrong_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="time_limit_ms is 0: it must be 1 to"):
        RetryRules(time_limit_ms=0)


NAMES: ContextVar[str] = ContextVar("names", default="")


class Wrapper(Middleware):
    """Puts its name around a handler, and takes an error of its kind for done."""

    def __init__(self, name: str, *, told: list[str], cures: type[Exception] = ZeroDivisionError) -> None:
        self._name = name
        self._told = told
        self._cures = cures

    @contextmanager
    def around(self, message: FanoutMessage) -> Iterator[None]:
        names = NAMES.set(NAMES.get() + self._name)
        try:
            yield
            self._told.append(f"{self._name}: done")
        except self._cures as error:
            self._told.append(f"{self._name}: {error}")
        finally:
            NAMES.reset(names)


class Refusing(Middleware):
    def around(self, message: FanoutMessage) -> Any:
        raise ConnectionError("no lock")


def attempt_with(middleware: list[Middleware], work: Any, *, is_async: bool) -> Failed | None:
    async def awaited_work(message: FanoutMessage) -> None:
        await asyncio.sleep(0)
        work(message)

    return run_async(awaited_work, *middleware) if is_async else run(work, *middleware)


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "event loop"])
def test_middleware_wraps_a_handler_the_first_outermost_and_may_cure_its_errors(is_async: bool) -> None:
    told: list[str] = []
    wrappers: list[Middleware] = [Wrapper("a", told=told, cures=KeyError), Wrapper("b", told=told, cures=ValueError)]

    def work(_: FanoutMessage) -> None:
        told.append(NAMES.get())

    def fails(_: FanoutMessage) -> None:
        raise ValueError("no money")

    assert attempt_with(wrappers, work, is_async=is_async) is None
    assert told == ["ab", "b: done", "a: done"]
    told.clear()
    assert attempt_with(wrappers, fails, is_async=is_async) is None
    assert told == ["b: no money", "a: done"]
    failed = attempt_with(wrappers[:1], fails, is_async=is_async)
    assert failed is not None
    assert failed.reason == "ValueError: no money"


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "event loop"])
def test_middleware_that_cannot_be_entered_fails_the_attempt_and_the_handler_does_not_begin(is_async: bool) -> None:
    told: list[str] = []
    witness = Witness()

    failed = attempt_with(
        [witness, Wrapper("a", told=told), Refusing()], lambda _: told.append("began"), is_async=is_async
    )

    assert failed == Failed(delay_ms=10, max_attempts=5, reason="ConnectionError: no lock")
    assert (told, witness.seen) == ([], [(ConnectionError, False)])
