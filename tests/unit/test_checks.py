"""Every public method of a store refuses an argument of a wrong type in words, before a server is asked."""

from __future__ import annotations

import asyncio
import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pytest
import redis

from queuekeeper import compacted, events, fanout, lua, postgres, redis_async, redis_client, sessions
from queuekeeper.checks import shown
from queuekeeper.compacted.model import Append, Position, Retention
from queuekeeper.compacted.mqtt_address import BrokerAddress
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.compacted.producer import CompactedProducer
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.compacted.topics import Topics
from queuekeeper.errors import (
    QueueFull,
    QueuekeeperError,
    RefusedError,
    ServerUnavailable,
    StoreFull,
    UnknownConsumer,
    UnknownQueue,
    UsageError,
)
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
from queuekeeper.sessions.owners import OwnerOperations
from queuekeeper.sessions.postgres_operations import PostgresSessionOperations
from queuekeeper.sessions.redis_operations import RedisSessionOperations
from queuekeeper.sessions.router.routing import RouterOperations

pytestmark = pytest.mark.unit

WRONG: tuple[Any, ...] = (None, True, 7, 1.5, "text", b"bytes", {}, [], [None], object(), ValueError)


NAIVE = datetime(2026, 11, 22, 9)  # noqa: DTZ001 - that it has none is what is refused


class _AskedAServer(Exception):
    """Nothing of this may come to a caller."""


def _store(kind: type) -> Any:
    """Return a store without a server: whatever it asks is a failure."""
    store: Any = object.__new__(kind)
    store.operations = OPERATIONS[kind.__name__.removeprefix("Async")]()

    def answer(step: Any) -> Any:
        raise _AskedAServer(step)

    store.answer = answer
    if kind in (CompactedQueues, AsyncCompactedQueues):
        store._caller = lua.ScriptCaller(redis.Redis())
    return store


OPERATIONS: dict[str, Callable[[], Any]] = {
    "FanoutQueues": FanoutOperations,
    "CompactedQueues": CompactedOperations,
    "EventBroker": EventOperations,
    "OwnerStore": OwnerOperations,
    "RedisSessionStore": RedisSessionOperations,
    "PostgresSessionStore": lambda: PostgresSessionOperations(StoreRules()),
    "SessionRouter": RouterOperations,
}
URL = "postgresql://nobody@127.0.0.1:1/none"
MADE: dict[type, Callable[[], Any]] = {
    FanoutProducer: lambda: FanoutProducer(_store(FanoutQueues)),
    AsyncFanoutProducer: lambda: AsyncFanoutProducer(_store(AsyncFanoutQueues)),
    CompactedProducer: lambda: CompactedProducer(_store(CompactedQueues)),
    compacted.AsyncCompactedProducer: lambda: compacted.AsyncCompactedProducer(_store(AsyncCompactedQueues)),
    compacted.CompactedConsumer: lambda: compacted.CompactedConsumer(_store(CompactedQueues), "c"),
    compacted.AsyncCompactedConsumer: lambda: compacted.AsyncCompactedConsumer(_store(AsyncCompactedQueues), "c"),
    events.EventProducer: lambda: events.EventProducer(_store(EventBroker)),
    events.AsyncEventProducer: lambda: events.AsyncEventProducer(_store(events.AsyncEventBroker)),
    events.EventConsumer: lambda: events.EventConsumer(URL, group_id="g"),
    events.AsyncEventConsumer: lambda: events.AsyncEventConsumer(URL, group_id="g"),
    sessions.SessionWriter: lambda: sessions.SessionWriter(_store(sessions.AsyncRedisSessionStore)),
    Topics: Topics,
}
"""Public classes that are no stores, and how one is made whose methods are called."""

CONNECTING: dict[str, Callable[..., Any]] = {
    "connect": redis_client.connect,
    "connect for asyncio": redis_async.connect,
    "connect to PostgreSQL": postgres.connect,
    "connect to PostgreSQL for asyncio": postgres.connect_async,
    "connect to a broker": BrokerAddress.parse,
}
"""How servers are reached."""

# What others may stand in for, another driver or a store that somebody has wrapped; and what comes behind topics.
LEFT_OUT = {"SessionWriter.store", "Interest.topics.expires_after"}
# What is refused with how many replicas can be waited for, and how long.
LEFT_OUT |= {f"connect for asyncio.{name}" for name in ("replicas", "replica_timeout_ms")}
# Ours to call.
NOT_CALLED = {"answer", "checked", "close", "after", "around", "before", "error", "SaveReport"}
NOT_CALLED |= {"EventStream", "AsyncEventStream", "Listener", "AsyncListener"}
# What an argument is called in a sentence that does not have its name.
CALLED = {
    "to": "position|name of the consumer",
    "start": "position",
    "kind": "position|purge",
    "value": "position",
    "number": "position sequence",
    "instant_ms": "position time_ms",
    "sequence": "purge",
    "url": "broker's URL",
    "event": "events",
    "ids": "id",
    "sequences": "sequence",
    "acks": "sequence",
    "client_ids": "client id",
    "appends": "an entry",
}
# What has to be given beside an argument, so that it is what is wrong.
BESIDE: dict[str, dict[str, Any]] = {
    "Position.value": {"kind": "sequence"},
    "Purge.sequence": {"kind": "up_to"},
    "SessionSave.source": {"offset": 1},
    "SessionSave.offset": {"source": "s"},
    "SessionWriter.source": {"first_offset": 1},
    "SessionWriter.first_offset": {"source": "s"},
}
BESIDE |= {
    f"{broker}.schedule.{argument}": {"delay_ms": 1}
    for broker in ("EventBroker", "AsyncEventBroker")
    for argument in ("event", "subscription_id")
}


def wrong(value: Any) -> Any:
    """Return a value of a type that no type checker would let pass."""
    return value


def _is_given_back(kind: Any) -> bool:
    """Tell whether a public name is a kind of what stores answer, raise or choose from: nobody else makes them."""
    return (
        not isinstance(kind, type)
        or issubclass(kind, BaseException | Enum)
        or getattr(kind, "_is_protocol", False)
        or (is_dataclass(kind) and not hasattr(kind, "__post_init__"))
    )


def _callables() -> Iterator[tuple[str, Callable[..., Any], Callable[[], Any] | None]]:
    """Yield every public function, constructor and method of the stores' packages, with what makes the object."""
    for name, function in CONNECTING.items():
        yield name, function, None
    for package in (compacted, events, fanout, sessions):
        for name in dir(package):
            public: Any = getattr(package, name)
            if inspect.isfunction(public):
                yield name, public, None
            if _is_given_back(public) or name in NOT_CALLED:
                continue
            yield name, public, None
            stem = name.removeprefix("Async")
            make = MADE.get(public) or (partial(_store, public) if stem in OPERATIONS else None)
            for method in dir(public):
                found = inspect.getattr_static(public, method)
                if method.startswith("_") or method in NOT_CALLED:
                    continue
                if isinstance(found, classmethod | staticmethod):
                    yield f"{name}.{method}", getattr(public, method), None
                elif inspect.isfunction(found) and make is not None:
                    yield f"{name}.{method}", found, make


def _doors() -> Iterator[tuple[str, Callable[..., Any], Callable[[], Any] | None, str, Any]]:
    """Yield every argument that can be of a wrong type, with its type."""
    for name, function, make in _callables():
        for argument, hint in _arguments(function, make).items():
            if not {argument, f"{name}.{argument}"} & LEFT_OUT and not all(_may_be(value, hint) for value in WRONG):
                yield name, function, make, argument, hint


def _arguments(function: Callable[..., Any], make: Callable[[], Any] | None, *, needed: bool = False) -> dict[str, Any]:
    form: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    form = getattr(form, "__wrapped__", form)
    hints, found = get_type_hints(form), list(inspect.signature(form).parameters.values())
    ours = found[1:] if make is not None or isinstance(function, type) else found
    return {
        each.name: hints[each.name]
        for each in ours
        if each.name in hints
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and (not needed or each.default is each.empty)
    }


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
    if kind is Callable or isinstance(kind, TypeVar):
        return print
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return {}
    if isinstance(kind, type) and issubclass(kind, Iterable):
        return (tuple if kind is tuple else list)([_some(inner[0])])
    return _KEPT.setdefault(kind, object.__new__(kind))


_KEPT: dict[Any, Any] = {sessions.NewMessage: sessions.NewMessage(topic="t", payload=b"", qos=1, time_ms=0)}
"""Objects that were never made: they must not be ended either, which is what some do when nobody has them. One kind is
looked into by those who are given it."""


@pytest.mark.parametrize(
    ("name", "function", "make", "argument", "hint"),
    [pytest.param(*each, id=f"{each[0]}-{each[3]}") for each in _doors()],
)
def test_argument_of_a_wrong_type_is_named_with_its_rule(
    name: str, function: Callable[..., Any], make: Callable[[], Any] | None, argument: str, hint: Any
) -> None:
    others = {each: _some(kind) for each, kind in _arguments(function, make, needed=True).items() if each != argument}
    others |= BESIDE.get(f"{name}.{argument}", {})
    words = rf"{argument}|{argument.replace('_', ' ')}|{argument.removesuffix('_ms')}|{CALLED.get(argument, argument)}"

    async def refusal(given: tuple[Any, ...], value: Any) -> str:
        try:
            answer = function(*given, **others, **{argument: value})
            if inspect.isawaitable(answer):
                await answer
        except UsageError as error:
            return str(error)
        pytest.fail(f"{value!r} is taken")

    async def ask() -> None:
        given: tuple[Any, ...] = () if make is None else (make(),)
        try:
            for value in [value for value in WRONG if not _may_be(value, hint)]:
                said = await refusal(given, value)
                told = {repr(value[0] if value == [None] else value), shown(value), type(value).__name__, "is nothing"}
                assert re.search(rf"\b({words})\b", said), (value, said)
                assert any(each in said for each in told), (value, said)
                assert re.search(r": (it must|each must|write|one of|put it) ", said), (value, said)
        finally:
            if given and isinstance(given[0], events.EventConsumer):
                given[0].close(patient=True)

    asyncio.run(ask())


def test_methods_of_every_public_class_are_called() -> None:
    """A class that is new here needs a line in MADE, unless it is a store."""
    called = {name.partition(".")[0] for name, *_ in _doors() if "." in name}

    assert called >= {each.__name__ for each in MADE} | {
        f"{form}{name}" for name in OPERATIONS for form in ("", "Async")
    }
    assert len({name for name, *_ in _doors()}) > 200


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
        (lambda: RetryRules(dead_on=wrong((1,))), "dead_on holds 1: it must be a tuple of classes of Exceptions"),
        (lambda: _fanout().publish("q", [wrong(b"x")]), "messages holds a bytes: it must be a list or tuple of NewMes"),
        (
            lambda: FanoutConsumer(_fanout(), "q", print, consumer="n", middleware=[wrong(FanoutConsumer)]),
            "middleware holds the class FanoutConsumer: it must be a list or tuple of Middlewares",
        ),
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
    assert (caught.value.queue, caught.value.consumer, caught.value.client_id) == ("orders", "billing", None)


def test_every_error_of_a_call_has_its_queue_and_consumer_as_attributes() -> None:
    store = _fanout()
    store.answer = lambda step: [QueueFull("consumer 'shipping' has no room")]

    with pytest.raises(QueueFull) as caught:
        store.touch("orders", consumer="billing")

    assert (str(caught.value), caught.value.queue, caught.value.consumer) == (
        *("consumer 'shipping' has no room", "orders", "billing"),
    )
    queues = _compacted()
    replies = lua.Replies(1)
    replies[0] = UnknownQueue()
    queues.answer = lambda step: replies
    with pytest.raises(UnknownQueue) as unknown:
        queues.rewind("meter-7", to=Position.earliest())
    assert (unknown.value.client_id, unknown.value.queue) == ("meter-7", None)
    assert str(unknown.value) == "There is no queue of this name. (queue of client 'meter-7')"


@pytest.mark.parametrize("kind", [ServerUnavailable, StoreFull, RefusedError])
def test_error_that_other_calls_hear_of_too_is_about_none_of_them(kind: type[QueuekeeperError]) -> None:
    store, lost = _fanout(), kind("the server does not serve")
    store.answer = lambda step: [lost]

    with pytest.raises(kind) as caught:
        store.touch("orders", consumer="billing")

    assert caught.value is lost
    assert (lost.queue, lost.consumer) == (None, None)
