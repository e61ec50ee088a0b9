"""Published defects that no check of sessions finds: they leave no trace there."""

from __future__ import annotations

from tests.golden_defects.defect import Untold

MIGRATION = "`SqlDatabaseUpgradeService`, 2.0.0 and 2.0.1"

UNTOLD: tuple[Untold, ...] = (
    Untold(
        title="Trimming removes what is in flight first, and a late acknowledgement then removes a newer message",
        published="remove and add script of `DeviceMsgServiceImpl`, 2.0.0 to 2.3.0",
        reason="the message is gone, its place is a gap like any other",
        ours=(
            "test_messages_in_flight_are_trimmed_last_and_counted",
            "test_late_ack_never_removes_a_newer_message_with_the_same_packet_id",
        ),
    ),
    Untold(
        title="Clean start removes the session while new messages arrive for it",
        published="`SessionClusterManagerImpl`, 2.0.0 to 2.3.0",
        reason="the new messages are gone",
        ours=("test_message_saved_while_a_session_is_purged_survives",),
    ),
    Untold(
        title="On reconnect new messages overtake those that wait",
        published="`PersistedDeviceActorMessageProcessor`, 2.1.0 to 2.3.0; thingsboard/tbmq#207",
        reason="an order of sending, not of data",
        ours=("test_messages_saved_while_a_backlog_is_read_do_not_overtake_it",),
    ),
    Untold(
        title="Fresh messages get an expiry that no publisher set; empty properties are lost",
        published="`DevicePublishMsgUtil`, 2.0.0 and 2.0.1",
        reason="profiles compare numbers; the verification of a migration compares every message",
        ours=(
            "test_each_copied_message_is_sent_under_its_key_with_serial_expiry_and_tbmqs_json",
            "test_every_session_is_in_redis_as_the_rules_say",
        ),
    ),
    Untold(
        title="A failed import is logged and the upgrade says that it succeeded; a failed export has changed the "
        "version already; both tables are dropped unchecked",
        published=MIGRATION,
        reason="what is missing afterwards is found as Q12 and Q34 while the source is there, and by nobody later",
        ours=(
            "test_verification_accounts_for_every_row_and_finds_no_difference",
            "test_failed_verification_is_reported_and_fails_the_run",
        ),
    ),
    Untold(
        title="Database names with a dash are cut, and an output format of the database decides over payloads",
        published=MIGRATION,
        reason="nothing in the stores, or a lost payload as above",
        ours=("test_same_events_and_rows_leave_no_trace_in_ours",),
    ),
)
