"""Sessions that move from one layout of a Redis to the other: their clients, and the plan of such a migration."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

from queuekeeper import redis_async
from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import Cohort, client_slot, is_client_id, literally
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.ledger.progress import warn
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.planning import Target, judged
from queuekeeper.postgres import connect
from queuekeeper.redis_client import RedisClient, nodes
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_names import Names
from queuekeeper.schema_migrations import migrate
from queuekeeper.sessions.model import StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import empty_snapshot

_ENDINGS = {Layout.TBMQ: ("_messages", "_last_packet_id", "_session"), Layout.PACKED: ("_packed",)}
"""How the keys end that a session has one of at least."""

_AT_ONCE = 16
"""Sessions that a plan reads at the same time."""

_SESSION_BYTES = {Layout.TBMQ: 300, Layout.PACKED: 950}
_MESSAGE_BYTES = {Layout.TBMQ: 400, Layout.PACKED: 110}
"""Memory of a session without messages, and of a message beside its content, on the server that takes more."""


def clients_in_redis(client: RedisClient, *, prefix: str, layout: Layout) -> Iterator[str]:
    """Yield the ids of the clients that have keys of a layout, page by page; an id may come several times.

    Keys whose id no MQTT client can have are left out: no store serves them.
    """
    begins = f"{prefix}{{".encode()
    for ending in _ENDINGS[layout]:
        end = f"}}{ending}".encode()
        for page in Names(client, literally(prefix) + "{*}" + ending).all_pages():
            for name in page.names:
                if name.startswith(begins) and name.endswith(end) and len(name) > len(begins) + len(end):
                    client_id = name[len(begins) : -len(end)].decode("utf-8", "surrogateescape")
                    if is_client_id(client_id):
                        yield client_id


def clients_to_move(client: RedisClient, plan: MigrationPlan, cohorts: Sequence[int]) -> Iterator[str]:
    """Yield the ids of the source's clients in some cohorts; an id may come several times."""
    firsts = [cohort.slot_first for cohort in plan.cohorts]
    chosen, wanted = set(cohorts), plan.parameters
    for client_id in clients_in_redis(client, prefix=wanted.key_prefix, layout=Layout(wanted.from_store.value)):
        if bisect_right(firsts, client_slot(client_id)) - 1 in chosen:
            yield client_id


@dataclass(kw_only=True)
class _Counts:
    """Counts of one cohort in the making; the names are those of :class:`CohortPlan`."""

    sessions: int = 0
    clients: int = 0
    messages: int = 0
    payload_bytes: int = 0
    to_copy: int = 0
    quarantined: int = 0
    forecast_bytes: int = 0
    longest_queue: int = 0


def plan_inside_redis(
    *, postgres_url: str, redis_url: str, parameters: MigrationParameters, run_id: str | None
) -> MigrationPlan:
    """Read every session of the source once, count what would move, and put the plan on record.

    Records that nobody can read count as quarantined. What has expired is not counted.

    :param run_id: name of this request, by which a later step finds the plan.
    :raises RefusedError: when Redis is not fit, or the plan breaks a limit; that leaves a refused plan on record.
    :raises UsageError: when a cohort does not exist.
    """
    with connect_redis(redis_url) as client, connect(postgres_url, autocommit=True) as connection:
        preflight.check_target(client)
        migrate(connection)
        target = Target.of(client, parameters)
        counts = asyncio.run(_count(client, redis_url, parameters, target.cohorts))
        planned = (
            CohortPlan(
                **asdict(cohort),
                **asdict(counted),
                quarantined_by_reason={"record_unreadable": counted.quarantined} if counted.quarantined else {},
            )
            for cohort, counted in zip(target.cohorts, counts, strict=True)
        )
        plan = target.plan(planned, source_fingerprint=_fingerprint(client, parameters), as_of_ms=target.now_ms)
        stored = MigrationLedger(connection).save_plan(judged(plan, client), run_id=run_id)
        if stored.state is PlanState.REFUSED:
            raise RefusedError(stored.state_reason)
        warn(OnlineCohorts(connection).hindrances(stored))
        return stored


def _fingerprint(client: RedisClient, parameters: MigrationParameters) -> str:
    """Return what names the source: devices are connected, so that its content changes all the time."""
    servers = " ".join(sorted(address for address, _ in nodes(client)))
    return f"redis/{servers}/{parameters.key_prefix}{{*}}/{parameters.from_store.value}"


async def _count(
    client: RedisClient, redis_url: str, parameters: MigrationParameters, cohorts: Sequence[Cohort]
) -> list[_Counts]:
    firsts = [cohort.slot_first for cohort in cohorts]
    counts = [_Counts() for _ in cohorts]
    source, target = Layout(parameters.from_store.value), parameters.layout
    rules = StoreRules(limit=parameters.limit, default_ttl_s=parameters.default_ttl_s)
    names = clients_in_redis(client, prefix=parameters.key_prefix, layout=source)
    seen: set[str] = set()

    async def one(store: AsyncRedisSessionStore, client_id: str) -> None:
        found, unreadable = await store.read_copy(client_id)
        if not unreadable and found == empty_snapshot(client_id):
            return  # only a note of who owns the session, or its keys have expired
        counted = counts[bisect_right(firsts, client_slot(client_id)) - 1]
        messages = len(found.messages) + len(unreadable)
        counted.sessions += 1
        counted.clients += messages > 0
        counted.messages += messages
        counted.payload_bytes += sum(len(message.payload) for message in found.messages)
        counted.to_copy += len(found.messages)
        counted.quarantined += len(unreadable)
        counted.forecast_bytes += _SESSION_BYTES[target] + sum(_bytes(target, each) for each in found.messages)
        counted.longest_queue = max(counted.longest_queue, messages)

    async with await redis_async.connect(redis_url) as caller:
        store = AsyncRedisSessionStore(caller, parameters.key_prefix, rules, layout=source)
        while some := await asyncio.to_thread(lambda: list(islice(names, _AT_ONCE))):
            new = dict.fromkeys(client_id for client_id in some if client_id not in seen)
            seen.update(new)
            await asyncio.gather(*(one(store, client_id) for client_id in new))
    return counts


def _bytes(layout: Layout, message: PendingMessage) -> int:
    """Return the memory of a message; TBMQ's layout has payloads in base64."""
    payload_bytes = len(message.payload)
    content = payload_bytes if layout is Layout.PACKED else 4 * -(-payload_bytes // 3)
    return _MESSAGE_BYTES[layout] + content + len(message.topic)
