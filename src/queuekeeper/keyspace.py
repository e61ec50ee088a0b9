"""Every Redis key name and its hash slot.

The layout of DEVICE sessions is the one that TBMQ 2.x reads and writes:

===========================  ======  ==========================================================
``{C}_messages``             ZSET    member = name of the payload key, score = serial number
``{C}_messages_<packetId>``  STRING  message as JSON, with an expiry of its own
``{C}_last_packet_id``       STRING  MQTT packet id given out last
``{C}_session``              HASH    ours: owner, epoch, import state, counters
``{C}_quarantined_<serial>`` any     ours: a record that was put aside, under the serial that it had
``{C}_orphan_<packetId>``    any     ours: a record that no reference named, until it expires
===========================  ======  ==========================================================

In the packed layout, a session is one key:

===========================  ======  ==========================================================
``{C}_packed``               HASH    serial -> record; state, owner, import, sources, quarantine
===========================  ======  ==========================================================

Those of a compacted queue are :class:`CompactedKeys`, each ``compacted:{C}:<name>``, and its place in a registry,
``compacted:due:NN``, which is in another slot. Those of a fan-out queue are :class:`FanoutKeys`, each
``fanout:{Q}:<name>``, and :class:`FanoutConsumerKeys`.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from queuekeeper.errors import ScatteredClient, UsageError

SLOTS = 16_384
"""Hash slots of a Redis Cluster (cluster specification)."""

MAX_PACKET_ID = 65_535
"""MQTT 5 section 2.2.1: a packet identifier is a two byte integer and never 0."""

HALF_ROUND = MAX_PACKET_ID // 2
"""Packet ids come round: one that is at most this far ahead of another was given out after it, any other before it."""

_PACKET_ID = re.compile(rb"[1-9][0-9]{0,4}")


def suffix_packet_id(suffix: bytes) -> int | None:
    """Return the packet id at the end of a payload key; none when it is no packet id as TBMQ writes one."""
    if _PACKET_ID.fullmatch(suffix) is None or (packet_id := int(suffix)) > MAX_PACKET_ID:
        return None
    return packet_id


def safe_counter(counter: int | None, waiting: Sequence[int]) -> int | None:
    """Return from which last packet id on a broker gives out none that a waiting message has.

    TBMQ gives out the next one whoever has it, and the message that has it would be overwritten. A counter that the
    newest message is ahead of moves to that message's packet id; then it passes the packet ids in use. It stays where
    it is when all 65,535 are in use.

    :param counter: packet id given out last; none when that is not known.
    :param waiting: packet ids of the messages that wait, in the order of their serials.
    """
    if not waiting:
        return counter
    newest = waiting[-1]
    is_behind = counter is not None and 1 <= (newest - counter) % MAX_PACKET_ID <= HALF_ROUND
    start = newest if counter is None or is_behind else counter
    in_use = set(waiting)
    if len(in_use) >= MAX_PACKET_ID:
        return newest if counter is None else counter
    safe = start
    while (following := safe % MAX_PACKET_ID + 1) in in_use:
        safe = following
    return safe


class SessionKeys(NamedTuple):
    """Names of one session's keys, apart from its payload keys."""

    messages: str
    last_packet_id: str
    session: str


class PackedKeys(NamedTuple):
    """Name of the one key of a session in the packed layout.

    :param session: HASH: serial -> record, and the session's own fields.
    """

    session: str


MAX_CLIENT_ID_BYTES = 65_535
"""MQTT 5 section 1.5.4: the length of a UTF-8 string is sent in two bytes."""
_EMPTY = "client id is empty: a session without an id cannot be stored"


def check_client_id(client_id: Any) -> None:
    """Refuse what cannot be the id of an MQTT client; every door through which an id comes asks this.

    :raises UsageError: naming the id and the rule.
    """
    if type(client_id) is str and client_id.isascii() and 0 < len(client_id) <= 255 and "\0" not in client_id:
        return
    if type(client_id) is not str:
        raise UsageError(f"client id is {client_id!r}: it must be text")
    if not client_id:
        raise UsageError(_EMPTY)
    if "\0" in client_id:
        raise UsageError(
            f"client id holds a zero character, which MQTT forbids (MQTT 5 section 1.5.4): {_shown(client_id)}; "
            "connect the device under an id without it"
        )
    try:
        size = len(client_id.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"client id holds half a surrogate pair, which MQTT forbids (MQTT 5 section 1.5.4): {_shown(client_id)}"
        ) from None
    if size > MAX_CLIENT_ID_BYTES:
        raise UsageError(
            f"client id has {size} bytes: MQTT carries at most {MAX_CLIENT_ID_BYTES} (MQTT 5 section 1.5.4)"
        )


def is_client_id(client_id: Any) -> bool:
    """Return whether something can be the id of an MQTT client; see :func:`check_client_id`."""
    try:
        check_client_id(client_id)
    except UsageError:
        return False
    return True


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def is_scattered(client_id: str) -> bool:
    """Return whether the keys of an id lie in several slots: its tag ends where it begins, so each key is hashed whole.

    A single server serves such an id like any other. A cluster cannot: no script may touch two slots.
    """
    return client_id.startswith("}")


def check_served(keys: Sequence[str | bytes | int]) -> None:
    """Refuse keys that a cluster cannot serve together, see :func:`is_scattered`.

    :param keys: of one call of a script.
    :raises ScatteredClient: naming the id, the rule and the next step.
    """
    if len(keys) < 2:
        return
    _, brace, rest = key_owner(keys[0]).partition(b"{")
    if brace and rest.startswith(b"}"):
        raise ScatteredClient(
            f"id {_shown(rest[:-1].decode(errors='replace'))} begins with a closing brace: its keys lie in several "
            "slots, and a cluster serves no script that needs two of them. Connect under another id, or use a single "
            "server"
        )


def key_owner(key: str | bytes | int) -> bytes:
    """Return a key up to its last closing brace: prefix and tag, the same for all keys of one client or queue.

    An id may hold braces; what follows the tag in our keys holds none. A key without braces is returned whole.
    """
    raw = key.encode() if type(key) is str else key if type(key) is bytes else str(key).encode()
    end = raw.rfind(b"}")
    return raw[: end + 1] if 0 <= raw.find(b"{") < end else raw


def earlier_tag(client_id: str) -> str | None:
    """Return the tag under which builds before release 0.1 wrote an id that they encoded; none for any other id."""
    return f"%{ord(client_id[0]):02X}{client_id[1:]}" if client_id[:1] in ("}", "%") else None


def encoded_client_id(tag: str) -> str | None:
    """Return the id that :func:`earlier_tag` made this tag of; none for any other.

    A client may truly be called like the tag: what its messages say decides.
    """
    return chr(int(tag[1:3], 16)) + tag[3:] if tag[:3] in ("%7D", "%25") else None


def check_prefix(prefix: str) -> str:
    """Return the prefix unchanged.

    :raises UsageError: when it holds a brace: the first brace pair decides the slot, so every key would share one; or
        what no key can hold.
    """
    if "{" in prefix or "}" in prefix:
        raise UsageError(f"key prefix {prefix!r} holds a brace: all clients would land in one hash slot")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise UsageError(f"key prefix {prefix!r} holds half a surrogate pair: it cannot be written as UTF-8") from None
    return prefix


def key_stem(client_id: str, *, prefix: str = "") -> str:
    """Return how all keys of a client begin: the id in braces, as it is, since TBMQ encodes none.

    :raises UsageError: for the empty id.
    """
    if not client_id:
        raise UsageError(_EMPTY)
    return f"{prefix}{{{client_id}}}"


def session_keys(client_id: str, *, prefix: str = "") -> SessionKeys:
    """Return the keys of one DEVICE session."""
    stem = key_stem(client_id, prefix=prefix)
    return SessionKeys(f"{stem}_messages", f"{stem}_last_packet_id", f"{stem}_session")


def packed_keys(client_id: str, *, prefix: str = "") -> PackedKeys:
    """Return the key of one DEVICE session in the packed layout."""
    return PackedKeys(f"{key_stem(client_id, prefix=prefix)}_packed")


def payload_key(client_id: str, packet_id: int | str, *, prefix: str = "") -> str:
    """Return the key that holds one message of a DEVICE session."""
    return f"{key_stem(client_id, prefix=prefix)}_messages_{packet_id}"


def quarantined_key(client_id: str, serial: int, *, prefix: str = "") -> str:
    """Return the key under which a record of a DEVICE session is kept that was put aside."""
    return f"{key_stem(client_id, prefix=prefix)}_quarantined_{serial}"


def orphan_key(client_id: str, packet_id: int | str, *, prefix: str = "") -> str:
    """Return the key under which a record is kept for a while that no reference named."""
    return f"{key_stem(client_id, prefix=prefix)}_orphan_{packet_id}"


class FanoutKeys(NamedTuple):
    """Names of the keys of one fan-out queue that its consumers share.

    :param state: HASH: fields of the queue.
    :param options: HASH: member -> options.
    :param consumers: ZSET: member -> when it was seen last.
    :param messages: HASH: id -> ``published_ms:expires_at_ms:order_hash:record``.
    :param references: HASH: id -> consumers that owe an ack; the list of held messages counts as one.
    :param expiries: ZSET: id -> end of the message's life.
    :param held: LIST of ids that nobody has adopted yet.
    :param remembered: ZSET: ``to:deduplication id`` -> until when it is remembered.
    :param deduplications: HASH: ``to:deduplication id`` -> ``id consumers``.
    :param log: STREAM of the ids of messages for all consumers, an entry per publish.
    :param cursors: ZSET: consumer -> number of the log's entry up to which it has read.
    """

    state: str
    options: str
    consumers: str
    messages: str
    references: str
    expiries: str
    held: str
    remembered: str
    deduplications: str
    log: str
    cursors: str


class FanoutConsumerKeys(NamedTuple):
    """Names of the keys of one consumer of a fan-out queue.

    :param leases: ZSET: id -> deadline.
    :param delayed: ZSET: id -> when it is due: its retry, or it itself if it was published for later.
    :param dead: ZSET: id -> when it died.
    :param details: HASH: fields of the consumer.
    :param wakes: STREAM that has an entry when there may be something to claim besides what comes in the log.
    :param ready: LISTs of ids, one per lane.
    """

    leases: str
    delayed: str
    dead: str
    details: str
    wakes: str
    ready: tuple[str, ...]


def fanout_keys(queue: str, *, prefix: str = "") -> FanoutKeys:
    """Return the keys of one fan-out queue, apart from those of its consumers."""
    stem = f"{key_stem(queue, prefix=f'{prefix}fanout:')}:"
    return FanoutKeys._make(map(stem.__add__, FanoutKeys._fields))


def fanout_consumer_keys(queue: str, consumer: str, *, lanes: int = 1, prefix: str = "") -> FanoutConsumerKeys:
    """Return the keys of one consumer of a fan-out queue; its name holds no colon and no brace.

    :param lanes: how many the consumer has; the first one's list is named as that of a consumer without lanes.
    """
    stem = f"{key_stem(queue, prefix=f'{prefix}fanout:')}:consumer:{consumer}:"
    ready = (f"{stem}ready", *(f"{stem}ready:{lane}" for lane in range(1, lanes)))
    return FanoutConsumerKeys(
        leases=f"{stem}leases",
        delayed=f"{stem}delayed",
        dead=f"{stem}dead",
        details=f"{stem}details",
        wakes=f"{stem}wakes",
        ready=ready,
    )


FANOUT_PARTS = 64
"""Into how many parts the fan-out queues are divided for upkeep."""


def fanout_part(queue: str) -> int:
    """Return the part that a fan-out queue is in."""
    return client_slot(queue) % FANOUT_PARTS


def fanout_scan_pattern(prefix: str) -> str:
    """Return a pattern for SCAN that matches a key of every fan-out queue."""
    return literally(prefix) + "fanout:{*}:state"


def fanout_queue_of(state_key: str, *, prefix: str = "") -> str:
    """Return which queue the key is of that :func:`fanout_scan_pattern` has found."""
    return state_key[len(f"{prefix}fanout:{{") : -len("}:state")]


COMPACTED_REGISTRIES = 64
"""Into how many sets the compacted queues are divided for the collector."""


class CompactedKeys(NamedTuple):
    """Names of one compacted queue's keys, in the order in which its scripts take them.

    :param state: HASH: sequence, cursor, fence, bytes, counters and, if it has one, a retention of its own.
    :param order: ZSET: message key -> sequence.
    :param times: ZSET: message key -> instant of its append in ms.
    :param values: HASH: message key -> ``<sequence> <flags> <record>``.
    :param tombstones: ZSET: message key -> sequence, of tombstones only.
    :param in_flight: ZSET of sequences that the consumer holds.
    :param wake: ZSET of at most one member that a consumer waits for.
    :param producers: HASH: producer -> its last append.
    """

    state: str
    order: str
    times: str
    values: str
    tombstones: str
    in_flight: str
    wake: str
    producers: str


def compacted_keys(client_id: str, *, prefix: str = "") -> CompactedKeys:
    """Return the keys of one client's compacted queue."""
    stem = f"{key_stem(client_id, prefix=f'{prefix}compacted:')}:"
    return CompactedKeys._make(map(stem.__add__, CompactedKeys._fields))


def compacted_registry_keys(*, prefix: str = "") -> tuple[str, ...]:
    """Return the sets that say which compacted queues there are, and when each is due for collection."""
    return tuple(f"{prefix}compacted:due:{number:02}" for number in range(COMPACTED_REGISTRIES))


def compacted_registry_key(client_id: str, *, prefix: str = "") -> str:
    """Return the set that a compacted queue is noted in."""
    return f"{prefix}compacted:due:{client_slot(client_id) % COMPACTED_REGISTRIES:02}"


def compacted_collector_keys(*, prefix: str = "") -> tuple[str, ...]:
    """Return the hashes that say who collects the queues of each registry, and how that ended; each in its slot."""
    return tuple(f"{prefix}compacted:collector:{{{key}}}" for key in compacted_registry_keys(prefix=prefix))


def compacted_scan_pattern(prefix: str) -> str:
    """Return a pattern for SCAN that matches a key of every compacted queue."""
    return literally(prefix) + "compacted:{*}:state"


def compacted_client_id(state_key: str, *, prefix: str = "") -> str:
    """Return whose queue the key is of that :func:`compacted_scan_pattern` has found."""
    return state_key[len(f"{prefix}compacted:{{") : -len("}:state")]


class RawSessionKeys(NamedTuple):
    """:class:`SessionKeys` of an id that need be no text."""

    messages: bytes
    last_packet_id: bytes
    session: bytes


def raw_session_keys(stem: bytes) -> RawSessionKeys:
    """Return the keys of the DEVICE session whose keys begin so, as :func:`split_session_key` tells."""
    return RawSessionKeys(stem + b"_messages", stem + b"_last_packet_id", stem + b"_session")


class RawPackedKeys(NamedTuple):
    """:class:`PackedKeys` of an id that need be no text."""

    session: bytes


def raw_packed_keys(stem: bytes) -> RawPackedKeys:
    """Return the key of the packed session whose key begins so, as :func:`split_session_key` tells."""
    return RawPackedKeys(stem + b"_packed")


_SESSION_KEY = re.compile(rb"(\{.+\})_(?:messages(?:_([0-9]+))?|(last_packet_id|session|packed))", re.DOTALL)


def split_session_key(name: bytes, *, prefix: bytes) -> tuple[bytes, str] | None:
    """Return prefix and tag of a DEVICE session's key, and of which kind it is; none for any other key.

    :returns: kind ``messages``, ``payload``, ``last_packet_id``, ``session`` or ``packed``; what stands before it is
        the same for all keys of a session, so that their names can be put together without knowing the client id.
    """
    if not name.startswith(prefix):
        return None
    match = _SESSION_KEY.fullmatch(name, len(prefix))
    if match is None:
        return None
    return prefix + match[1], match[3].decode() if match[3] else "payload" if match[2] else "messages"


def session_scan_pattern(prefix: str) -> str:
    """Return a pattern for SCAN that misses no key of a DEVICE session."""
    return literally(prefix) + "{*}_*"


def literally(text: str) -> str:
    """Return a pattern that matches this text only."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def hash_slot(key: bytes | str | int) -> int:
    """Return the cluster's hash slot of a key: CRC16 of what its first brace pair holds, or of the whole key."""
    raw = key if isinstance(key, bytes) else str(key).encode()
    start = raw.find(b"{")
    if start >= 0:
        end = raw.find(b"}", start + 1)
        if end > start + 1:
            raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


def client_slot(client_id: str) -> int:
    """Return the hash slot of all keys of one client; the prefix has no say, since it holds no brace.

    Keys of an id that :func:`is_scattered` have a slot each. Where clients are divided by slots, such a one counts to
    the slot of its bare stem.
    """
    return hash_slot(key_stem(client_id))


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """A range of hash slots that is planned, copied and verified as one.

    :param cohort: number, from 0.
    :param slot_first: first slot.
    :param slot_last: last slot, included.
    :param shard: ``host:port`` of the server that holds the range.
    """

    cohort: int
    slot_first: int
    slot_last: int
    shard: str


def cohorts(*, count: int, shards: list[tuple[int, int, str]]) -> list[Cohort]:
    """Cut the slots into cohorts, none of which spans two shards.

    :param count: how many cohorts to aim for; at least one per contiguous range of a shard is made.
    :param shards: contiguous ranges ``(first slot, last slot, address)``, covering all slots once.
    :raises UsageError: when the count is out of range or the ranges leave slots uncovered.
    """
    if not 1 <= count <= SLOTS:
        raise UsageError(f"cohort count {count} is out of range: 1 to {SLOTS}")
    ranges = sorted(shards)
    expected = 0
    for first, last, address in ranges:
        if first != expected or last < first:
            raise UsageError(f"the cluster does not serve slot {expected}: repair it before migrating ({address})")
        expected = last + 1
    if expected != SLOTS:
        raise UsageError(f"the cluster does not serve slot {expected}: repair it before migrating")
    result: list[Cohort] = []
    for first, last, address in ranges:
        size = last - first + 1
        pieces = min(size, max(1, round(count * size / SLOTS)))
        for piece in range(pieces):
            start = first + size * piece // pieces
            end = first + size * (piece + 1) // pieces - 1
            result.append(Cohort(cohort=len(result), slot_first=start, slot_last=end, shard=address))
    return result


_RANGE = re.compile(r"(\d{1,30})(?:-(\d{1,30}))?")


def parse_cohorts(text: str, *, count: int) -> list[int]:
    """Read a choice of cohorts such as ``all`` or ``0-3,7``.

    :param text: the choice as typed.
    :param count: how many cohorts exist.
    :raises UsageError: when it does not parse or names a cohort that does not exist.
    """
    if text.strip() == "all":
        return list(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"cohorts {text!r} do not parse: write 'all' or numbers and ranges such as '0-3,7'")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last or last >= count:
            raise UsageError(f"cohort {part.strip()} is out of range: this plan has cohorts 0 to {count - 1}")
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def check_cohorts(text: str) -> None:
    """Refuse a choice of cohorts that no number of cohorts allows; a blank text chooses none.

    :raises UsageError: when it does not parse, a range falls, or a number is no hash slot.
    """
    if text.strip():
        parse_cohorts(text, count=SLOTS)


def format_cohorts(cohorts: Sequence[int]) -> str:
    """Return numbers as :func:`parse_cohorts` reads them, such as ``0-3,7``."""
    runs: list[list[int]] = []
    for cohort in sorted(set(cohorts)):
        if runs and cohort == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], cohort]
        else:
            runs.append([cohort, cohort])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
