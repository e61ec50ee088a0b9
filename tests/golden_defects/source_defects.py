"""Defects of TBMQ 1.4's tables and of its migration to 2.0: rows as that broker leaves them, then what moves them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from queuekeeper.clock import system_clock
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.hostile import HostileMessage, HostileSession
from tests.golden_defects.defect import BOTH, POSTGRES, REDIS, Defect, Finding, found_in
from tests.golden_defects.migrator import Migrator
from tests.golden_defects.stage import LIMIT, Stage, message, messages

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


@dataclass(frozen=True, kw_only=True)
class SourceStage:
    """A database of TBMQ 1.4, and the Redis of the TBMQ 2.0 that takes over."""

    connection: Connection
    client: RedisClient

    @property
    def migrator(self) -> Migrator:
        return Migrator(connection=self.connection, client=self.client)

    @property
    def broker(self) -> Stage:
        """The broker after the migration."""
        return Stage.of_the_vendor(self.client)

    def wait(self, client_id: str, packet_ids: Sequence[int | None], *, first_serial: int = 1, **values: Any) -> None:
        """Let messages wait, one serial after the other."""
        for serial, packet_id in enumerate(packet_ids, first_serial):
            self.row(client_id, serial, packet_id, **values)

    def row(
        self, client_id: str, serial: int, packet_id: int | None, *, age_ms: int = 0, life_s: int | None = None,
        content_type: str | None = None,
    ) -> None:  # fmt: skip
        """Let one message wait."""
        new = HostileMessage(
            kind=None,
            client_id=client_id,
            serial_number=serial,
            packet_id=packet_id,
            topic="golden/defects",
            time=system_clock() - age_ms,
            payload=b"%d of %s" % (serial, client_id.encode()),
            msg_expiry_interval=life_s,
            content_type=content_type,
        )
        values = ", ".join(["%s"] * len(new.row()))
        self.connection.execute(f"INSERT INTO device_publish_msg VALUES ({values})".encode(), new.row())

    def session(self, client_id: str, last_serial: int | None, last_packet_id: int) -> None:
        """Note what was given out last."""
        new = HostileSession(
            kind=None,
            client_id=client_id,
            last_updated_time=system_clock(),
            last_serial_number=last_serial,
            last_packet_id=last_packet_id,
        )
        self.connection.execute(
            "INSERT INTO device_session_ctx VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (client_id) DO UPDATE SET last_serial_number = excluded.last_serial_number,"
            " last_packet_id = excluded.last_packet_id",
            new.row(),
        )


def packs_are_given_up(stage: SourceStage) -> None:
    client_id = "given-up"
    stage.wait(client_id, (1, 2))
    # The counters are saved first, by themselves; then the rows, which the database refuses at each of four attempts.
    stage.session(client_id, 5, 5)
    for _ in range(4):
        with suppress(psycopg.errors.StringDataRightTruncation), stage.connection.transaction():
            stage.wait(client_id, (3, 4, 5), first_serial=3, content_type="text/plain" + ";" * 246)
    stage.wait(client_id, (6,), first_serial=6)
    stage.session(client_id, 6, 6)
    stage.migrator.run(client_id, limit=LIMIT)


def packet_id_waits_twice(stage: SourceStage) -> None:
    client_id = "same-id-twice"
    stage.wait(client_id, (5, 6), first_serial=5)
    stage.wait(client_id, (5,), first_serial=65_540)
    stage.session(client_id, 65_540, 5)
    stage.migrator.run(client_id, limit=65_535)


def group_has_no_session_row(stage: SourceStage) -> None:
    client_id = "ss_pumps_site"
    # The drain of the group has removed its session row; its messages wait to be confirmed.
    stage.wait(client_id, (1, 2, 3))
    stage.migrator.run(client_id, limit=LIMIT)


def window_of_serials_is_taken_for_newest_rows(stage: SourceStage) -> None:
    client_id = "old-and-waiting"
    stage.wait(client_id, (1, 2, 3))
    stage.session(client_id, 50, 50)
    stage.migrator.run(client_id, limit=LIMIT)


def smaller_limit_cuts_queues(stage: SourceStage) -> None:
    client_id = "cut-to-limit"
    stage.wait(client_id, range(1, 9))
    stage.session(client_id, 8, 8)
    stage.migrator.run(client_id, limit=5)


def counter_is_taken_from_the_last_message(stage: SourceStage) -> None:
    client_id = "newest-confirmed"
    stage.wait(client_id, (1, 2, 3))
    stage.session(client_id, 6, 6)
    stage.migrator.run(client_id, limit=LIMIT)


def counter_without_messages_is_left_behind(stage: SourceStage) -> None:
    client_id = "nothing-waits"
    stage.session(client_id, 500, 500)
    stage.migrator.run(client_id, limit=LIMIT)


def session_without_serial_is_left_behind(stage: SourceStage) -> None:
    client_id = "no-serial"
    stage.wait(client_id, (1, 2, 3))
    stage.session(client_id, None, 3)
    stage.migrator.run(client_id, limit=LIMIT)


def packet_id_null_ends_the_import(stage: SourceStage) -> None:
    stage.wait("id-null", (1, None, 3))
    stage.wait("id-null-neighbour", (1, 2, 3))
    for client_id in ("id-null", "id-null-neighbour"):
        stage.session(client_id, 3, 3)
    stage.migrator.run("id-null", "id-null-neighbour", limit=LIMIT)


def lives_begin_anew(stage: SourceStage) -> None:
    stage.wait("life-again", (1, 2, 3), age_ms=6 * DAY_MS)
    stage.wait("life-again-of-its-own", (1, 2, 3), age_ms=HOUR_MS, life_s=2 * 3_600)
    for client_id in ("life-again", "life-again-of-its-own"):
        stage.session(client_id, 3, 3)
        stage.migrator.run(client_id, limit=LIMIT)


def expired_messages_are_revived(stage: SourceStage) -> None:
    client_id = "revived"
    stage.row(client_id, 1, 1, age_ms=3 * DAY_MS, life_s=3_600)
    stage.wait(client_id, (2, 3), first_serial=2)
    stage.session(client_id, 3, 3)
    stage.migrator.run(client_id, limit=LIMIT)


def expiry_zero_ends_a_client(stage: SourceStage) -> None:
    client_id = "row-of-expiry-0"
    stage.wait(client_id, (1, 2))
    stage.row(client_id, 3, 3, age_ms=3 * DAY_MS, life_s=0)
    stage.wait(client_id, (4, 5), first_serial=4)
    stage.session(client_id, 5, 5)
    stage.migrator.run(client_id, limit=LIMIT)


def migration_runs_again(stage: SourceStage) -> None:
    for client_id in ("again", "again-goes-on"):
        stage.wait(client_id, (65_534, 65_535, 1, 2))
        stage.session(client_id, 4, 2)
        stage.migrator.run(client_id, limit=LIMIT)
        stage.broker.queue(client_id).save(message())
        stage.migrator.run(client_id, limit=LIMIT)
    stage.broker.queue("again-goes-on").save(message())


def delivered_messages_come_back(stage: SourceStage) -> None:
    client_id = "come-back"
    stage.wait(client_id, (1, 2, 3))
    stage.session(client_id, 3, 3)
    stage.migrator.run(client_id, limit=LIMIT)
    queue = stage.broker.queue(client_id)
    queue.acknowledge(1, 2)
    queue.save(*messages(2))
    stage.migrator.run(client_id, limit=LIMIT)


def payload_is_lost(stage: SourceStage) -> None:
    client_id = "no-payload"
    stage.wait(client_id, (1, 2, 3))
    stage.session(client_id, 3, 3)
    stage.migrator.run(client_id, limit=LIMIT, bytea_output="escape")


def queue_is_not_trimmed(stage: SourceStage) -> None:
    client_id = "too-long"
    # The nightly trim has not come yet.
    stage.wait(client_id, range(1, LIMIT + 3))
    stage.session(client_id, LIMIT + 2, LIMIT + 2)
    stage.migrator.run(client_id, limit=2 * LIMIT)


MIGRATION = "`SqlDatabaseUpgradeService` and `DeviceMsgServiceImpl`, 2.0.0 and 2.0.1"
MOVED = "test_every_session_is_in_redis_as_the_rules_say"
FATE = "test_every_message_meets_the_fate_of_the_rules"
COUNTER = "test_counter_is_the_sessions_unless_a_message_is_newer"
SESSIONS = "test_every_session_row_is_kept_and_its_defect_named"
VERIFIED = "test_each_damage_is_reported_as_what_it_is_and_nothing_else_is"
QUARANTINE = "test_quarantine_holds_every_bad_row_whole_with_its_reason"


def _differs(client_id: str) -> frozenset[Finding]:
    return found_in(BOTH, client_id, "Q12", "Q34")


DEFECTS: tuple[Defect[SourceStage], ...] = (
    Defect(
        id="packs-are-given-up",
        title="A pack that the database refuses four times is committed and skipped; its serials are given out already",
        published="`DeviceMsgAcknowledgeStrategyFactory` and `DeviceMsgProcessorImpl`, 1.4.0",
        trace="a gap of serials, which acknowledgements leave too and Q6 counts; the target has other serials",
        act=packs_are_given_up,
        clients=("given-up",),
        finds=found_in(BOTH, "given-up", "Q34"),
        ours=(
            "test_failure_of_one_session_leaves_the_others_saved",
            "test_what_the_vendors_columns_cannot_hold_is_refused_before_anything_is_written",
        ),
    ),
    Defect(
        id="packet-id-waits-twice",
        title="Two rows of a client have one packet id after a wrap: an acknowledgement removes both, and the "
        "migration writes one over the other",
        published="`schema-entities-idx.sql` (the index is not unique), 1.0.0 to 1.4.0",
        trace="rows with the same packet id; in Redis a packet id that goes back",
        act=packet_id_waits_twice,
        clients=("same-id-twice",),
        finds=found_in(POSTGRES, "same-id-twice", "Q5", "Q11")
        | found_in(REDIS, "same-id-twice", "Q3", "Q11")
        | found_in(BOTH, "same-id-twice", "Q34"),
        ours=("test_packet_ids_in_use_are_passed_over_when_ids_wrap", FATE),
    ),
    Defect(
        id="group-has-no-session-row",
        title="Messages of a shared group whose session row was removed by a drain are not migrated",
        published=MIGRATION,
        trace="rows without a session; messages that the target lacks",
        act=group_has_no_session_row,
        clients=("ss_pumps_site",),
        finds=found_in(POSTGRES, "ss_pumps_site", "Q11", "Q22") | found_in(BOTH, "ss_pumps_site", "Q34"),
        ours=(MOVED, "test_session_goes_on_where_messages_without_a_session_row_end"),
    ),
    Defect(
        id="window-of-serials-is-taken-for-newest-rows",
        title="Old messages that still wait are left behind when many newer ones were confirmed",
        published=MIGRATION,
        trace="messages that the target lacks",
        act=window_of_serials_is_taken_for_newest_rows,
        clients=("old-and-waiting",),
        finds=_differs("old-and-waiting"),
        ours=(MOVED, FATE),
    ),
    Defect(
        id="smaller-limit-cuts-queues",
        title="The upgrade scripts cut every queue to 1,000 messages, whatever limit the broker ran with",
        published="`docker-upgrade-tbmq.sh`, 2.0.0 and 2.0.1",
        trace="messages that the target lacks",
        act=smaller_limit_cuts_queues,
        clients=("cut-to-limit",),
        finds=found_in(BOTH, "cut-to-limit", "Q34"),
        ours=(FATE, "test_parameters_are_the_ones_asked_for"),
    ),
    Defect(
        id="counter-is-taken-from-the-last-message",
        title="The counter becomes the packet id of the last message that waits, though later ones were given out",
        published=MIGRATION,
        trace="counter behind the source's",
        act=counter_is_taken_from_the_last_message,
        clients=("newest-confirmed",),
        finds=found_in(BOTH, "newest-confirmed", "Q12"),
        ours=(COUNTER, MOVED),
    ),
    Defect(
        id="counter-without-messages-is-left-behind",
        title="A session in which nothing waits loses its counter",
        published=MIGRATION,
        trace="counter that the target lacks",
        act=counter_without_messages_is_left_behind,
        clients=("nothing-waits",),
        finds=_differs("nothing-waits"),
        # What an import brings has no expiry until the session is saved to.
        remains=found_in(REDIS, "nothing-waits", "Q22"),
        ours=(SESSIONS, "test_session_without_messages_is_imported_too"),
    ),
    Defect(
        id="session-without-serial-is-left-behind",
        title="A session row without last serial takes all messages of its client with it",
        published=MIGRATION,
        trace="messages that the target lacks",
        act=session_without_serial_is_left_behind,
        clients=("no-serial",),
        finds=_differs("no-serial"),
        ours=(MOVED, FATE),
    ),
    Defect(
        id="packet-id-null-ends-the-import",
        title="One row without packet id ends the import of all clients",
        published=MIGRATION,
        trace="the row; messages of other clients that the target lacks",
        act=packet_id_null_ends_the_import,
        clients=("id-null", "id-null-neighbour"),
        finds=found_in(POSTGRES, "id-null", "Q4") | _differs("id-null") | _differs("id-null-neighbour"),
        ours=(QUARANTINE, MOVED),
    ),
    Defect(
        id="lives-begin-anew",
        title="Every migrated message gets its whole life again, and an expiry that no publisher set",
        published=MIGRATION,
        trace="payload keys that outlive their message",
        act=lives_begin_anew,
        clients=("life-again", "life-again-of-its-own"),
        finds=found_in(REDIS, "life-again", "Q14") | found_in(REDIS, "life-again-of-its-own", "Q14"),
        ours=(
            MOVED,
            "test_each_copied_message_is_sent_under_its_key_with_serial_expiry_and_tbmqs_json",
        ),
    ),
    Defect(
        id="expired-messages-are-revived",
        title="Messages whose life is over are migrated, and live again",
        published=MIGRATION,
        trace="rows past their expiry; payload keys that outlive their message",
        act=expired_messages_are_revived,
        clients=("revived",),
        finds=found_in(POSTGRES, "revived", "Q15")
        | found_in(REDIS, "revived", "Q14")
        | found_in(BOTH, "revived", "Q34"),
        ours=(
            FATE,
            "test_messages_without_life_are_counted_and_their_earlier_reference_removed",
        ),
    ),
    Defect(
        id="expiry-zero-ends-a-client",
        title="A row with an expiry of 0 ends its client's import half-way, without a counter",
        published=MIGRATION,
        trace="messages without a counter; messages that the target lacks",
        act=expiry_zero_ends_a_client,
        clients=("row-of-expiry-0",),
        finds=found_in(POSTGRES, "row-of-expiry-0", "Q15")
        | found_in(REDIS, "row-of-expiry-0", "Q11")
        | _differs("row-of-expiry-0"),
        ours=(FATE, MOVED),
    ),
    Defect(
        id="migration-runs-again",
        title="A second run puts old messages behind new ones and the counter back; the next publish overwrites a "
        "waiting message, and with it the trace",
        published=MIGRATION,
        trace="packet ids that go back, the packet id to be given out next in use; after the next publish none",
        act=migration_runs_again,
        clients=("again", "again-goes-on"),
        # Any session that a broker has used since differs from its source.
        finds=found_in(REDIS, "again", "Q3", "Q11") | found_in(BOTH, "again", "Q34") | _differs("again-goes-on"),
        ours=(
            "test_session_that_the_broker_has_used_is_never_written_again",
            "test_copies_report_what_they_wrote_and_a_repeated_one_changes_nothing",
        ),
    ),
    Defect(
        id="delivered-messages-come-back",
        title="A second run brings back messages that were confirmed since the first",
        published=MIGRATION,
        trace="packet ids that go back, the packet id to be given out next in use",
        act=delivered_messages_come_back,
        clients=("come-back",),
        finds=found_in(REDIS, "come-back", "Q3", "Q11") | found_in(BOTH, "come-back", "Q34"),
        ours=(
            "test_session_that_the_broker_has_used_is_never_written_again",
            "test_sessions_in_use_are_left_alone_and_counted_superseded",
        ),
    ),
    Defect(
        id="payload-is-lost",
        title="A payload that cannot be decoded, as with bytea_output = escape, is left out of its message",
        published="`DevicePublishMsgUtil`, 2.0.0 and 2.0.1",
        trace="PUBLISH without payload",
        act=payload_is_lost,
        clients=("no-payload",),
        finds=found_in(REDIS, "no-payload", "Q17"),
        ours=(MOVED, VERIFIED),
    ),
    Defect(
        id="queue-is-not-trimmed",
        title="1.x trims at night only, and the migration not at all: queues arrive over the limit",
        published="`SqlDeviceMsgCleanUpDao`, 1.4.0; migration as above",
        trace="more live messages than the limit",
        act=queue_is_not_trimmed,
        clients=("too-long",),
        finds=found_in(POSTGRES, "too-long", "Q7")
        | found_in(REDIS, "too-long", "Q7")
        | found_in(BOTH, "too-long", "Q34"),
        ours=(FATE, "test_the_newest_stay_when_a_session_is_over_its_limit"),
    ),
)
