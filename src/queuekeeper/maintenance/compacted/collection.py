"""Removes messages of compacted queues that their retention lets go.

The registry says which queues are due, so that no key names are searched; a part of the registry that was last
collected by other rules is read as a whole. The queue's script decides twice, when it finds a message and when it
removes it, so that a newer value of a key is never removed. Messages are noted in the undo file before they are
removed. A step is some queues of a part of the registry; a killed run continues with the part that it was in.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Generator, Iterator, Sequence
from heapq import nlargest
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.compacted.reports import CollectReport, DuePage, DueRow
from queuekeeper.errors import QueuekeeperError, RefusedError, ScriptError, UsageError
from queuekeeper.jobs.kinds import Table
from queuekeeper.jobs.model import Job, Outcome, Plan, Step, Words, World
from queuekeeper.jobs.shares import parts_of
from queuekeeper.keyspace import COMPACTED_REGISTRIES
from queuekeeper.maintenance.compacted.model import (
    KIND,
    CollectionCounts,
    CollectionFound,
    CollectionParameters,
    DueQueue,
    Restoration,
)
from queuekeeper.maintenance.compacted.registry import QUEUES_PER_STEP, Registry
from queuekeeper.maintenance.compacted.restoration import ROWS_PER_STEP, restore_collected, undo_mark
from queuekeeper.report.figures import duration, instant, number, size
from queuekeeper.report.files import ReportKind
from queuekeeper.wording import number_of

PAUSE_S = 0.01
"""Pause between steps of 100 queues, so that other clients of a busy server get their turn."""

PROOF_QUEUES_PER_PART = 1_000
"""Most queues that the second look reads of each of the 64 parts of the registry; the report says if there are more."""

RENEW_S = 20.0
LOOK_AGAIN_MS = 86_400_000
"""Longest time until a queue is due again; shorter if its messages live shorter."""

LOOK_AHEAD_MS = 3_600_000
"""Queues that become due within this time are collected, too: an acknowledged message may be due at once."""

_WORST = 10

Queues = list[tuple[bytes, int]]
"""Client ids, each with the time at which its queue is due."""

CollectionPlan = Plan[CollectionParameters, CollectionCounts, CollectionFound]
CollectionOutcome = Outcome[CollectionParameters, CollectionCounts, CollectionFound]


class Collection(Job[CollectionParameters, CollectionCounts, CollectionFound]):
    """Remove from compacted queues what retention no longer keeps."""

    kind = KIND
    report = ReportKind("compacted", "Collection report")
    undoes = True
    # Also where nothing is due, a run notes that it has read the queues, and removes records of old producers.
    works_when_empty = True
    fact_names = MappingProxyType({"finished_ms": "registry last finished"})
    words = Words(
        noun="collection",
        title="Collection",
        about="compacted queues",
        command="compacted gc",
        unit="queue of the registry, due or not",
        units="queues of the registry, due or not",
        to_do="{count:message} due",
        done="{count:message} removed",
        planned="{count:message} due, nothing was removed",
        left="{count:message} due since",
        clean="clean: a second look finds nothing that was due",
        broken="{count:queue} cannot be collected",
        hint="`queuekeeper quality run --store compacted --show-client-ids` names them, "
        "`queuekeeper compacted repair CLIENT` mends one",
        footer="Clients are named by a keyed hash.",
    )

    def __init__(self, world: World[CollectionParameters]) -> None:
        super().__init__(world)
        prefix = world.parameters.key_prefix
        self._registry = Registry(world.client, prefix)
        self._queues = CompactedQueues(world.client, prefix, counts_only=world.counts_only)
        self._worst: list[tuple[str, CollectionCounts]] = []
        self._settled: dict[str, Any] | None = None
        self._in_part = CollectionCounts()
        self._part: int | None = None
        self._held_s = 0.0

    def shares(self) -> list[str]:
        """Return ranges of parts of the registry."""
        return self.world.parameters.share_names()

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield the queues of a share in which something may be due; each part is locked while it is worked on."""
        parts = parts_of(share)
        for part in range(int(after or parts.start), parts.stop):
            if self.world.counts_only:
                yield from (Step(cursor=str(part), work=queues) for queues in self._due(part))
            elif self._registry.hold(part, self.world.token):
                yield from self._held(part)
            else:
                self.world.say(f"{share}: another collector is at part {part:02}, which is left to it")
                yield Step(cursor=str(part), work=None)

    def apply(self, step: Step) -> CollectionCounts:
        """Collect the queues of a step, and note when each is due again."""
        if step.work is None:
            return CollectionCounts(held_parts=1)
        found, rearmed = CollectionCounts(), list[tuple[bytes, int, int]]()
        self.begun = found
        try:
            for raw, due_ms in step.work:
                due_again_ms = self._collect(raw, found)
                if due_again_ms is not None:
                    rearmed.append((raw, due_ms, due_again_ms))
        finally:
            self._note()
        self._in_part.add(found)
        self.proved = self.proved and not found.broken_queues
        if self._part is not None:
            if self.world.parameters.is_regular:
                self._registry.rearm(self._part, self.world.token, rearmed)
            time.sleep(PAUSE_S)
        return found

    def look_again(self) -> Iterator[Step]:
        """Yield the queues of the registry, due or not."""
        for part in range(COMPACTED_REGISTRIES):
            looked_at = 0
            for queues in self._every(part):
                if looked_at >= PROOF_QUEUES_PER_PART:
                    self.proved = False
                    break
                looked_at += len(queues)
                yield Step(cursor=str(part), work=queues)

    def found(self) -> CollectionFound:
        """Return how many queues there are, and those in which most is due."""
        return CollectionFound(
            registered=sum(self._registry.count(part) for part in range(COMPACTED_REGISTRIES)),
            complete=self.proved,
            worst=tuple(
                DueQueue(
                    client_hash=self.world.name_client(client_id),
                    messages=counts.messages,
                    unacked=counts.unacked,
                    freed_bytes=counts.freed_bytes,
                )
                for client_id, counts in self._worst
            ),
        )

    def facts(self) -> dict[str, Any]:
        """Return when every part of the registry was last finished; none when one never was."""
        return {"finished_ms": self._registry.finished_ms()}

    def undo_header(self) -> dict[str, Any]:
        """Return whether the undo file holds the values."""
        return {"values": self.world.parameters.keep_values}

    def undo(self, run_id: str, files: Sequence[Path]) -> Restoration:
        """Restore messages whose key has no value now; see :mod:`queuekeeper.maintenance.compacted.restoration`."""
        return restore_collected(self._queues, self.world, run_id=run_id, files=files)

    # --- inside --------------------------------------------------------------------------------------------------

    def _every(self, part: int) -> Iterator[Queues]:
        """Yield all queues of a part of the registry, in steps."""

        def count() -> int:
            self.world.pace(0)
            return self.world.size(QUEUES_PER_STEP)

        return self._registry.every(part, count=count)

    def _held(self, part: int) -> Iterator[Step]:
        """Yield the due queues of a locked part; when all are done, note that the part was collected."""
        parameters = self.world.parameters
        self._part, self._held_s, self._in_part = part, time.monotonic(), CollectionCounts()
        finished: dict[str, str | int] = {}
        try:
            yield from (Step(cursor=str(part), work=queues) for queues in self._due(part))
            if parameters.is_regular:
                finished = {
                    "finished_ms": self.world.clock(),
                    "maintenance_run_id": self.world.run_id,
                    "policy": parameters.policy,
                    "retention_ms": parameters.retention.retention_ms,
                    "tombstone_ms": parameters.retention.tombstone_ms,
                    "queues": self._in_part.queues,
                    "messages": self._in_part.messages,
                    "unacked": self._in_part.unacked,
                }
        finally:
            self._part = None
            self._registry.finish(part, self.world.token, finished)

    def _due(self, part: int) -> Iterator[Queues]:
        """Yield the queues of a part in which something may be due, in steps."""
        beat = self._registry.heartbeat(part)
        parameters = self.world.parameters
        # The registry's due times follow the rules of the last collection; with other rules all queues are read.
        if not parameters.is_regular or beat is None or beat.retention != parameters.retention:
            yield from self._every(part)
            return
        every = chain.from_iterable(self._every(part))
        found: Queues = []
        for queue in every:
            if queue[1] <= self.world.now_ms + LOOK_AHEAD_MS:
                found.append(queue)
            if len(found) >= self.world.size(QUEUES_PER_STEP):
                yield found
                found = []
        if found:
            yield found

    def _collect(self, raw: bytes, total: CollectionCounts) -> int | None:
        """Collect a queue and return when it is due again; none for a queue that is left alone or broken."""
        try:
            client_id = raw.decode()
        except UnicodeDecodeError:
            total.broken_queues += 1
            return None
        if not self.world.parameters.wants_client(client_id):
            return None
        found = CollectionCounts(queues=1)
        try:
            return self._collect_queue(client_id, found)
        except (ScriptError, UsageError) as error:
            note_broken(found, error, self.world.say)
            return None
        finally:
            total.add(found)
            if found.messages and self.world.planned is None:
                self._worst = nlargest(_WORST, [*self._worst, (client_id, found)], key=lambda each: each[1].messages)

    def _collect_queue(self, client_id: str, found: CollectionCounts) -> int:
        """Collect one queue and return when it is due again."""
        mark: dict[str, Any] = {}
        latest_ms = LOOK_AGAIN_MS
        next_due_ms: int | None = None
        for page, rows in self._pages(client_id):
            self.world.rest()
            self._stay()
            latest_ms = min(LOOK_AGAIN_MS, page.retention.retention_ms, page.retention.tombstone_ms)
            next_due_ms = page.next_due_ms
            if rows:
                mark = mark or self._mark(client_id)
                self._note(mark | {"rows": [_line(row) for row in rows]})
                report = self._collect_rows(client_id, rows, found)
                self._settled = mark | {"kept": report.kept_sequences}
                mark = mark | {"collected": mark["collected"] + report.collected}
                next_due_ms = report.next_due_ms
        if mark:
            found.due_queues += 1
        elif not self.world.counts_only:
            # Records of old producers are removed along the way and not counted.
            next_due_ms = self._collect_rows(client_id, [], found).next_due_ms
        # No message that is published from now on is due before that.
        latest_ms += self.world.now_ms + 1
        return max(self.world.now_ms + 1, latest_ms if next_due_ms is None else min(latest_ms, next_due_ms))

    def _mark(self, client_id: str) -> dict[str, Any]:
        """Return the undo file's fields of a queue; empty where nothing is noted."""
        return {"collected": 0} if self.world.counts_only else undo_mark(self._queues.inspect(client_id))

    def _collect_rows(self, client_id: str, rows: list[DueRow], found: CollectionCounts) -> CollectReport:
        report = self._queues.collect(
            client_id,
            retention=self.world.parameters.retention,
            rows=rows,
            override=self.world.parameters.override,
            now_ms=self.world.now_ms,
        )
        found.messages += report.collected
        found.unacked += report.unacked
        found.tombstones += report.tombstones
        found.freed_bytes += report.size_bytes
        found.kept += report.kept
        return report

    def _note(self, line: dict[str, Any] | None = None) -> None:
        """Note the rows to be removed, and before them the outcome of the line before."""
        lines = [each for each in (self._settled, line) if each is not None]
        if lines:
            self.world.writer.note(lines)
        self._settled = None

    def _pages(self, client_id: str) -> Iterator[tuple[DuePage, list[DueRow]]]:
        """Yield the due pages of a queue, each with the rows that the filter selects."""
        parameters, after_sequence = self.world.parameters, 0
        while True:
            self.world.pace(1)
            found = self._queues.find_due(
                client_id,
                retention=parameters.retention,
                override=parameters.override,
                after_sequence=after_sequence,
                limit=self.world.size(ROWS_PER_STEP),
                with_values=parameters.keep_values and not self.world.counts_only,
                now_ms=self.world.now_ms,
            )
            self.world.pace(found.looked_at)
            yield found, [row for row in found.rows if parameters.wants_key(row.key)]
            after_sequence = found.next_after_sequence
            if not found.more:
                return

    def _stay(self) -> None:
        """Extend the lock on the part of the registry, if it is time to.

        :raises RefusedError: when another collector has the lock, since this one was paused for long.
        """
        if self._part is None or time.monotonic() - self._held_s < RENEW_S:
            return
        if not self._registry.hold(self._part, self.world.token):
            raise RefusedError(f"another collector now works on part {self._part:02} of the registry: collect again")
        self._held_s = time.monotonic()

    # --- words ---------------------------------------------------------------------------------------------------

    @classmethod
    def question(cls, run_id: str, plan: CollectionPlan) -> str:
        """Return the question that a person is asked before anything changes."""
        back = "they cannot come back"
        if plan.parameters.keep_values:
            back = f"`compacted gc --undo {run_id}` brings them back"
        return f"{number_of(plan.counts.messages, 'message')} will be removed; {back}. Collect?"

    @classmethod
    def undo_words(cls, counted: Restoration) -> str:
        """Return a sentence that says what an undo would do."""
        return f"{number_of(counted.restored, 'message')} whose keys have no value now will be restored."

    @classmethod
    def rule_words(cls, parameters: CollectionParameters) -> str:
        """Return the rules of a collection in a sentence."""
        policy = {
            "delete": "every message, acknowledged or not,",
            "acked_only": "what has been acknowledged",
            "compact": "tombstones alone",
        }[parameters.policy]
        whom = "all queues, whatever their own rules" if parameters.override else "queues without rules of their own"
        words = f"{policy} goes after {duration(parameters.retention_s)}, for {whom}; "
        words += f"acknowledged tombstones after {duration(parameters.tombstone_s)}"
        for what, pattern in (("clients", parameters.client_filter), ("keys", parameters.key_filter)):
            if pattern:
                words += f"; only {what} like {pattern}"
        return words

    @classmethod
    def figures(cls, outcome: CollectionOutcome) -> list[tuple[str, str, str]]:
        """Return the number of queues, the freed memory, and when the registry was last finished."""
        finished_ms = outcome.facts["finished_ms"]
        return [
            ("Queues", number(outcome.plan.found.registered), "in the registry"),
            ("Freed", size(outcome.counts.freed_bytes), "keys and values"),
            ("Last finished", "never" if finished_ms is None else instant(finished_ms), "every part of the registry"),
        ]

    @classmethod
    def tables(cls, plan: CollectionPlan) -> list[Table]:
        """Return the queues in which most is due."""
        rows = tuple(
            (one.client_hash or "a queue", number(one.messages), number(one.unacked), size(one.freed_bytes))
            for one in plan.found.worst
        )
        return [
            Table(
                heading="Queues with most to collect",
                heads=("Client", "Messages", "Not acknowledged", "Keys and values"),
                rows=rows,
                empty="Nothing was due.",
            )
        ]


def note_broken(counts: CollectionCounts, error: QueuekeeperError, say: Any) -> None:
    """Count a queue that cannot be collected, and say why; one such queue does not stop the others."""
    counts.broken_queues += 1
    # Only the type of the error is printed, since its text may name a client.
    say(f"a queue cannot be collected, `queuekeeper quality run --store compacted` finds it: {type(error).__name__}")


def _line(row: DueRow) -> dict[str, Any]:
    """Return a message as JSON values."""
    return {
        "key": b64encode(row.key).decode(),
        "sequence": row.sequence,
        "appended_ms": row.appended_ms,
        "tombstone": row.tombstone,
        "acked": row.acked,
        "size_bytes": row.size_bytes,
        **({} if row.stored is None else {"stored": b64encode(row.stored).decode()}),
    }
