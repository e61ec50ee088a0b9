"""What a profile is asked for and what it reports, as frozen records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, SLOTS, check_prefix, parse_cohorts

Store = Literal["redis", "postgres"]
Mode = Literal["fast", "full"]

TURNS = 96
"""A fast profile reads one cohort in 96: a quarter of an hour apart they cover everything in a day."""


def turn_of(moment: datetime) -> int:
    """Return which of the day's turns an instant belongs to: a quarter of an hour each."""
    at = moment.astimezone(UTC)
    return (at.hour * 60 + at.minute) * TURNS // 1_440


_STRIDE = 10_125
"""Odd, and close to the golden section of all slots: steps of it fall evenly on every range of slots."""


def in_sample(slots: Any, *, percent: int) -> Any:
    """Return whether slots belong to a sample: the same ones each time, and all of a smaller one to a larger one.

    Queues of one slot come together, so those that share a hash tag do.

    :param slots: a number, an array, or a column of Spark.
    """
    return slots * _STRIDE % SLOTS < SLOTS * percent // 100


FAULTS = (
    "over_limit", "dead_crowding", "tied_serials", "bad_serials", "step_errors", "bad_packet_ids",
    "duplicate_packet_ids", "foreign_references", "orphans", "counter_missing", "counter_invalid", "counter_behind",
    "without_ttl", "ttl_too_long", "oversized", "unreadable", "mismatched", "bad_qos", "qos_0", "bad_packet_types",
    "wrong_type_keys", "bad_tag", "odd_characters", "missing_session",
)  # fmt: skip
"""Columns of ``queue_profiles`` that make a queue faulty when they are not 0.

The others occur in healthy queues, too: ``dead`` references, ``serial_gaps``, ``duplicate_messages`` of a sensor
that repeats itself, and ``idle_keys`` of a session that is up to date.
"""

RECORD_ROOM_BYTES = 4_096
"""What a record may hold beside its payload; topics and properties are longer only where something is wrong."""

LARGEST_PAYLOAD_BYTES = 268_435_455
"""MQTT 5 section 2.1.4: no packet is larger."""

# Of the server's time, relative to one another.
_KEY_COST, _REFERENCE_COST, _MESSAGE_COST, _CONTENT_COST = 0.6, 1.0, 2.6, 8.0


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What part of a server's work on one reference each step is; a throttled profile spreads the work evenly.

    :param key: SCAN shows the key of a payload.
    :param reference: the script that reads references reads it.
    :param message: the script that measures messages measures the one that it leads to.
    :param content: the server judges what that holds; 0 where contents are not judged.
    """

    key: float
    reference: float
    message: float
    content: float


@dataclass(frozen=True, kw_only=True)
class ProfileParameters:
    """What the person who starts a profile chooses.

    :param mode: ``full`` reads all chosen cohorts, ``fast`` those of one turn; the names of all keys pass by in either.
    :param cohorts: cohorts to read, ``all`` or such as ``0-3,7``.
    :param cohort_count: how many cohorts the slots are cut into.
    :param sample_percent: read only the queues of so many of a hundred slots, evenly over the cohorts; a fault outside
        of them is not seen.
    :param turn: which of the 96 parts of the chosen cohorts a fast profile reads, from 0.
    :param contents: judge the messages' JSON too. The server decodes it and answers numbers; the user needs ``GET``.
    :param session_limit: messages that a session may hold.
    :param default_ttl_s: life of a message whose publisher set no expiry.
    :param max_payload_bytes: largest payload that is in order; see :attr:`max_record_bytes`.
    :param key_prefix: before every Redis key.
    :param throttle_references_per_s: references per second over all tasks, from SCAN to their messages; none means as
        fast as they come.
    :param keep_profiles: of profiles of the same target, mode, cohorts and sample, the newest so many keep the rows of
        queues.
    """

    mode: Mode = "full"
    cohorts: str = "all"
    cohort_count: int = 96
    sample_percent: int = 100
    turn: int = 0
    contents: bool = False
    session_limit: int = 10_000
    default_ttl_s: int = 604_800
    max_payload_bytes: int = 1_048_576
    key_prefix: str = ""
    throttle_references_per_s: int | None = None
    keep_profiles: int = 10

    def __post_init__(self) -> None:
        """Refuse what no profile could honour.

        :raises UsageError: naming the parameter, its value and the rule.
        """
        if self.mode not in get_args(Mode):
            raise UsageError(f"mode is {self.mode!r}: it must be fast or full")
        if not 0 <= self.turn < TURNS:
            raise UsageError(f"turn is {self.turn}: it must be 0 to {TURNS - 1}")
        least = TURNS if self.mode == "fast" else 1
        if not least <= self.cohort_count <= SLOTS:
            raise UsageError(f"cohort_count is {self.cohort_count}: a {self.mode} profile needs {least} to {SLOTS}")
        if not 1 <= self.sample_percent <= 100:
            raise UsageError(f"sample_percent is {self.sample_percent}: it must be 1 to 100; 100 reads all queues")
        chosen = parse_cohorts(self.cohorts, count=self.cohort_count)
        if len(chosen) < least:
            raise UsageError(
                f"cohorts {self.cohorts!r} are {len(chosen)}: a fast profile reads one in {TURNS}, so that most of its "
                "turns would read none. Choose full, or more cohorts"
            )
        if not 1 <= self.session_limit <= MAX_PACKET_ID:
            raise UsageError(
                f"session_limit is {self.session_limit}: it must be 1 to {MAX_PACKET_ID}, "
                "since a session has no more packet ids"
            )
        if not 1 <= self.default_ttl_s <= 4_294_967_295:
            raise UsageError(f"default_ttl_s is {self.default_ttl_s}: it must be 1 to 4294967295 seconds")
        if not 1 <= self.max_payload_bytes <= LARGEST_PAYLOAD_BYTES:
            raise UsageError(f"max_payload_bytes is {self.max_payload_bytes}: it must be 1 to {LARGEST_PAYLOAD_BYTES}")
        if self.throttle_references_per_s is not None and self.throttle_references_per_s < 1:
            raise UsageError(
                f"throttle_references_per_s is {self.throttle_references_per_s}: it must be 1 or more, or left out"
            )
        if self.keep_profiles < 1:
            raise UsageError(f"keep_profiles is {self.keep_profiles}: it must be 1 or more")
        check_prefix(self.key_prefix)

    @property
    def max_record_bytes(self) -> int:
        """Largest record of Redis that is in order: Base64 makes a third more of a payload, and the rest has room."""
        return -(-self.max_payload_bytes // 3) * 4 + RECORD_ROOM_BYTES

    @property
    def shares(self) -> Shares:
        """How the throttle counts the steps of this profile."""
        content_cost = _CONTENT_COST if self.contents else 0.0
        whole = _KEY_COST + _REFERENCE_COST + _MESSAGE_COST + content_cost
        return Shares(
            key=_KEY_COST / whole,
            reference=_REFERENCE_COST / whole,
            message=_MESSAGE_COST / whole,
            content=content_cost / whole,
        )

    def profile_id(self, store: Store, *, now_ms: int) -> str:
        """Return the name of a profile that nobody has named: 16 hex digits over store, parameters and instant."""
        text = json.dumps([store, asdict(self), now_ms], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """What a profile has read; the rows are in ``queuekeeper.queue_profiles`` and its neighbours.

    :param cohorts: that were read.
    :param queues: rows of ``queue_profiles``: clients with any key, or with any row.
    :param messages: references of all queues, or rows.
    :param live: of them, messages that are there and have not expired.
    :param faulty_queues: queues with any of the faults of :data:`FAULTS`.
    :param seconds: wall clock time.
    :param parquet: folder that holds the rows of queues as Parquet; none when nobody asked for it.
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
