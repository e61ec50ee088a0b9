"""Handlers with rules: each store completes its own by name, and refuses those of another, which would not count."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from queuekeeper import compacted, events, fanout
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.service.handlers import AsyncCalls, BlockingCalls, LoopThreadCalls, handler_of

pytestmark = pytest.mark.unit

STORES: list[Any] = [fanout, events, compacted]
NAMES = ["fanout", "events", "compacted"]
MISSPELT = {"fanout": "max_attempt", "events": "retry_s", "compacted": "first_delay"}
MEANT = {"fanout": "max_attempts", "events": "retries_s", "compacted": "first_delay_ms"}


def short(store: Any) -> str:
    return str(store.__name__.rpartition(".")[2])


@pytest.mark.parametrize("store", STORES, ids=NAMES)
def test_rules_of_a_handler_are_those_of_retry_rules_and_a_typing_error_is_named(store: Any) -> None:
    # Python 3.13 keeps the annotations of one as text, and not of the other.
    of_handler, of_rules = (
        [(rule.name, inspect.formatannotation(rule.annotation).strip("'"), rule.default) for rule in rules.values()]
        for rules in (inspect.signature(store.handler).parameters, inspect.signature(store.RetryRules).parameters)
    )
    assert of_handler == of_rules
    assert store.handler(time_limit_ms=8)(print) == store.Handler(work=print, rules=store.RetryRules(time_limit_ms=8))
    misspelt, meant = MISSPELT[short(store)], MEANT[short(store)]
    with pytest.raises(UsageError, match=f"handler has no rule {misspelt!r}: did you mean {meant!r}"):
        store.handler(**{misspelt: 8})
    with pytest.raises(UsageError, match=f"no rule 'zzz': there are {next(iter(of_rules))[0]}, "):
        store.handler(zzz=8)
    brackets = r"handler got .*: it must get its rules by name, such as @handler\(.+\), or none of them: @handler\(\)"
    with pytest.raises(UsageError, match=brackets):
        store.handler(print)


def test_rules_that_fan_out_has_are_named_in_full() -> None:
    assert fanout.handler(max_attempts=8)(print).rules == fanout.RetryRules(max_attempts=8)
    misspelt: Any = {"zzz": 8}
    with pytest.raises(UsageError, match="no rule 'zzz': there are max_attempts, first_delay_ms, factor"):
        fanout.handler(**misspelt)


@pytest.mark.parametrize("store", STORES, ids=NAMES)
def test_help_and_editors_show_what_the_decorator_takes_and_makes(store: Any) -> None:
    assert "Make a function a handler: ``@handler(" in store.handler.__doc__
    assert store.handler.__module__ == store.Handler.__module__
    assert store.Handler in inspect.signature(store.handler).return_annotation.__args__
    assert store.handler()(print)("works as the function does") is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: events.RetryRules(retries_s=(1.0, -1.0)),
            "a pause before a retry is -1.0: it must be a number of sec",
        ),
        (lambda: events.RetryRules(retries_s=(1.0,) * 101), "retries is 102: it must be 1 to 101"),
        (lambda: events.RetryRules(retries_s=cast("Any", 1)), "retries_s is 1: it must be a list or tuple of numbers"),
        (lambda: events.RetryRules(time_limit_ms=0), "time_limit_ms is 0: it must be 1 to"),
        (lambda: events.RetryRules(dead_on=cast("Any", (KeyboardInterrupt,))), "dead_on"),
        (lambda: compacted.RetryRules(time_limit_ms=cast("Any", 0.5)), "time_limit_ms is 0.5: it must be an integer"),
        (lambda: compacted.RetryRules(first_delay_ms=-1), "first_delay_ms is -1: it must be 0 to"),
        (lambda: compacted.RetryRules(max_delay_ms=99), "max_delay_ms is 99: it must be 100 to"),
        (lambda: compacted.Handler(work=cast("Any", 7)), "work is 7: it must be a function"),
    ],
)
def test_wrong_rule_is_refused_in_words(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert words in str(caught.value)


def test_pauses_may_be_a_list_and_those_of_a_compacted_queue_grow_to_the_longest() -> None:
    assert events.RetryRules(retries_s=[1, 10]).retries_s == (1, 10)
    rules = compacted.RetryRules(first_delay_ms=100, max_delay_ms=350)
    assert [rules.delay_s(attempt) for attempt in (1, 2, 3, 9)] == [0.1, 0.2, 0.35, 0.35]


@pytest.mark.parametrize("store", STORES, ids=NAMES)
def test_handler_of_another_store_is_refused_and_the_refusal_says_where_its_rules_count(store: Any) -> None:
    for other in STORES:
        found = other.handler(time_limit_ms=8)(print)
        if other is store:
            assert handler_of(store.Handler, found) is found
            continue
        with pytest.raises(UsageError) as caught:
            handler_of(store.Handler, found, name="billing:bill")
        text = str(caught.value)
        assert f"billing:bill is a handler of {other.Handler.of}, and its rules apply to" in text
        assert f"`{short(other)} work` only" in text
        assert "time_limit_ms=8" in text
        assert f"without {short(other)}.handler, or one with {short(store)}.handler" in text


def yields(message: Any) -> Iterator[Any]:
    yield message


async def yields_async(message: Any) -> AsyncIterator[Any]:
    yield message


class Yields:
    def __call__(self, message: Any) -> Iterator[Any]:
        yield message


@pytest.mark.parametrize("work", [yields, yields_async, functools.partial(yields), Yields()])
@pytest.mark.parametrize("store", STORES, ids=NAMES)
def test_handler_that_yields_is_refused_since_its_code_would_never_run(store: Any, work: Any) -> None:
    with pytest.raises(UsageError, match=r"work is a generator function: .* would never run; write it without yield"):
        store.handler()(work)
    with pytest.raises(UsageError, match="work is a generator function"):
        handler_of(store.Handler, work)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: None, "too many positional arguments"),
        (lambda self, message: message, "missing a required argument: 'message'"),
        (lambda *, message: message, "too many positional arguments"),
    ],
)
@pytest.mark.parametrize("store", STORES, ids=NAMES)
def test_handler_that_does_not_take_a_message_alone_is_refused_before_it_fails_on_all(
    store: Any, work: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=f"work cannot be called with a message alone: {words}"):
        store.handler()(work)


def test_decorated_function_is_asked_what_its_decorator_takes() -> None:
    def bill(message: Any, database: str) -> str:
        return f"{message} in {database}"

    @functools.wraps(bill)
    def with_database(message: Any) -> str:
        return bill(message, "accounts")

    assert fanout.handler()(with_database).work is with_database


def test_handler_may_have_more_arguments_with_defaults_and_need_not_show_its_signature() -> None:
    works: list[Any] = [
        lambda message, tries=3: (message, tries),
        lambda *given: given,
        print,
        dict,
        functools.partial(max, 1),
    ]
    for work in works:
        assert fanout.handler()(work).work is work


@pytest.mark.parametrize("work", [lambda message: iter(yields(message)), lambda message: aiter(yields_async(message))])
def test_message_of_a_handler_that_returns_work_that_has_not_begun_has_failed(work: Any) -> None:
    rules = fanout.RetryRules()

    async def answer_all() -> None:
        with pytest.raises(UsageError, match="the handler has returned a generator, whose code has not run"):
            await AsyncCalls(work, rules).answer(b"")
        calls = LoopThreadCalls(work, rules)
        with pytest.raises(UsageError, match="the handler has returned a generator, whose code has not run"):
            await calls.answer_in_thread(b"")
        calls.end()

    with pytest.raises(UsageError, match="the handler has returned a generator, whose code has not run"):
        BlockingCalls(work, rules).answer(b"")
    asyncio.run(answer_all())


@pytest.mark.parametrize("middleware", [(), (fanout.Middleware(),)], ids=["", "middleware"])
@pytest.mark.parametrize("work", [lambda _: sys.exit(2), lambda _: sys.exit("no money")])
def test_handler_that_calls_exit_fails_on_its_message_and_does_not_end_the_process(work: Any, middleware: Any) -> None:
    rules: Any = fanout.RetryRules(time_limit_ms=600_000)
    message: Any = SimpleNamespace(attempt=1)
    words = r"the handler has called sys\.exit\("

    async def exits_later(message: Any) -> None:
        await asyncio.sleep(0)
        work(message)

    async def answer_all() -> None:
        for each in (work, exits_later):
            with pytest.raises(RefusedError, match=words):
                await AsyncCalls(each, rules, middleware=middleware).answer(message)
            calls = LoopThreadCalls(each, rules, middleware=middleware)
            with pytest.raises(RefusedError, match=words):
                await calls.answer_in_thread(message)
            calls.end()

    with pytest.raises(RefusedError, match=words):
        BlockingCalls(work, rules, middleware=middleware).answer(message)
    asyncio.run(answer_all())


class Unawaited(fanout.Middleware):
    async def before(self, message: Any, /) -> None:  # type: ignore[override]
        raise AssertionError("nobody awaits it")


class Spans(fanout.Middleware):
    @contextlib.asynccontextmanager
    async def around(self, message: Any, /) -> AsyncIterator[None]:  # type: ignore[override]
        yield


class Bare(fanout.Middleware):
    def around(self, message: Any, /) -> Iterator[None]:  # type: ignore[override]
        yield


@pytest.mark.parametrize(
    ("middleware", "words"),
    [
        (Unawaited(), "before of middleware Unawaited is a coroutine function, which nobody awaits"),
        (Spans(), "around of middleware Spans is asynchronous: it must return a context manager"),
        (Bare(), "around of middleware Bare is a generator function: put @contextmanager over it"),
    ],
)
def test_middleware_that_would_never_run_is_refused(middleware: Any, words: str) -> None:
    queues = fanout.FanoutQueues(redis.Redis())
    with pytest.raises(UsageError, match=words):
        fanout.FanoutConsumer(queues, "orders", print, consumer="billing", middleware=[middleware])
    with pytest.raises(UsageError, match=words):
        fanout.App(middleware=[middleware])


@pytest.mark.parametrize("store", [fanout, events], ids=["fanout", "events"])
def test_group_of_errors_is_final_when_one_of_them_is(store: Any) -> None:
    message: Any = SimpleNamespace(attempt=1)
    rules = store.RetryRules(dead_on=(KeyError,))
    nested = ExceptionGroup("tasks", [ValueError("1"), ExceptionGroup("more", [KeyError("2")])])
    assert rules.is_final(message, nested)
    assert not rules.is_final(message, ExceptionGroup("tasks", [ValueError("1")]))


@pytest.fixture
def group() -> Iterator[events.EventConsumer]:
    consumer = events.EventConsumer("postgresql://nobody@127.0.0.1:1/nothing", group_id="billing")
    yield consumer
    consumer.close(patient=False)


@pytest.mark.parametrize(
    ("app", "place", "words"),
    [
        (fanout.App(), ("orders", "billing"), "a handler of queue 'orders', consumer 'billing'"),
        (compacted.App(), ("meter-7",), "a handler of client_id 'meter-7'"),
        (events.App(group_id="billing"), (), "a handler of name 'paid'"),
    ],
    ids=NAMES[:1] + NAMES[2:] + NAMES[1:2],
)
def test_two_handlers_of_one_place_are_refused_as_they_would_share_messages(app: Any, place: Any, words: str) -> None:
    given = {"fanout": {"consumer": "billing"}, "events": {"name": "paid"}}.get(app.kind.store, {})
    app.handler(*place[:1], **given)(print)
    with pytest.raises(UsageError, match=f"the app has {words} already: give each its own"):
        app.handler(*place[:1], **given)(print)
    others = [["refunds"], ["orders"]] if app.kind.store == "fanout" else [["meter-8"]]
    if app.kind.store != "events":
        app.handler(*others[0], **given)(print)


def test_consumers_refuse_a_handler_of_another_store(group: events.EventConsumer) -> None:
    of_fanout: Any = fanout.handler()(print)
    of_events: Any = events.handler()(print)

    async def worker() -> None:
        compacted.CompactedWorker(object.__new__(compacted.AsyncCompactedQueues), "meter-7", of_fanout)

    queues = fanout.FanoutQueues(redis.Redis())
    with pytest.raises(UsageError, match="work is a handler of fan-out queues"):
        group.handle(of_fanout, name="bill")
    with pytest.raises(UsageError, match="work is a handler of events"):
        fanout.FanoutConsumer(queues, "orders", of_events, consumer="billing")
    with pytest.raises(UsageError, match="work is a handler of fan-out queues"):
        asyncio.run(worker())


def test_consumers_that_await_nothing_refuse_a_coroutine_function(group: events.EventConsumer) -> None:
    async def bill(_: Any) -> None:
        raise AssertionError("nobody awaits it")

    for work in (bill, events.handler()(bill)):
        with pytest.raises(UsageError, match=r"is a coroutine function: .* take AsyncEventConsumer"):
            group.handle(work, name="bill")
    queues = fanout.FanoutQueues(redis.Redis())
    for work_of_fanout in (bill, fanout.handler()(bill)):
        with pytest.raises(UsageError, match=r"is a coroutine function: .* take AsyncFanoutConsumer"):
            fanout.FanoutConsumer(queues, "orders", work_of_fanout, consumer="billing")


def test_pauses_of_a_handler_of_events_are_given_once(group: events.EventConsumer) -> None:
    bill = events.handler(retries_s=(1,))(print)
    with pytest.raises(
        UsageError, match=r"retries_s is \(2,\): the handler has rules of its own, RetryRules\(.*; leave retries_s out"
    ):
        group.handle(bill, name="bill", retries_s=(2,))
