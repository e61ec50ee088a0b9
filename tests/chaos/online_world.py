"""Servers, brokers and drivers of a migration under load, and what kills them; judging the outcome is others' work."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from queuekeeper import assets, postgres, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.errors import QueuekeeperError, ServerUnavailable
from queuekeeper.keyspace import client_slot, cohorts
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState, code_version
from queuekeeper.migration.ledger.parameters import MigrationParameters, Mode, Source
from queuekeeper.migration.online import mover as moving
from queuekeeper.migration.online.brake import Limits
from queuekeeper.migration.online.cohorts import OnlineCohorts, OwnerCounts
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.model import OWNER_OF
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import SessionSnapshot, differences
from tests.chaos.online_checker import Balance, settle
from tests.chaos.online_load import BrokerSettings, Child, run_broker
from tests.chaos.trace_recorder import read_journal, record_driver
from tests.patience import PATIENCE_S

Step: TypeAlias = Literal[
    "arm", "catch_up", "verify", "rehearse", "cut_over", "mirror", "soak", "roll_back", "commit", "disarm"
]
Victim: TypeAlias = Literal["driver", "broker", "redis", "postgres", "mirror", "rival"]
Side: TypeAlias = Literal["source", "target"]
VICTIMS: tuple[Victim, ...] = ("driver", "driver", "broker", "redis", "postgres", "mirror", "rival")
"""Who may die; a rival kills nobody: it is a second driver that takes the step over from the first."""

PLAN_ID = "0123456789abcdef"
COHORTS = 4
LEASE_MS = 500
LONGEST_LEASE_MS = 60_000
CLIENTS_PER_S = 60
SOAK_MINUTES = 0.01
HOSTILE = ("}brace first", "{}", "in{the}middle", "%percent", "смарт-😀")
_BEHIND: dict[Step, OnlineState] = {
    "cut_over": OnlineState.ON_REDIS,
    "roll_back": OnlineState.COPYING,
    "commit": OnlineState.COMMITTED,
}
"""Where a step leads that is refused when it was done already: its driver may die right behind its last write."""

_TRIES = 100
# A machine that runs tests has no time to answer quickly; the brake has tests of its own.
_LIMITS = Limits(redis_ms=60_000, postgres_ms=60_000)


def prepare(connection: Connection) -> None:
    """Make the tables of TBMQ 1.x, and ours."""
    connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
    schema_migrations.migrate(connection)


def save_plan(
    connection: Connection,
    clients: Sequence[str],
    *,
    count: int = COHORTS,
    from_store: Source = Source.POSTGRES,
    layout: Layout = Layout.TBMQ,
) -> MigrationPlan:
    """Store a plan for all slots, as the job makes it, without its counts of messages."""
    slots = [client_slot(client_id) for client_id in clients]
    planned = tuple(
        CohortPlan(**asdict(each), sessions=sum(each.slot_first <= slot <= each.slot_last for slot in slots))
        for each in cohorts(count=count, shards=[(0, 16_383, "redis")])
    )
    plan = MigrationPlan(
        plan_id=PLAN_ID,
        parameters=MigrationParameters(cohort_count=count, mode=Mode.ONLINE, from_store=from_store, layout=layout),
        source_fingerprint="online",
        code_version=code_version(),
        as_of_ms=system_clock(),
        cohorts=planned,
        chosen=tuple(range(len(planned))),
        state=PlanState.APPROVED,
    )
    return MigrationLedger(connection).save_plan(plan, run_id=None)


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """Where a driver works."""

    postgres_url: str
    redis_url: str
    result: Path
    lease_ms: int = LEASE_MS
    movers: int = 4


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a step.

    :param kind: name of the error; empty when it went well, ``killed`` when nobody can say.
    :param text: what the error says.
    :param report: of the driver, as JSON.
    """

    kind: str
    text: str = ""
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        counts = self.report.get("outcomes", {})
        left = [counts.get(name) for name in ("late", "busy", "differs")]
        return not self.kind and not any((*left, self.report.get("refused")))


def _driver(settings: DriverSettings, **more: Any) -> OnlineDriver:
    record_driver(settings.result.parent)
    return OnlineDriver(
        postgres_url=settings.postgres_url,
        redis_url=settings.redis_url,
        plan_id=PLAN_ID,
        actor="chaos",
        tell=partial(print, flush=True),
        **more,
    )


def drive(step: Step, settings: DriverSettings) -> None:
    """Be the driver of one step; the entry of its process."""
    driver = _driver(settings, count=settings.movers, limits=_LIMITS)
    # Longer ones are refused, since callers would not wait: here they do, and a busy machine needs them.
    driver.lease_ms = settings.lease_ms
    moving.LEASE_MS = max(moving.LEASE_MS, settings.lease_ms)
    steps: dict[str, Any] = {
        "soak": partial(driver.soak, minutes=SOAK_MINUTES),
        # Nobody may have had the time to mirror; how far behind it may be has tests of its own.
        "roll_back": partial(driver.roll_back, max_lag_s=PATIENCE_S),
    }
    work = steps.get(step) or getattr(driver, step)
    try:
        report = work()
        found = {"kind": "", "report": asdict(report) if hasattr(report, "__dataclass_fields__") else {}}
    except QueuekeeperError as error:
        found = {"kind": type(error).__name__, "text": str(error)}
    print(f"{step}: {found}", flush=True)
    partly = settings.result.with_suffix(".part")
    partly.write_text(json.dumps(found, default=str), "utf-8")
    partly.rename(settings.result)


def follow(settings: DriverSettings) -> None:
    """Keep the mirror up to date for ever; the entry of its process."""
    driver = _driver(settings, count=2)
    while True:
        try:
            driver.mirror()
        except ServerUnavailable as error:
            print(f"mirror: {error}", flush=True)
        time.sleep(0.2)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Somebody dies in the midst of a step.

    :param after_s: since the step has begun.
    """

    victim: Victim
    after_s: float


class OnlineWorld:
    """One database, one Redis, two brokers that share all clients, and whatever drives the migration.

    :param seed: of all chance in the load.
    :param from_store: what holds the sessions first.
    :param layout: into which they move in Redis.
    """

    def __init__(
        self,
        *,
        server: PostgresServer,
        database: str,
        redis: RedisServer,
        folder: Path,
        seed: int,
        clients: int = 24,
        batches_per_s: float = 4.0,
        from_store: Source = Source.POSTGRES,
        layout: Layout = Layout.TBMQ,
    ) -> None:
        home = None if from_store is Source.POSTGRES else Layout(from_store)
        self._wanted: dict[str, Any] = {"from_store": from_store, "layout": layout}
        self._layouts: dict[Side, Layout | None] = {"source": home, "target": layout}
        self.from_store = from_store
        self.server = server
        self.redis = redis
        self.folder = folder
        self.story: list[str] = []
        self._lease_ms = LEASE_MS
        self._database = database
        self._dice = random.Random(f"{seed} world")
        self._results = 0
        known = [*HOSTILE, *(f"device-{number}" for number in range(clients - len(HOSTILE)))]
        first, second = known[::2], known[1::2]
        # They come for the first time while the migration is under way.
        late = {f"late-{number}": 1.0 + number * 0.7 for number in range(8)}
        self.brokers = [
            BrokerSettings(
                name=name,
                folder=folder,
                postgres_url=self.postgres_url,
                redis_url=redis.url,
                home=home,
                # A client is connected to one broker, and what is published to it comes in at the other.
                publishes=dict.fromkeys(published, 0.0) | newcomers,
                consumes=tuple(consumed),
                sleepy=frozenset(consumed[::3]),
                cleans=(f"clean-{name}",),
                batches_per_s=batches_per_s,
                blocking=name == "south",
                seed=seed,
            )
            for name, published, consumed, newcomers in (
                ("north", first, [*second, *late], {}),
                ("south", second, first, late),
            )
        ]
        self._running: dict[str, Child] = {}
        self._mirror: Child | None = None

    @property
    def postgres_url(self) -> str:
        """Address of the database."""
        return self.server.database_url(self._database)

    def tell(self, text: str) -> None:
        """Add to the story, which a failed test shows."""
        self.story.append(text)
        print(f"{time.monotonic():.2f} {text}", flush=True)

    # Brokers.

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Have the brokers at work during the block."""
        with ExitStack() as stack:
            for settings in self.brokers:
                self._start(settings)
            stack.callback(self._kill_all)
            self.await_load(0.5)
            with postgres.connect(self.postgres_url, autocommit=True) as connection:
                clients = [*self.brokers[0].consumes, *self.brokers[1].consumes]
                save_plan(connection, clients, **self._wanted)
            yield
            self.await_load(0.3)
            self.stop()

    def stop(self) -> None:
        """End the brokers in good order: each finishes what it has begun."""
        self._end_mirror()
        for child in self._running.values():
            assert child.running, f"a broker has ended by itself:\n{child.text}"
        for child in self._running.values():
            child.end()
        self._running.clear()

    def await_load(self, seconds: float) -> None:
        """Wait, and until every broker has saved something since."""
        begun_s = time.monotonic()
        time.sleep(seconds)
        while not all(self._has_saved(settings, since_s=begun_s) for settings in self.brokers):
            for child in self._running.values():
                assert child.running, f"a broker has ended by itself:\n{child.text}"
            assert time.monotonic() < begun_s + PATIENCE_S, "the load stands still"
            time.sleep(0.05)

    @staticmethod
    def _has_saved(settings: BrokerSettings, *, since_s: float) -> bool:
        if not settings.journal.exists():
            return False
        return any(note["event"] == "saved" and note["at_s"] > since_s for note in read_journal(settings.journal))

    def _start(self, settings: BrokerSettings) -> None:
        self._running[settings.name] = Child(run_broker, settings, said=self.folder / f"{settings.name}.log")

    def _kill_all(self) -> None:
        self._end_mirror()
        for child in self._running.values():
            child.kill()
        self._running.clear()

    # Drivers.

    def complete(self, step: Step, fault: Fault | None = None) -> Outcome:
        """Do a step, have somebody die in its midst, and do it again as its words say, until it is done."""
        outcome = self._run(step, fault)
        for _ in range(_TRIES):
            if outcome.done or (outcome.kind == "RefusedError" and self.states() == {_BEHIND.get(step)}):
                if step in ("arm", "rehearse"):
                    self._throttle()
                return outcome
            # A way back compares each client by itself, and is simply begun again.
            if "erif" in outcome.text and step not in ("verify", "catch_up", "roll_back"):
                self.complete("verify")
            elif step == "verify" and outcome.kind == "CheckFailed":
                self._run("mirror" if "target" in self._sides() else "catch_up", None)
            else:
                time.sleep(0.1)
            # A busy machine moves a queue less quickly than the load lets it grow: whoever drives gives it more time.
            if outcome.report.get("outcomes", {}).get("late"):
                self._lease_ms = min(2 * self._lease_ms, LONGEST_LEASE_MS)
            outcome = self._run(step, None)
        raise AssertionError(f"{step} does not come to its end: {outcome}")

    def keep_mirrored(self) -> None:
        """Have a process of its own keep the mirror up to date from now on."""
        if self._mirror is None:
            self._mirror = Child(follow, self._driver_settings(), said=self.folder / "mirror.log")

    def _end_mirror(self) -> None:
        if self._mirror is not None:
            assert self._mirror.running, f"the mirror has ended by itself:\n{self._mirror.text}"
            self._mirror.kill()
            self._mirror = None

    def _driver_settings(self) -> DriverSettings:
        self._results += 1
        return DriverSettings(
            postgres_url=self.postgres_url,
            redis_url=self.redis.url,
            result=self.folder / f"result-{self._results}.json",
            lease_ms=self._lease_ms,
        )

    def _run(self, step: Step, fault: Fault | None) -> Outcome:
        begun_s = time.monotonic()
        settings = self._driver_settings()
        with Child(drive, step, settings, said=self.folder / "drivers.log") as child:
            if fault is None:
                child.wait(PATIENCE_S)
                outcome = _outcome(settings)
            else:
                time.sleep(fault.after_s)
                outcome = self._disturbed(step, fault, settings, child)
        seconds = time.monotonic() - begun_s
        told = "" if fault is None else f" ({fault.victim} after {fault.after_s:.2f} s)"
        self.tell(f"{step}{told}: {outcome.kind or outcome.report} {outcome.text} in {seconds:.2f} s")
        return outcome

    def _disturbed(self, step: Step, fault: Fault, settings: DriverSettings, child: Child) -> Outcome:
        midway = child.running
        match fault.victim:
            case "driver":
                child.kill()
            case "broker":
                chosen = self._dice.choice(self.brokers)
                self._running[chosen.name].kill()
                time.sleep(self._dice.random() / 3)
                self._start(chosen)
            case "redis":
                self.redis.kill()
                self.redis.start()
            case "postgres":
                self.server.kill()
                self.server.start()
            case "mirror":
                if self._mirror is not None:
                    self._mirror.kill()
                    self._mirror = None
                    self.keep_mirrored()
            case "rival":
                return self._rivalled(step, settings, child)
        child.wait(PATIENCE_S)
        self.tell(f"{fault.victim} was hit {'midway' if midway else 'behind the end'}")
        return _outcome(settings)

    def _rivalled(self, step: Step, settings: DriverSettings, child: Child) -> Outcome:
        """Start the step a second time; the older driver has ended before, or stops at its next write."""
        rival = self._driver_settings()
        with Child(drive, step, rival, said=self.folder / "rivals.log") as second:
            second.wait(PATIENCE_S)
            child.wait(PATIENCE_S)
        outcomes = (_outcome(settings), _outcome(rival))
        for number, outcome in enumerate(outcomes, start=1):
            self.tell(f"driver {number} of two: {outcome.kind or 'done'} {outcome.text}")
        # Who has come first is not said: the one that started later may have been quicker.
        return next((outcome for outcome in outcomes if outcome.done), outcomes[1])

    def _throttle(self) -> None:
        with postgres.connect(self.postgres_url, autocommit=True) as connection:
            MigrationLedger(connection).set_throttle(PLAN_ID, CLIENTS_PER_S, actor="chaos")

    # Outcomes.

    def states(self) -> set[OnlineState]:
        """Return the states in which cohorts are."""
        with postgres.connect(self.postgres_url, autocommit=True) as connection:
            return {each.state for each in OnlineCohorts(connection).load(PLAN_ID)}

    def owners(self) -> set[Side]:
        """Return which sides own clients; none may be fenced any more."""
        fenced = [each for each in self._owner_counts() if each.fenced]
        assert not fenced, f"clients are fenced still: {fenced}"
        return self._sides()

    def _sides(self) -> set[Side]:
        counts = self._owner_counts()
        return {
            side
            for side, layout in self._layouts.items()
            if any(each.of("postgres" if layout is None else OWNER_OF[layout]) for each in counts)
        }

    def _owner_counts(self) -> list[OwnerCounts]:
        with postgres.connect(self.postgres_url, autocommit=True) as connection:
            return OnlineCohorts(connection).owner_counts(PLAN_ID)

    def snapshots(self) -> dict[Side, dict[str, SessionSnapshot]]:
        """Return what both sides hold of every client."""
        clients = {each for settings in self.brokers for each in (*settings.publishes, *settings.cleans)}
        client = connect_redis(self.redis.url)
        try:
            with postgres.connect(self.postgres_url, autocommit=True) as connection:
                stores: dict[Side, Any] = {
                    side: PostgresSessionStore(connection)
                    if layout is None
                    else RedisSessionStore(client, layout=layout)
                    for side, layout in self._layouts.items()
                }
                return {
                    side: {each: store.read_snapshot(each) for each in sorted(clients)}
                    for side, store in stores.items()
                }
        finally:
            client.close()

    def balance(self, snapshots: Mapping[str, SessionSnapshot]) -> Balance:
        """Account for every message by what one store holds; an account that does not balance fails."""
        stored: dict[str, Sequence[PendingMessage]] = {each: found.messages for each, found in snapshots.items()}
        found = settle([settings.journal for settings in self.brokers], stored)
        self.tell(str(found))
        assert found.problems == (), "\n".join(
            [*self.story, f"{len(found.problems)} problems:", *found.problems[:20], f"journals: {self.folder}"]
        )
        return found

    def check_equal(self, expected: Mapping[str, SessionSnapshot], found: Mapping[str, SessionSnapshot]) -> None:
        """Compare what two stores hold of all clients."""
        left = [
            str(each)
            for client_id, snapshot in expected.items()
            for each in differences(snapshot, found[client_id], as_of_ms=system_clock())
        ]
        assert left == [], "\n".join([*self.story, *left[:20]])


def _outcome(settings: DriverSettings) -> Outcome:
    if not settings.result.exists():
        return Outcome(kind="killed")
    found = json.loads(settings.result.read_text("utf-8"))
    return Outcome(kind=found["kind"], text=found.get("text", ""), report=found.get("report", {}))
