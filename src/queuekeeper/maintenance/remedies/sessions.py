"""Reads sessions for remedies, by read-only scripts in bounded pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from queuekeeper import lua
from queuekeeper.errors import ScatteredClient, WrongType
from queuekeeper.jobs.model import World
from queuekeeper.jobs.shares import scan_names
from queuekeeper.keyspace import (
    SessionKeys,
    key_stem,
    packed_keys,
    payload_key,
    session_keys,
    session_scan_pattern,
    suffix_packet_id,
)
from queuekeeper.lua.scripts import packed
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.model import Queue, QueueRefused, RemedyParameters, text_of
from queuekeeper.redis_names import KEYS_PER_PAGE

KEYS_PER_CALL = 200
"""Keys of one script call: about a millisecond of the server's time."""

JUDGED_BYTES_PER_CALL = 262_144
REFERENCES_PER_CALL = 1_000

WRONG_TYPE = "a key of the session holds another Redis type"
"""Why a session is not mended."""

T = TypeVar("T")


class Reference(NamedTuple):
    """A member of a session's sorted set.

    :ivar own: whether it has the form of a payload key of this session, with a valid packet id or not.
    :ivar packet_id: packet id in the reference; none when it is invalid.
    """

    member: bytes
    score: str
    own: bool
    packet_id: int | None


class Verdict(NamedTuple):
    """The server's judgement of a record, without its content.

    :ivar word: missing, wrong_type, unreadable, other_client, publish or pubrel.
    :ivar expires_at_ms: when the record expires, -1 for never.
    """

    word: str
    expires_at_ms: int
    packet_id: int | None
    time_ms: int
    interval_s: int | None
    digest: str

    @property
    def readable(self) -> bool:
        """Whether the record is a message of this client."""
        return self.word in {"publish", "pubrel"}


class State(NamedTuple):
    """State of a session.

    :ivar last_packet_id: last packet id as stored, perhaps any bytes (:func:`text_of`); empty for none.
    :ivar last_score: score of the last reference, as the server writes it; empty for an empty set.
    :ivar now_ms: the server's time.
    """

    last_packet_id: str
    references: int
    last_score: str
    now_ms: int
    fields: dict[str, str]


class Sessions:
    """Sessions of one server, read and written by scripts at the pace of the run."""

    def __init__(self, world: World[RemedyParameters]) -> None:
        self.world = world
        self.parameters = world.parameters
        self.client = world.client

    # Names.

    def keys(self, queue: Queue) -> SessionKeys:
        """Return the session's keys."""
        return session_keys(queue.client_id, prefix=self.parameters.key_prefix)

    def payload(self, queue: Queue, packet_id: int | str) -> str:
        """Return the key of one message."""
        return payload_key(queue.client_id, packet_id, prefix=self.parameters.key_prefix)

    # Reading.

    def is_packed(self, queue: Queue) -> bool:
        """Return whether a session is packed; while it moves, the layout with messages decides.

        Once it has moved, a note of its owner stays in the layout that it has left.
        """
        prefix = self.parameters.key_prefix
        try:
            told = self.ask(packed.read_session(packed_keys(queue.client_id, prefix=prefix)))
            if not told.fields:
                return False
            plain = self.ask(scripts.read_session(self.keys(queue)))
        except QueueRefused:
            return True
        is_left = told.owner == b"postgres" and plain.fields
        return not plain.references and not is_left

    def ask(self, call: lua.Call) -> Any:
        """Make one call at the run's pace; see :meth:`ask_each`."""
        return self.ask_each([call])[0]

    def ask_each(self, calls: Iterable[lua.Call]) -> list[Any]:
        """Make calls at the run's pace, and return their replies.

        :raises QueueRefused: when a key of the session has the wrong type.
        """
        found: list[Any] = []
        for batch in self.batches(calls):
            self.world.pace(sum(len(call.keys) for call in batch))
            try:
                replies = self.world.writer.execute(batch).or_raise()
                found += (call.script.read(reply) for call, reply in zip(batch, replies, strict=True))
            except ScatteredClient:
                raise QueueRefused(
                    "its id begins with a closing brace, and no script of a cluster can use its keys: they lie in "
                    "several slots"
                ) from None
            except WrongType:
                raise QueueRefused(WRONG_TYPE) from None
        return found

    def state(self, queue: Queue) -> State:
        """Return the state of a session.

        :raises QueueRefused: when the session belongs to the other store, or its import is not complete.
        """
        reply = self.ask(scripts.read_session(self.keys(queue)))
        fields = {each.field.decode("utf-8", "replace"): each.value.decode("utf-8", "replace") for each in reply.fields}
        # The script returns the state without a field's value.
        fields.pop("sent_up_to", None)
        check_owned(fields.get("owner", ""), fields.get("import", ""))
        return State(text_of(reply.last_packet_id), reply.references, reply.highest.decode(), reply.now_ms, fields)

    def references(self, queue: Queue) -> list[Reference]:
        """Read all references in the order of delivery."""
        stem = self.payload(queue, "").encode()
        return [_reference(member, score, stem) for member, score in self.members(self.keys(queue))]

    def members(self, keys: SessionKeys) -> list[tuple[bytes, str]]:
        """Read all members of a sorted set with their scores, lowest first."""
        found: list[tuple[bytes, str]] = []
        while True:
            limit = self.world.size(REFERENCES_PER_CALL)
            page = self.ask(scripts.list_references(keys, by="rank", start=len(found), limit=limit)).references
            found += ((each.member, each.score.decode()) for each in page)
            if len(page) < limit:
                return found

    def judge(self, queue: Queue, keys: Sequence[bytes | str]) -> list[Verdict]:
        """Have the server judge records of a session."""
        found: list[Verdict] = []
        while len(found) < len(keys):
            batch = keys[len(found) : len(found) + self.world.size(KEYS_PER_CALL)]
            max_bytes = self.world.size(JUDGED_BYTES_PER_CALL)
            call = scripts.judge_messages(payloads=batch, client_id=queue.client_id, max_bytes=max_bytes)
            found += map(_verdict, self.ask(call).verdicts)
        return found

    def judged(self, queue: Queue, references: Sequence[Reference]) -> Iterator[tuple[Reference, Verdict]]:
        """Pair references with the judgements of their records."""
        return zip(references, self.judge(queue, [each.member for each in references]), strict=True)

    def numbered_keys(self, queues: Sequence[Queue], kind: str) -> dict[str, list[int]]:
        """Return, by client id, the numbers in the keys of one kind, by one SCAN of all keys.

        Keys that are written meanwhile may be missed, or come twice.

        :param kind: ``messages``, ``quarantined`` or ``orphan``.
        """
        prefix = self.parameters.key_prefix
        wanted = {key_stem(queue.client_id, prefix=prefix): queue.client_id for queue in queues}
        pattern = session_scan_pattern(prefix).removesuffix("*") + f"{kind}_*"
        found: dict[str, set[int]] = {}
        for keys in scan_names(self.client, pattern, count=lambda: self.world.size(KEYS_PER_PAGE)):
            self.world.pace(1 + len(keys))
            for key in keys:
                stem, _, number = key.rpartition(f"_{kind}_")
                client_id = wanted.get(stem)
                if client_id is not None and re.fullmatch(r"0|-?[1-9][0-9]{0,15}", number):
                    found.setdefault(client_id, set()).add(int(number))
        return {client_id: sorted(numbers) for client_id, numbers in found.items()}

    def batches(self, items: Iterable[T]) -> Iterator[list[T]]:
        """Cut items of one key each into batches of one call."""
        return self.world.batches(items, KEYS_PER_CALL)


def check_owned(owner: str, progress: str) -> None:
    """Refuse a session that Redis does not own as a whole.

    :raises QueueRefused: when it belongs to the other store or moves there, or its import is not complete.
    """
    if owner == "postgres":
        raise QueueRefused("the session belongs to the other store: queuekeeper online catch-up mends its copy")
    if owner == "fenced":
        raise QueueRefused("the session is on its way to the other store")
    if progress not in {"", "done"}:
        raise QueueRefused("its import is not complete")


def _reference(member: bytes, score: str, stem: bytes) -> Reference:
    if not member.startswith(stem):
        return Reference(member, score, own=False, packet_id=None)
    return Reference(member, score, own=True, packet_id=suffix_packet_id(member[len(stem) :]))


def _verdict(reply: Any) -> Verdict:
    return Verdict(
        word=reply.verdict.decode(),
        expires_at_ms=reply.pexpiretime,
        packet_id=int(reply.packet_id) if reply.packet_id != b"" else None,
        time_ms=int(reply.time_ms or 0),
        interval_s=int(reply.interval_s) if reply.interval_s else None,
        digest=reply.digest.decode(),
    )
