"""An installed PGMB as far as a takeover sees it: its tables, names and owners, and what its functions leave in them.

Written from what its documentation and catalog say; polls and reads are acted out here in plain statements.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from queuekeeper.postgres import Connection

SETTINGS = {
    "plugin_version": "0.2.0",
    "partition_retention_period": "60 minutes",
    "future_intervals_to_create": "3 hours",
    "partition_interval": "30 minutes",
    "poll_chunk_size": "10000",
    "use_pg_cron": "false",
    "pg_cron_poll_for_events_cron": "1 second",
    "pg_cron_partition_maintenance_cron": "0 * * * *",
}

_TABLES = """
CREATE SCHEMA pgmb;
CREATE TYPE pgmb.config_type AS ENUM ({keys});
CREATE DOMAIN pgmb.event_id AS varchar(24);
CREATE DOMAIN pgmb.subscription_id AS varchar(24);
CREATE DOMAIN pgmb.group_id AS varchar(48);

CREATE FUNCTION pgmb.create_event_id(ts timestamptz, rand bigint) RETURNS pgmb.event_id LANGUAGE sql IMMUTABLE AS
$$ SELECT left('pm' || lpad(to_hex((extract(epoch FROM ts) * 1000000)::bigint), 13, '0') || rpad(to_hex(rand), 9, '0'),
    24) $$;

CREATE TABLE pgmb.config (id pgmb.config_type PRIMARY KEY, value text);
CREATE TABLE pgmb.events (
    id pgmb.event_id PRIMARY KEY
    DEFAULT pgmb.create_event_id(clock_timestamp(), (random() * 268435448)::bigint),
    topic varchar(255) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb,
    subscription_id pgmb.subscription_id
) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE pgmb.unread_events (event_id pgmb.event_id PRIMARY KEY);
CREATE TABLE pgmb.subscription_groups (
    id pgmb.group_id PRIMARY KEY,
    created_at timestamptz DEFAULT now(),
    last_read_event_id pgmb.event_id DEFAULT pgmb.create_event_id(now(), 0)
);
CREATE TABLE pgmb.subscriptions (
    id pgmb.subscription_id PRIMARY KEY,
    group_id pgmb.group_id NOT NULL REFERENCES pgmb.subscription_groups (id) ON DELETE RESTRICT,
    conditions_sql text NOT NULL DEFAULT 'TRUE',
    params jsonb NOT NULL DEFAULT '{{}}',
    identity bigint GENERATED ALWAYS AS (
        hashtext(group_id || '/' || conditions_sql || '/' || params::text)
    ) STORED UNIQUE,
    last_active_at timestamptz NOT NULL DEFAULT now(),
    expiry_interval interval
);
CREATE TABLE pgmb.subscription_events (
    id pgmb.event_id, group_id pgmb.group_id, event_id pgmb.event_id, subscription_id pgmb.subscription_id
) PARTITION BY RANGE (id);
CREATE MATERIALIZED VIEW pgmb.subscription_cond_sqls AS SELECT DISTINCT conditions_sql FROM pgmb.subscriptions;

CREATE FUNCTION pgmb.mark_events_as_unread() RETURNS trigger LANGUAGE plpgsql SET search_path TO pgmb AS
$$ BEGIN INSERT INTO unread_events SELECT id FROM new_rows; RETURN NULL; END $$;
CREATE TRIGGER mark_events_as_unread_trigger AFTER INSERT ON pgmb.events REFERENCING NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION pgmb.mark_events_as_unread();

CREATE FUNCTION pgmb.poll_for_events() RETURNS int LANGUAGE sql AS 'SELECT 0';
CREATE FUNCTION pgmb.serialise_record_for_event(
    tabl oid, op text, record record, OUT serialised jsonb, OUT emit boolean
) LANGUAGE plpgsql IMMUTABLE STRICT AS
$$ BEGIN serialised := to_jsonb(record); emit := TRUE; RETURN; END $$;
CREATE FUNCTION pgmb.push_table_event() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'PGMB is still at work'; END $$;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'pgmb_reader') THEN
        CREATE ROLE pgmb_reader NOLOGIN;
    END IF;
END $$;
GRANT USAGE, CREATE ON SCHEMA pgmb TO pgmb_reader;
GRANT SELECT ON pgmb.subscriptions, pgmb.events TO pgmb_reader;
ALTER FUNCTION pgmb.poll_for_events() OWNER TO pgmb_reader;
"""


class OriginalPgmb:
    """Installs it in an empty database, and does to its tables what it does.

    :param partition: width of a partition.
    :param past: number of partitions that begin before this moment's.
    """

    def __init__(self, connection: Connection, *, partition: timedelta = timedelta(minutes=30), past: int = 4) -> None:
        self._connection = connection
        connection.execute(_TABLES.format(keys=", ".join(f"'{key}'" for key in SETTINGS)).encode())
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO pgmb.config VALUES (%s, %s)", list(SETTINGS.items()))
        for table in ("events", "subscription_events"):
            connection.execute(
                f"""
                DO $$ DECLARE
                    width CONSTANT interval := interval '{partition.total_seconds()} s';
                    here CONSTANT timestamptz := date_bin(width, now(), '2000-01-01');
                BEGIN
                    FOR number IN -{past}..6 LOOP
                        EXECUTE format(
                            'CREATE TABLE pgmb.%I PARTITION OF pgmb.{table} FOR VALUES FROM (%L) TO (%L)',
                            '{table}_' || to_char(here + number * width, 'YYYYMMDDHH24MI'),
                            pgmb.create_event_id(here + number * width, 0),
                            pgmb.create_event_id(here + (number + 1) * width, 0)
                        );
                    END LOOP;
                END $$
                """.encode()
            )

    def now(self) -> datetime:
        """Return the server's time."""
        found = self._connection.execute("SELECT clock_timestamp()").fetchone()
        assert found is not None
        instant: datetime = found[0]
        return instant

    def publish(
        self, *payloads: Any, topic: str = "topic", at: datetime | None = None, subscription: str | None = None
    ) -> list[str]:
        """Publish events, now or with ids of another instant."""
        ids = []
        for number, payload in enumerate(payloads):
            row = self._connection.execute(
                "INSERT INTO pgmb.events (id, topic, payload, subscription_id) "
                "VALUES (pgmb.create_event_id(coalesce(%s, clock_timestamp()), %s), %s, %s, %s) RETURNING id",
                (at, 0x1000000 + number, topic, Jsonb(payload), subscription),
            ).fetchone()
            assert row is not None
            ids.append(row[0])
            # Two ids of one microsecond are in no order that anybody has chosen.
            time.sleep(0.000_002)
        return ids

    def dispatch(self, matches: Mapping[str, Sequence[str]], *, at: datetime | None = None) -> None:
        """Do what a poll does, given which events it finds for which subscriptions; the events are unread no more."""
        instant = at or self.now()
        number = 0x5000000
        for subscription, event_ids in matches.items():
            for event_id in event_ids:
                number += 1
                self._connection.execute(
                    "INSERT INTO pgmb.subscription_events (id, group_id, event_id, subscription_id) "
                    "SELECT pgmb.create_event_id(%s, %s), s.group_id, %s, s.id FROM pgmb.subscriptions AS s "
                    "WHERE s.id = %s",
                    (instant, number, event_id, subscription),
                )
        self.forget(*{event_id for event_ids in matches.values() for event_id in event_ids})

    def forget(self, *event_ids: str) -> None:
        """Take events off the list of those to be dispatched, as a poll does, or a crash."""
        self._connection.execute("DELETE FROM pgmb.unread_events WHERE event_id = ANY(%s)", (list(event_ids),))

    def read(self, group: str, number: int) -> None:
        """Move a group's cursor behind so many of its deliveries."""
        self._connection.execute(
            "UPDATE pgmb.subscription_groups AS g SET last_read_event_id = (SELECT max(d.id) FROM ("
            "SELECT se.id FROM pgmb.subscription_events AS se "
            "WHERE se.group_id = g.id AND se.id > g.last_read_event_id ORDER BY se.id LIMIT %s) AS d) WHERE g.id = %s",
            (number, group),
        )
