"""Arguments of the calls to compacted queues, and the checks of these arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from queuekeeper.checks import check_integer, check_text, checked, shown
from queuekeeper.errors import InvalidPolicy, PayloadTooLarge, UsageError
from queuekeeper.quick_init import quick_init

MAX_TEXT_BYTES = 65_535
"""Longest key, client id, name, property and content type in bytes: the limit of MQTT (MQTT 5 section 1.5.4)."""

MAX_APPENDS = 5_000
"""Most entries of one append."""

MAX_WINDOW = 500
"""Most messages in flight."""

MAX_PAGE = 500
"""Most messages or rows of one page."""

MAX_ACKS = 1_000
"""Most sequence numbers in one call of ``ack``."""

MAX_SEQUENCE = 2**53 - 1
"""Largest integer that Lua and the scores of Redis represent exactly."""

MAX_LEASE_MS = 86_400_000
MAX_VALUE_BYTES = 268_435_455
"""Largest value in bytes: the remaining length of an MQTT packet (MQTT 5 section 2.1.4)."""

FETCH_BYTES = 4_000_000
"""Default limit of the bytes of one fetch; a larger message comes alone."""

PRODUCER_MS = 604_800_000
"""How long a queue remembers the last append of a producer by default."""

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class Properties(Mapping[str, str]):
    """MQTT user properties: pairs of name and text, in order. If a name occurs several times, a lookup finds the last.

    :ivar pairs: all pairs.
    """

    __slots__ = ("_texts", "pairs")
    __hash__ = None  # type: ignore[assignment]

    @checked
    def __init__(self, pairs: Iterable[Sequence[str]] = ()) -> None:
        self.pairs = tuple((name, text) for name, text in pairs)
        self._texts = dict(self.pairs)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Properties):
            return self.pairs == other.pairs
        return isinstance(other, Mapping) and plain_properties(self) == dict(other)

    def __repr__(self) -> str:
        return f"Properties({list(self.pairs)!r})"


def property_pairs(properties: Mapping[str, str]) -> Collection[tuple[str, str]]:
    """Return all pairs of name and text, in order."""
    return properties.pairs if isinstance(properties, Properties) else properties.items()


def plain_properties(properties: Mapping[str, str]) -> dict[str, str] | list[tuple[str, str]]:
    """Return properties as JSON can hold them: an object, or a list of pairs if a name occurs several times."""
    pairs = property_pairs(properties)
    return dict(pairs) if len(pairs) == len(properties) else list(pairs)


class WhenFull(StrEnum):
    """What an append does when a queue has reached its limits."""

    REJECT = "reject"  # store nothing, and raise QueueFull
    DROP_OLDEST = "drop_oldest"  # remove the oldest messages, and count them


class RetentionPolicy(StrEnum):
    """Which messages the collector removes once they are old enough."""

    DELETE = "delete"  # all messages, acknowledged or not
    ACKED_ONLY = "acked_only"  # acknowledged messages
    COMPACT = "compact"  # acknowledged tombstones; the newest value of a key stays for ever


class Refill(StrEnum):
    """When a fetch returns new messages while others are in flight."""

    ON_EMPTY = "on_empty"  # when all messages in flight have been acknowledged
    SLIDING = "sliding"  # whenever the window has room


def chosen(kind: type[StrEnum], name: str, value: Any) -> Any:
    """Return the member of an enum with this value.

    :param name: what the error message calls the value.
    :raises InvalidPolicy: when there is no such member, naming the choices.
    """
    try:
        return kind(value)
    except ValueError:
        raise InvalidPolicy(f"{name} is {value!r}: it must be one of {', '.join(kind)}") from None


@dataclass(frozen=True, kw_only=True)
class QueueRules:
    """Limits of each queue; all producers of a queue have to use the same ones.

    :param max_keys: largest number of keys in a queue; 0 is no limit.
    :param max_bytes: largest size of a queue's keys and values in bytes; 0 is no limit.
    :param when_full: what an append does when ``max_keys`` or ``max_bytes`` is reached.
    :param max_value_bytes: largest size of a value in bytes; larger ones are refused before anything is written.
    :raises UsageError: naming parameter, value and rule.
    """

    max_keys: int = 0
    max_bytes: int = 0
    when_full: WhenFull = WhenFull.REJECT
    max_value_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        check_integer("max_keys", self.max_keys, 0, MAX_SEQUENCE, "0 for no limit")
        check_integer("max_bytes", self.max_bytes, 0, MAX_SEQUENCE, "0 for no limit")
        check_integer("max_value_bytes", self.max_value_bytes, 1, MAX_VALUE_BYTES, "MQTT 5 section 2.1.4")
        object.__setattr__(self, "when_full", chosen(WhenFull, "when_full", self.when_full))


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long messages are kept.

    :param policy: which messages the collector removes once they are older than ``retention_ms``.
    :param retention_ms: age at which these messages are removed, 7 days by default; no effect with ``compact``.
    :param tombstone_ms: age at which an acknowledged tombstone is removed, a day by default. A tombstone that is not
        acknowledged is removed after ``retention_ms`` with ``delete``, and stays with the other policies.
    :raises InvalidPolicy: for a policy that does not exist.
    :raises UsageError: for a negative time.
    """

    policy: RetentionPolicy = RetentionPolicy.DELETE
    retention_ms: int = 604_800_000
    tombstone_ms: int = 86_400_000

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", chosen(RetentionPolicy, "retention policy", self.policy))
        check_integer("retention_ms", self.retention_ms, 0, MAX_SEQUENCE, "an age in milliseconds")
        check_integer("tombstone_ms", self.tombstone_ms, 0, MAX_SEQUENCE, "an age in milliseconds")


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class Append:
    """One entry of an append: the new value of a key, which replaces the key's value.

    :param key: at most 65,535 bytes; may be empty.
    :param tombstone: delete the key. The consumer receives the tombstone as a message; retention removes it later. A
        tombstone has no value.
    :param properties: user properties of the value; use :class:`Properties` if a name occurs several times.
    :param content_type: MQTT content type of the value, such as application/json.
    :param published_ms: the producer's time in milliseconds since 1970; it does not affect the order.
    :param expected_sequence: store only if the key's newest value has this sequence number; 0: only if the key has no
        value. The value before the whole append counts, even if the key occurs twice in the append. An append with
        such an entry is stored whole or not at all, so it has at most 200 entries and 1 MB.
    :raises UsageError: naming field, value and rule.
    """

    key: bytes
    value: bytes = field(default=b"", repr=False)
    tombstone: bool = False
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES, repr=False)
    content_type: str | None = None
    published_ms: int | None = None
    expected_sequence: int | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if type(self.value) is not bytes:
            raise UsageError(f"value is a {type(self.value).__name__}: it must be bytes")
        if type(self.tombstone) is not bool:
            raise UsageError(f"tombstone is {self.tombstone!r}: it must be True or False")
        if self.tombstone and self.value:
            raise UsageError(f"the tombstone has a value of {len(self.value)} bytes: a deleted key has none")
        if self.properties is not NO_PROPERTIES:
            if not isinstance(self.properties, Mapping):
                raise UsageError(f"properties is a {type(self.properties).__name__}: it must map names to texts")
            for name, text in property_pairs(self.properties):
                check_text("property name", name, most_bytes=MAX_TEXT_BYTES)
                check_text("property value", text, most_bytes=MAX_TEXT_BYTES)
        if self.content_type is not None:
            check_text("content_type", self.content_type, most_bytes=MAX_TEXT_BYTES)
        if self.published_ms is not None:
            check_integer("published_ms", self.published_ms, 0, MAX_SEQUENCE, "milliseconds since 1970")
        if self.expected_sequence is not None:
            check_integer("expected_sequence", self.expected_sequence, 0, MAX_SEQUENCE, "0: the key has no value")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence:
    """A consumer's right to a queue, which ends with the next subscription or rewind.

    :param incarnation: identifies the queue among queues of the same client that were dropped and made again.
    :param epoch: number that grows with each subscription and rewind.
    """

    incarnation: int
    epoch: int

    def __post_init__(self) -> None:
        check_integer("incarnation", self.incarnation, 0, MAX_SEQUENCE, "from the subscription")
        check_integer("epoch", self.epoch, 0, MAX_SEQUENCE, "from the subscription")


def _check_kind(what: str, kind: str, *kinds: str) -> None:
    """Check that a kind is one of the given kinds.

    :raises UsageError: naming the kinds.
    """
    if kind not in kinds:
        raise UsageError(f"{what} is {kind!r}: it must be one of {', '.join(kinds)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Position in a queue from which a consumer reads.

    :param kind: ``earliest``, ``latest``, ``sequence`` or ``time_ms``.
    :param value: sequence number, or milliseconds since 1970; none for ``earliest`` and ``latest``.
    :raises UsageError: for another kind, or a value that does not fit it.
    """

    kind: str
    value: int | None = None

    def __post_init__(self) -> None:
        _check_kind("position", self.kind, "earliest", "latest", "sequence", "time_ms")
        if self.kind in ("earliest", "latest"):
            if self.value is not None:
                raise UsageError(f"position {self.kind} takes no value, not {self.value!r}")
        else:
            check_integer(f"position {self.kind}", self.value, 0, MAX_SEQUENCE, "where to begin")

    @classmethod
    def earliest(cls) -> Position:
        """Return the position before the oldest message."""
        return cls(kind="earliest")

    @classmethod
    def latest(cls) -> Position:
        """Return the position behind the newest message."""
        return cls(kind="latest")

    @classmethod
    def sequence(cls, number: int) -> Position:
        """Return the position of the message with this sequence number, or of the next one if it is gone.

        :raises UsageError: when the number is not an integer of 0 or more.
        """
        return cls(kind="sequence", value=number)

    @classmethod
    def time_ms(cls, instant_ms: int) -> Position:
        """Return the position of the first message that was stored at this time or later.

        :param instant_ms: milliseconds since 1970, UTC.
        :raises UsageError: when the time is not an integer of 0 or more.
        """
        return cls(kind="time_ms", value=instant_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Purge:
    """Which messages of a queue to remove; the queue keeps its sequence numbers and its cursor.

    :param kind: ``all``, ``acked`` or ``up_to``.
    :param sequence: last sequence number to remove with ``up_to``; none otherwise.
    """

    kind: str
    sequence: int | None = None

    def __post_init__(self) -> None:
        _check_kind("purge", self.kind, "all", "acked", "up_to")
        if self.kind == "up_to":
            check_integer("purge up to", self.sequence, 1, MAX_SEQUENCE, "a sequence number")
        elif self.sequence is not None:
            raise UsageError(f"purge of {self.kind} takes no sequence number, not {self.sequence!r}")

    @classmethod
    def everything(cls) -> Purge:
        """Choose all messages that the queue has when the purge begins."""
        return cls(kind="all")

    @classmethod
    def acked(cls) -> Purge:
        """Choose the acknowledged messages."""
        return cls(kind="acked")

    @classmethod
    def up_to(cls, sequence: int) -> Purge:
        """Choose all messages up to a sequence number.

        :param sequence: last sequence number to remove.
        :raises UsageError: when the number is not an integer of 1 or more.
        """
        return cls(kind="up_to", sequence=sequence)


def check_key(key: Any) -> None:
    """Check that a value can be the key of a message.

    :raises UsageError: naming the rule.
    """
    if type(key) is not bytes:
        raise UsageError(f"key is a {type(key).__name__}: it must be bytes")
    if len(key) > MAX_TEXT_BYTES:
        raise UsageError(f"key has {len(key)} bytes: at most {MAX_TEXT_BYTES}")


def check_appends(appends: Sequence[Append], rules: QueueRules) -> None:
    """Check the number, type and size of the entries of an append.

    :raises UsageError: for no entries, too many, or an entry of another type.
    :raises PayloadTooLarge: for a value that is too large, naming size and limit.
    """
    if not 1 <= len(appends) <= MAX_APPENDS:
        raise UsageError(f"the append has {len(appends)} entries: it must have 1 to {MAX_APPENDS}")
    for append in appends:
        check_entry("an entry", append, rules.max_value_bytes)


def check_entry(name: str, append: Append, most: int) -> None:
    """Check the type and size of one entry.

    :param name: what the error message calls the entry.
    :param most: largest size of its value in bytes.
    :raises UsageError: for an entry of another type.
    :raises PayloadTooLarge: for a value that is too large, naming size and limit.
    """
    if type(append) is not Append:
        raise UsageError(f"{name} is {shown(append)}: it must be an Append")
    if len(append.value) > most:
        raise PayloadTooLarge(
            f"the value has {len(append.value)} bytes: this queue takes at most {most} (max_value_bytes)"
        )
