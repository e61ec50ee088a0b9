"""A source, a target and the three steps between them; what ought to come of it is computed by the plain rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lua_sessions import value_of
from pyspark.sql import SparkSession

from queuekeeper import keyspace, postgres, redis_client
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CopyReport, MigrationPlan, VerifyReport
from queuekeeper.migration.ledger.parameters import CopyManner, MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.offline.source import MESSAGE_COLUMNS, SESSION_COLUMNS
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient, nodes
from tests.property.migration_rules import Decision, Message, Rules, Session, decide, expires_at_ms, stored_json

PARAMETERS = MigrationParameters(cohort_count=12, limit=500, quarantine_cap_percent=50.0)
HOUR_MS = 3_600_000


class Stored(NamedTuple):
    """One reference with what lies under it."""

    score: float
    json: dict[str, Any] | None
    expires_at_ms: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a session is in Redis.

    :param messages: by packet id.
    """

    messages: dict[int, Stored]
    last_packet_id: int | None


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client's rows in the source, and what must become of them."""

    messages: tuple[Message, ...]
    session: Session | None
    decision: Decision

    @property
    def copied(self) -> list[Message]:
        """The messages that must be in Redis, in their order."""
        return [message for message in self.messages if self.fate(message) == "copied"]

    def fate(self, message: Message) -> str:
        """Return what becomes of a message."""
        return self.decision.messages[message.serial_number].fate

    @property
    def imported(self) -> bool:
        """Whether Redis must know the session."""
        return bool(self.session or self.copied) and self.decision.session_reason != "client_id_scattered"

    def target(self) -> Target:
        """Return what must be in Redis."""
        stored = {}
        for message in self.copied:
            end = self.decision.messages[message.serial_number].expires_at_ms
            assert end is not None
            assert message.packet_id is not None
            stored[message.packet_id] = Stored(message.serial_number, stored_json(message), end)
        return Target(messages=stored, last_packet_id=self.decision.last_packet_id)


@dataclass(frozen=True, kw_only=True)
class World:
    """One migration's servers."""

    spark: SparkSession
    postgres_url: str
    redis_url: str
    connection: Connection
    client: RedisClient
    ledger: MigrationLedger
    parameters: MigrationParameters = field(default=PARAMETERS)

    @classmethod
    @contextmanager
    def opened(cls, spark: SparkSession, *, postgres_url: str, redis_url: str) -> Iterator[World]:
        """Connect to both servers."""
        with (
            postgres.connect(postgres_url, autocommit=True) as connection,
            redis_client.connect(redis_url) as client,
        ):
            yield cls(
                spark=spark, postgres_url=postgres_url, redis_url=redis_url, connection=connection, client=client,
                ledger=MigrationLedger(connection),
            )  # fmt: skip

    def plan(
        self, parameters: MigrationParameters = PARAMETERS, *, now_ms: int | None = None, run_id: str | None = None
    ) -> MigrationPlan:
        """Make a plan."""
        return plan_migration(
            self.spark, postgres_url=self.postgres_url, redis_url=self.redis_url, parameters=parameters, run_id=run_id,
            now_ms=now_ms,
        )  # fmt: skip

    def copy(self, plan_id: str, cohorts: str = "", **manner: bool) -> CopyReport:
        """Carry a plan out."""
        return copy_sessions(
            self.spark, postgres_url=self.postgres_url, redis_url=self.redis_url, plan_id=plan_id, cohorts=cohorts,
            manner=CopyManner(**manner),
        )  # fmt: skip

    def verify(self, plan_id: str, cohorts: str = "") -> VerifyReport:
        """Compare both sides."""
        return verify_migration(
            self.spark, postgres_url=self.postgres_url, redis_url=self.redis_url, plan_id=plan_id, cohorts=cohorts
        )

    def expected(self, plan: MigrationPlan) -> dict[str, Client]:
        """Return what the rules make of the source."""
        rules = Rules(
            limit=plan.parameters.limit,
            default_ttl_s=plan.parameters.default_ttl_s,
            as_of_ms=plan.as_of_ms,
            clustered=redis_client.is_cluster(self.client),
        )
        messages: dict[str, list[Message]] = {}
        for row in self.connection.execute(
            f"SELECT {', '.join(MESSAGE_COLUMNS)} FROM device_publish_msg ORDER BY client_id, serial_number"
        ):
            messages.setdefault(row[0], []).append(Message(*row))
        sessions = {
            row[0]: Session(*row)
            for row in self.connection.execute(f"SELECT {', '.join(SESSION_COLUMNS)} FROM device_session_ctx")
        }
        return {
            name: Client(
                messages=tuple(messages.get(name, ())),
                session=sessions.get(name),
                decision=decide(messages.get(name, ()), sessions.get(name), rules),
            )
            for name in messages.keys() | sessions.keys()
        }

    def contents(self) -> dict[bytes, tuple[Any, int]]:
        """Return value and instant of expiry of every key."""
        found: dict[bytes, tuple[Any, int]] = {}
        for _, node in nodes(self.client):
            for key in node.scan_iter(count=1_000):
                found[key] = (value_of(node, key), int(node.pexpiretime(key)))
        return found

    def reset(self) -> None:
        """Empty the target."""
        for _, node in nodes(self.client):
            node.flushall()


IMPORTED_UNTIL_MS = 2**52
"""Expiry by which an import knows its last packet id again."""


def sessions_in(contents: dict[bytes, tuple[Any, int]], names: set[str], *, prefix: str = "") -> dict[str, Target]:
    """Return the sessions that a dump holds, and fail over any key that belongs to none of the names."""
    left = dict(contents)
    found: dict[str, Target] = {}
    for name in sorted(names - {""}):
        keys = keyspace.session_keys(name, prefix=prefix)
        if left.pop(keys.session.encode(), None) is None:
            continue
        references, _ = left.pop(keys.messages.encode(), ([], -1))
        messages = {}
        stem = f"{keys.messages}_".encode()
        for member, score in references:
            assert member.startswith(stem), member
            text, end = left.pop(member, (b"null", -2))
            messages[int(member[len(stem) :])] = Stored(score, json.loads(text), end)
        counter, end = left.pop(keys.last_packet_id.encode(), (None, -1))
        assert end == (-1 if counter is None else IMPORTED_UNTIL_MS)
        found[name] = Target(messages=messages, last_packet_id=None if counter is None else int(counter))
    assert left == {}
    return found


def kill_the_dying(connection: Connection, *, now_ms: int) -> None:
    """End the life of messages that would otherwise end it while tests run."""
    rules = Rules(limit=1, default_ttl_s=PARAMETERS.default_ttl_s, as_of_ms=now_ms)
    rows = connection.execute(f"SELECT {', '.join(MESSAGE_COLUMNS)} FROM device_publish_msg").fetchall()
    for message in (Message(*row) for row in rows):
        end = expires_at_ms(message, rules)
        if end is not None and now_ms < end <= now_ms + HOUR_MS:
            connection.execute(
                "UPDATE device_publish_msg SET time = time - %s WHERE client_id = %s AND serial_number = %s",
                (HOUR_MS, message.client_id, message.serial_number),
            )
