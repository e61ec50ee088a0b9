"""The operator that has a store do one thing: what it refuses, what it renders, and the names that it had."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from queuekeeper import redis_client
from queuekeeper.airflow.operators import _retired
from queuekeeper.airflow.operators._store_calls import CALLS
from queuekeeper.airflow.operators.store_call import StoreCallOperator
from queuekeeper.errors import UsageError
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
