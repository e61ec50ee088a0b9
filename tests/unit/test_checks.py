"""Every public method of a store refuses an argument of a wrong type in words, before a server is asked."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import redis

from queuekeeper import lua, redis_async
from queuekeeper.compacted.model import Append, Retention
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.compacted.producer import CompactedProducer
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.compacted.topics import Topics
from queuekeeper.errors import UnknownConsumer, UsageError
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.operations import EventOperations
from queuekeeper.fanout.consumer import AsyncFanoutConsumer, FanoutConsumer
from queuekeeper.fanout.handlers import RetryRules, handler
from queuekeeper.fanout.model import NewMessage
from queuekeeper.fanout.operations import FanoutOperations
from queuekeeper.fanout.producer import AsyncFanoutProducer, FanoutProducer
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.redis_connection import Limits
from queuekeeper.sessions.model import StoreRules
from queuekeeper.sessions.postgres_operations import PostgresSessionOperations
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_operations import RedisSessionOperations
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.unit

STORES = (FanoutQueues, CompactedQueues, EventBroker, RedisSessionStore, PostgresSessionStore)
WRONG: tuple[Any, ...] = (None, True, 7, 1.5, "text", b"bytes", {}, [], [None], object(), ValueError)


NAIVE = datetime(2026, 11, 22, 9)  # noqa: DTZ001 - that it has none is what is refused


class _AskedAServer(Exception):
    """Nothing of this may come to a caller."""


def _store(kind: type) -> Any:
    """Return a store without a server: whatever it asks is a failure."""
    store: Any = object.__new__(kind)
    operations: dict[type, Callable[[], Any]] = {
        FanoutQueues: FanoutOperations,
        AsyncFanoutQueues: FanoutOperations,
        CompactedQueues: CompactedOperations,
        AsyncCompactedQueues: CompactedOperations,
        EventBroker: EventOperations,
        RedisSessionStore: RedisSessionOperations,
        PostgresSessionStore: lambda: PostgresSessionOperations(StoreRules()),
    }
    store.operations = operations[kind]()

    def answer(step: Any) -> Any:
        raise _AskedAServer(step)

    store.answer = answer
    return store


def wrong(value: Any) -> Any:
    """Return a value of a type that no type checker would let pass."""
    return value


def _doors() -> Iterator[tuple[type, str, str, Any]]:
    """Yield every argument of every method of the stores, with its type."""
    for kind in STORES:
        for name, method in vars(kind).items():
            form = getattr(method, "__wrapped__", None)
            if form is None or name.startswith("_"):
                continue
            hints = get_type_hints(form)
            for argument in list(inspect.signature(form).parameters)[1:]:
                yield kind, name, argument, hints[argument]


def _may_be(value: Any, hint: Any) -> bool:
    """Tell, as a reader of the annotation would, whether a value may stand for an argument."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_may_be(value, each) for each in inner)
    if hint is Any or getattr(hint, "_is_protocol", False):
        return True
    if origin is Literal:
        return value in inner
    if hint is float:
        return type(value) in (int, float)
    if hint in (int, bool, str, bytes, type(None)):
        return type(value) is hint
    kind = origin or hint
    if kind is Callable or (isinstance(kind, type) and issubclass(kind, Callable)):  # type: ignore[arg-type]
        return callable(value)
    if isinstance(value, str | bytes):
        return isinstance(kind, type) and issubclass(kind, str | bytes) and not issubclass(kind, Enum)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if isinstance(kind, type) and issubclass(kind, Iterable) and isinstance(value, list | dict) and inner:
        return kind is Iterable or (isinstance(value, kind) and all(_may_be(each, inner[0]) for each in value))
    return isinstance(kind, type) and isinstance(value, kind)


def _some(hint: Any) -> Any:
    """Return something that may stand for an argument."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if type(None) in inner else _some(inner[0])
    if origin is Literal:
        return inner[0]
    known: dict[Any, Any] = {int: 1, float: 1.0, str: "name", bytes: b"key", bool: False, datetime: datetime.now(UTC)}
    if hint in known:
        return known[hint]
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return {}
    if isinstance(kind, type) and issubclass(kind, Iterable):
        return []
    return object.__new__(kind)


@pytest.mark.parametrize(
    ("kind", "name", "argument", "hint"),
    [pytest.param(*each, id=f"{each[0].__name__}.{each[1]}-{each[2]}") for each in _doors()],
)
def test_argument_of_a_wrong_type_is_named_with_its_rule(kind: type, name: str, argument: str, hint: Any) -> None:
    form = getattr(vars(kind)[name], "__wrapped__")  # noqa: B009 - mypy knows no attribute of a function's form
    hints = get_type_hints(form)
    others = {
        each: _some(hints[each])
        for each, parameter in list(inspect.signature(form).parameters.items())[1:]
        if parameter.default is parameter.empty and each != argument
    }
    for value in WRONG:
        if _may_be(value, hint):
            continue
        with pytest.raises(UsageError):
            getattr(_store(kind), name)(**others, **{argument: value})


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, 2**50, 1.5, True, "1", None])
def test_limits_that_would_send_nothing_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is {value!r}: it must be"):
        Limits(**{name: value})


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
def test_smallest_limit_is_taken(name: str) -> None:
    assert getattr(Limits(**{name: 1}), name) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, True, "1", None])
@pytest.mark.parametrize(
    "make",
    [
        lambda **given: redis_async.connect("redis://localhost", **given),
        lambda **given: lua.ScriptCaller(redis.Redis(), **given),
        lambda **given: FanoutQueues(redis.Redis(), **given),
    ],
    ids=["asyncio", "caller", "store"],
)
def test_time_for_which_a_script_is_sent_again_is_a_number_of_seconds(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(UsageError, match=r"retry_for_s is .*: it must be a number"):
        make(retry_for_s=value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _fanout().ack("q", consumer="c", ids=[1], token=None), "token is None: it must be text"),
        (lambda: _fanout().ack("q", consumer="c", ids=[1], token=1), "token is 1: it must be text"),
        (lambda: _fanout().ack("q", consumer="c", ids=1, token="t"), "ids is 1: it must be a list or tuple of int"),
        (lambda: _fanout().publish("q", "text"), "messages is a str: it must be a list or tuple of NewMessages"),
        (lambda: FanoutProducer(_fanout()).publish("q", wrong("text")), "message is a str: it must be a New"),
        (lambda: FanoutProducer(_fanout()).publish_many("q", wrong(NewMessage(body=b"x"))), "messages is a NewMessage"),
        (lambda: NewMessage(body=b"x", headers=wrong(None)), "headers is None: it must be a mapping of texts to texts"),
        (lambda: NewMessage(body=b"x", delay_ms=-1), "delay_ms is -1: it must be 0 to "),
        (lambda: NewMessage(body=b"x", delay_ms=wrong(1.5)), "delay_ms is 1.5: it must be an integer"),
        (lambda: NewMessage(body=b"x", delay_ms=wrong(True)), "delay_ms is True: it must be an integer"),
        (lambda: NewMessage(body=b"x", due_at=wrong("2026")), "due_at is a str: it must be a datetime with a time"),
        (lambda: NewMessage(body=b"x", due_at=wrong(4)), "due_at is 4: it must be a datetime with a time zone"),
        (lambda: NewMessage(body=b"x", due_at=NAIVE), "due_at is 2026-11-22T09:00:00: say in which time zone"),
        (lambda: NewMessage(body=b"x", due_at=NAIVE.astimezone(), delay_ms=0), "delay_ms and due_at both say when the"),
        (lambda: FanoutProducer(_fanout()).publish_json("q", 1, delay_ms=-5), "delay_ms is -5: it must be 0 to "),
        (lambda: _fanout().nack("q", consumer="c", message_id=1, token="t", reason=b"x"), "reason is a bytes: it must"),
        (lambda: _fanout().register("q", consumer="c", options={}), "options is a dict: it must be a ConsumerOptions"),
        (lambda: handler(dead_on=wrong(ValueError)), "dead_on is the class ValueError: it must be a tuple of classes"),
        (lambda: RetryRules(dead_on=wrong((1,))), "dead_on is a tuple: it must be a tuple of classes of Exceptions"),
        (lambda: Topics().parse(wrong(None)), "topic is None: it must be text"),
        (lambda: _compacted().subscribe("c", session="n", takeover="no"), "takeover is a str: it must be True"),
        (lambda: FanoutConsumer(_fanout(), "q", wrong(None), consumer="n"), "work is None: it must be a Handler or a"),
        (lambda: FanoutProducer(_fanout()).publish_json("q", float("nan")), "value is not JSON: it holds NaN"),
        (lambda: FanoutProducer(_fanout()).publish_json("q", 2**70), "value is not JSON: Integer exceeds 64-bit range"),
        (lambda: FanoutProducer(_fanout()).publish_json("q", {"a": [float("inf")]}), "value is not JSON: it holds NaN"),
        (lambda: CompactedProducer(_compacted()).append("c", wrong(None)), "append is None: it must be an"),
    ],
)  # fmt: skip
def test_what_strangers_tried_is_refused_in_words(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: _async_fanout().ack("q", consumer="c", ids=[1], token=None), "token is None: it must be text"),
        (
            lambda: AsyncFanoutProducer(_async_fanout()).publish("q", wrong("text")),
            "message is a str: it must be a New",
        ),
        (
            lambda: _async(AsyncCompactedQueues).subscribe("c", session="n", takeover=1),
            "takeover is 1: it must be",
        ),
    ],
)
def test_asyncio_callers_are_told_the_same(call: Callable[[], Any], words: str) -> None:
    async def called() -> None:
        await call()

    with pytest.raises(UsageError) as caught:
        asyncio.run(called())
    assert words in str(caught.value)


def test_a_consumer_for_asyncio_is_refused_a_handler_that_is_none() -> None:
    async def made() -> None:
        AsyncFanoutConsumer(_async_fanout(), "q", wrong(None), consumer="n")

    with pytest.raises(UsageError, match="work is None: it must be a Handler or a function"):
        asyncio.run(made())


def test_right_arguments_reach_the_server() -> None:
    with pytest.raises(_AskedAServer):
        _compacted().append("c", [Append(key=b"k", value=b"v")])
    with pytest.raises(_AskedAServer):
        _compacted().configure("c", retention=Retention())


_fanout: Callable[[], Any] = partial(_store, FanoutQueues)
_compacted: Callable[[], Any] = partial(_store, CompactedQueues)
_async: Callable[[type], Any] = _store
_async_fanout: Callable[[], Any] = partial(_store, AsyncFanoutQueues)


def test_what_is_not_there_is_told_with_the_names_of_queue_and_consumer() -> None:
    store = _fanout()
    store.answer = lambda step: [UnknownConsumer("no consumer of this name is registered with the queue")]

    with pytest.raises(UnknownConsumer) as caught:
        store.touch("orders", consumer="billing")

    assert str(caught.value) == (
        "no consumer of this name is registered with the queue (queue 'orders', consumer 'billing')"
    )
