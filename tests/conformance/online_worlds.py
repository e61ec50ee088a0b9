"""A source, a target and a plan made from the real rows, for migrations while devices are connected; without Spark."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import lua_sessions
import psycopg
import pytest
from psycopg import sql

from queuekeeper import keyspace, postgres, redis_async, redis_client, schema_migrations, sql_statements
from queuekeeper.errors import ServerUnavailable
from queuekeeper.keyspace import client_slot, cohorts, packed_keys, payload_key, session_keys
from queuekeeper.lua import ScriptCaller, scripts
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, code_version
from queuekeeper.migration.ledger.parameters import BadRows, MigrationParameters, Mode
from queuekeeper.migration.online import driver as leading
from queuekeeper.migration.online import mover as moving
from queuekeeper.migration.online.brake import Limits
from queuekeeper.migration.online.cohorts import OnlineCohort, OnlineCohorts
from queuekeeper.migration.online.crew import Crew
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.online.mover import SessionMover
from queuekeeper.migration.online.reports import StepReport
from queuekeeper.migration.online.sides import PostgresSide, RedisSide
from queuekeeper.sessions import packed_record, sample
from queuekeeper.sessions.model import OWNER_OF, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.owners import Ownership, OwnerStore
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore, PostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.router import SessionRouter
from queuekeeper.sessions.sample_parameters import SampleParameters
from queuekeeper.sessions.wire import stored_json
from tests.patience import PATIENCE_S
from tests.property.migration_rules import Decision, Message, Rules, Session, decide

T = TypeVar("T")

PLAN_ID = "0123456789abcdef"
DEFAULT_TTL_S = 604_800
UNHURRIED = Limits(redis_ms=60_000, postgres_ms=60_000)
"""A machine that runs tests has no time to answer quickly."""
LEASE_MS = round(1_000 * PATIENCE_S)
"""Fence and transaction of a mover that no test waits to see ended: neither ends because the machine is busy."""


def unhurried_fences(patch: pytest.MonkeyPatch) -> None:
    """Let no fence of this process's drivers end because the machine is busy; what they tell of their lease stays."""
    patch.setattr(moving, "LEASE_MS", LEASE_MS)
    patch.setattr(leading, "Crew", lambda **options: Crew(**(options | {"lease_ms": LEASE_MS})))


def message(text: bytes = b"x", **fields: Any) -> NewMessage:
    """Return a message that lives for a week."""
    values: dict[str, Any] = {"topic": "plant/7", "payload": text, "qos": 1, "time_ms": time.time_ns() // 1_000_000}
    return NewMessage(**(values | fields))


@dataclass(frozen=True, kw_only=True)
class Client:
    """One client's rows, and what the rules of a migration make of them."""

    messages: tuple[Message, ...]
    decision: Decision

    @property
    def moved(self) -> list[Message]:
        """The rows that have to be in both stores, in the order of their serials."""
        return [each for each in self.messages if self._fate(each) == "copied"]

    @property
    def bad(self) -> dict[int, str]:
        """Why rows are not delivered, by serial."""
        found = {each.serial_number: self._fate(each) for each in self.messages}
        return {serial: why for serial, why in found.items() if why not in ("copied", "expired")}

    def _fate(self, row: Message) -> str:
        outcome = self.decision.messages[row.serial_number]
        return outcome.reason or outcome.fate


def until_none_is_late(step: Callable[[], StepReport]) -> StepReport:
    """Carry out a step, again where a busy machine was late with a client, as users do, and return its last report."""
    ends_s = time.monotonic() + PATIENCE_S
    report = step()
    while "late" in report.left and time.monotonic() < ends_s:
        report = step()
    return report


def mirrored(driver: OnlineDriver) -> int:
    """Mirror, again where PostgreSQL has ended the transaction of a driver that a busy machine held up.

    :returns: how many clients' changes were written.
    """
    ends_s = time.monotonic() + PATIENCE_S
    report = driver.mirror()
    written = report.written
    while report.refused and time.monotonic() < ends_s:
        report = driver.mirror()
        written += report.written
    return written


class OnlineWorld:
    """The vendor's tables, a Redis, a plan, and whoever works on them; close it at the end.

    :param prefix: put before every key in Redis.
    :param limit: most messages of a session.
    :param layout: of the sessions in Redis.
    """

    def __init__(
        self,
        postgres_url: str,
        redis_url: str,
        *,
        prefix: str = "",
        limit: int = 500,
        layout: Layout = Layout.TBMQ,
    ) -> None:
        self.postgres_url = postgres_url
        self.redis_url = redis_url
        self.told: list[str] = []
        self.plan_id = PLAN_ID
        self.layout = layout
        self.target = OWNER_OF[layout]
        self._prefix = prefix
        self._opened = ExitStack()
        self.connection = self._opened.enter_context(postgres.connect(postgres_url, autocommit=True))
        # Its methods answer as those of a single server and as those of a cluster.
        self.client: Any = redis_client.connect(redis_url)
        self._opened.callback(self.client.close)
        self.connection.execute(sql_statements.statement("sessions/vendor_schema"))
        schema_migrations.migrate(self.connection)
        self.online = OnlineCohorts(self.connection)
        self.owners = OwnerStore(self.connection)
        self.ledger = MigrationLedger(self.connection)
        self.rules = StoreRules(limit=limit, default_ttl_s=DEFAULT_TTL_S)
        self.at_postgres = PostgresSessionStore(self.connection, rules=self.rules)
        self.at_redis = RedisSessionStore(self.client, prefix, self.rules, layout=layout)

    def close(self) -> None:
        """End all connections."""
        self._opened.close()

    # --- rows --------------------------------------------------------------------------------------------------

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        cursor = self.connection.execute(text.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def take_no_messages(self) -> None:
        """Have PostgreSQL take no message of anybody, until :meth:`take_messages`."""
        self.sql(
            "CREATE FUNCTION take_no_messages() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE 'closed' USING ERRCODE = 'read_only_sql_transaction'; END$$"
        )
        self.sql(
            "CREATE TRIGGER take_no_messages BEFORE INSERT ON device_publish_msg "
            "FOR EACH ROW EXECUTE FUNCTION take_no_messages()"
        )

    def take_messages(self) -> None:
        """Have PostgreSQL take messages again."""
        self.sql("DROP FUNCTION take_no_messages() CASCADE")

    def leave_behind(self, client_id: str, body: bytes) -> None:
        """Save a message in Redis that PostgreSQL does not have, and return when the mirror is behind by a time."""
        self.at_redis.save_messages([SessionSave(client_id=client_id, messages=(message(body),))])
        while not self.driver().mirror(dry_run=True).lag_s:
            pass

    def fill(self, *, messages: int = 300, sessions: int = 40, hostile: bool = False) -> None:
        """Fill the tables with a sample."""
        parameters = SampleParameters(
            messages=messages, sessions=sessions, now_ms=time.time_ns() // 1_000_000, long_queues=0, hostile=hostile
        )
        sample.fill(self.connection, parameters)

    def long_queue(self, client_id: str, count: int) -> None:
        """Give a client a queue of some length."""
        self.sql(
            "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
            " payload) SELECT %s, n, 't', %s, n + 1, 'PUBLISH', 1, decode(repeat('ab', 100), 'hex')"
            " FROM generate_series(0, %s - 1) AS n",
            client_id,
            time.time_ns() // 1_000_000,
            count,
        )
        self.sql("INSERT INTO device_session_ctx VALUES (%s, 0, %s, %s)", client_id, count - 1, count)
        self.sql("ANALYZE device_publish_msg, device_session_ctx")

    def rows(self) -> dict[tuple[str, int], tuple[Any, ...]]:
        """Return the rows of all messages by client id and serial."""
        names = sql.SQL(", ").join(map(sql.Identifier, Message._fields))
        query = sql.SQL("SELECT {} FROM device_publish_msg").format(names)
        return {row[:2]: row for row in self.connection.execute(query)}

    def clients(self) -> dict[str, Client]:
        """Return what the rules of a migration make of the rows as they are, without the client that has no id."""
        rules = Rules(limit=self.rules.limit, default_ttl_s=DEFAULT_TTL_S, as_of_ms=time.time_ns() // 1_000_000)
        queues: dict[str, list[Message]] = {}
        for (client_id, _), row in sorted(self.rows().items()):
            queues.setdefault(client_id, []).append(Message(*row))
        known = {
            row[0]: Session(*row)
            for row in self.sql("SELECT client_id, last_serial_number, last_packet_id FROM device_session_ctx")
        }
        return {
            client_id: Client(
                messages=tuple(queues.get(client_id, ())),
                decision=decide(queues.get(client_id, ()), known.get(client_id), rules),
            )
            for client_id in queues.keys() | known.keys()
            if client_id
        }

    def import_session(self, client_id: str, packet_ids: Mapping[int, int], *, counter: int | None) -> None:
        """Put messages into a session in Redis as a plan's copy does.

        :param packet_ids: packet id by serial.
        """
        end_ms = time.time_ns() // 1_000_000 + 3_600_000
        if self.layout is Layout.TBMQ:
            copies = [
                lua_sessions.readable(client_id, packet_id, topicName="plant/7")._replace(
                    serial=serial, expires_at_ms=end_ms
                )
                for serial, packet_id in packet_ids.items()
            ]
            session = lua_sessions.Session(client=self.client, client_id=client_id, plan=PLAN_ID)
            session.import_session(copies, last_packet_id="" if counter is None else counter)
            return
        messages: list[Any] = []
        for serial, packet_id in packet_ids.items():
            messages += (serial, packed_record.record_of(message(b"copied"), packet_id=packet_id, end_ms=end_ms))
        call = scripts.packed.import_session(
            packed_keys(client_id), plan=PLAN_ID, epoch=1, owner="redis", chunk=0, last=1, last_packet_id=counter or 0,
            last_serial="", until_ms="", messages=messages,
        )  # fmt: skip
        ScriptCaller(self.client).call(*call)

    # --- what Redis holds, read without the store ---------------------------------------------------------------

    def in_redis(self, client_id: str) -> dict[int, tuple[int, dict[str, Any], int]]:
        """Return a client's messages by packet id: serial, JSON, end of life."""
        keys = session_keys(client_id, prefix=self._prefix)
        found = {}
        if self.layout is Layout.PACKED:
            for serial, record in sorted(
                (int(name), value)
                for name, value in self.client.hgetall(self.own_key(client_id)).items()
                if name.isdigit()
            ):
                message = packed_record.message_of(record, serial=serial, redelivery=False)
                text = stored_json(
                    message, client_id=client_id, packet_id=message.packet_id, packet_type=message.packet_type
                )
                found[message.packet_id] = (serial, json.loads(text), packed_record.expires_at_ms(record) or 0)
            return found
        for member, score in self.client.zrange(keys.messages, 0, -1, withscores=True):
            text = self.client.get(member)
            if text is not None:
                fields = json.loads(text)
                assert member.decode() == payload_key(client_id, fields["packetId"], prefix=self._prefix)
                found[fields["packetId"]] = (int(score), fields, self.client.pexpiretime(member))
        return found

    def fields(self, client_id: str) -> dict[str, str]:
        """Return the fields of a session's hash."""
        found = self.client.hgetall(self.own_key(client_id))
        # Messages and state of a packed session are bytes.
        return {name.decode(): value.decode("utf-8", "replace") for name, value in found.items()}

    def own_key(self, client_id: str) -> str:
        """Return the key that holds a session's own fields in Redis."""
        keys = packed_keys if self.layout is Layout.PACKED else session_keys
        return keys(client_id, prefix=self._prefix).session

    def last_packet_id(self, client_id: str) -> int | None:
        """Return what Redis has given out last."""
        if self.layout is Layout.PACKED:
            return self.at_redis.get_last_packet_id(client_id)
        found = self.client.get(session_keys(client_id, prefix=self._prefix).last_packet_id)
        return None if found is None else int(found)

    # --- the migration -----------------------------------------------------------------------------------------

    def plan(self, *, count: int = 4, plan_id: str = PLAN_ID, mode: Mode = Mode.ONLINE, **chosen: Any) -> MigrationPlan:
        """Store a plan as the job would make it of the rows that there are."""
        self.plan_id = plan_id
        found = [0] * keyspace.SLOTS
        for client_id in self.clients():
            found[client_slot(client_id)] += 1
        planned = tuple(
            CohortPlan(**asdict(each), sessions=sum(found[each.slot_first : each.slot_last + 1]))
            for each in cohorts(count=count, shards=redis_client.shards(self.client))
        )
        parameters = MigrationParameters(
            cohort_count=count,
            mode=mode,
            limit=self.rules.limit,
            default_ttl_s=DEFAULT_TTL_S,
            key_prefix=self._prefix,
            layout=self.layout,
            **chosen,
        )
        plan = MigrationPlan(
            plan_id=plan_id,
            parameters=parameters,
            source_fingerprint="online",
            code_version=code_version(),
            as_of_ms=time.time_ns() // 1_000_000,
            cohorts=planned,
            chosen=tuple(range(len(planned))),
        )
        return self.ledger.save_plan(plan, run_id=None)

    def driver(self, **options: Any) -> OnlineDriver:
        """Return another driver of the plan."""
        wanted: dict[str, Any] = {"plan_id": self.plan_id, "count": 4, "limits": UNHURRIED, "tell": self.told.append}
        return OnlineDriver(
            postgres_url=self.postgres_url, redis_url=self.redis_url, actor="test", **(wanted | options)
        )

    def states(self) -> set[str]:
        """Return the states in which cohorts are."""
        return {str(each.state) for each in self.online.load(self.plan_id)}

    def cohort(self, number: int = 0) -> OnlineCohort:
        """Return where a cohort stands."""
        (found,) = self.online.load(self.plan_id, [number])
        return found

    def owner(self, client_id: str) -> Ownership:
        """Return who owns a client."""
        return self.owners.look_up([client_id])[client_id]

    def all_owners(self) -> set[str]:
        """Return who owns clients."""
        return {owner for (owner,) in self.sql("SELECT DISTINCT owner FROM queuekeeper.session_owners")}

    def to_redis(self, driver: OnlineDriver | None = None) -> OnlineDriver:
        """Give all clients to Redis."""
        driver = driver or self.driver()
        driver.arm()
        driver.catch_up()
        driver.verify()
        assert until_none_is_late(driver.cut_over).left == {}
        return driver

    @contextmanager
    def router(self, **options: Any) -> Iterator[SessionRouter]:
        """Open a router, which asks who owns a session."""
        with SessionRouter(self.client, self.postgres_url, self._prefix, rules=self.rules, **options) as router:
            yield router

    def move(
        self,
        work: Callable[[SessionMover], Awaitable[T]],
        *,
        cohorts: Sequence[int] = (0,),
        lease_ms: int = LEASE_MS,
        store: type[AsyncRedisSessionStore] = AsyncRedisSessionStore,
        driver: int | None = None,
    ) -> T:
        """Have one mover do something, as a driver that has just taken cohorts over, however long it takes.

        :param store: by which it works on Redis.
        :param driver: which has taken them over before.
        """
        number = self.online.take(self.plan_id, cohorts) if driver is None else driver

        async def another() -> SessionMover:
            raise AssertionError("one mover was asked for")

        async def run() -> T:
            async with (
                await redis_async.connect(self.redis_url) as caller,
                await psycopg.AsyncConnection.connect(self.postgres_url, autocommit=True) as connection,
            ):
                mover = SessionMover(
                    connection=connection,
                    source=PostgresSide(
                        store=AsyncPostgresSessionStore(connection, rules=self.rules), bad_rows=BadRows.QUARANTINE
                    ),
                    target=RedisSide(
                        store=store(caller, self._prefix, self.rules, layout=self.layout), layout=self.layout
                    ),
                    driver=number,
                    another=another,
                    lease_ms=lease_ms,
                )
                return await work(mover)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving, "LEASE_MS", LEASE_MS)
            return asyncio.run(run())


class DiesBeforeRedisKnows(AsyncRedisSessionStore):
    """Redis as a driver sees it that dies when a session has another owner and Redis has not been told."""

    epoch = 0

    async def set_owner(self, client_id: str, *, epoch: int, owner: str, mirrored: bool = False) -> bool:
        """Tell of the fence, which comes first, and die before anything else is told."""
        if self.epoch:
            raise ServerUnavailable("the driver has died")
        self.epoch = epoch
        return await super().set_owner(client_id, epoch=epoch, owner=owner, mirrored=mirrored)
