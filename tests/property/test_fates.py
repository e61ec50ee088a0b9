"""What becomes of rows, decided by Spark, against the written rules: for hundreds of generated clients at once."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from queuekeeper import keyspace
from queuekeeper.migration.ledger.ledger import QuarantinedRow
from queuekeeper.migration.offline import fates, transforms
from queuekeeper.migration.offline.fates import COLUMNS, decided
from queuekeeper.migration.offline.importer import _unpacked, chunks
from queuekeeper.migration.offline.judging import Judging, Step
from queuekeeper.migration.offline.source import SESSION_COLUMNS, schema_of
from queuekeeper.sessions import wire
from queuekeeper.sessions.judge import Reason, user_properties
from queuekeeper.sessions.packed_record import message_of, record_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.quarantine import defect
from tests.property.generated_clients import RULES, Client, clients
from tests.property.migration_rules import Decision, Message, Session, broken_rule, decide, stored_json

CLIENTS = 500
PREFIX = "tenant:"
PLACE = {"cohort": pa.int32(), "task": pa.int32()}
MESSAGE_TYPES = {
    "client_id": pa.string(),
    "serial_number": pa.int64(),
    "topic": pa.string(),
    "time": pa.int64(),
    "packet_id": pa.int32(),
    "packet_type": pa.string(),
    "qos": pa.int32(),
    "payload": pa.binary(),
    "user_properties": pa.string(),
    "retain": pa.bool_(),
    "msg_expiry_interval": pa.int32(),
    "payload_format_indicator": pa.int32(),
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
}
SESSION_TYPES = {"client_id": pa.string(), "last_serial_number": pa.int64(), "last_packet_id": pa.int32()}


@pytest.fixture(scope="module")
def generated() -> list[Client]:
    return clients(CLIENTS)


@pytest.fixture(scope="module")
def decisions(generated: list[Client]) -> dict[str, Decision]:
    return {client.client_id: decide(client.messages, client.session, RULES) for client in generated}


@pytest.fixture(scope="module")
def classified(spark: SparkSession, generated: list[Client]) -> DataFrame:
    messages = [message for client in generated for message in client.messages]
    sessions = [client.session for client in generated if client.session is not None]
    judging = Judging(default_ttl_s=RULES.default_ttl_s, clustered=True)
    rows = transforms.rows(
        read(_frame(spark, messages, MESSAGE_TYPES), judging.fragments(prefix=PREFIX, as_of_ms=RULES.as_of_ms)),
        read(_frame(spark, sessions, SESSION_TYPES), judging.sessions(SESSION_COLUMNS)),
    )
    return fated(rows.repartition(2, "task"), limit=RULES.limit)


def fated(rows: DataFrame, *, limit: int) -> DataFrame:
    """Decide rows that are partitioned by task, as a job does whose source is not read in the order of its key."""
    columns = dict(rows.dtypes) | COLUMNS

    def decide(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = decided(batches, limit=limit, as_of_ms=RULES.as_of_ms)
        return (batch.select(list(columns)) for batch in found)

    return transforms.ordered(rows).mapInArrow(decide, schema_of(columns))


def read(frame: DataFrame, step: Step) -> DataFrame:
    """Take the step that the reader of the source takes with each of its batches."""
    columns = step.columns | dict.fromkeys(PLACE, "int")

    def taken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (step.work(batch).select(list(columns)) for batch in batches)

    return frame.mapInArrow(taken, ", ".join(f"{name} {kind}" for name, kind in columns.items()))


def _frame(spark: SparkSession, rows: list[Message] | list[Session], types: dict[str, pa.DataType]) -> DataFrame:
    columns = [[getattr(row, name) for row in rows] for name in types]
    tasks = [len(row.client_id) % 3 for row in rows]
    return spark.createDataFrame(pa.table([*columns, tasks, tasks], schema=pa.schema(list((types | PLACE).items()))))


@pytest.fixture(scope="module")
def judged(classified: DataFrame) -> list[dict[str, Any]]:
    columns = ("client_id", "kind", "serial_number", "fate", "reason", "expires_at_ms", "last_packet_id")
    rows: list[dict[str, Any]] = classified.select(*columns).toArrow().to_pylist()
    return rows


@pytest.fixture(scope="module")
def sent(classified: DataFrame) -> list[dict[str, Any]]:
    """The rows that an import consists of, with keys and arguments taken apart."""
    rows = [row for batch in fates.sent(iter(classified.toArrow().to_batches())) for row in batch.to_pylist()]
    for row in rows:
        row["keys"] = _unpacked((row["keys_part"] or "").encode())
        row["args"] = _unpacked((row["args_part"] or "").encode())
    return rows


def test_generated_rows_meet_every_rule(decisions: dict[str, Decision]) -> None:
    outcomes = [outcome for decision in decisions.values() for outcome in decision.messages.values()]
    fates = Counter(outcome.fate for outcome in outcomes)
    assert min(fates[fate] for fate in ("copied", "expired", "trimmed", "quarantined")) >= 20, fates
    reasons = Counter(outcome.reason for outcome in outcomes) + Counter(
        decision.session_reason for decision in decisions.values()
    )
    # A packet of 256 MB is judged by its size alone, in a test of its own.
    assert {reason.value for reason in Reason} - {Reason.PACKET_TOO_LARGE} <= set(reasons), reasons


def test_every_message_meets_the_fate_of_the_rules(
    judged: list[dict[str, Any]], decisions: dict[str, Decision]
) -> None:
    found = {
        (row["client_id"], row["serial_number"]): (row["fate"], row["reason"], row["expires_at_ms"])
        for row in judged
        if row["kind"] == transforms.MESSAGE
    }
    expected = {
        (client_id, serial): tuple(outcome)
        for client_id, decision in decisions.items()
        for serial, outcome in decision.messages.items()
    }
    assert found == expected


def test_every_session_row_is_kept_and_its_defect_named(
    judged: list[dict[str, Any]], generated: list[Client], decisions: dict[str, Decision]
) -> None:
    found = {row["client_id"]: (row["fate"], row["reason"]) for row in judged if row["kind"] == transforms.SESSION}
    assert found == {
        client.client_id: ("session", decisions[client.client_id].session_reason)
        for client in generated
        if client.session is not None
    }


def test_counter_is_the_sessions_unless_a_message_is_newer(
    classified: DataFrame, decisions: dict[str, Decision]
) -> None:
    """Or unless it would give out packet ids of messages that wait."""
    calls = chunks(fates.sent(iter(classified.toArrow().to_batches())))
    imported = {call.client_id: call.last_packet_id for call in calls if call.last}

    assert len(imported) > CLIENTS // 2
    expected = {client_id: decisions[client_id].last_packet_id for client_id in imported}
    assert imported == {client_id: "" if counter is None else str(counter) for client_id, counter in expected.items()}


def test_rows_of_a_client_lie_together_newest_first_and_its_session_last(sent: list[dict[str, Any]]) -> None:
    order = [row["client_id"] for row in sent]
    changes = 1 + sum(1 for before, after in itertools.pairwise(order) if before != after)
    assert changes == len(set(order))
    for before, after in itertools.pairwise(sent):
        if before["client_id"] == after["client_id"]:
            assert before["kind"] == transforms.MESSAGE
            if after["kind"] == transforms.MESSAGE:
                assert int(before["args"][0]) > int(after["args"][0])


def test_each_copied_message_is_sent_under_its_key_with_serial_expiry_and_tbmqs_json(
    sent: list[dict[str, Any]], generated: list[Client], decisions: dict[str, Decision]
) -> None:
    expected = {
        keyspace.payload_key(client.client_id, message.packet_id, prefix=PREFIX): (
            message.serial_number,
            decisions[client.client_id].messages[message.serial_number].expires_at_ms,
            stored_json(message),
        )
        for client in generated
        for message in client.messages
        if message.packet_id is not None
        and decisions[client.client_id].messages[message.serial_number].fate == "copied"
    }
    found = {
        row["keys"][0].decode(): (int(row["args"][0]), int(row["args"][1]), json.loads(row["args"][2]))
        for row in sent
        if row["kind"] == transforms.MESSAGE
    }
    assert found == expected


def test_a_plan_measures_the_key_and_the_json_that_a_copy_sends(
    spark: SparkSession, generated: list[Client], sent: list[dict[str, Any]]
) -> None:
    messages = _frame(spark, [message for client in generated for message in client.messages], MESSAGE_TYPES)
    measured = messages.withColumn("payload_bytes", F.octet_length("payload")).drop("payload")
    sizes = Judging(default_ttl_s=RULES.default_ttl_s, clustered=True).sizes(prefix=PREFIX)
    planned = {
        (row["client_id"], row["serial_number"]): (row["key_bytes"], row["value_bytes"])
        for row in read(measured, sizes).toArrow().to_pylist()
    }
    copied = [row for row in sent if row["kind"] == transforms.MESSAGE]
    assert len(copied) > CLIENTS
    for row in copied:
        key, (serial, _, stored) = row["keys"][0], row["args"]
        assert planned[row["client_id"], int(serial)] == (len(key), len(stored))


def test_packed_records_are_measured_and_built_as_the_store_writes_them(
    spark: SparkSession, generated: list[Client], sent: list[dict[str, Any]]
) -> None:
    messages = _frame(spark, [message for client in generated for message in client.messages], MESSAGE_TYPES)
    judging = Judging(default_ttl_s=RULES.default_ttl_s, clustered=True, layout=Layout.PACKED)
    measured = messages.withColumn("payload_bytes", F.octet_length("payload")).drop("payload")
    planned = {
        (row["client_id"], row["serial_number"]): row["value_bytes"]
        for row in read(measured, judging.sizes(prefix=PREFIX)).toArrow().to_pylist()
    }
    built = {
        (row["client_id"], row["serial_number"]): row["args_part"]
        for row in read(messages, judging.fragments(prefix=PREFIX, as_of_ms=RULES.as_of_ms)).toArrow().to_pylist()
    }
    copied = [row for row in sent if row["kind"] == transforms.MESSAGE]
    for row in copied:
        place = row["client_id"], int(row["args"][0])
        serial, record = _unpacked(built[place])
        assert int(serial) == place[1]
        assert len(record) == planned[place]
        message = message_of(record, serial=place[1], redelivery=False)
        ends_ms = int(row["args"][1])
        again = record_of(message, packet_id=message.packet_id, end_ms=ends_ms, packet_type=message.packet_type)
        assert again == record
        # In TBMQ's layout the same message is read.
        fields = json.loads(row["args"][2])
        assert wire.judged_message(fields, serial=place[1], expires_at_ms=ends_ms, redelivery=False) == message


def test_replay_writes_the_same_json_as_the_copy(sent: list[dict[str, Any]], generated: list[Client]) -> None:
    messages = {
        (message.client_id, message.serial_number): message for client in generated for message in client.messages
    }
    rows = [row for row in sent if row["kind"] == transforms.MESSAGE]
    written = {row["args"][2]: _replayed_json(messages[row["client_id"], int(row["args"][0])]) for row in rows}
    assert any(b"\\u00" in copied for copied in written), "no control character was seen"
    assert {copied: replayed for copied, replayed in written.items() if copied != replayed} == {}


def _replayed_json(message: Message) -> bytes:
    assert message.packet_id is not None
    assert message.packet_type is not None
    fields = message._asdict()
    return wire.message_json(
        time_ms=fields.pop("time"),
        user_property_pairs=user_properties(fields.pop("user_properties")),
        **{name: value for name, value in fields.items() if name != "serial_number"},
    )


def test_replay_finds_the_same_defect_as_the_plan(generated: list[Client]) -> None:
    for client in generated:
        for message in client.messages:
            row = QuarantinedRow(cohort=0, kind="message", reason="any", detail="", **message._asdict())
            assert defect(row, clustered=True) == broken_rule(message, clustered=True), message
