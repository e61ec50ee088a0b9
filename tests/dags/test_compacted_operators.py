"""Tasks about one compacted queue on a real server: what they do, what they return, and what never leaves the queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queuekeeper import keyspace, redis_client
from queuekeeper.airflow.operators.compacted import (
    AppendToCompactedQueueOperator,
    ConfigureCompactedQueueOperator,
    DropCompactedQueueOperator,
    InspectCompactedQueueOperator,
    PurgeCompactedQueueOperator,
    RepairCompactedQueueOperator,
    RewindCompactedQueueOperator,
    VerifyCompactedQueueOperator,
)
from queuekeeper.airflow.operators.store_call import StoreCallOperator
from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import CheckFailed, QueueFull, UsageError
from tests.dags.runs import returned

pytestmark = [pytest.mark.dags, pytest.mark.filterwarnings("ignore:.*StoreCallOperator:DeprecationWarning")]

C = "meter-17"
SECRET = "secret-state"


@pytest.fixture
def queues(client: redis_client.RedisClient) -> CompactedQueues:
    """Three messages, the first of them acknowledged."""
    found = CompactedQueues(client)
    found.append(C, [Append(key=b"valve/%d" % number, value=SECRET.encode()) for number in range(1, 4)])
    subscription = found.subscribe(C, session="device")
    found.fetch(C, fence=subscription.fence)
    found.ack(C, fence=subscription.fence, sequences=[1])
    return found


def run(operator: type[StoreCallOperator], **arguments: Any) -> dict[str, Any]:
    return returned(operator(task_id="task", client_id=C, **arguments), secret=SECRET)


def test_queue_is_described_without_values(queues: CompactedQueues, capfd: pytest.CaptureFixture[str]) -> None:
    found = run(InspectCompactedQueueOperator)
    log = "".join(capfd.readouterr())

    assert (found["exists"], found["live"], found["acked"], found["session"]) == (True, 3, 1, "device")
    assert found["counters"]["appended"] == 3
    assert "Queue of 'meter-17': exists True, 3 keys" in log
    assert SECRET not in log


def test_file_is_appended_once_however_often_its_task_runs(
    queues: CompactedQueues, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "states.jsonl"
    file.write_text(f'{{"key": "a", "value": "{SECRET}"}}\n{{"key": "valve/1", "tombstone": true}}\n')
    arguments = {"path": str(file), "producer": "nightly", "number": "7"}

    first = run(AppendToCompactedQueueOperator, **arguments)
    again = run(AppendToCompactedQueueOperator, **arguments)
    log = "".join(capfd.readouterr())

    assert (first["appended"], first["replaced"], first["live"], first["next_number"]) == (2, 1, 4, 8)
    assert (again["appended"], again["replayed"]) == (0, 2)
    assert [each.sequence for each in queues.peek(C, after_sequence=3)] == [4, 5]
    assert "2 appended, 0 stored before" in log
    assert SECRET not in log


def test_values_are_no_argument_of_a_task() -> None:
    """Airflow keeps rendered arguments and shows them."""
    assert {"value", "values", "payload"}.isdisjoint(AppendToCompactedQueueOperator.template_fields)


def test_append_that_fails_names_line_and_file_without_content(queues: CompactedQueues, tmp_path: Path) -> None:
    file = tmp_path / "states.jsonl"
    file.write_text(f'{{"key": "a", "vaule": "{SECRET}"}}')

    with pytest.raises(UsageError, match=r"^line 1 cannot be appended: it has members that are not known: vaule$"):
        run(AppendToCompactedQueueOperator, path=str(file))
    with pytest.raises(UsageError, match="absent cannot be read: No such file"):
        run(AppendToCompactedQueueOperator, path=str(tmp_path / "absent"))
    file.write_text('{"key": "a", "value": ""}')
    with pytest.raises(QueueFull):
        run(AppendToCompactedQueueOperator, path=str(file), max_keys="3")


@pytest.mark.parametrize(("to", "new_acked", "to_deliver"), [("earliest", 0, 3), (2, 1, 2), ("latest", 3, 0)])
def test_consumer_begins_again_where_the_task_says(
    queues: CompactedQueues, to: str | int, new_acked: int, to_deliver: int
) -> None:
    report = run(RewindCompactedQueueOperator, to=to)

    assert (report["old_acked"], report["new_acked"], report["to_deliver"]) == (1, new_acked, to_deliver)


def test_retention_is_set_in_parts(queues: CompactedQueues) -> None:
    run(ConfigureCompactedQueueOperator, policy="compact", retention="1d")
    report = run(ConfigureCompactedQueueOperator, retention="2d")

    assert (report["before"]["retention_ms"], report["after"]["retention_ms"]) == (86_400_000, 172_800_000)
    assert report["after"]["policy"] == "compact"
    with pytest.raises(UsageError, match="retention policy is 'all': it must be one of delete, acked_only, compact"):
        run(ConfigureCompactedQueueOperator, policy="all")


@pytest.mark.parametrize("dry_run", [{}, {"dry_run": True}, {"dry_run": "True"}, {"dry_run": "true"}])
def test_nothing_is_removed_unless_the_task_is_told_to(queues: CompactedQueues, dry_run: dict[str, Any]) -> None:
    assert run(PurgeCompactedQueueOperator, what="all", **dry_run)["messages"] == 3
    assert run(DropCompactedQueueOperator, **dry_run)["messages"] == 3
    assert run(RepairCompactedQueueOperator, **dry_run)["dry_run"] is True
    assert queues.inspect(C).live == 3


@pytest.mark.parametrize("operator", [PurgeCompactedQueueOperator, DropCompactedQueueOperator])
def test_what_is_told_to_remove_removes_and_can_be_repeated(
    queues: CompactedQueues, operator: type[StoreCallOperator]
) -> None:
    what = {"what": "2"} if operator is PurgeCompactedQueueOperator else {}

    assert run(operator, dry_run="False", **what)["messages"] == (2 if what else 3)
    assert run(operator, dry_run=False, **what)["messages"] == 0
    assert queues.inspect(C).live == (1 if what else 0)
    with pytest.raises(UsageError, match=r"^dry_run is 'None': it must be true or false$"):
        run(operator, dry_run="None", **what)


def test_keys_that_disagree_fail_their_task_until_they_are_mended(
    queues: CompactedQueues, client: redis_client.RedisClient
) -> None:
    assert run(VerifyCompactedQueueOperator)["found"] == 0
    client.hdel(keyspace.compacted_keys(C).values, b"valve/2")

    with pytest.raises(CheckFailed, match=r"the keys of 'meter-17' disagree in .* places: .*missing_value"):
        run(VerifyCompactedQueueOperator)
    assert run(RepairCompactedQueueOperator, dry_run=False)["remaining"] == 0
    assert run(VerifyCompactedQueueOperator)["found"] == 0
