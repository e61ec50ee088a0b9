"""Puts a session's messages back into the order of PostgreSQL's serials, where the source still has their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from psycopg import errors as postgres_errors

from queuekeeper.errors import SchemaMismatch
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.aside import is_serial
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue, QueueRefused
from queuekeeper.maintenance.remedies.sessions import Reference, Sessions, Verdict
from queuekeeper.postgres import address, server_words
from queuekeeper.sql_statements import statement

_MAX_SERIAL = 2**53


class ReorderFromSource(Remedy):
    """Give messages the serials of their rows in PostgreSQL.

    A message belongs to a row with the same packet id and time. Messages without a row came after the migration: they
    stay behind the others in their own order. A queue is refused if such a message is older than one with a row.
    """

    kind = "reorder_from_source"
    packed = "its messages are in the order of their serials, which are the names of their fields"
    writes_by = frozenset({"reorder_messages"})
    reads_source = True
    whole = True

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per reference that gets another serial, the highest new serial first.

        In this order, each step leaves an order from which the next step can continue.
        """
        state = self.sessions.state(queue)
        references = self.sessions.references(queue)
        # The set is read in pages, and an acknowledgement between two pages may hide members.
        if (state.references, state.last_score) != (len(references), references[-1].score if references else ""):
            raise QueueRefused("it changed while it was read: try again")
        if any(each.packet_id is None for each in references):
            raise QueueRefused("it holds references without a packet id: run quarantine_messages first")
        verdicts = self.sessions.judge(queue, [each.member for each in references])
        serials = _serials(_rows(self.sessions, queue), references, verdicts)
        effects = [
            Effect(
                kind="message moved to its place",
                packet_id=each.packet_id,
                before=each.score,
                after=serial,
                references=len(references),
                last_score=state.last_score,
                last_serial=max(serials),
            )
            for each, serial in zip(references, serials, strict=True)
            if float(each.score) != serial
        ]
        return sorted(effects, key=lambda effect: -int(effect.after or 0))

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Set the serials."""
        return _move(self.sessions, queue, effects, back=False)

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Set them back."""
        return [
            "" if done else "the message has gone or moved since"
            for done in _move(self.sessions, queue, effects, back=True)
        ]


def _rows(sessions: Sessions, queue: Queue) -> dict[tuple[int, int], int]:
    """Return serials of the source's rows by packet id and time."""
    source = sessions.world.database
    assert source is not None  # find has checked it
    try:
        rows = source.execute(statement("maintenance/source_serials"), {"client_id": queue.client_id}).fetchall()
    except (postgres_errors.UndefinedTable, postgres_errors.UndefinedColumn) as error:
        raise SchemaMismatch(
            f"{address(source)} does not hold TBMQ 1.x's tables: {server_words(error)}. "
            "Name the database that the sessions came from"
        ) from error
    if not rows:
        raise QueueRefused("the source has no rows of this client")
    found = {(packet_id, time_ms): serial for serial, packet_id, time_ms in rows}
    if len(found) < len(rows):
        raise QueueRefused("rows of the source share packet id and time")
    return found


def _serials(
    rows: dict[tuple[int, int], int], references: Sequence[Reference], verdicts: Sequence[Verdict]
) -> list[int]:
    """Return the new serial of each reference."""
    by_packet_id: dict[int, list[int]] = {}
    for (packet_id, _), serial in rows.items():
        by_packet_id.setdefault(packet_id, []).append(serial)
    found: dict[int, int] = {}
    later: list[tuple[int, int]] = []
    newest_ms = -1
    for position, (reference, verdict) in enumerate(zip(references, verdicts, strict=True)):
        assert reference.packet_id is not None
        if verdict.word == "missing":
            candidates = by_packet_id.get(reference.packet_id, [])
            if len(candidates) != 1:
                raise QueueRefused("it holds dead references without a row in the source: clean it up first")
            found[position] = candidates[0]
        elif not verdict.readable:
            raise QueueRefused("it holds records that nobody can read: run quarantine_messages first")
        elif (row := rows.get((reference.packet_id, verdict.time_ms))) is not None:
            found[position] = row
            newest_ms = max(newest_ms, verdict.time_ms)
        else:
            later.append((verdict.time_ms, position))
    if any(verdict_ms < newest_ms for verdict_ms, _ in later):
        raise QueueRefused("messages without a row in the source are older than others that have one")
    if not found:
        raise QueueRefused("none of its messages has a row in the source")
    highest = max(found.values())
    for place, (_, position) in enumerate(sorted(later), start=1):
        found[position] = highest + place
    if any(count > 1 for count in Counter(found.values()).values()) or highest + len(later) > _MAX_SERIAL:
        raise QueueRefused("the source gives two references the same serial")
    return [found[position] for position in range(len(references))]


def _move(sessions: Sessions, queue: Queue, effects: Sequence[Effect], *, back: bool) -> list[bool]:
    state = sessions.state(queue)
    delivered = state.fields.get("delivered_serial", "")
    moves = [(each, each.after, each.before) if back else (each, each.before, each.after) for each in effects]
    serials = [_serial(to) for _, _, to in moves]
    if None in serials:
        # The server would refuse such a serial, which was the fault.
        return [False] * len(moves)
    # One serial no longer tells which messages were sent before, so all of them may have been sent.
    known = int(delivered) if is_serial(delivered) else 0
    highest = max(0, known, *(serial for serial in serials if serial is not None))
    sent = str(highest) if delivered else ""
    # The first step checks that the queue has not changed; from then on new messages come behind all others.
    references, last_score = "", state.last_score
    if not back:
        references, last_score = str(effects[0].references), effects[0].last_score
    elif _would_come_between(effects, last_score):
        return [False] * len(moves)
    keys = sessions.keys(queue)
    places = list(enumerate(zip(moves, serials, strict=True)))
    done = [False] * len(moves)
    # An undo reverses the steps, but keeps the order within each step.
    for batch in sessions.batches(reversed(places) if back else places):
        step = batch[::-1] if back else batch
        moved = sessions.ask(
            scripts.reorder_messages(
                keys,
                payloads=(sessions.payload(queue, move[0].packet_id or 0) for _, (move, _) in step),
                highest=highest,
                delivered_serial=sent,
                references=references,
                last_score=last_score,
                serials=(str(value) for _, (move, serial) in step for value in (move[1], serial)),
            )
        )
        if moved is None:
            break
        for (place, _), reply in zip(step, moved.done, strict=True):
            done[place] = bool(reply)
        references = last_score = ""
    return done


def _would_come_between(effects: Sequence[Effect], last_score: str) -> bool:
    """Return whether messages newer than the reordering would overtake others when it is undone."""
    last_serial = max(each.last_serial or 0 for each in effects)
    return float(last_score or 0) > last_serial < max(float(str(each.before)) for each in effects)


def _serial(value: int | str | None) -> int | None:
    """Return a score as a serial; none for a score that no message can have."""
    number = float(str(value))
    return int(number) if number % 1 == 0 and 0 <= number <= _MAX_SERIAL else None
