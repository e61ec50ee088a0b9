"""A load on the event broker that keeps books: what was acknowledged as published must reach each group, in order."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psycopg

from queuekeeper.errors import QueuekeeperError
from queuekeeper.postgres import Connection, connect
from tests.patience import PATIENCE_S

GROUPS = {"all": "TRUE", "thirds": "(e.payload ->> 'n')::int % 3 = 0"}
"""Name of a group -> the condition of its subscription."""

_PAUSE_S = 0.005
_UNAVAILABLE = (psycopg.Error, QueuekeeperError)

Number = tuple[int, int]
"""Publisher, and which of its events."""


def subscribe(connection: Connection) -> None:
    """Make the groups and their subscriptions."""
    for group, condition in GROUPS.items():
        connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES (%s)", (group,))
        connection.execute(
            "INSERT INTO pgmb.subscriptions (group_id, conditions_sql) VALUES (%s, %s)", (group, condition)
        )


def wanted(group: str, number: Number) -> bool:
    """Tell whether a group's condition holds."""
    return group == "all" or number[1] % 3 == 0


def publish(connection: Connection, publisher: int, numbers: Sequence[int]) -> None:
    """Publish a batch in one statement."""
    rows = [f'{{"p": {publisher}, "n": {number}}}' for number in numbers]
    connection.execute(
        "SELECT count(*) FROM pgmb.publish(%s::text[], %s::jsonb[], NULL::jsonb[])", (["load"] * len(rows), rows)
    )


def read(connection: Connection, group: str, *, chunk: int) -> tuple[list[Number], str | None]:
    """Read what comes next for a group; answers also the cursor that confirms it."""
    found = connection.execute(
        "SELECT (payload ->> 'p')::int, (payload ->> 'n')::int, next_cursor FROM pgmb.read_next_events(%s, NULL, %s)",
        (group, chunk),
    ).fetchall()
    return [(publisher, number) for publisher, number, _ in found], found[-1][2] if found else None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a load came to.

    :param lost: deliveries of acknowledged events that never came: group and event.
    :param early: deliveries that came, for the first time, after a later one of the same publisher.
    :param strangers: deliveries of what nobody published, or that the group's condition excludes.
    :param repeated: deliveries beyond the first, which at-least-once allows.
    """

    acknowledged: int
    unknown: int
    delivered: int
    repeated: int
    failures: int
    lost: list[tuple[str, Number]]
    early: list[tuple[str, Number]]
    strangers: list[tuple[str, Number]]

    def check(self) -> None:
        """Print the figures, and fail when a promise was broken."""
        print(
            f"{self.acknowledged} acknowledged, {self.unknown} without an answer, {self.delivered} deliveries, "
            f"{self.repeated} repeated, {self.failures} calls failed"
        )
        assert (self.lost, self.early, self.strangers) == ([], [], [])
        assert self.acknowledged > 0


@dataclass(kw_only=True)
class Load:
    """Publishers, two dispatchers, two readers per group and, if wanted, maintenance, each in a thread of its own.

    :param maintains: whether partitions are maintained all the while.
    """

    url: str
    dice: random.Random
    publishers: int = 3
    maintains: bool = False
    acknowledged: list[Number] = field(default_factory=list)
    unknown: set[Number] = field(default_factory=set)
    deliveries: dict[str, list[Number]] = field(default_factory=lambda: defaultdict(list))
    done: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    failures: int = 0
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._publishing = threading.Event()
        self._working = threading.Event()
        self._resting: set[int] = set()
        self._books = threading.Lock()
        # What has begun before may be repeated; a reader's connection that broke may still hold the group for a moment.
        self._threads: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Work until the block ends, then let everything that waits be delivered."""
        self._publishing.set()
        self._working.set()
        works: list[Callable[[random.Random], None]] = [
            *(self._publisher(number) for number in range(self.publishers)),
            *(self._reader(group) for group in GROUPS for _ in range(2)),
            *(self._repeat("poll", self._poll) for _ in range(2)),
            *([self._repeat("maintain", self._maintain)] if self.maintains else []),
        ]
        self._threads = [
            threading.Thread(target=self._watched, args=(work, random.Random(self.dice.random())), daemon=True)
            for work in works
        ]
        for thread in self._threads:
            thread.start()
        try:
            yield
            self._publishing.clear()
            self._settle()
        finally:
            self._publishing.clear()
            self._working.clear()
            for thread in self._threads:
                thread.join(PATIENCE_S)
        if self.errors:
            raise self.errors[0]

    def proceeds(self, *, by: int = 20) -> None:
        """Wait until every kind of work was done so many times more."""
        kinds = ["publish", "poll", *(f"read {group}" for group in GROUPS), *(["maintain"] if self.maintains else [])]
        before = {kind: self.done[kind] for kind in kinds}
        needed = {kind: 2 if kind == "maintain" else by for kind in kinds}
        self._wait(lambda: all(self.done[kind] >= before[kind] + needed[kind] for kind in kinds), what="progress")

    def outcome(self) -> Outcome:
        """Return what was lost, repeated or out of order."""
        known = set(self.acknowledged) | self.unknown
        lost, early, strangers, repeated = [], [], [], 0
        for group in GROUPS:
            came: set[Number] = set()
            last: dict[int, int] = {}
            for number in self.deliveries[group]:
                if number not in known or not wanted(group, number):
                    strangers.append((group, number))
                if number in came:
                    repeated += 1
                    continue
                came.add(number)
                if number[1] < last.get(number[0], -1):
                    early.append((group, number))
                last[number[0]] = number[1]
            lost += [(group, number) for number in self.acknowledged if wanted(group, number) and number not in came]
        return Outcome(
            acknowledged=len(self.acknowledged),
            unknown=len(self.unknown),
            delivered=sum(map(len, self.deliveries.values())),
            repeated=repeated,
            failures=self.failures,
            lost=lost,
            early=early,
            strangers=strangers,
        )

    # What the threads do

    def _watched(self, work: Callable[[random.Random], None], dice: random.Random) -> None:
        try:
            work(dice)
        except BaseException as error:
            self.errors.append(error)

    def _repeat(self, kind: str, step: Callable[[Connection, random.Random], bool]) -> Callable[[random.Random], None]:
        """Do a step again and again, each time on a connection that works."""

        def work(dice: random.Random) -> None:
            connection: Connection | None = None
            while self._working.is_set():
                try:
                    if connection is None or connection.closed:
                        connection = connect(self.url, autocommit=True)
                    busy = step(connection, dice)
                    self.done[kind] += 1
                    if not busy:
                        time.sleep(_PAUSE_S)
                except _UNAVAILABLE:
                    self._failed(connection)
                    connection = None
                    time.sleep(_PAUSE_S)
            if connection is not None:
                connection.close()

        return work

    def _failed(self, connection: Connection | None) -> None:
        self.failures += 1
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _publisher(self, publisher: int) -> Callable[[random.Random], None]:
        next_number = 0

        def step(connection: Connection, dice: random.Random) -> bool:
            nonlocal next_number
            if not self._publishing.is_set():
                self._resting.add(publisher)
                return False
            numbers = range(next_number, next_number + dice.randint(1, 8))
            # Whatever becomes of this call, its numbers are used.
            next_number = numbers.stop
            events = {(publisher, number) for number in numbers}
            with self._books:
                self.unknown |= events
            if dice.random() < 0.3:
                # Some transactions stay open while others come and go.
                with connection.transaction():
                    publish(connection, publisher, numbers[:1])
                    time.sleep(dice.random() * 0.03)
                    if numbers[1:]:
                        publish(connection, publisher, numbers[1:])
            else:
                publish(connection, publisher, numbers)
            with self._books:
                self.unknown -= events
                self.acknowledged += sorted(events)
            return True

        return self._repeat("publish", step)

    def _reader(self, group: str) -> Callable[[random.Random], None]:
        def step(connection: Connection, dice: random.Random) -> bool:
            found, cursor = read(connection, group, chunk=dice.choice([1, 7, 50, 500]))
            with self._books:
                self.deliveries[group] += found
            if cursor is None:
                connection.execute("SELECT pgmb.release_group_lock(%s)", (group,))
                return False
            # One reader in ten forgets to confirm: the same comes again.
            if dice.random() < 0.9:
                connection.execute("SELECT pgmb.set_group_cursor(%s, %s, true)", (group, cursor))
            else:
                connection.execute("SELECT pgmb.release_group_lock(%s)", (group,))
            return True

        return self._repeat(f"read {group}", step)

    def _poll(self, connection: Connection, _: random.Random) -> bool:
        return bool(connection.execute("SELECT pgmb.poll_for_events()").fetchall()[0][0])

    def _maintain(self, connection: Connection, _: random.Random) -> bool:
        connection.execute("CALL pgmb.maintain_events_table()")
        return False

    # What the test waits for

    def _settle(self) -> None:
        """Wait until every acknowledged event has reached every group that wants it, or nothing comes any more."""
        # What is being published when the load ends is acknowledged after that.
        self._wait(lambda: len(self._resting) == self.publishers, what="the end of publishing")
        seen, since = -1, time.monotonic()
        while time.monotonic() < since + PATIENCE_S:
            if not self.outcome().lost:
                return
            delivered = sum(map(len, self.deliveries.values()))
            if delivered != seen:
                seen, since = delivered, time.monotonic()
            time.sleep(0.1)

    def _wait(self, reached: Callable[[], bool], *, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:.0f} s for {what}: {dict(self.done)}"
            time.sleep(0.01)
