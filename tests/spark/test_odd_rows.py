"""Rows that MQTT cannot carry are put aside and stop nobody; what it can carry is moved, whatever its size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from queuekeeper import sql_statements
from queuekeeper.keyspace import payload_key
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.sessions.pages import Layout
from tests.conftest import nightly
from tests.property.generated_clients import RULES, clients
from tests.spark.world import World

PARAMETERS = MigrationParameters(cohort_count=3, quarantine_cap_percent=100.0)
MIB = 2**20


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    found = make_world()
    found.connection.execute(sql_statements.statement("sessions/vendor_schema"))
    return found


def test_payloads_of_many_megabytes_are_compared_and_not_called_lost(world: World) -> None:
    sizes = [16_000_000, 32 * MIB, 3, *[100_000] * 20, 2 * MIB]
    for serial, size in enumerate(sizes):
        world.connection.execute(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) VALUES ('meter-7', %s, 't', %s, %s, 'PUBLISH', 1, convert_to(repeat('ab', %s), 'UTF8'))",
            (serial, time.time_ns() // 1_000_000, serial + 1, size // 2),
        )
    plan = world.plan(PARAMETERS)
    assert world.copy(plan.plan_id).messages_written == len(sizes)

    report = world.verify(plan.plan_id)
    assert report.balanced
    assert sum(row.copied for row in report.ledger) == len(sizes)

    # One byte of 32 MiB is another, and one record cannot be read.
    key = payload_key("meter-7", 2)
    world.client.setrange(key, 20 * MIB, b"x")
    world.client.setrange(payload_key("meter-7", 1), 0, b"[")
    found = world.verify(plan.plan_id)
    assert not found.balanced
    assert sorted(each.kind for each in world.ledger.differences(plan.plan_id)) == ["payload", "unreadable"]


# TBMQ's layout has the hostile rows of test_migration.py, judged by the same rules.
@pytest.mark.parametrize("layout", [Layout.PACKED, *nightly(Layout.TBMQ)])
def test_generated_rows_are_accounted_for_after_their_copy(world: World, layout: Layout) -> None:
    # What is too long for MQTT is too long for the vendor's columns, too.
    for name in ("content_type", "response_topic"):
        world.connection.execute(f"ALTER TABLE device_publish_msg ALTER {name} TYPE varchar")
    for client in clients(300):
        for message in client.messages:
            places = ", ".join(["%s"] * len(message))
            world.connection.execute(
                f"INSERT INTO device_publish_msg ({', '.join(message._fields)}) VALUES ({places})", list(message)
            )
        if client.session is not None:
            world.connection.execute(
                "INSERT INTO device_session_ctx (client_id, last_updated_time, last_serial_number, last_packet_id)"
                " VALUES (%s, 0, %s, %s)",
                list(client.session),
            )
    parameters = replace(PARAMETERS, limit=RULES.limit, default_ttl_s=RULES.default_ttl_s, layout=layout)
    plan = world.plan(parameters, now_ms=RULES.as_of_ms)
    world.copy(plan.plan_id)
    report = world.verify(plan.plan_id)
    assert world.ledger.differences(plan.plan_id) == []
    assert report.balanced
    for name in ("copied", "expired", "trimmed", "quarantined"):
        fate = "to_copy" if name == "copied" else name
        assert sum(getattr(row, name) for row in report.ledger) == plan.total(fate) > 20
