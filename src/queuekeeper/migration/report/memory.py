"""Measures what imported sessions take in Redis, from a random sample of their keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pvariance
from typing import Any

import redis

from queuekeeper.redis_client import RedisClient, nodes, redis_errors
from queuekeeper.report.figures import SCORE_95
from queuekeeper.sessions.pages import Layout

DRAWS = 20_000
"""Random keys asked for, over all servers: enough for a few per cent, and done in about a second."""

WHOLE = 50_000
"""With no more keys than this all are measured: a few very large messages would escape a sample."""

BATCH = 500

_SAMPLES = 1_000
"""Members of a key that a server measures: payloads differ much, and more would hold it up."""

_COUNTED = {b"messages": "ZCARD", b"packed": "HLEN"}
"""Command that counts what a key holds, by its name's end; the other keys hold one thing each."""

_PACKED_OWN_FIELDS = 9
"""Fields of an imported packed session that are no messages."""


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """What the sessions take, from a sample.

    :param bytes: keys and values, with their share of the server's key tables.
    :param low_bytes: lower end of the 95 % interval.
    :param high_bytes: upper end.
    :param keys_drawn: keys drawn at random, or all keys.
    :param keys_measured: those of them that belong to sessions.
    :param messages: messages that the sample was scaled to.
    :param sessions: sessions likewise.
    :param bytes_per_message: payload keys and references, per message; of packed sessions fields.
    :param bytes_per_session: all else, per session.
    :param whole: whether all keys were measured, so that there is no error of sampling.
    """

    bytes: int
    low_bytes: int
    high_bytes: int
    keys_drawn: int
    keys_measured: int
    messages: int
    sessions: int
    bytes_per_message: float
    bytes_per_session: float
    whole: bool


@dataclass(frozen=True, kw_only=True)
class KeySample:
    """Bytes of the keys in a sample, by what they hold.

    :param references: ``(bytes, members)`` of each set of references.
    :param packed: ``(bytes, fields)`` of each packed session; nine of its fields are no messages.
    :param table_bytes: what a server's key tables take, per key.
    """

    payloads: tuple[int, ...] = ()
    references: tuple[tuple[int, int], ...] = ()
    last_packet_ids: tuple[int, ...] = ()
    sessions: tuple[int, ...] = ()
    packed: tuple[tuple[int, int], ...] = ()
    table_bytes: float = 0.0
    drawn: int = 0
    whole: bool = False


def estimate_memory(
    client: RedisClient,
    *,
    prefix: str,
    messages: int,
    sessions: int,
    layout: Layout = Layout.TBMQ,
    draws: int = DRAWS,
) -> MemoryEstimate | None:
    """Estimate the memory of imported sessions, whatever else the servers hold.

    :param prefix: put before every Redis key.
    :param messages: messages that are in Redis.
    :param sessions: sessions that are in Redis.
    :param layout: of these sessions.
    :param draws: random keys to draw; drawing the same one twice does no harm.
    :returns: none when no key of a session was drawn.
    :raises ServerUnavailable: when a server cannot be asked.
    """
    sample = sample_keys(client, prefix=prefix, layout=layout, draws=draws)
    return scale(sample, messages=messages, sessions=sessions)


def sample_keys(client: RedisClient, *, prefix: str, layout: Layout = Layout.TBMQ, draws: int) -> KeySample:
    """Draw random keys of every server, in proportion to how many it holds, and measure those of sessions.

    Where there are few keys all of them are taken.
    """
    servers = []
    for address, node in nodes(client):
        with redis_errors(address):
            servers.append((address, node, node.dbsize()))
    keys_held = sum(size for _, _, size in servers)
    whole = keys_held <= WHOLE
    ends = b"packed" if layout is Layout.PACKED else rb"messages_\d+|messages|last_packet_id|session"
    shape = re.compile(re.escape(prefix.encode()) + rb"\{.*\}_(" + ends + b")", re.DOTALL)
    payloads: list[int] = []
    references: list[tuple[int, int]] = []
    last_packet_ids: list[int] = []
    sessions: list[int] = []
    packed: list[tuple[int, int]] = []
    table_bytes, drawn = 0.0, 0
    for address, node, size in servers:
        if size == 0:
            continue
        with redis_errors(address):
            table_bytes += _table_bytes(node) / keys_held
            if whole:
                names = list(node.scan_iter(count=1_000))
            else:
                replies = _asked(node, [("RANDOMKEY",)] * max(1, round(draws * size / keys_held)))
                names = [name for name in replies if name is not None]
            drawn += len(names)
            kinds = [(name, match[1]) for name in names if (match := shape.fullmatch(name))]
            usage = _asked(node, [("MEMORY USAGE", name, "SAMPLES", _SAMPLES) for name, _ in kinds])
            held = iter(_asked(node, [(_COUNTED[kind], name) for name, kind in kinds if kind in _COUNTED]))
            for (_, kind), used in zip(kinds, usage, strict=True):
                count = next(held) if kind in _COUNTED else 1
                if used is None or not count:
                    continue  # expired meanwhile
                if kind == b"messages":
                    references.append((used, count))
                elif kind == b"last_packet_id":
                    last_packet_ids.append(used)
                elif kind == b"session":
                    sessions.append(used)
                elif kind == b"packed":
                    packed.append((used, count))
                else:
                    payloads.append(used)
    return KeySample(
        payloads=tuple(payloads),
        references=tuple(references),
        last_packet_ids=tuple(last_packet_ids),
        sessions=tuple(sessions),
        packed=tuple(packed),
        table_bytes=table_bytes,
        drawn=drawn,
        whole=whole,
    )


def scale(sample: KeySample, *, messages: int, sessions: int) -> MemoryEstimate | None:
    """Scale a sample to the number of messages and sessions.

    Payload keys are scaled by their mean. Sets of references are scaled by bytes per member, since a few long queues
    hold most of them.
    """
    if sample.packed:
        return _scale_packed(sample, messages=messages, sessions=sessions)
    measured = len(sample.payloads) + len(sample.references) + len(sample.last_packet_ids) + len(sample.sessions)
    if not measured:
        return None
    members = sum(count for _, count in sample.references)
    per_reference = sum(used for used, _ in sample.references) / members if members else 0.0
    sets = messages * len(sample.references) / members if members else 0.0
    # Not every session has given out a packet id.
    with_last = min(1.0, len(sample.last_packet_ids) / len(sample.sessions)) if sample.sessions else 1.0
    per_message = _mean(sample.payloads) + per_reference + sample.table_bytes
    per_session = (
        _mean(sample.sessions)
        + with_last * _mean(sample.last_packet_ids)
        + sample.table_bytes * (1 + with_last + (sets / sessions if sessions else 0.0))
    )
    variance = messages**2 * _variance_of_mean(sample.payloads) + sessions**2 * _variance_of_mean(sample.sessions)
    if members:
        residuals = [used - per_reference * count for used, count in sample.references]
        variance += (messages * len(residuals) / members) ** 2 * _variance_of_mean(residuals)
    total = per_message * messages + per_session * sessions
    margin = 0.0 if sample.whole else SCORE_95 * sqrt(variance)
    return MemoryEstimate(
        bytes=round(total),
        low_bytes=max(0, round(total - margin)),
        high_bytes=round(total + margin),
        keys_drawn=sample.drawn,
        keys_measured=measured,
        messages=messages,
        sessions=sessions,
        bytes_per_message=round(per_message, 1),
        bytes_per_session=round(per_session, 1),
        whole=sample.whole,
    )


def _scale_packed(sample: KeySample, *, messages: int, sessions: int) -> MemoryEstimate:
    """Scale hashes by bytes per field, since a few long queues hold most messages."""
    fields = sum(count for _, count in sample.packed)
    per_field = sum(used for used, _ in sample.packed) / fields
    own = sample.table_bytes + per_field * _PACKED_OWN_FIELDS
    total = per_field * messages + own * sessions
    residuals = [used - per_field * count for used, count in sample.packed]
    margin = 0.0 if sample.whole else SCORE_95 * sqrt(sessions**2 * _variance_of_mean(residuals))
    return MemoryEstimate(
        bytes=round(total),
        low_bytes=max(0, round(total - margin)),
        high_bytes=round(total + margin),
        keys_drawn=sample.drawn,
        keys_measured=len(sample.packed),
        messages=messages,
        sessions=sessions,
        bytes_per_message=round(per_field, 1),
        bytes_per_session=round(own, 1),
        whole=sample.whole,
    )


def _mean(values: Iterable[float]) -> float:
    values = tuple(values)
    return fmean(values) if values else 0.0


def _variance_of_mean(values: Iterable[float]) -> float:
    values = tuple(values)
    return pvariance(values) / len(values) if values else 0.0


def _asked(node: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return the replies to commands, which are sent some hundred at a time."""
    replies: list[Any] = []
    for start in range(0, len(commands), BATCH):
        pipeline = node.pipeline(transaction=False)
        for command in commands[start : start + BATCH]:
            pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
        replies += pipeline.execute()
    return replies


def _table_bytes(node: redis.Redis) -> int:
    """Return what the tables of keys and of expiry instants take, which ``MEMORY USAGE`` counts to no key."""
    statistics = node.memory_stats()
    total = 0
    for name, value in statistics.items():
        if re.fullmatch(r"db\.\d+", name):
            pairs = value if isinstance(value, list) else [part for item in value.items() for part in item]
            facts = {bytes(key).decode() if isinstance(key, bytes) else str(key): pairs[at + 1]
                     for at, key in enumerate(pairs) if at % 2 == 0}  # fmt: skip
            total += int(facts.get("overhead.hashtable.main", 0)) + int(facts.get("overhead.hashtable.expires", 0))
    return total
