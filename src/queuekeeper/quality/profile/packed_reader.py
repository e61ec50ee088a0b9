"""Reads and judges packed sessions: a script returns numbers and the state, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from queuekeeper import lua
from queuekeeper.clock import Pace
from queuekeeper.errors import NotAllowed
from queuekeeper.keyspace import PackedKeys, packed_keys
from queuekeeper.lua import scripts
from queuekeeper.portions import portions
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.queue_window import MISSING, UNREADABLE, Integers, Page, Window, codes
from queuekeeper.sessions.packed_state import (
    PackedContent,
    PackedMessage,
    PackedState,
    misplaced,
    promised_in_use,
    state_faults,
    state_of,
)

_FIELDS_PER_CALL = 100
_FIELDS_PER_EXCHANGE = 100
_QUEUES_PER_STEP = 512
_VALUES = 7
# Readings of a session that changes meanwhile, before its state is left unjudged.
_TRIES = 3


@dataclass
class _Session:
    """A packed session as its pages tell it.

    :ivar begun: state and number of fields when reading began.
    :ivar is_still: whether they were the same until the end.
    """

    queue: int
    keys: PackedKeys
    cursor: bytes = b"0"
    pages: list[Integers] = field(default_factory=list)
    kind: int = 0
    pexpiretime: int = 0
    now_ms: int = 0
    state: bytes = b""
    begun: tuple[bytes, int] | None = None
    is_still: bool = True
    is_whole: bool = True
    fields: int = 0

    def take(self, reply: lua.Reply) -> int:
        """Take a page; return how many messages it has."""
        self.cursor, self.kind, self.pexpiretime, self.now_ms = reply[:4]
        self.state, self.fields, whole = reply[4:7]
        if self.begun is None:
            self.begun = self.state, self.fields
        self.is_still = self.is_still and self.begun == (self.state, self.fields)
        self.is_whole = self.is_whole and whole == 1
        page = np.array(reply[7:], np.int64).reshape(-1, _VALUES)
        self.pages.append(page)
        return len(page)

    def messages(self) -> Integers:
        """Return the numbers that the script gives of each message, in order."""
        rows = np.concatenate(self.pages)
        # A page may return a message again.
        _, first = np.unique(rows[:, 0], return_index=True)
        return rows[first]


class Caller(Protocol):
    """Answers calls of scripts: a server, or a snapshot of one."""

    def execute(self, calls: Sequence[lua.Call]) -> lua.Replies:
        """Return the replies in the order of the calls."""


class PackedReader:
    """Reads packed sessions, a page of many or all pages of a long one at a time.

    :param caller: answers the scripts.
    :param pace: called at every step with the number of messages read, as a share of the work on one.
    """

    def __init__(self, caller: Caller, *, parameters: ProfileParameters, pace: Pace) -> None:
        self._caller = caller
        self._parameters = parameters
        self._pace = pace
        self._share = 1.0 - parameters.shares.key
        self._usual = 1.0

    def read(self, window: Window, queues: Integers) -> None:
        """Measure some queues of a window."""
        prefix = self._parameters.key_prefix
        for start in range(0, len(queues), _QUEUES_PER_STEP):
            some = [
                _Session(int(queue), packed_keys(window.clients[queue], prefix=prefix))
                for queue in queues[start : start + _QUEUES_PER_STEP]
            ]
            self._pages(some)
            self._usual = np.mean([sum(map(len, each.pages)) for each in some]).item()
            self._judge(window, [each for each in some if each.cursor == b"0"])
            for each in some:
                if each.cursor != b"0":
                    self._read_on(each)
                    self._judge(window, [each])

    def _read_on(self, session: _Session) -> None:
        while session.cursor != b"0":
            self._pages([session])

    def _pages(self, sessions: Sequence[_Session]) -> None:
        """Read the next page of each session."""
        size = max(1, min(_FIELDS_PER_CALL, round(self._usual)))
        for some in portions(sessions, size=lambda _: size, most=_FIELDS_PER_EXCHANGE):
            calls = [
                scripts.quality.profile_packed(
                    each.keys,
                    cursor=each.cursor,
                    count=_FIELDS_PER_CALL,
                    default_ttl_s=self._parameters.default_ttl_s,
                    fingerprints=int(self._parameters.contents),
                )
                for each in some
            ]
            with named_rule(self._parameters.key_prefix):
                replies = self._caller.execute(calls).or_raise()
            read = sum(each.take(reply) for each, reply in zip(some, replies, strict=True))
            self._pace(max(1, read) * self._share)

    def _judge(self, window: Window, sessions: Sequence[_Session]) -> None:
        tables = [each.messages() for each in sessions]
        counts = np.array([len(table) for table in tables], np.int64)
        for session, table in zip(sessions, tables, strict=True):
            self._judge_state(window, session, table)
        if not counts.sum():
            return
        queues = np.array([each.queue for each in sessions], np.int64)
        owners = np.repeat(queues, counts)
        now_ms = np.repeat(np.array([each.now_ms for each in sessions], np.int64), counts)
        serials, packet_ids, expires_at_ms, size_bytes, faults, fingerprints, _ = np.concatenate(tables).T
        window.judge_order(
            Page(
                queues=queues,
                firsts=np.cumsum(counts) - counts,
                owners=owners,
                serials=serials,
                packet_ids=packet_ids,
                last_packet_ids=packet_ids,
            )
        )
        dead = (expires_at_ms >= 0) & (expires_at_ms <= now_ms)
        window.add("dead", owners[dead])
        live = ~dead
        window.measure(
            owners[live],
            packet_ids[live],
            expires_at_ms=expires_at_ms[live],
            size_bytes=size_bytes[live],
            max_record_bytes=self._parameters.max_packed_bytes,
        )
        window.note_faults(owners[live], faults[live], fingerprints[live])
        # What is no record has no packet id.
        named = live & (packet_ids >= 0)
        distinct, times = np.unique(codes(owners[named], packet_ids[named]), return_counts=True)
        again = times > 1
        window.add("duplicate_packet_ids", distinct[again] >> 32, times[again])

    def _judge_state(self, window: Window, session: _Session, table: Integers) -> None:
        """Set the head of a queue; count what its state says that does not hold, if it was the same all the time."""
        state = state_of(session.state)
        last = MISSING if not session.state or session.kind != 1 else UNREADABLE
        if state is not None:
            last = state.last_packet_id or MISSING
        newest = int(table[-1, 1]) if len(table) else MISSING
        never = int(session.kind != 0 and session.pexpiretime == -1)
        window.heads[session.queue] = (len(table), int(session.kind == -1), never, last, 0, newest)
        if state is None or not session.is_whole:
            return
        for attempt in range(_TRIES):
            messages = [PackedMessage(*row[:4]) for row in table.tolist()]
            content = PackedContent(messages=messages, others=session.fields - len(messages))
            found = state_faults(state, content)
            if not found or session.is_still or attempt + 1 == _TRIES:
                break
            session = _Session(session.queue, session.keys)
            self._pages([session])
            self._read_on(session)
            table, known = session.messages(), state_of(session.state)
            if known is None:
                return
            state = known
        if found and session.is_still:
            self._note(window, session.queue, state, content, faults=len(found))

    @staticmethod
    def _note(window: Window, queue: int, state: PackedState, content: PackedContent, *, faults: int) -> None:
        window.sums["state_faults"][queue] += faults
        window.sums["misplaced"][queue] += misplaced(state, content)
        window.sums["ids_in_use"][queue] += promised_in_use(state, content)


@contextmanager
def named_rule(key_prefix: str) -> Iterator[None]:
    """Add the rule that a profile of packed sessions needs to an error about a missing right."""
    try:
        yield
    except NotAllowed as error:
        rule = f"(+hget +hlen +hscan ~{key_prefix}*_packed) (+hget ~{key_prefix}*_session)"
        raise NotAllowed(f"{error}. A profile of packed sessions needs: ACL SETUSER <user> {rule}") from error
