"""Every session store behind one face, so that one test serves all: the reference, Redis and PostgreSQL, both ways."""

from __future__ import annotations

import asyncio
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from queuekeeper import assets, postgres, redis_client, schema_migrations
from queuekeeper.errors import ServerUnavailable
from queuekeeper.keyspace import packed_keys, payload_key, session_keys
from queuekeeper.redis_async import connect as connect_async
from queuekeeper.sessions.model import MAX_BATCH, OWNER_OF, Owner, StoreRules
from queuekeeper.sessions.owners import OwnerStore
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.parts import MESSAGES_PER_SAVE
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore, PostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.router import AsyncSessionRouter, SessionRouter
from tests.conformance.reference_store import ReferenceStore, Sessions

Store: TypeAlias = Any
"""Has the methods of ``SessionOperations``, each of which returns its result."""

Work: TypeAlias = Callable[[Store], Any]
"""One call of a store's method; of an asyncio store it returns the coroutine."""


class AwaitedStore:
    """An asyncio store whose coroutines are run to their end, so that the same tests serve both."""

    def __init__(self, store: Any, runner: asyncio.Runner) -> None:
        self.store = store
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.store, name)
        return lambda *args, **kwargs: self._runner.run(method(*args, **kwargs))


class AtStep:
    """Does something once, when so many steps were counted."""

    def __init__(self, number: int, act: Callable[[], Any]) -> None:
        self._number = number
        self._act = act
        self._steps = 0

    def count(self) -> None:
        """Count a step."""
        self._steps += 1
        if self._steps == self._number:
            self._act()

    def was_reached(self) -> bool:
        """Return whether there were so many steps."""
        return self._steps >= self._number


class World(ABC):
    """One kind of store and the server behind it.

    :cvar ways_to_spoil: what can be done to a record so that nobody can read it.
    :cvar keeps_subscription_ids: whether there is a place for them.
    :cvar messages_per_save: most messages of one save.
    """

    ways_to_spoil: tuple[str, ...]
    keeps_subscription_ids = True
    messages_per_save = MAX_BATCH

    @abstractmethod
    def store(self, **rules: Any) -> Store:
        """Return another store object for the same data, with a connection of its own."""

    @abstractmethod
    def erase(self) -> None:
        """Forget all sessions, and close what :meth:`store` has opened."""

    @abstractmethod
    def refuse(self, client_id: str) -> None:
        """Make every save for a client fail, and for it alone."""

    @abstractmethod
    def spoil(self, client_id: str, packet_id: int, serial: int, way: str) -> None:
        """Make a record unreadable."""

    def now_ms(self) -> int:
        """Return the time by which lives are judged."""
        return time.time_ns() // 1_000_000

    def wait_until(self, instant_ms: int) -> None:
        """Return when an instant has passed."""
        while (left_ms := instant_ms + 2 - self.now_ms()) > 0:
            time.sleep(left_ms / 1000)

    def close(self) -> None:
        """End for good."""
        self.erase()


class ReferenceWorld(World):
    """The reference, whose time stands until it is moved."""

    ways_to_spoil = ("spoiled",)

    def __init__(self) -> None:
        self._now_ms = 1_800_000_000_000
        self.sessions = Sessions(self.now_ms)

    def store(self, **rules: Any) -> Store:
        return ReferenceStore(self.sessions, StoreRules(**rules))

    def erase(self) -> None:
        self.sessions.by_client_id.clear()
        self.sessions.refused.clear()

    def refuse(self, client_id: str) -> None:
        self.sessions.refused.add(client_id)

    def spoil(self, client_id: str, packet_id: int, serial: int, way: str) -> None:
        self.sessions.get(client_id).unreadable.add(serial)

    def now_ms(self) -> int:
        return self._now_ms

    def wait_until(self, instant_ms: int) -> None:
        self._now_ms = max(self._now_ms, instant_ms)


class ServerWorld(World):
    """Stores on a real server.

    :param awaited: whether the stores are the asyncio ones.
    """

    def __init__(self, url: str, *, awaited: bool) -> None:
        self.url = url
        self._runner = asyncio.Runner() if awaited else None
        self._opened = ExitStack()
        self._opened_async = AsyncExitStack()

    @abstractmethod
    def blocking_store(self, rules: StoreRules, opened: ExitStack) -> Store: ...

    @abstractmethod
    async def asyncio_store(self, rules: StoreRules, opened: AsyncExitStack) -> Store: ...

    def store(self, **rules: Any) -> Store:
        if self._runner is None:
            return self.neighbour(**rules)
        return AwaitedStore(self._runner.run(self.asyncio_store(StoreRules(**rules), self._opened_async)), self._runner)

    def neighbour(self, **rules: Any) -> Store:
        """Return a blocking store, which can be called in the midst of another store's operation."""
        return self.blocking_store(StoreRules(**rules), self._opened)

    def erase(self) -> None:
        if self._runner is not None:
            self._runner.run(self._opened_async.aclose())
        self._opened.close()

    def close(self) -> None:
        super().close()
        if self._runner is not None:
            self._runner.close()

    def at_once(self, plans: Sequence[Sequence[Work]], **rules: Any) -> list[list[Any]]:
        """Carry out several plans at the same time.

        :param plans: each a sequence of calls, done in order; threads with a connection each, or tasks that share a
            store.
        :returns: results of each plan.
        """
        if self._runner is not None:
            return self._runner.run(self._at_once(plans, self.store(**rules).store))
        stores = [self.store(**rules) for _ in plans]
        with ThreadPoolExecutor(len(plans)) as pool:
            return list(pool.map(lambda plan, store: [work(store) for work in plan], plans, stores))

    @staticmethod
    async def _at_once(plans: Sequence[Sequence[Work]], store: Store) -> list[list[Any]]:
        async def carry_out(plan: Sequence[Work]) -> list[Any]:
            return [await work(store) for work in plan]

        return list(await asyncio.gather(*map(carry_out, plans)))

    @contextmanager
    def after_step(self, store: Store, number: int, act: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """Do something once when the server has answered a step, before the store sees the answer.

        :param number: of the step, counted from 1 within the block.
        :param act: may raise, and then the answer is lost.
        :returns: function that says whether it was done.
        """
        target = store.store if isinstance(store, AwaitedStore) else store
        original = target.answer
        at_step = AtStep(number, act)

        def answer(step: Any) -> Any:
            reply = original(step)
            at_step.count()
            return reply

        async def answer_async(step: Any) -> Any:
            reply = await original(step)
            at_step.count()
            return reply

        target.answer = answer if self._runner is None else answer_async
        yield at_step.was_reached
        target.answer = original


class RedisWorld(ServerWorld):
    """A single server or a cluster."""

    ways_to_spoil = ("no JSON", "no object", "no fields", "no base64", "wrong type")
    own_keys = (3, 2)
    """Keys of a session besides payload keys: with messages, and without."""

    def __init__(self, url: str, *, awaited: bool) -> None:
        super().__init__(url, awaited=awaited)
        self.client: Any = redis_client.connect(url)

    def blocking_store(self, rules: StoreRules, opened: ExitStack) -> Store:
        client = opened.enter_context(redis_client.connect(self.url))
        return RedisSessionStore(client, rules=rules)

    async def asyncio_store(self, rules: StoreRules, opened: AsyncExitStack) -> Store:
        client = await opened.enter_async_context(await connect_async(self.url))
        return AsyncRedisSessionStore(client, rules=rules)

    def erase(self) -> None:
        super().erase()
        for _, node in redis_client.nodes(self.client):
            node.flushall()

    def close(self) -> None:
        super().close()
        self.client.close()

    def refuse(self, client_id: str) -> None:
        self.client.hset(session_keys(client_id).session, "owner", "postgres")

    def expire(self, client_id: str, packet_id: int, serial: int) -> None:
        """End a life, as time would."""
        self.client.delete(payload_key(client_id, packet_id))
        self.client.hdel(session_keys(client_id).session, "earliest_expiry_ms")

    def spoil(self, client_id: str, packet_id: int, serial: int, way: str) -> None:
        key = payload_key(client_id, packet_id)
        if way == "wrong type":
            self.client.delete(key)
            self.client.rpush(key, "x")
            return
        text = {
            "no JSON": b"\xff{",
            "no object": b"[]",
            "no fields": b'{"packetType":"PUBLISH"}',
            "no base64": self.client.get(key).replace(b'"payload":"', b'"payload":"?'),
        }[way]
        self.client.set(key, text, keepttl=True)


class PackedWorld(RedisWorld):
    """A single server or a cluster with the packed layout."""

    ways_to_spoil = ("empty", "cut off", "no kind", "no text", "no properties")
    own_keys = (1, 1)

    def blocking_store(self, rules: StoreRules, opened: ExitStack) -> Store:
        client = opened.enter_context(redis_client.connect(self.url))
        return RedisSessionStore(client, rules=rules, layout=Layout.PACKED)

    async def asyncio_store(self, rules: StoreRules, opened: AsyncExitStack) -> Store:
        client = await opened.enter_async_context(await connect_async(self.url))
        return AsyncRedisSessionStore(client, rules=rules, layout=Layout.PACKED)

    def refuse(self, client_id: str) -> None:
        self.client.hset(packed_keys(client_id).session, "owner", "postgres")

    def spoil(self, client_id: str, packet_id: int, serial: int, way: str) -> None:
        key = packed_keys(client_id).session
        record = self.client.hget(key, serial)
        text = {
            "empty": b"",
            "cut off": record[:20],
            "no kind": record[:10] + b"\x07" + record[11:],
            "no text": record[:30] + b"\xff" + record[31:],
            "no properties": record[:11] + struct.pack(">I", len(record) - 15) + record[15:],
        }[way]
        self.client.hset(key, serial, text)

    def expire(self, client_id: str, packet_id: int, serial: int) -> None:
        key = packed_keys(client_id).session
        record, state = self.client.hmget(key, serial, "s")
        self.client.hset(key, serial, record[:2] + struct.pack(">d", 1) + record[10:])
        # Earliest expiry.
        self.client.hset(key, "s", state[:40] + struct.pack(">d", 1) + state[48:])


class PostgresWorld(ServerWorld):
    """A database with the tables of TBMQ 1.x."""

    ways_to_spoil = ("properties", "packet type")
    keeps_subscription_ids = False

    def __init__(self, url: str, *, awaited: bool) -> None:
        super().__init__(url, awaited=awaited)
        self.connection = postgres.connect(url, autocommit=True)
        self.connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        schema_migrations.migrate(self.connection)
        self._fenced = False

    def blocking_store(self, rules: StoreRules, opened: ExitStack) -> Store:
        connection = opened.enter_context(postgres.connect(self.url, autocommit=True))
        return PostgresSessionStore(connection, rules=rules)

    async def asyncio_store(self, rules: StoreRules, opened: AsyncExitStack) -> Store:
        connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        await opened.enter_async_context(connection)
        return AsyncPostgresSessionStore(connection, rules=rules)

    def erase(self) -> None:
        super().erase()
        self.connection.execute("TRUNCATE device_session_ctx, device_publish_msg")
        if self._fenced:
            self.connection.execute("DROP TRIGGER refuse ON device_publish_msg")
            self._fenced = False

    def close(self) -> None:
        super().close()
        self.connection.close()

    def refuse(self, client_id: str) -> None:
        self.connection.execute(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'the session has moved to Redis'; END $$"
        )
        trigger = "CREATE TRIGGER refuse BEFORE INSERT ON device_publish_msg FOR EACH ROW WHEN (NEW.client_id = {})"
        self.connection.execute(sql.SQL(trigger + " EXECUTE FUNCTION refuse()").format(sql.Literal(client_id)))
        self._fenced = True

    def spoil(self, client_id: str, packet_id: int, serial: int, way: str) -> None:
        column, value = {"properties": ("user_properties", "{"), "packet type": ("packet_type", "SUBSCRIBE")}[way]
        update = sql.SQL("UPDATE device_publish_msg SET {} = %s WHERE client_id = %s AND serial_number = %s")
        self.connection.execute(update.format(sql.Identifier(column)), (value, client_id, serial))


DRIVER_LEASE_MS = 900_000
"""A driver of tests moves a session in a moment; a busy machine may hold it up for longer than its lease."""


class RouterWorld(ServerWorld):
    """Routers over both stores, while sessions may move.

    :param owner: of clients that come for the first time; sessions in Redis have a mirror in PostgreSQL.
    :param patience_s: how long a router waits for a session that is being moved.
    :param layout: of the sessions in Redis.
    """

    keeps_subscription_ids = False
    messages_per_save = MESSAGES_PER_SAVE

    def __init__(
        self,
        redis_url: str,
        postgres_url: str,
        *,
        owner: str,
        awaited: bool,
        patience_s: float = 0.5,
        layout: Layout = Layout.TBMQ,
    ) -> None:
        super().__init__(redis_url, awaited=awaited)
        self.postgres_url = postgres_url
        self._layout = layout
        self.redis = (PackedWorld if layout is Layout.PACKED else RedisWorld)(redis_url, awaited=False)
        self.postgres = PostgresWorld(postgres_url, awaited=False)
        self.connection = self.postgres.connection
        self.client = self.redis.client
        # What a driver works with.
        self.owners: Any = OwnerStore(self.connection)
        self.at_postgres: Any = PostgresSessionStore(self.connection)
        self.at_redis: Any = RedisSessionStore(self.client, layout=layout)
        self.ways_to_spoil = (self.redis if owner == "redis" else self.postgres).ways_to_spoil
        self._owner = owner
        self._patience_s = patience_s
        self.connection.execute(
            "INSERT INTO queuekeeper.plans"
            " (plan_id, parameters, source_fingerprint, code_version, as_of_ms, chosen, state)"
            " VALUES ('plan', '{}', '', '', 0, '{}', 'planned')"
        )
        self.connection.execute(
            "INSERT INTO queuekeeper.online_cohorts (plan_id, cohort, slot_first, slot_last, state, default_owner)"
            " VALUES ('plan', 0, 0, 16383, 'on_redis', %s)",
            ("postgres" if owner == "postgres" else OWNER_OF[layout],),
        )
        if owner == "redis":
            # What moves has a mirror; so have those here that have never moved.
            self.connection.execute("ALTER TABLE queuekeeper.session_owners ALTER COLUMN mirrored SET DEFAULT TRUE")

    def blocking_store(self, rules: StoreRules, opened: ExitStack) -> Store:
        client = opened.enter_context(redis_client.connect(self.url))
        router = SessionRouter(client, self.postgres_url, rules=rules, patience_s=self._patience_s)
        return opened.enter_context(router)

    async def asyncio_store(self, rules: StoreRules, opened: AsyncExitStack) -> Store:
        client = await opened.enter_async_context(await connect_async(self.url))
        router = AsyncSessionRouter(client, self.postgres_url, rules=rules, patience_s=self._patience_s)
        return await opened.enter_async_context(router)

    def erase(self) -> None:
        super().erase()
        self.redis.erase()
        self.postgres.erase()
        self.connection.execute("TRUNCATE queuekeeper.session_owners")

    def close(self) -> None:
        super().close()
        self.redis.close()
        self.postgres.close()

    def refuse(self, client_id: str) -> None:
        if self._owner == "postgres":
            self.postgres.refuse(client_id)
        else:
            # As Redis has it from nobody, so that no router can help.
            fields = dict.fromkeys(("epoch", "mirror"), str(2**53 - 1)) | {"owner": "redis"}
            self.client.hset(self.own_key(client_id), mapping=fields)

    def own_key(self, client_id: str) -> str:
        """Return the key that holds a session's own fields in Redis."""
        keys = packed_keys if self._layout is Layout.PACKED else session_keys
        return keys(client_id).session

    def move(self, client_id: str, to: Owner, *, tells: bool = True) -> bool:
        """Give a session to a store as a driver does.

        :param tells: whether it lives long enough to tell Redis at the end.
        :returns: whether it could: a writer in progress keeps its session.
        """
        in_redis = OWNER_OF[self._layout]
        source: Owner = "postgres" if to == "redis" else in_redis
        fenced = self.owners.fence(client_id, driver=1, lease_ms=DRIVER_LEASE_MS, owner=source, patience_ms=100)
        if fenced is None:
            return False
        if to == "redis":
            # Nobody may have told Redis that the session came back.
            self.at_redis.set_owner(client_id, epoch=fenced.epoch, owner="postgres")
            snapshot = self.at_postgres.read_snapshot(client_id)
            self.at_redis.apply_snapshot(client_id, snapshot, epoch=fenced.epoch, driver=1)
        else:
            self.at_redis.set_owner(client_id, epoch=fenced.epoch, owner="fenced")
            snapshot = self.at_redis.read_snapshot(client_id)
            self.at_postgres.apply_snapshot(client_id, snapshot, epoch=fenced.epoch, driver=1)
        owner = in_redis if to == "redis" else to
        moved = self.owners.flip(client_id, driver=1, epoch=fenced.epoch, to=owner, mirrored=to == "redis")
        assert moved is not None
        if tells:
            self.at_redis.set_owner(client_id, epoch=moved.epoch, owner=to, mirrored=moved.mirrored)
        return True

    def spoil(self, client_id: str, packet_id: int, serial: int, way: str) -> None:
        (self.redis if self._owner == "redis" else self.postgres).spoil(client_id, packet_id, serial, way)


def lose_answer() -> None:
    """Behave as a connection that breaks when the server has done the work."""
    raise ServerUnavailable("the connection broke before the answer came")
