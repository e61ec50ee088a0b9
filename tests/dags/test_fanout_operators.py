"""Tasks about one fan-out queue on a real server: what they do, what they return, and what never leaves the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queuekeeper import keyspace, redis_client
from queuekeeper.airflow.operators.fanout import (
    InspectFanoutQueueOperator,
    PauseFanoutQueueOperator,
    PublishToFanoutQueueOperator,
    PurgeFanoutDeadLettersOperator,
    RegisterFanoutConsumerOperator,
    ResumeFanoutQueueOperator,
    RetryFanoutDeadLettersOperator,
    UnregisterFanoutConsumerOperator,
    VerifyFanoutQueueOperator,
)
from queuekeeper.airflow.operators.store_call import StoreCallOperator
from queuekeeper.errors import CheckFailed, HasLeases, InvalidLife, QueueFull, UnknownConsumer, UsageError
from queuekeeper.fanout.model import ConsumerOptions, NewMessage
from queuekeeper.fanout.queue import FanoutQueues
from tests.dags.runs import returned

pytestmark = [pytest.mark.dags, pytest.mark.filterwarnings("ignore:.*StoreCallOperator:DeprecationWarning")]

Q = "orders"
A = "billing"
B = "shipping"
SECRET = "secret-order"


@pytest.fixture
def queues(client: redis_client.RedisClient) -> FanoutQueues:
    """Two consumers, three messages, the first of them a dead letter of one consumer."""
    found = FanoutQueues(client)
    for consumer in (A, B):
        found.register(Q, consumer=consumer)
    found.publish(Q, [NewMessage(body=SECRET.encode(), headers={"h": SECRET})] * 3)
    claimed = found.claim(Q, consumer=A)
    found.nack(Q, consumer=A, token=claimed.token, message_id=1, max_attempts=1, reason="out of paper")
    return found


def run(operator: type[StoreCallOperator], **arguments: Any) -> dict[str, Any]:
    return returned(operator(task_id="task", queue_name=Q, **arguments), secret=SECRET)


def test_queue_is_described_without_payloads(queues: FanoutQueues, capfd: pytest.CaptureFixture[str]) -> None:
    found = run(InspectFanoutQueueOperator)
    log = "".join(capfd.readouterr())

    assert (found["exists"], found["messages"], found["consumer_count"]) == (True, 3, 2)
    by_name = {each["consumer"]: each for each in found["consumers"]}
    assert (by_name[A]["ready"], by_name[A]["dead"], by_name[B]["ready"]) == (2, 1, 3)
    assert "Queue 'orders': exists True, 3 messages, 0 held, 2 consumers, 1 dead letter" in log
    assert SECRET not in log


def test_file_is_published_once_however_often_its_task_runs(
    queues: FanoutQueues, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(f'{{"body": "{SECRET}"}}\n{{"body": "{SECRET}", "order_key": "k"}}\n')
    arguments = {"path": str(file), "deduplicate_as": "scheduled__2026-11-22", "ttl": "2h"}

    first = run(PublishToFanoutQueueOperator, **arguments)
    again = run(PublishToFanoutQueueOperator, **arguments)
    alone = run(PublishToFanoutQueueOperator, path=str(file), to=B)
    log = "".join(capfd.readouterr())

    assert (first["published"], first["duplicates"], first["last_id"]) == (2, 0, 5)
    assert (again["published"], again["duplicates"]) == (0, 2)
    assert alone["published"] == 2
    assert (queues.size(Q, consumer=A), queues.size(Q, consumer=B)) == (4, 7)
    [message] = queues.peek(Q, consumer=B, offset=3, limit=1)
    assert message.expires_at_ms - message.published_ms == 7_200_000
    assert "2 published, 0 published before" in log
    assert SECRET not in log


def test_payloads_are_no_argument_of_a_task() -> None:
    """Airflow keeps rendered arguments and shows them."""
    assert {"body", "bodies", "payload", "headers"}.isdisjoint(PublishToFanoutQueueOperator.template_fields)


def test_publish_that_fails_names_line_and_file_without_content(queues: FanoutQueues, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text(f'{{"body": "{SECRET}", "tll": 1}}')

    with pytest.raises(UsageError, match=r"^line 1 cannot be published: it has members that are not known: tll$"):
        run(PublishToFanoutQueueOperator, path=str(file))
    with pytest.raises(UsageError, match="absent cannot be read: No such file"):
        run(PublishToFanoutQueueOperator, path=str(tmp_path / "absent"))
    file.write_text(f'{{"body": "{SECRET}"}}')
    with pytest.raises(InvalidLife):
        run(PublishToFanoutQueueOperator, path=str(file), ttl="0")
    queues.configure(Q, consumer=B, options=ConsumerOptions(max_length=3))
    with pytest.raises(QueueFull, match=B) as full:
        run(PublishToFanoutQueueOperator, path=str(file))
    assert SECRET not in str(full.value)


def test_consumer_is_registered_once_with_what_the_task_says(queues: FanoutQueues) -> None:
    arguments = {"consumer": "ledger", "start": "retained", "mode": "ordered", "lanes": "4", "max_length": "9",
                 "when_failed": "halt", "idle_expiry": "7d"}  # fmt: skip

    first = run(RegisterFanoutConsumerOperator, **arguments)
    again = run(RegisterFanoutConsumerOperator, consumer="ledger")

    assert (first["created"], first["adopted"], first["options"]["lanes"]) == (True, 3, 4)
    assert (again["created"], again["options"]) == (False, first["options"])
    assert again["options"]["idle_expiry_ms"] == 604_800_000
    with pytest.raises(UsageError, match="start is 'all': one of new, held, retained"):
        run(RegisterFanoutConsumerOperator, consumer="other", start="all")


@pytest.mark.parametrize("dry_run", [{}, {"dry_run": True}, {"dry_run": "True"}, {"dry_run": "true"}])
def test_nothing_is_removed_unless_the_task_is_told_to(queues: FanoutQueues, dry_run: dict[str, Any]) -> None:
    assert run(UnregisterFanoutConsumerOperator, consumer=B, **dry_run)["released"] == 3
    assert run(PurgeFanoutDeadLettersOperator, consumer=A, **dry_run)["released"] == 1
    view = queues.inspect(Q)
    assert [(each.consumer, each.ready, each.dead) for each in view.consumers] == [(A, 2, 1), (B, 3, 0)]


def test_consumer_is_removed_by_the_task_that_is_told_to(queues: FanoutQueues) -> None:
    queues.claim(Q, consumer=B)

    with pytest.raises(HasLeases):
        run(UnregisterFanoutConsumerOperator, consumer=B, dry_run=False)
    assert run(UnregisterFanoutConsumerOperator, consumer=B, dry_run="False", force="True")["released"] == 3
    with pytest.raises(UnknownConsumer):
        run(UnregisterFanoutConsumerOperator, consumer=B, dry_run=False)
    with pytest.raises(UsageError, match=r"^dry_run is 'None': it must be true or false$"):
        run(UnregisterFanoutConsumerOperator, consumer=A, dry_run="None")


def test_dead_letters_are_retried_or_given_up(queues: FanoutQueues) -> None:
    assert run(RetryFanoutDeadLettersOperator, consumer=A) == {"retried": 1, "missing": 0}
    assert run(RetryFanoutDeadLettersOperator, consumer=A)["retried"] == 0
    claimed = queues.claim(Q, consumer=A, count=3)
    for message_id in (1, 2, 3):
        queues.nack(Q, consumer=A, token=claimed.token, message_id=message_id, max_attempts=1)

    assert run(PurgeFanoutDeadLettersOperator, consumer=A, dry_run="false")["released"] == 3
    assert queues.list_dead(Q, consumer=A).total == 0


@pytest.mark.parametrize("consumer", [A, None])
def test_queue_is_paused_and_resumed(queues: FanoutQueues, consumer: str | None) -> None:
    assert run(PauseFanoutQueueOperator, consumer=consumer)["changed"] is True
    assert run(PauseFanoutQueueOperator, consumer=consumer)["changed"] is False
    assert queues.claim(Q, consumer=A).messages == ()
    assert run(ResumeFanoutQueueOperator, consumer=consumer)["changed"] is True
    assert len(queues.claim(Q, consumer=A).messages) == 1


def test_keys_that_disagree_fail_their_task_until_they_are_mended(
    queues: FanoutQueues, client: redis_client.RedisClient
) -> None:
    assert run(VerifyFanoutQueueOperator)["found"] == 0
    client.hset(keyspace.fanout_keys(Q).references, "2", "7")

    with pytest.raises(CheckFailed, match=r"the keys of 'orders' disagree in 1 place: wrong_count 1"):
        run(VerifyFanoutQueueOperator)
    queues.repair(Q, dry_run=False)
    assert run(VerifyFanoutQueueOperator)["found"] == 0
