"""Verification and repair: what breaks the rules of a compacted queue is found and put right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuekeeper import lua
from queuekeeper.compacted.operations.common import ROWS_PER_CALL, Steps, ask, or_none
from queuekeeper.compacted.operations.look import LookOperations
from queuekeeper.compacted.records import HEADED_KINDS, RECORD_KINDS, is_head
from queuekeeper.compacted.reports import MAX_VIOLATIONS, QueueView, RepairReport, VerifyReport, Violation
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation

PARTS = ("state", "order", "times", "values", "tombstones", "in_flight")
STRAY_IN_FLIGHT = "stray_in_flight"
UNREADABLE = "unreadable"
_HEAD = b"head"
REPAIR_ROUNDS = 3


@dataclass
class _Survey:
    """What a look at all of a queue has found.

    :ivar wrong_bytes: bytes that the queue says it has and those that it has; none when they agree or are not known.
    """

    checked: int
    violations: list[Violation]
    wrong_bytes: tuple[int, int] | None


class RepairOperations(LookOperations):
    """Verify, repair."""

    def verify(self, client_id: str) -> Operation[VerifyReport]:
        """Check that the keys of a queue agree.

        Nothing is changed, and what others change meanwhile is looked at again. It takes bounded steps.
        """
        survey = yield from self._survey(client_id)
        return VerifyReport(
            client_id=client_id,
            checked=survey.checked,
            violations=tuple(survey.violations[:MAX_VIOLATIONS]),
            found=len(survey.violations),
        )

    def repair(self, client_id: str, *, dry_run: bool = True) -> Operation[RepairReport]:
        """Put right what `verify` finds.

        Entries that lead nowhere are dropped, and counts are made again.
        """
        survey = yield from self._survey(client_id)
        found = len(survey.violations)
        indexed = dropped = strays = numbers = 0
        # What a key took with it shows only when the bytes are counted again.
        rounds = 0 if dry_run else REPAIR_ROUNDS
        while survey.violations and rounds:
            rounds -= 1
            for reply in (yield from self._repair(client_id, survey)):
                indexed += reply.indexed
                dropped += reply.dropped
                strays += reply.strays
                numbers += reply.numbers
            survey = yield from self._survey(client_id)
        return RepairReport(
            client_id=client_id,
            found=found,
            indexed=indexed,
            dropped=dropped,
            strays=strays,
            numbers=numbers,
            remaining=len(survey.violations),
            dry_run=dry_run,
        )

    def _repair(self, client_id: str, survey: _Survey) -> Steps[list[Any]]:
        keys = self._keys(client_id)
        names: dict[tuple[str, bytes], None] = {}
        for violation in survey.violations:
            # What only its producer can put right stays.
            if violation.key is not None and violation.rule != UNREADABLE:
                names["in_flight" if violation.rule == STRAY_IN_FLIGHT else "key", violation.key] = None
        wrong_bytes, size_bytes = survey.wrong_bytes or ("", "")
        replies: list[Any] = []
        left = list(names)
        while left or not replies:
            part, left = left[:ROWS_PER_CALL], left[ROWS_PER_CALL:]
            violations = (text for name in part for text in name)
            call = scripts.repair(keys, wrong_bytes=wrong_bytes, bytes=size_bytes, violations=violations)
            replies.append((yield from ask(call)))
        return replies

    def _survey(self, client_id: str) -> Steps[_Survey]:
        """Look at all of a queue. Bytes are compared only when it has stood still meanwhile."""
        keys = self._keys(client_id)
        before = yield from self.inspect(client_id)
        survey = _Survey(checked=0, violations=[], wrong_bytes=None)
        counted = 0
        for part in PARTS:
            cursor: lua.Value = 0
            while True:
                call = scripts.verify(
                    keys, part=part, cursor=cursor, limit=ROWS_PER_CALL, kinds=RECORD_KINDS, headed=HEADED_KINDS
                )
                reply = yield from ask(call)
                cursor = reply.next_cursor
                survey.checked += reply.looked_at
                counted += reply.bytes if part == "order" else 0
                survey.violations += (
                    Violation(
                        rule=UNREADABLE if found.rule == _HEAD else found.rule.decode(),
                        key=None if part == "state" else found.key,
                        sequence=or_none(found.sequence),
                    )
                    for found in reply.violations
                    if found.rule != _HEAD or not is_head(found.head)
                )
                if int(cursor) == 0:
                    break
        after = yield from self.inspect(client_id)
        if after.size_bytes != counted and _standing(before) == _standing(after):
            survey.violations.append(Violation(rule="wrong_bytes"))
            survey.wrong_bytes = after.size_bytes, counted
        return survey


def _standing(view: QueueView) -> tuple[Any, ...]:
    """Return what changes whenever a message comes or goes."""
    return view.incarnation, view.sequence, view.live, view.size_bytes, dict(view.counters)
