"""Plan, verification, mover, both stores, inspection and explanation have one verdict on every generated row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from queuekeeper import postgres, schema_migrations, sql_statements
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration.ledger.ledger import QuarantinedRow
from queuekeeper.migration.offline.judging import Judging
from queuekeeper.quality.explain import Fate, explain, read_queue
from queuekeeper.redis_client import connect
from queuekeeper.sessions import judge
from queuekeeper.sessions.model import NewMessage
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.quarantine import defect
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.property.generated_clients import RULES, Client, at_each_bound, clients
from tests.property.migration_rules import Message, broken_rule, pairs, stored_json
from tests.property.test_fates import MESSAGE_TYPES, PLACE, read

CLIENTS = 300
Verdicts = dict[tuple[str, int], str | None]


@pytest.fixture(scope="module")
def generated() -> list[Client]:
    made = [client for client in clients(CLIENTS) if client.client_id and client.messages]
    return [*made, *at_each_bound()]


@pytest.fixture(scope="module")
def messages(generated: list[Client]) -> list[Message]:
    return [message for client in generated for message in client.messages]


@pytest.fixture(scope="module")
def verdicts(messages: list[Message]) -> Verdicts:
    """What the written rules say, which share no code with the judge."""
    return {(message.client_id, message.serial_number): broken_rule(message) for message in messages}


@pytest.fixture
def source(postgres_url: str, messages: list[Message]) -> Iterator[postgres.Connection]:
    """A database with all rows; its texts are as long as PostgreSQL has them."""
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        connection.execute(
            "ALTER TABLE device_publish_msg ALTER content_type TYPE varchar, ALTER response_topic TYPE varchar"
        )
        schema_migrations.migrate(connection)
        names = sql.SQL(", ").join(map(sql.Identifier, Message._fields))
        copy = sql.SQL("COPY device_publish_msg ({}) FROM STDIN").format(names)
        with connection.cursor() as cursor, cursor.copy(copy) as rows:
            for message in messages:
                rows.write_row(message)
        yield connection


def test_written_rules_meet_good_rows_and_each_bad_kind(verdicts: Verdicts) -> None:
    found = Counter(verdicts.values())
    assert found[None] > 100
    ids = {
        "client_id_empty",
        "client_id_scattered",
        "packet_id_duplicate",
        "last_packet_id_out_of_range",
        "packet_too_large",
    }
    assert {str(reason) for reason in judge.Reason} - ids <= set(found), found


def test_rows_lie_at_under_and_over_each_bound(messages: list[Message]) -> None:
    """Whatever bounds the judge has: a rule that is added needs rows of its own."""
    for rule in judge.RULES:
        met = {getattr(message, rule.column) for message in messages} if isinstance(rule, judge.ColumnRule) else set()
        match rule:
            case judge.Bounds(measure="number", least=least, most=most):
                assert {least - 1, least, least + 1, most - 1, most, most + 1} <= met, rule
            case judge.Bounds(most=most):
                sizes = {len(each.encode() if isinstance(each, str) else each) for each in met if each is not None}
                # No text is shorter than the least.
                assert {0, 1, most - 1, most, most + 1} <= sizes, rule
            case judge.NotEmpty():
                assert "" in met, rule
            case judge.OneOf(allowed=words):
                assert {*words, "", None} < met, rule
            case judge.Pairs(most_bytes=most):
                for place in (0, 1):
                    texts = {pair[place] for each in met for pair in _pairs_of(each)}
                    assert {0, 1, most - 1, most, most + 1} <= {len(text.encode()) for text in texts}, rule


def _pairs_of(text: str | None) -> list[tuple[str, str]]:
    found = judge.pairs_of(text)
    # Half a pair of surrogates has no size.
    whole = [] if found is judge.UNREADABLE else found
    return [pair for pair in whole if judge.text_bytes("".join(pair)) is not None]


def test_plan_and_verification_judge_as_the_rules(
    spark: SparkSession, messages: list[Message], verdicts: Verdicts
) -> None:
    columns = [[getattr(row, name) for row in messages] for name in MESSAGE_TYPES]
    places = [[0] * len(messages)] * 2
    schema = pa.schema([*MESSAGE_TYPES.items(), ("task", pa.int32()), ("cohort", pa.int32())])
    rows = spark.createDataFrame(pa.table([*columns, *places], schema=schema))
    # A verification reads hashes and sizes in place of what is long.
    hashed = rows.withColumns(
        {f"{name}_bytes": F.octet_length(name) for name in ("payload", "correlation_data")}
        | {name: F.unhex(F.sha2(F.col(name), 256)) for name in ("payload", "correlation_data")}
    )
    judging = Judging(default_ttl_s=RULES.default_ttl_s, clustered=False)
    for frame in (rows, hashed):
        step = judging.messages({name: kind for name, kind in frame.dtypes if name not in PLACE})
        judged = read(frame, step)
        found = {(row[0], row[1]): row[2] for row in judged.select("client_id", "serial_number", "reason").collect()}
        assert found == verdicts


def test_replay_and_the_rules_of_the_stores_judge_as_the_plan(messages: list[Message], verdicts: Verdicts) -> None:
    for message in messages:
        row = QuarantinedRow(cohort=0, kind="message", reason="any", detail="", **message._asdict())
        assert defect(row) == verdicts[message[:2]], message


def test_mover_inspection_explanation_and_fetch_of_postgres_judge_as_the_plan(
    source: postgres.Connection, generated: list[Client], verdicts: Verdicts
) -> None:
    store = PostgresSessionStore(source)
    for client in generated:
        expected = {each.serial_number: verdicts[each[:2]] for each in client.messages}
        bad = {serial: reason for serial, reason in expected.items() if reason is not None}
        view = store.inspect(client.client_id)
        assert {each.serial: each.reason for each in view.page} == expected
        assert {each.serial for each in view.page if each.problem is not None} == set(bad)

        told = explain(
            client.client_id,
            reading=read_queue(client.client_id, connection=source, client=None),
            hash_key=b"k" * 32,
            now_ms=RULES.as_of_ms,
        )
        broken = {line.first_serial for line in told.lines if line.fate is Fate.UNDELIVERABLE}
        assert broken == set(bad), client.client_id

        moves = store.find_unreadable(client.client_id)
        assert {serial: why for serial, why in moves.items() if why != "packet_id_duplicate"} == bad

        page = store.fetch_pending(client.client_id)
        assert not page.more
        assert page.unreadable == len(bad)
    aside = source.execute("SELECT client_id, serial_number, reason FROM queuekeeper.session_quarantine").fetchall()
    assert {row[:2]: row[2] for row in aside} == {place: why for place, why in verdicts.items() if why is not None}


def _in_redis(message: Message) -> dict[str, Any] | None:
    """Return the record that a broker would have written of a row; none where no record can say what the row does."""
    properties = None
    with suppress(ValueError, RecursionError):
        properties = json.loads(message.user_properties) if message.user_properties is not None else {}
    if properties is None or not 0 <= message.serial_number < 2**53:
        return None
    if message.packet_id is None or not 1 <= message.packet_id <= 65_535:
        return None
    fields = stored_json(message._replace(user_properties=None))
    return fields | ({"userProperties": properties} if properties != {} else {})


def test_inspection_explanation_and_fetch_of_redis_judge_as_the_plan(valkey_url: str, messages: list[Message]) -> None:
    met = Counter[bool]()
    with connect(valkey_url) as client:
        store = RedisSessionStore(client)
        for number, message in enumerate(messages):
            fields = _in_redis(message)
            if fields is None:
                continue
            name = f"m{number}"
            assert message.packet_id is not None
            key = payload_key(name, message.packet_id)
            record = json.dumps(fields | {"clientId": name})
            client.set(key, record)
            client.zadd(session_keys(name).messages, {key: message.serial_number})
            # Of a text that a broker could not have written in a record, the record keeps what can be read.
            told = json.dumps(fields["userProperties"]) if "userProperties" in fields else None
            reason = broken_rule(message._replace(user_properties=told))
            bad = reason is not None
            met[bad] += 1
            (view,) = store.inspect(name).page
            assert (view.problem is not None) == bad, message
            if message.client_id.startswith("bound-"):
                # One rule is broken at the most, where it is JSON at all.
                assert view.reason == (reason if _is_json(record) else None), message
                reading = read_queue(name, connection=None, client=client)
                [line] = explain(name, reading=reading, hash_key=b"k" * 32, now_ms=RULES.as_of_ms).lines
                assert (line.fate in (Fate.UNDELIVERABLE, Fate.UNKNOWN)) == bad, message
                assert (line.fate is Fate.UNDELIVERABLE) == (view.reason is not None), message
            page = store.fetch_pending(name)
            assert (page.unreadable, len(page.messages)) == ((1, 0) if bad else (0, 1)), message
    assert min(met.values()) > 50, met


def _is_json(record: str) -> bool:
    """Whether strict readers take it: half a pair of surrogates is in no text of theirs, and no number is infinite."""
    try:
        orjson.loads(record)
    except ValueError:
        return False
    return True


def test_a_save_refuses_what_the_plan_puts_aside(messages: list[Message]) -> None:
    for message in messages:
        with suppress(ValueError):
            given = judge.user_properties(message.user_properties) or []
            # The place that a store gives is none of the publisher's.
            placed = message._replace(serial_number=1, packet_id=1, packet_type="PUBLISH")
            bad = broken_rule(placed)
            assert _refusal(message, tuple((pair["k"], pair["v"]) for pair in given)) == bad, message


def _refusal(message: Message, properties: tuple[tuple[str, str], ...]) -> str | None:
    """Return the rule for which a message cannot be saved."""
    try:
        NewMessage(
            topic=message.topic,
            payload=message.payload,
            qos=message.qos,
            time_ms=message.time,
            payload_format_indicator=message.payload_format_indicator,
            content_type=message.content_type,
            response_topic=message.response_topic,
            correlation_data=message.correlation_data,
            user_properties=properties,
        )
    except judge.BrokenRuleError as error:
        return error.reason
    return None


@pytest.mark.parametrize("room", [0, 1, -1])
def test_packet_may_have_the_bytes_that_mqtt_allows_and_no_more(spark: SparkSession, room: int) -> None:
    text = json.dumps({"props": [{"k": "ключ", "v": "😀"}, {"k": "", "v": ""}]})
    row = Message(
        client_id="a", serial_number=1, topic="тема", time=1, packet_id=1, packet_type="PUBLISH", qos=1, payload=b"",
        user_properties=text, retain=None, msg_expiry_interval=None, payload_format_indicator=1, content_type="ä",
        response_topic="r", correlation_data=b"123",
    )  # fmt: skip
    properties = sum(5 + len(pair["k"].encode()) + len(pair["v"].encode()) for pair in pairs(text) or [])
    # Two lengths of two bytes, four bytes for the length of the properties, and the properties that a broker may add.
    rest = 2 + len("тема".encode()) + 2 + 4 + 5 + 2 + 3 + (3 + 2) + (3 + 1) + (3 + 3) + properties
    size = 268_435_455 - rest + room
    values = row._asdict() | {"payload": size, "correlation_data": 3}
    expected = "packet_too_large" if room > 0 else None
    assert judge.row_defect(values) == expected

    schema = pa.schema([*MESSAGE_TYPES.items(), ("payload_bytes", pa.int32())])
    frame = spark.createDataFrame(pa.table([[value] for value in (*row, size)], schema=schema)).withColumns(
        {name: F.lit(0) for name in PLACE}
    )
    judging = Judging(default_ttl_s=RULES.default_ttl_s, clustered=False)
    step = judging.messages({name: kind for name, kind in frame.dtypes if name not in PLACE})
    (judged,) = read(frame, step).collect()
    assert judged["reason"] == expected
