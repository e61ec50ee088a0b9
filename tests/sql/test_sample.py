"""The sample: the same rows from the same seed, healthy where it says so and hostile where it is asked to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuekeeper.errors import RefusedError, SchemaMismatch, UsageError
from queuekeeper.migration import preflight
from queuekeeper.migration.servers import check_source
from queuekeeper.postgres import Connection
from queuekeeper.sessions.hostile import HostileMessage, hostile_rows
from queuekeeper.sessions.sample import SampleReport, fill
from queuekeeper.sessions.sample_parameters import SampleParameters

pytestmark = pytest.mark.sql

NOW_MS = 1_790_000_000_000
SMALL = SampleParameters(
    messages=6_000, sessions=400, seed=7, now_ms=NOW_MS, long_queues=2, long_queue_messages=1_200, create_schema=True
)
HOSTILE_KINDS = {
    "client_id_255_characters",
    "client_id_begins_with_brace",
    "client_id_begins_with_percent",
    "client_id_braces",
    "client_id_emoji",
    "client_id_empty",
    "client_id_formula",
    "client_id_glob",
    "client_id_html",
    "expiry_negative",
    "expiry_zero",
    "no_session_row",
    "packet_id_duplicate",
    "packet_id_negative",
    "packet_id_null",
    "packet_id_too_large",
    "packet_id_zero",
    "packet_type_unknown",
    "payload_empty",
    "payload_megabyte",
    "qos_seven",
    "qos_zero",
    "serials_unsorted_in_time",
    "session_last_packet_id_null",
    "session_last_packet_id_too_large",
    "session_last_serial_null",
    "time_far_future",
    "time_negative",
    "user_properties_broken",
}


def one(connection: Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def contents(connection: Connection) -> str:
    return preflight.source_fingerprint(connection)


def counted(report: SampleReport) -> SampleReport:
    return replace(report, seconds=0)


def test_report_counts_what_the_tables_hold(connection: Connection) -> None:
    report = fill(connection, replace(SMALL, hostile=True))

    assert report.messages == one(connection, "SELECT count(*) FROM device_publish_msg") > 6_000
    assert report.sessions == one(connection, "SELECT count(*) FROM device_session_ctx") > 400
    assert report.clients == one(connection, "SELECT count(DISTINCT client_id) FROM device_publish_msg")
    assert report.payload_bytes == one(connection, "SELECT sum(length(payload)) FROM device_publish_msg")
    assert report.longest_queue == one(
        connection, "SELECT max(n) FROM (SELECT count(*) n FROM device_publish_msg GROUP BY client_id) AS queues"
    )
    assert report.seconds > 0
    check_source(connection)


@pytest.mark.parametrize("hostile", [False, True])
def test_same_seed_gives_the_same_rows(connection: Connection, hostile: bool) -> None:
    parameters = replace(SMALL, hostile=hostile)
    first = fill(connection, parameters)
    before = contents(connection)

    assert counted(fill(connection, replace(parameters, replace=True))) == counted(first)
    assert contents(connection) == before
    fill(connection, replace(parameters, replace=True, seed=8))
    assert contents(connection) != before


def test_healthy_rows_are_healthy(connection: Connection) -> None:
    report = fill(connection, SMALL)

    assert report.hostile == {}
    assert (
        one(
            connection,
            """
            SELECT count(*) FROM device_publish_msg LEFT JOIN device_session_ctx AS session USING (client_id)
            WHERE session.client_id IS NULL OR client_id NOT LIKE 'sample-%' OR packet_id NOT BETWEEN 1 AND 65535
               OR qos NOT IN (1, 2) OR packet_type NOT IN ('PUBLISH', 'PUBREL') OR topic = '' OR retain IS NULL
               OR (packet_type = 'PUBREL' AND qos <> 2) OR time >= 1790000000000 OR msg_expiry_interval <= 0
               OR serial_number > last_serial_number OR NOT (user_properties::jsonb) ? 'props'
               OR (serial_number = last_serial_number AND packet_id <> last_packet_id)
            """,
        )
        == 0
    )
    assert one(connection, "SELECT count(*) FROM device_session_ctx WHERE last_packet_id NOT BETWEEN 1 AND 65535") == 0
    assert (
        one(
            connection,
            """
            SELECT count(*) FROM (
                SELECT 1 FROM device_publish_msg GROUP BY client_id, packet_id HAVING count(*) > 1
            ) AS duplicates
            """,
        )
        == 0
    )
    assert (
        one(
            connection,
            """
            SELECT count(*) FROM (
                SELECT time < lag(time) OVER (PARTITION BY client_id ORDER BY serial_number) AS back
                FROM device_publish_msg
            ) AS steps WHERE back
            """,
        )
        == 0
    )


@pytest.mark.parametrize(
    "query",
    [
        # sessions without messages
        "SELECT count(*) FROM device_session_ctx WHERE client_id NOT IN (SELECT client_id FROM device_publish_msg)",
        # packet ids that wrap
        (
            "SELECT count(*) FROM (SELECT 1 FROM device_publish_msg GROUP BY client_id "
            "HAVING max(packet_id) - min(packet_id) > 60000) AS wrapped"
        ),
        # released QoS 2 messages
        "SELECT count(*) FROM device_publish_msg WHERE packet_type = 'PUBREL'",
        # every MQTT 5 property in one row, and none
        (
            "SELECT count(*) FROM device_publish_msg WHERE num_nulls(user_properties, msg_expiry_interval, "
            "payload_format_indicator, content_type, response_topic, correlation_data) = 0"
        ),
        (
            "SELECT count(*) FROM device_publish_msg WHERE num_nonnulls(user_properties, msg_expiry_interval, "
            "payload_format_indicator, content_type, response_topic, correlation_data) = 0"
        ),
        # binary and large payloads
        "SELECT count(*) FROM device_publish_msg WHERE position('\\x00'::bytea IN payload) > 0",
        "SELECT count(*) FROM device_publish_msg WHERE length(payload) >= 4096",
        # expired by their own word, and by default
        "SELECT count(*) FROM device_publish_msg WHERE time + msg_expiry_interval * 1000::bigint <= 1790000000000",
        (
            "SELECT count(*) FROM device_publish_msg WHERE msg_expiry_interval IS NULL "
            "AND time + 604800000 <= 1790000000000"
        ),
        # retained
        "SELECT count(*) FROM device_publish_msg WHERE retain",
    ],
)
def test_sample_holds_what_real_databases_hold(connection: Connection, query: str) -> None:
    fill(connection, SMALL)

    found = one(connection, query)
    assert 0 < found < 6_000


def test_long_queues_are_as_long_as_asked_for(connection: Connection) -> None:
    fill(connection, replace(SMALL, long_queues=2, long_queue_messages=1_500))

    lengths = "SELECT count(*) FROM device_publish_msg GROUP BY client_id ORDER BY 1 DESC LIMIT 3"
    first, second, third = (length for (length,) in connection.execute(lengths))
    assert (first, second) == (1_500, 1_500)
    assert third < 1_500


def test_hostile_rows_are_there_and_counted(connection: Connection) -> None:
    report = fill(connection, replace(SMALL, hostile=True))

    assert set(report.hostile) >= HOSTILE_KINDS
    for query, kind in [
        ("packet_id IS NULL", "packet_id_null"),
        ("packet_id = 65536", "packet_id_too_large"),
        ("msg_expiry_interval = 0", "expiry_zero"),
        ("qos = 7", "qos_seven"),
        ("time = -1", "time_negative"),
        ("length(payload) = 1048576", "payload_megabyte"),
        ("client_id = ''", "client_id_empty"),
        ("client_id LIKE '}%'", "client_id_begins_with_brace"),
        ("client_id LIKE '\\%%'", "client_id_begins_with_percent"),
        ("length(client_id) = 255", "client_id_255_characters"),
        ("client_id LIKE '=1+1%'", "client_id_formula"),
    ]:
        found = one(connection, f"SELECT count(*) FROM device_publish_msg WHERE {query}")
        assert found == report.hostile[kind], kind
    assert (
        one(
            connection,
            """
            SELECT count(*) FROM device_publish_msg LEFT JOIN device_session_ctx AS session USING (client_id)
            WHERE session.client_id IS NULL
            """,
        )
        == report.hostile["no_session_row"]
    )


def test_hostile_sample_lies_scattered_over_the_table(connection: Connection) -> None:
    fill(connection, replace(SMALL, hostile=True))

    backwards = """
        SELECT count(*) FROM (
            SELECT serial_number < lag(serial_number) OVER (PARTITION BY client_id ORDER BY ctid) AS back
            FROM device_publish_msg WHERE client_id LIKE 'sample-%'
        ) AS steps WHERE back
    """
    assert one(connection, backwards) > 1_000


def test_hostile_kinds_grow_with_the_sample_and_stay_rare() -> None:
    small, _ = hostile_rows(replace(SMALL, messages=1_000))
    large, _ = hostile_rows(replace(SMALL, messages=1_000_000))

    def bad(rows: list[HostileMessage]) -> int:
        return sum(row.kind is not None for row in rows)

    assert bad(small) < bad(large) < 10_000


def test_tables_that_hold_rows_are_left_alone(connection: Connection) -> None:
    fill(connection, SMALL)
    before = contents(connection)

    with pytest.raises(RefusedError, match=r"holds rows: a sample fills empty tables only; .*--replace"):
        fill(connection, replace(SMALL, seed=8))
    assert contents(connection) == before


def test_missing_tables_are_named(connection: Connection) -> None:
    with pytest.raises(SchemaMismatch, match=r"lacks the tables of TBMQ 1\.4 .*create_schema=True"):
        fill(connection, replace(SMALL, create_schema=False))


def test_failed_fill_leaves_nothing_behind(source: Connection) -> None:
    source.execute("ALTER TABLE device_session_ctx ADD CONSTRAINT none CHECK (client_id = '')")

    with pytest.raises(Exception, match="violates check constraint"):
        fill(source, SMALL)
    assert one(source, "SELECT count(*) FROM device_publish_msg") == 0


@pytest.mark.parametrize(
    ("messages", "sessions"), [(0, 1), (0, 10), (1, 1), (100, 1), (5, 2), (20_001, 3), (40_000, 50)]
)
def test_any_size_loads(connection: Connection, messages: int, sessions: int) -> None:
    report = fill(connection, SampleParameters(messages=messages, sessions=sessions, now_ms=NOW_MS, create_schema=True))

    assert (report.messages, report.sessions) == (messages, sessions)
    assert one(connection, "SELECT count(*) FROM device_publish_msg") == messages


def test_too_many_messages_for_the_sessions_are_refused(source: Connection) -> None:
    with pytest.raises(
        UsageError, match=r"70000 messages are too many for 1 sessions: .* raise the number of sessions"
    ):
        fill(source, SampleParameters(messages=70_000, sessions=1, now_ms=NOW_MS))


def test_tables_of_another_shape_are_refused(source: Connection) -> None:
    source.execute("ALTER TABLE device_publish_msg DROP COLUMN correlation_data")

    with pytest.raises(RefusedError, match=r'"correlation_data" .* not the tables of TBMQ 1\.4; use an empty database'):
        fill(source, SMALL)
