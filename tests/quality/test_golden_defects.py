"""Published defects, acted out: each leaves the trace it is known for, and ours does not given the same events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import postgres, redis_client, sql_statements
from queuekeeper.jobs.checks import CHECKS
from queuekeeper.keyspace import session_keys
from queuekeeper.redis_client import RedisClient
from tests.golden_defects import broker_defects, source_defects, table, untold
from tests.golden_defects.defect import act_out
from tests.golden_defects.source_defects import SourceStage
from tests.golden_defects.stage import SHORT_LIFE_S, Stage

pytestmark = pytest.mark.quality

RELIABILITY = Path(__file__).parents[2] / "docs" / "reliability.md"
DEAD = " ".join(f"{n}@{n}:dead" for n in range(2, 11))

OF_THE_BROKER = {
    "pubrec": "1@1 2@2:forever 3@3, last 3",
    "expiry-0": "1@1 2@2 3@3 4@4, last 2",
    "expiry-0-goes-on": "1@1 2@2 4@4 3@5, last 3",
    "expiry-2-to-the-31": "1@1 2@2 3@3, last 2",
    "": "1@1 2@2, last 2",
    "}front": "1@1 2@2, last 2",
    "crowded": f"1@1 {DEAD}, last 10",
    "crowded-out": f"{DEAD} 11@11, last 11",
    "never-returns": "1@1:dead 2@2:dead 3@3:dead 4@4:dead 5@5:dead, last 5",
    "all-confirmed": "nothing, last 3",
    "saved-twice": "1@1 2@2 3@3 4@4 5@5 6@6 7@7, last 7",
    "hand-out": "1@1 2@2 3@3, last 2",
    "hand-out-goes-on": "1@1 2@2 3@4, last 3",
    "ss_meters_site": "1@1 2@2 3@3, last none",
    "ss_meters_site-goes-on": "2@2 3@3 1@4, last 1",
    "once-around": "1@1 65535@2, last 65535",
    "wrapped": "3@3 4@4, last 4",
}
OF_OUR_STORE = OF_THE_BROKER | {
    "pubrec": "1@1 2@2 3@3, last 3",
    "expiry-0": "1@1 2@2 3@3 4@4 5@5, last 5",
    "expiry-0-goes-on": "1@1 2@2 3@3 4@4 5@5 6@6, last 6",
    "expiry-2-to-the-31": "1@1 2@2 3@3 4@4 5@5, last 5",
    "": "nothing, last none",
    "crowded-out": "1@1 11@11, last 11",
    "saved-twice": "1@1 2@2 3@3 4@4, last 4",
    "hand-out": "1@1 3@2 4@3, last 4",
    "hand-out-goes-on": "1@1 3@2 4@3 5@4, last 5",
    "ss_meters_site": "1@1 2@2 3@3, last 3",
    "ss_meters_site-goes-on": "1@1 2@2 3@3 4@4, last 4",
    "wrapped": "3@65538 4@65539, last 4",
}
OF_THE_MIGRATION = {
    "given-up": "1@1 2@2 6@3, last 6",
    "same-id-twice": "6@1 5@2, last 5",
    "ss_pumps_site": "nothing, last none",
    "old-and-waiting": "nothing, last none",
    "cut-to-limit": "4@1 5@2 6@3 7@4 8@5, last 8",
    "newest-confirmed": "1@1 2@2 3@3, last 3",
    "nothing-waits": "nothing, last none",
    "no-serial": "nothing, last none",
    "id-null": "nothing, last none",
    "id-null-neighbour": "nothing, last none",
    "life-again": "1@1 2@2 3@3, last 3",
    "life-again-of-its-own": "1@1 2@2 3@3, last 3",
    "revived": "1@1 2@2 3@3, last 3",
    "row-of-expiry-0": "1@1 2@2, last none",
    "again": "3@5 65534@6 65535@7 1@8 2@9, last 2",
    "again-goes-on": "65534@6 65535@7 1@8 2@9 3@10, last 3",
    "come-back": "4@4 5@5 1@6 2@7 3@8, last 3",
    "no-payload": "1@1 2@2 3@3, last 3",
    "too-long": " ".join(f"{n}@{n}" for n in range(1, 13)) + ", last 12",
}


def seen(client: RedisClient, stem: str) -> str:
    """Describe a session: packet id and score of each reference, what is odd about its payload, and the counter."""
    anything: Any = client
    marks = {-2: ":dead", -1: ":forever"}
    references = [
        f"{reference.decode().rsplit('_', 1)[1]}@{score:g}{marks.get(anything.ttl(reference), '')}"
        for reference, score in anything.zrange(f"{stem}_messages", 0, -1, withscores=True)
    ]
    last = anything.get(f"{stem}_last_packet_id")
    return f"{' '.join(references) or 'nothing'}, last {'none' if last is None else last.decode()}"


def test_queues_of_the_vendors_broker_have_the_traces_that_were_published(redis_url: str) -> None:
    with redis_client.connect(redis_url) as client:
        act_out(broker_defects.DEFECTS, Stage.of_the_vendor(client), short_life_s=SHORT_LIFE_S + 0.2)
        assert {name: seen(client, f"{{{name}}}") for name in OF_THE_BROKER} == OF_THE_BROKER


def test_queues_of_our_store_have_none_of_them_after_the_same_events(redis_url: str) -> None:
    with redis_client.connect(redis_url) as client:
        act_out(broker_defects.DEFECTS, Stage.of_ours(client), short_life_s=SHORT_LIFE_S + 0.2)
        found = {
            name: seen(client, session_keys(name).messages.removesuffix("_messages")) if name else "nothing, last none"
            for name in OF_THE_BROKER
        }
        assert found == OF_OUR_STORE
        # What is left of sessions in which nothing waits ends by itself.
        for name in ("never-returns", "all-confirmed"):
            assert all(client.ttl(key) != -1 for key in session_keys(name)), name


def test_sessions_that_the_vendor_migrated_have_the_traces_that_were_published(
    valkey_url: str, postgres_url: str
) -> None:
    with redis_client.connect(valkey_url) as client, postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        act_out(source_defects.DEFECTS, SourceStage(connection=connection, client=client), short_life_s=0)
        assert {name: seen(client, f"{{{name}}}") for name in OF_THE_MIGRATION} == OF_THE_MIGRATION
        anything: Any = client
        record = anything.get("{no-payload}_messages_1")
        assert b'"packetType":"PUBLISH"' in record
        assert b'"payload"' not in record
        assert anything.ttl("{life-again}_messages_1") > 6 * 86_400
        assert anything.ttl("{life-again-of-its-own}_messages_1") > 3_600
        assert anything.ttl("{revived}_messages_1") > 0
        gaps = "SELECT max(serial_number) - count(*) FROM device_publish_msg WHERE client_id = 'given-up'"
        assert connection.execute(gaps.encode()).fetchone() == (3,)


def test_every_defect_has_queues_of_its_own_and_names_checks_that_exist() -> None:
    clients = Counter(client for defect in table.OF_SESSIONS for client in defect.clients)
    assert set(clients) == OF_THE_BROKER.keys() | OF_THE_MIGRATION.keys()
    assert set(clients.values()) == {1}
    assert len({defect.id for defect in table.ALL}) == len(table.ALL)
    for defect in table.ALL:
        for finding in defect.finds | defect.remains:
            assert finding.client_id in defect.clients, defect.id
            assert finding.check_id in CHECKS, finding


def test_every_defect_names_tests_that_exist() -> None:
    names = {name for defect in table.ALL for name in defect.ours}
    names |= {name for each in untold.UNTOLD for name in each.ours}
    assert {name for name in names if len(table.defined_tests().get(name, ())) != 1} == set()
    assert all(defect.ours for defect in table.ALL)
    assert all(each.ours for each in untold.UNTOLD)


def test_reliability_lists_every_defect_with_its_check_and_our_test() -> None:
    text = RELIABILITY.read_text("utf-8").split("\n## Defects of others\n")[1].split("\n## ")[0]
    assert [line for line in text.splitlines() if line.startswith("|")] == [line for line in table.lines() if line]
