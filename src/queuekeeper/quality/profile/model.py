"""Parameters and report of a profile, as frozen records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from queuekeeper.clock import INSTANT_RULE, read_instant
from queuekeeper.errors import UsageError
from queuekeeper.jobs import common
from queuekeeper.jobs.common import SessionRules
from queuekeeper.jobs.parameters import MAX_RATE_PER_S, Parameters, Section, parameter, percent, same
from queuekeeper.keyspace import SLOTS, parse_cohorts
from queuekeeper.places import shared_folder
from queuekeeper.sessions.model import MAX_PAYLOAD_BYTES, StoreRules
from queuekeeper.sessions.pages import STORES

Store = Literal["redis", "postgres"]
Mode = Literal["fast", "full"]

TURNS = 96
"""Number of turns in a day; a fast profile reads one turn of the cohorts, so one each 15 minutes reads all in a day."""


def turn_of(moment: datetime) -> int:
    """Return the turn of an instant: the number of its quarter of an hour in the day."""
    at = moment.astimezone(UTC)
    return (at.hour * 60 + at.minute) * TURNS // 1_440


_STRIDE = 10_125
"""Odd, and close to the golden section of all slots, so that a sample is spread evenly over every range of slots."""


def in_sample(slots: Any, *, percent: int) -> Any:
    """Return whether slots belong to a sample.

    A sample has the same slots each time, and a larger sample has all slots of a smaller one. It has all queues of a
    slot or none, so queues of one hash tag stay together.

    :param slots: a number, an array, or a column of Spark.
    """
    return slots * _STRIDE % SLOTS < SLOTS * percent // 100


FAULTS = (
    "over_limit", "dead_crowding", "tied_serials", "bad_serials", "step_errors", "bad_packet_ids",
    "duplicate_packet_ids", "foreign_references", "orphans", "counter_missing", "counter_invalid", "counter_behind",
    "without_ttl", "ttl_too_long", "oversized", "unreadable", "mismatched", "bad_qos", "qos_0", "bad_packet_types",
    "wrong_type_keys", "bad_tag", "odd_characters", "missing_session", "state_faults",
    "in_both_layouts",
)  # fmt: skip
"""Columns of ``queue_profiles`` that make a queue faulty when they are not 0.

Other columns are not 0 in healthy queues, too: ``dead`` references, ``serial_gaps``, ``duplicate_messages`` of a sensor
that repeats itself, and ``idle_keys`` of a session that has received everything.
"""


RECORD_ROOM_BYTES = 4_096
"""Room in a record beside its payload; topics and properties need more only where something is wrong."""

# Shares of the server's time, relative to one another.
_KEY_COST, _REFERENCE_COST, _MESSAGE_COST, _CONTENT_COST = 0.6, 1.0, 2.6, 8.0


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Share of each step in a server's work on one reference; by it a throttled profile spreads its work evenly.

    :param key: SCAN returns the key of the payload.
    :param reference: a script reads the reference.
    :param message: a script measures the message of the reference.
    :param content: a script judges the message's contents; 0 if contents are not judged.
    """

    key: float
    reference: float
    message: float
    content: float


def _mode() -> Any:
    """Declare whether all chosen cohorts are read, or one turn of them."""
    return parameter(
        "full",
        title="Mode",
        help="full reads all chosen cohorts. fast reads a part of them, a turn; each quarter of an hour has another. "
        "Both go through the names of all keys.",
    )


def turn(default: int | None, *, unset: str = "") -> Any:
    """Declare the turn that a fast profile reads.

    :param unset: what holds without a turn, where that is allowed.
    """
    return parameter(
        default,
        title="Turn",
        help=f"Which of the {TURNS} parts of the chosen cohorts mode fast reads, from 0.",
        unset=unset,
        section=Section.RULES,
        least=0,
        most=TURNS - 1,
        examples=[default, 1, 95],
    )


SNAPSHOT = "rdb:"
"""What the target of a profile begins with that was made of an RDB file."""

_NOW = "the turn of the time of day"
PROFILES = "profiles"


def profile_folder(place: str) -> Path:
    """Return the folder of a profile's Parquet, or of many, as a path.

    :param place: path, or URL of a folder in an object store.
    :raises UsageError: when no installed package opens that object store.
    """
    return shared_folder(place, what=PROFILES, name="parquet_directory")


def _folder(*, title: str, help: str, unset: str, example: str, **said: Any) -> Any:  # noqa: A002 - the name that parameter() has
    """Declare a folder for additional output; a form asks for an absolute path, which is the same on every host."""
    return parameter(
        "",
        title=title,
        help=help,
        unset=unset,
        section=Section.RECORDS,
        longest=1_024,
        examples=[None, example],
        **{
            "form_pattern": r"^/[^{}\x00-\x1F]+$",
            "rule": "it must name a folder by at most 1,024 characters; a form asks for an absolute path without "
            "braces",
            **said,
        },
    )


def parquet_directory() -> Any:
    """Declare the folder for the rows of queues as Parquet."""
    return _folder(
        title="Folder for Parquet",
        help="Folder to which the rows of queues are also written, as Parquet. The rows hold client ids. All workers "
        "of Spark must reach the folder; it may be in an object store, named by its URL.",
        unset="no Parquet is written",
        example="/srv/queue-profiles",
        form_pattern=common.FOLDER_OR_URL,
        rule="it must name a folder by at most 1,024 characters; a form asks for an absolute path, or a URL, without "
        "braces",
        aliases={"parquet_dir": same},
    )


def contents(*, needs: str) -> Any:
    """Declare whether the contents of messages are judged.

    :param needs: sentence that says what this needs.
    """
    return parameter(
        False, title="Judge contents", help=f"Judge the messages' JSON, too. {needs}", section=Section.RULES
    )


_CHOICES = {
    **STORES,
    "both": " and ".join(STORES.values()),
    "events": "Event broker and partitions",
    "compacted": "Compacted queues",
    "fanout": "Fan-out queues",
    "all_redis": "All queues in Redis",
}
PROFILED = {"redis": ("redis",), "postgres": ("postgres",), "both": ("redis", "postgres"), "all_redis": ("redis",)}
"""Choice -> stores that are profiled for it; the other choices need no profile."""
READ = {"compacted": ("compacted",), "fanout": ("fanout",), "all_redis": ("compacted", "fanout")}
"""Choice -> kinds of queues that are read when they are judged, without a profile."""


def stores(*names: str) -> Any:
    """Declare the stores whose queues are judged.

    :param names: names of the choices.
    """
    more = (
        "; or the event broker with all partitioned tables, or the compacted or fan-out queues in Redis, or these "
        "two with the sessions there"
    )
    where = f"Stores whose sessions are judged{more if 'events' in names else ''}."
    return parameter(
        "redis",
        title="Stores",
        help=f"{where} Nothing is written to any store.",
        choices={name: _CHOICES[name] for name in names},
    )


class ProfilePlace(Parameters):
    """Store that is read, and where its rows are written."""

    store: Store = parameter("redis", title="Store", help="Store whose queues are read.")
    profile_id: str | None = parameter(
        None,
        title="Profile",
        help="Name of the profile. An earlier profile of this name is replaced.",
        unset="a new name",
    )
    parquet_directory: str = parquet_directory()


class SnapshotWish(Parameters):
    """RDB files that are read instead of Redis."""

    rdb: tuple[str, ...] = common.rdb(
        help="RDB file of SAVE, BGSAVE or a backup, which is read instead of Redis; no server is asked anything. All "
        "workers of Spark must reach it by this name.",
        unset="Redis is read",
    )
    rdb_database: int = common.rdb_database()
    rdb_as_of: str | None = parameter(
        None,
        title="Instant of the RDB files",
        help="Instant as of which messages are judged: live, or expired.",
        unset="that at which the last of the RDB files was begun",
        rule=INSTANT_RULE,
        check=read_instant,
        examples=[None, "2026-01-31T17:30Z"],
    )

    @model_validator(mode="after")
    def _there_are_files(self) -> Self:
        if not self.rdb and (self.rdb_database or self.rdb_as_of):
            raise UsageError("rdb_database and rdb_as_of say how an RDB file is read: name one by rdb")
        return self

    @property
    def as_of_ms(self) -> int | None:
        """Instant at which a message is live or expired; none for that of the files."""
        return None if self.rdb_as_of is None else int(1_000 * read_instant(self.rdb_as_of).timestamp())

    def check_beside(self, rules: ProfileRules, *, stores: str) -> None:
        """Refuse files beside what they exclude.

        :param stores: choice of stores, see :func:`stores`.
        :raises UsageError: when a store is asked for that the files do not hold, or a throttle that they do not need.
        """
        if not self.rdb:
            return
        if stores in READ:
            raise UsageError(
                f"rdb has sessions, and {stores} asks for compacted or fan-out queues, for which a server is needed: "
                "choose redis, or leave out rdb"
            )
        if "redis" not in PROFILED.get(stores, ()):
            raise UsageError(
                f"rdb is read instead of Redis, which is not among the chosen stores ({stores}): leave it out"
            )
        if rules.throttle_references_per_s is not None:
            raise UsageError("throttle_references_per_s spares a server, and rdb asks none: leave out one of them")


class ProfileRules(SessionRules):
    """Rules of a profile that the person who starts it chooses; mode and turn are declared elsewhere."""

    cohorts: str = common.cohorts(what="Which cohorts to read.")
    cohort_count: int = common.cohort_count(note=f"A fast profile needs {TURNS} or more.")
    sample_percent: int = percent(
        100,
        title="Sample",
        help="Percent of the hash slots whose queues are read, the same slots each time. Counts are those of the "
        "sample. A fault outside the sample is not found.",
        section=Section.RULES,
        examples=[1, 10, 100],
    )
    contents: bool = contents(needs="The server decodes it and returns only numbers; the Redis user needs GET.")
    max_payload_bytes: int = parameter(
        StoreRules.max_payload_bytes,
        title="Largest payload (bytes)",
        help="A message whose payload has more bytes counts as oversized.",
        section=Section.RULES,
        least=1,
        most=MAX_PAYLOAD_BYTES,
        examples=[65_536, StoreRules.max_payload_bytes],
    )
    throttle_references_per_s: int | None = parameter(
        None,
        title="Throttle (references per second)",
        help="References read from Redis per second, over all tasks.",
        unset="as fast as the server allows",
        section=Section.PACE,
        least=1,
        most=MAX_RATE_PER_S,
        examples=[None, 50_000],
    )


class ProfileParameters(ProfileRules):
    """Parameters of a profile."""

    mode: Mode = _mode()
    turn: int = turn(0)
    keep_profiles: int = parameter(
        10,
        title="Profiles to keep",
        help="Number of profiles that keep their rows of queues: the newest with the same target, mode, cohorts and "
        "sample.",
        section=Section.RECORDS,
        least=1,
    )

    @model_validator(mode="after")
    def _every_turn_has_cohorts(self) -> Self:
        least = TURNS if self.mode == "fast" else 1
        if self.cohort_count < least:
            raise UsageError(f"cohort_count is {self.cohort_count}: a {self.mode} profile needs {least} to {SLOTS}")
        chosen = parse_cohorts(self.cohorts, count=self.cohort_count)
        if len(chosen) < least:
            raise UsageError(
                f"cohorts {self.cohorts!r} are {len(chosen)}: a fast profile reads one in {TURNS}, so that most of its "
                "turns would read none. Choose mode full, or more cohorts"
            )
        return self

    @property
    def max_record_bytes(self) -> int:
        """Largest record in Redis that is in order: a payload in Base64, a third longer, and room for the rest."""
        return -(-self.max_payload_bytes // 3) * 4 + RECORD_ROOM_BYTES

    @property
    def max_packed_bytes(self) -> int:
        """Largest record of a packed session that is in order: a payload as it is, and room for the rest."""
        return self.max_payload_bytes + RECORD_ROOM_BYTES

    @property
    def shares(self) -> Shares:
        """Shares by which the throttle counts the steps of this profile."""
        content_cost = _CONTENT_COST if self.contents else 0.0
        whole = _KEY_COST + _REFERENCE_COST + _MESSAGE_COST + content_cost
        return Shares(
            key=_KEY_COST / whole,
            reference=_REFERENCE_COST / whole,
            message=_MESSAGE_COST / whole,
            content=content_cost / whole,
        )

    def profile_id(self, store: Store, *, now_ms: int) -> str:
        """Return an id for a profile: 16 hex digits that depend on store, parameters and instant."""
        text = json.dumps([store, asdict(self), now_ms], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class ProfileWish(SnapshotWish, ProfileRules):
    """Options of the command that makes a profile."""

    stores: str = stores(*STORES, "both")
    mode: Mode = _mode()
    turn: int | None = turn(None, unset=_NOW)
    parquet_directory: str = parquet_directory()

    @model_validator(mode="after")
    def _files_have_what_is_asked_for(self) -> Self:
        self.check_beside(self, stores=self.stores)
        return self

    def at(self, moment: datetime) -> ProfileParameters:
        """Return the parameters of the profile; without an option, the instant chooses the turn."""
        turn = turn_of(moment) if self.turn is None else self.turn
        return ProfileParameters(**asdict(self.part(ProfileRules)), mode=self.mode, turn=turn)


def data_docs() -> Any:
    """Declare the folder for Great Expectations' own pages."""
    return _folder(
        title="Folder for Data Docs",
        help="Folder for Great Expectations' own pages of each suite and its result. Open index.html. The pages load "
        "nothing from other hosts.",
        unset="no such pages are written",
        example="/srv/data-docs",
    )


def compare() -> Any:
    """Declare whether both stores are compared."""
    return parameter(
        False,
        title="Compare the stores",
        help="Compare source and target, too. They agree after a migration, until a broker uses the target. Both "
        "stores must be chosen.",
    )


class JudgeWish(Parameters):
    """Options of the command that judges Parquet."""

    judged_by: str = parameter("sessions_redis", title="Suite", help="Suite of one store's sessions.")
    contents: bool = contents(needs="The profile must have been made with contents.")
    clustered: bool = parameter(
        False, title="Cluster", help="The queues are on a Redis cluster, where a bad hash tag is worse."
    )
    data_docs: str = data_docs()


class RunWish(ProfileWish):
    """Options of the command of a quality run: those of a profile, and those of its judgement."""

    stores: str = stores(*_CHOICES)
    run_id: str = common.run_id(
        help="Name of the run. An earlier run of this name is replaced.",
        unset="a new name",
        examples=["before-upgrade"],
    )
    compare: bool = compare()
    data_docs: str = data_docs()


class QualityWish(Parameters):
    """Parameters of the DAG of quality runs, besides the rules of its profiles."""

    suite: str = parameter(
        "fast",
        title="Suite",
        help=f"fast reads one of {TURNS} parts of the chosen cohorts; runs each quarter of an hour read all parts in a "
        "day. full reads all chosen cohorts.",
        choices={"fast": "fast: one turn of the cohorts", "full": "full: all chosen cohorts"},
    )
    stores: str = stores(*_CHOICES)
    compare: bool = compare()
    turn: int | None = turn(None, unset=_NOW)
    parquet_directory: str = parquet_directory()
    data_docs: str = data_docs()


@dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """Totals of a profile, whose rows are in ``queuekeeper.queue_profiles`` and the tables beside it.

    :param cohorts: cohorts that were read, of which there may be thousands.
    :param queues: rows of ``queue_profiles``: clients with any key in Redis, or any row in PostgreSQL.
    :param messages: references of all queues in Redis, or rows in PostgreSQL.
    :param live: messages that are stored and have not expired.
    :param faulty_queues: queues with any of the faults of :data:`FAULTS`.
    :param seconds: duration of the profile.
    :param parquet: folder that holds the rows of queues as Parquet; ``None`` if it was not asked for.
    """

    profile_id: str
    store: Store
    mode: Mode
    cohorts: tuple[int, ...]
    queues: int
    messages: int
    live: int
    faulty_queues: int
    seconds: float
    parquet: str | None = None
    worked_out: ClassVar[tuple[str, ...]] = ("cohorts_read",)
    at_length: ClassVar[tuple[str, ...]] = ("cohorts",)

    @property
    def cohorts_read(self) -> int:
        """Number of cohorts that were read."""
        return len(self.cohorts)
