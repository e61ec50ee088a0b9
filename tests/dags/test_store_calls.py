"""The operator that has a store do one thing: what it refuses, what it renders, and the names that it had."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from queuekeeper import redis_client
from queuekeeper.airflow.operators import _retired
from queuekeeper.airflow.operators._store_calls import CALLS
from queuekeeper.airflow.operators.store_call import StoreCallOperator
from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import UsageError
from queuekeeper.fanout.model import NewMessage
from queuekeeper.fanout.queue import FanoutQueues
from tests.dags.runs import returned

pytestmark = pytest.mark.dags


def needed(call: str) -> dict[str, Any]:
    return {name: "1" for name, each in CALLS[call].arguments.items() if each.said.needed}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_takes_contents_and_what_can_only_count_does_so_by_default(call: str) -> None:
    """Airflow keeps rendered arguments and shows them."""
    arguments = CALLS[call].arguments

    assert {"value", "values", "payload", "body", "bodies", "headers"}.isdisjoint(arguments)
    assert "dry_run" not in arguments or arguments["dry_run"].default is True
    assert needed(call), "it is about one session or queue"


def test_arguments_are_rendered_and_read_by_their_types(client: redis_client.RedisClient) -> None:
    task = StoreCallOperator(
        task_id="task",
        call="fanout.register",
        arguments={
            "queue": "{{ params.queue }}",
            "consumer": "{{ params.consumer }}",
            "mode": "ordered",
            "lanes": "{{ params.lanes }}",
            "key_prefix": "{{ params.prefix }}",
        },
    )
    task.render_template_fields({"params": {"queue": "orders", "consumer": 7, "lanes": 4, "prefix": "shop:"}})

    assert returned(task, secret="secret")["options"]["lanes"] == 4
    [consumer] = FanoutQueues(client, "shop:").inspect("orders").consumers
    assert (consumer.consumer, consumer.options and consumer.options.lanes) == ("7", 4)


def test_call_and_arguments_that_there_are_not_are_refused_when_the_dag_is_read() -> None:
    with pytest.raises(UsageError, match=r"^there is no call 'fanout.claim': name one of sessions.inspect, "):
        StoreCallOperator(task_id="task", call="fanout.claim", arguments={})
    with pytest.raises(UsageError, match=r"^unknown parameter 'consumr' \(did you mean 'consumer'\?\): this call has "):
        StoreCallOperator(task_id="task", call="fanout.pause", arguments={"queue": "orders", "consumr": "billing"})
    with pytest.raises(UsageError, match=r"^this call needs queue, consumer$"):
        StoreCallOperator(task_id="task", call="fanout.purge_dead", arguments={"dry_run": False})


def test_text_that_is_no_number_is_refused_in_the_words_of_every_surface(client: redis_client.RedisClient) -> None:
    arguments = {"queue": "orders", "consumer": "billing", "lanes": "many"}

    with pytest.raises(UsageError, match=r"^lanes is 'many': it must be an integer, or none$"):
        StoreCallOperator(task_id="task", call="fanout.register", arguments=arguments).execute({})


def bury(client: redis_client.RedisClient, count: int) -> list[int]:
    """Publish messages, make them dead letters of a consumer, and return their ids."""
    queues = FanoutQueues(client)
    queues.register("orders", consumer="billing")
    queues.publish("orders", [NewMessage(body=b"one")] * count)
    claimed = queues.claim("orders", consumer="billing", count=count)
    for each in claimed.messages:
        queues.nack("orders", consumer="billing", token=claimed.token, message_id=each.id, max_attempts=1)
    return dead(client)


def dead(client: redis_client.RedisClient) -> list[int]:
    return [each.id for each in FanoutQueues(client).list_dead("orders", consumer="billing").letters]


@pytest.mark.parametrize(
    "said", ["{{ params.ids | join(',') }}", "{{ params.ids | join('\\n') }}", ["{{ params.ids[0] }}"]]
)
def test_dead_letters_are_named_by_a_template_and_no_other_is_touched(
    client: redis_client.RedisClient, said: Any
) -> None:
    first, second, third = bury(client, 3)
    wanted = [first, third] if isinstance(said, str) else [first]

    for call, counted in (("fanout.purge_dead", "released"), ("fanout.retry_dead", "retried")):  # the first only counts
        arguments = {"queue": "orders", "consumer": "billing", "ids": said}
        task = StoreCallOperator(task_id="task", call=call, arguments=arguments)
        task.render_template_fields({"params": {"ids": wanted}})
        assert returned(task, secret="secret")[counted] == len(wanted)
    assert dead(client) == [each for each in (first, second, third) if each not in wanted]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("fanout.pause", {"consumer": "{{ params.nothing }}"}),
        ("fanout.resume", {"consumer": "{{ params.nothing }}"}),
        ("fanout.publish", {"path": "none", "to": "{{ params.nothing }}"}),
        ("compacted.drop", {"incarnation": "{{ params.nothing }}"}),
        ("compacted.append", {"path": "none", "producer": "{{ params.nothing }}", "number": 1}),
        ("compacted.append", {"path": "none", "producer": "one", "number": "{{ params.nothing }}"}),
    ],
)
def test_template_that_is_rendered_as_nothing_is_refused_and_widens_no_call(
    client: redis_client.RedisClient, call: str, arguments: dict[str, Any]
) -> None:
    FanoutQueues(client).register("orders", consumer="billing")
    CompactedQueues(client).append("meter-7", [Append(key=b"1", value=b"on")])
    of = {"queue": "orders"} if call.startswith("fanout") else {"client_id": "meter-7"}
    task = StoreCallOperator(task_id="task", call=call, arguments=of | arguments)
    task.render_template_fields({"params": {"nothing": ""}})

    with pytest.raises(UsageError, match=r"^\w+ is '': leave it out for none, since an empty text may be a mistake$"):
        task.execute({})
    assert not FanoutQueues(client).inspect("orders").paused
    assert CompactedQueues(client).inspect("meter-7").exists


@pytest.mark.parametrize("said", ["{{ params.ids | join(',') }}", []])
def test_template_that_names_no_dead_letter_touches_none(client: redis_client.RedisClient, said: Any) -> None:
    buried = bury(client, 2)

    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("fanout.purge_dead", {"dry_run": "False"}),
        ("fanout.retry_dead", {}),
    )
    for call, more in calls:
        arguments = {"queue": "orders", "consumer": "billing", "ids": said, **more}
        task = StoreCallOperator(task_id="task", call=call, arguments=arguments)
        task.render_template_fields({"params": {"ids": []}})
        returned(task, secret="secret")
    assert dead(client) == buried


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        (
            "fanout.purge_dead",
            {"queue": "orders", "consumer": "billing", "ids": "17-0"},
            "ids is '17-0': write the num",
        ),
        (
            "fanout.purge_dead",
            {"queue": "orders", "consumer": "billing", "ids": {"a": 1}},
            "ids is {'a': 1}: it must be",
        ),
        ("sessions.export_session", {"client_id": "meter", "path": None}, "path is None: it must be text"),
        ("sessions.import_session", {"client_id": "meter", "path": None}, "path is None: it must be text"),
    ],
)
def test_value_of_another_task_that_is_none_of_the_call_is_refused_in_words(
    client: redis_client.RedisClient, call: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        StoreCallOperator(task_id="task", call=call, arguments=arguments).execute({})


@pytest.mark.parametrize(("name", "call"), _retired.CALLS.items())
def test_old_name_makes_the_same_call_and_says_what_to_write(name: str, call: str) -> None:
    operator = getattr(importlib.import_module(f"queuekeeper.airflow.operators.{call.partition('.')[0]}"), name)
    arguments = needed(call) | {"key_prefix": "shop:"}
    old = {_retired.RENAMED.get(each, each): value for each, value in arguments.items()}

    with pytest.warns(DeprecationWarning, match=f"^{name} is removed by the next release: write StoreCallOperator"):
        task = operator(task_id="task", redis_conn_id="other", **old)
    mapped = operator.partial(task_id="mapped", **old).expand(redis_conn_id=["other"])
    with pytest.warns(DeprecationWarning, match="StoreCallOperator"):
        one = mapped.unmap({"redis_conn_id": "other"})

    for each in (task, one):
        assert isinstance(each, StoreCallOperator)
        assert (each.call, each.arguments, each.redis_conn_id) == (call, arguments, "other")
