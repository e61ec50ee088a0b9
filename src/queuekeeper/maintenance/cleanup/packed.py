"""Cleans packed sessions: removes messages whose lives are over, and lets imports end that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from queuekeeper import lua
from queuekeeper.jobs.model import World
from queuekeeper.keyspace import raw_packed_keys
from queuekeeper.lua import scripts
from queuekeeper.maintenance.cleanup.model import CleanupCounts, CleanupParameters, Stop
from queuekeeper.sessions.packed_serials import SerialPages, is_sparse
from queuekeeper.sessions.packed_state import PackedState, state_of

SERIALS_PER_CALL = 100
"""Places that a call looks at; the server reads their records, some 2 us for each of 1 KB."""

_LISTED_BYTES = 250_000
_SESSIONS_PER_STEP = 50

CallUntilError: TypeAlias = Callable[..., tuple[list[lua.Reply], Stop | None]]
"""Makes calls at the run's pace; see :class:`queuekeeper.maintenance.cleanup.sweep.Sweep`."""


@dataclass
class _Session:
    """A packed session that is worked through.

    :ivar at: serial at which the next call begins; in a sparse session, position among ``serials``.
    :ivar serials: of a sparse session; none of one whose places are looked at in turn.
    :ivar next_ms: earliest end of the messages that stay, of those seen so far; 0 for none.
    """

    stem: bytes
    state: PackedState
    messages: int
    at: int
    serials: list[int] | None = None
    removed: int = 0
    next_ms: int = 0

    def some(self, count: int) -> list[int]:
        """Return the next serials to look at; none when all were."""
        if self.serials is not None:
            return self.serials[self.at : self.at + count]
        return list(range(self.at, min(self.at + count, self.state.last + 1)))


class PackedSweep:
    """Cleans packed sessions, or only counts where the world's writer only counts.

    :param call: returns the replies, and the first error.
    :param note: notes expiries in the undo file before they are set.
    :param keep_ms: time for which imports are kept that nobody uses and that hold no messages.
    """

    def __init__(
        self,
        world: World[CleanupParameters],
        *,
        call: CallUntilError,
        note: Callable[[Iterable[tuple[bytes, int]]], None],
        keep_ms: int,
    ) -> None:
        self._world, self._call, self._note, self._keep_ms = world, call, note, keep_ms

    def sessions(self, stems: Sequence[bytes], counts: CleanupCounts) -> list[tuple[int, int, bytes]]:
        """Clean some sessions; return ``(dead, messages, stem)`` of those with expired messages."""
        counts.sessions += len(stems)
        replies, error = self._call([scripts.packed.read_session(raw_packed_keys(stem)) for stem in stems], counts)
        found: list[_Session] = []
        now_ms = 0
        for stem, reply in zip(stems, replies, strict=True):
            if reply is None or not reply.fields:
                continue
            now_ms = reply.now_ms
            state = state_of(reply.state)
            if state is None:
                counts.wrong_type_keys += 1
                continue
            found.append(_Session(stem, state, reply.fields - state.others, at=state.head))
        counts.references += sum(each.messages for each in found)
        if error is not None:
            raise error
        # Unless the state knows better, a message may be over.
        due = [each for each in found if each.messages and each.state.earliest <= now_ms]
        for batch in self._world.batches(due, _SESSIONS_PER_STEP):
            self._remove(batch, counts)
        dead = [each for each in due if each.removed]
        self._idle([each for each in found if each.removed == each.messages], counts)
        return [(each.removed, each.messages, each.stem) for each in dead]

    def _remove(self, sessions: Sequence[_Session], counts: CleanupCounts) -> None:
        """Go through the messages of some sessions, a call of each at a time."""
        for each in sessions:
            if is_sparse(head=each.state.head, last=each.state.last, messages=each.messages):
                each.serials, each.at = self._listed(each, counts), 0
        going = list(sessions)
        while going:
            count = self._world.size(SERIALS_PER_CALL)
            asked = [(each, serials) for each in going if (serials := each.some(count))]
            calls = [_removal(each, serials) for each, serials in asked]
            replies, error = self._call(calls, counts, cost=count)
            going = []
            for (each, serials), reply in zip(asked, replies, strict=True):
                if reply is None:
                    continue
                each.removed += reply.removed
                each.at += len(serials)
                if reply.next_ms:
                    each.next_ms = min(each.next_ms or reply.next_ms, reply.next_ms)
                counts.expired_messages += reply.removed
                counts.freed_bytes += reply.bytes
                going.append(each)
            if error is not None:
                raise error
            through = [each for each in going if not each.some(1)]
            # The next look need not go through the messages again before one of them is over.
            _, error = self._call([_removal(each, (), earliest=each.next_ms) for each in through], counts)
            if error is not None:
                raise error
            going = [each for each in going if each not in through]

    def _listed(self, session: _Session, counts: CleanupCounts) -> list[int]:
        """Return the serials of a session that has far more places than messages."""
        pages = SerialPages(raw_packed_keys(session.stem), largest=session.state.largest, max_bytes=_LISTED_BYTES)
        while pages.more:
            call = pages.call(self._world.size(pages.fields))
            (reply,), error = self._call([call], counts, cost=pages.fields)
            if error is not None:
                raise error
            if reply is None:
                return []
            pages.take(reply)
        return pages.serials()

    def _idle(self, sessions: Sequence[_Session], counts: CleanupCounts) -> None:
        """Let sessions end in which nothing waits, and which nobody has used since they were imported."""

        def call(session: _Session, said_ms: int = 0) -> lua.Call:
            return scripts.maintenance.expire_idle_packed(
                raw_packed_keys(session.stem),
                keep_ms=self._keep_ms,
                said_ms=said_ms,
                all_dead=int(self._world.counts_only and session.removed > 0),
            )

        replies, error = self._call([call(each) for each in sessions], counts)
        counts.held_sessions += sum(reply is not None and reply.word == "held" for reply in replies)
        going = [
            (each, reply)
            for each, reply in zip(sessions, replies, strict=True)
            if reply is not None and reply.word == "expires"
        ]
        if error is not None:
            raise error
        self._note((_name(each), int(reply.expires_at_ms)) for each, reply in going)
        replies, error = self._call([call(each, reply.as_of_ms) for each, reply in going], counts)
        done = [
            (each, said, reply)
            for (each, said), reply in zip(going, replies, strict=True)
            if reply is not None and reply.word == "expires"
        ]
        # The script has judged again what was used in between.
        self._note(
            (_name(each), int(reply.expires_at_ms))
            for each, said, reply in done
            if reply.expires_at_ms != said.expires_at_ms
        )
        counts.idle_keys += len(done)
        if error is not None:
            raise error


def _removal(session: _Session, serials: Sequence[int], *, earliest: int | str = "") -> lua.Call:
    return scripts.packed.remove_expired(
        raw_packed_keys(session.stem), epoch="", earliest=earliest, seen=session.state.last, serials=serials
    )


def _name(session: _Session) -> bytes:
    return raw_packed_keys(session.stem).session
