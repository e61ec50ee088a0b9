"""What users hold says in its text form what it is of; nothing that a log may not have is in any text form."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

import queuekeeper.compacted
from queuekeeper import events, fanout, postgres, redis_async
from queuekeeper.closing import AsyncClosing
from queuekeeper.compacted import (
    AsyncCompactedConsumer,
    AsyncCompactedProducer,
    AsyncCompactedQueues,
    BrokerAddress,
    CompactedConsumer,
    CompactedProducer,
    CompactedQueues,
    CompactedWorker,
    MqttDoor,
)
from queuekeeper.events import (
    AsyncDispatcher,
    AsyncEventBroker,
    AsyncEventConsumer,
    AsyncEventProducer,
    AsyncEventStream,
    AsyncWebhook,
    Dispatcher,
    EventBroker,
    EventConsumer,
    EventProducer,
    EventStream,
    StreamRules,
    Webhook,
)
from queuekeeper.events.handlers import AsyncListener, Listener
from queuekeeper.fanout import (
    AsyncFanoutConsumer,
    AsyncFanoutProducer,
    AsyncFanoutQueues,
    FanoutConsumer,
    FanoutProducer,
    FanoutQueues,
)
from queuekeeper.redis_client import RedisClient
from queuekeeper.service.blocking import BlockingService
from queuekeeper.sessions import (
    AsyncOwnerStore,
    AsyncPostgresSessionStore,
    AsyncRedisSessionStore,
    AsyncSessionRouter,
    OwnerStore,
    PostgresSessionStore,
    RedisSessionStore,
    SessionRouter,
    SessionWriter,
)

pytestmark = pytest.mark.unit

PACKAGES = ("compacted", "events", "fanout", "sessions")
EXPORTED: dict[str, type] = {
    f"{package}.{name}": kind
    for package in PACKAGES
    for name in importlib.import_module(f"queuekeeper.{package}").__all__
    if isinstance(kind := getattr(importlib.import_module(f"queuekeeper.{package}"), name), type)
}
CONTENT = {"payload", "body", "value", "correlation_data", "user_properties", "properties", "headers", "metadata"}
FOR_HEIRS = {"compacted.Middleware", "events.Middleware", "fanout.Middleware"}
"""Classes of which users write their own."""


RECORDS = {each for each, kind in EXPORTED.items() if dataclasses.is_dataclass(kind)}


# The value of a position is the number of a message.
@pytest.mark.parametrize("name", sorted(RECORDS - {"compacted.Position"}))
def test_text_form_of_a_record_holds_no_content(name: str) -> None:
    shown = {field.name for field in dataclasses.fields(cast("Any", EXPORTED[name])) if field.repr}
    assert not shown & CONTENT


@pytest.mark.parametrize("name", sorted(set(EXPORTED) - FOR_HEIRS))
def test_text_form_is_more_than_a_place_in_memory(name: str) -> None:
    assert "__repr__" in {own for kind in EXPORTED[name].__mro__[:-1] for own in vars(kind)}


def test_text_form_of_what_can_do_nothing_is_a_text_too() -> None:
    client = cast("RedisClient", redis.Redis())

    assert repr(SessionRouter(client, "nonsense")) == (
        "<SessionRouter redis='localhost:6379' postgres=<UsageError> prefix=''>"
    )
    # As a debugger shows it whose user looks at what is being made, or could not be.
    assert repr(Webhook.__new__(Webhook)) == "<Webhook host=<AttributeError>>"


async def _work(_: Any) -> None:
    raise AssertionError("nothing comes")


def _forget(_: Any) -> None:
    pass


def test_text_form_of_what_is_used_says_server_and_subject_and_no_password(postgres_url: str, valkey_url: str) -> None:
    secret = "planted"
    # Nothing is sent to it.
    redis_at = valkey_url.removeprefix("redis://").split("/")[0].rpartition("@")[2]
    client = cast("RedisClient", redis.Redis.from_url(f"redis://:{secret}@{redis_at}"))
    hook = f"https://me:{secret}@hooks.example/{secret}"

    async def made() -> list[Any]:
        async with redis_async.connect(valkey_url) as caller:
            connection = await postgres.connect_async(postgres_url, autocommit=True)
            async with connection:
                queues, compacted = AsyncFanoutQueues(caller, "p"), AsyncCompactedQueues(caller, "p")
                store, router = AsyncRedisSessionStore(caller, "p"), AsyncSessionRouter(caller, postgres_url, "p")
                door = MqttDoor(compacted, BrokerAddress(host="127.0.0.1", port=1, password=secret))
                broker, listener = AsyncEventBroker(connection), AsyncListener("all", limit=1, forget=_forget)
                found: list[Any] = [
                    queues, compacted, store, router, door, broker, AsyncEventProducer(broker),
                    AsyncFanoutConsumer(queues, "alerts", _work, consumer="mail"), AsyncFanoutProducer(queues),
                    AsyncCompactedConsumer(compacted, "meter-1"), AsyncCompactedProducer(compacted),
                    CompactedWorker(compacted, "meter-1", _work), SessionWriter(store),
                    AsyncPostgresSessionStore(connection), AsyncOwnerStore(connection),
                    AsyncDispatcher(postgres_url), AsyncEventConsumer(postgres_url, group_id="billing"),
                    AsyncWebhook(hook),
                    AsyncEventStream(listener, cast("Any", None), StreamRules()), listener,
                ]  # fmt: skip
                texts = [repr(each) for each in found]
                for each in found:
                    if isinstance(each, AsyncClosing):
                        await each.close()
                return list(zip(found, texts, strict=True))

    queues, compacted = FanoutQueues(client, "p"), CompactedQueues(client, "p")
    with postgres.connect(postgres_url, autocommit=True) as connection:
        broker, listener = EventBroker(connection), Listener("all", limit=1, forget=_forget)
        blocking: list[Any] = [
            queues, compacted, broker, RedisSessionStore(client, "p"), SessionRouter(client, postgres_url, "p"),
            FanoutConsumer(queues, "alerts", print, consumer="mail"), FanoutProducer(queues),
            CompactedConsumer(compacted, "meter-1"), CompactedProducer(compacted), PostgresSessionStore(connection),
            OwnerStore(connection), Dispatcher(postgres_url), EventConsumer(postgres_url, group_id="billing"),
            Webhook(hook), EventStream(listener, cast("Any", None), StreamRules()), listener,
            queuekeeper.compacted.App(), fanout.App(), events.App(group_id="billing"),
        ]  # fmt: skip
        texts = [(each, repr(each)) for each in blocking] + asyncio.run(made())
        with EventProducer(broker) as producer:
            texts.append((producer, repr(producer)))
        postgres_at = postgres.address(connection)
    for each in blocking:
        if isinstance(each, BlockingService):
            # It was never run, so nothing else closes them.
            for own in (each._bell, each._ringer, each._selector, each._bell_selector):
                own.close()

    facts: dict[type, Callable[[str], bool]] = {
        FanoutConsumer: lambda text: "queue='alerts' consumer='mail'" in text,
        CompactedConsumer: lambda text: "client_id='meter-1'" in text,
        EventConsumer: lambda text: "group='billing'" in text and postgres_at.split("/")[0] in text,
        EventBroker: lambda text: postgres_at in text,
        SessionRouter: lambda text: redis_at in text and postgres_at.split("/")[0] in text and "prefix='p'" in text,
        FanoutQueues: lambda text: text == f"<FanoutQueues server={redis_at!r} prefix='p'>",
        EventStream: lambda text: "subscription='all'" in text,
        Webhook: lambda text: text == "<Webhook host='hooks.example'>",
    }
    for each, text in texts:
        assert text.startswith(f"<{type(each).__name__} "), text
        assert secret not in text
        assert " object at 0x" not in text
        assert facts.get(type(each), bool)(text), text
    without_own = {kind for kind in EXPORTED.values() if kind.__repr__.__qualname__.startswith("shows.")}
    assert {type(each) for each, _ in texts} == without_own
