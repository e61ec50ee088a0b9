"""Operations that check whether the Redis keys of a compacted queue are consistent, and repair them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Result of checking a whole queue.

    :ivar wrong_bytes: size in the queue's state, and size of its messages; none when both agree or the queue changed
        during the check.
    """

    checked: int
    violations: list[Violation]
    wrong_bytes: tuple[int, int] | None


class RepairOperations(LookOperations):
    """Verify, repair."""

    def verify(self, client_id: str) -> Operation[VerifyReport]:
        """Check whether the keys of a queue are consistent.

        Calls are of bounded size, and change nothing.
        """
        survey = yield from self._survey(client_id)
        return VerifyReport(
            client_id=client_id,
            checked=survey.checked,
            violations=tuple(survey.violations[:MAX_VIOLATIONS]),
            found=len(survey.violations),
        )

    def repair(self, client_id: str, *, dry_run: bool = True) -> Operation[RepairReport]:
        """Make the keys of a queue consistent again.

        Keys are put back into their places, keys without a value are removed, and counts are corrected.

        :param dry_run: change nothing, and report the violations; true by default.
        """
        survey = yield from self._survey(client_id)
        found = len(survey.violations)
        indexed = dropped = strays = numbers = 0
        # A repair that removes keys makes the size in the state wrong, which the next round finds and corrects.
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
            # Only the producer can repair an unreadable value, by appending its key again.
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
        """Check a whole queue; compare its size only if the queue did not change during the check."""
        keys = self._keys(client_id)
        before = yield from self.inspect(client_id)
        survey = _Survey(checked=0, violations=[], wrong_bytes=None)
        counted = 0
        for part in PARTS:
            cursor = b"0"
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
                if cursor == b"0":
                    break
        # A page may return a violation again.
        survey.violations = list(dict.fromkeys(survey.violations))
        after = yield from self.inspect(client_id)
        if after.size_bytes != counted and _standing(before) == _standing(after):
            survey.violations.append(Violation(rule="wrong_bytes"))
            survey.wrong_bytes = after.size_bytes, counted
        return survey


def _standing(view: QueueView) -> tuple[Any, ...]:
    """Return the fields of which at least one changes with each message that is appended or removed."""
    return view.incarnation, view.sequence, view.live, view.size_bytes, dict(view.counters)
