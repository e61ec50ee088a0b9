"""Filling, watching and tending one compacted queue, as tasks.

Values stay out of arguments, results and logs, which Airflow keeps in its database: they come from files of the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.counts_first import CountsFirstOperator
from queuekeeper.airflow.operators.redis_queue import RedisQueueOperator
from queuekeeper.airflow.values import as_dict
from queuekeeper.compacted import forms
from queuekeeper.compacted.jsonl import append_lines, rewind_facts, verify_facts
from queuekeeper.compacted.model import QueueRules, WhenFull, chosen
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import CheckFailed
from queuekeeper.jsonl import open_file

if TYPE_CHECKING:
    from airflow.sdk import Context

NAMED_VIOLATIONS = 20
"""As many go through Airflow's database; the command line names up to 1,000."""


class CompactedQueueOperator(RedisQueueOperator):
    """What all tasks about one compacted queue are given.

    :param client_id: client whose queue it is (templated).
    """

    template_fields: Sequence[str] = (*RedisQueueOperator.template_fields, "client_id")

    def __init__(self, *, client_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.client_id = client_id

    @contextmanager
    def open_queues(self, rules: QueueRules | None = None) -> Iterator[CompactedQueues]:
        """Open the queues for the length of a ``with`` block."""
        with self.redis_hook().compacted_queues(key_prefix=self.key_prefix, rules=rules) as queues:
            yield queues


class InspectCompactedQueueOperator(CompactedQueueOperator):
    """Say where a queue stands: what waits and for how long, who consumes, what was lost."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what the queue says of itself."""
        with self.open_queues() as queues:
            view = queues.inspect(self.client_id)
        self.log.info(
            "Queue of %r: exists %s, %s keys, lag %s, %s in flight",
            self.client_id, view.exists, view.live, view.lag, view.in_flight,
        )  # fmt: skip
        return as_dict(view)


class AppendToCompactedQueueOperator(CompactedQueueOperator):
    """Append the lines of a file of the worker, in the form that ``queuekeeper compacted append --input`` takes.

    :param path: file to read (templated).
    :param producer: who numbers the appends (templated); with ``number`` a repeated task stores nothing twice.
    :param number: of the first 200 lines (templated); it grows from file to file by as many as the report says.
    :param max_keys: most keys of the queue (templated); 0 for no limit.
    :param max_bytes: most bytes of its keys and values (templated); 0 for no limit.
    :param when_full: ``reject``, which fails the task, or ``drop_oldest`` (templated).
    """

    template_fields: Sequence[str] = (
        *CompactedQueueOperator.template_fields,
        "path",
        "producer",
        "number",
        "max_keys",
        "max_bytes",
        "when_full",
    )

    def __init__(
        self,
        *,
        path: str,
        producer: str | None = None,
        number: int | str | None = None,
        max_keys: int | str = 0,
        max_bytes: int | str = 0,
        when_full: str = "reject",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.producer = producer
        self.number = number
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self.when_full = when_full

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many lines were stored."""
        rules = QueueRules(
            max_keys=int(self.max_keys),
            max_bytes=int(self.max_bytes),
            when_full=chosen(WhenFull, "when_full", self.when_full),
        )
        number = None if self.number is None else int(self.number)
        self.log.info("Appending %s to the queue of %r", self.path, self.client_id)
        with self.open_queues(rules) as queues, open_file(Path(self.path)) as lines:
            report = append_lines(queues, self.client_id, lines, producer=self.producer, number=number)
        self.log.info(
            "Queue of %r: %s appended, %s stored before, %s evicted",
            self.client_id, report.appended, report.replayed, report.evicted,
        )  # fmt: skip
        return as_dict(report)


class RewindCompactedQueueOperator(CompactedQueueOperator):
    """Let the consumer begin again elsewhere; one that is at work is fenced off and subscribes again.

    :param to: ``earliest``, ``latest``, a sequence number, or an instant with a time zone (templated).
    """

    template_fields: Sequence[str] = (*CompactedQueueOperator.template_fields, "to")

    def __init__(self, *, to: str | int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.to = to

    def execute(self, context: Context) -> dict[str, Any]:
        """Return where the cursor was and is."""
        position = forms.position(str(self.to))
        with self.open_queues() as queues:
            report = queues.rewind(self.client_id, to=position)
        self.log.info(
            "Queue of %r: cursor from %s to %s, %s to deliver, clamped %s",
            self.client_id, report.old_acked, report.new_acked, report.to_deliver, report.is_clamped,
        )  # fmt: skip
        return rewind_facts(self.client_id, report)


class ConfigureCompactedQueueOperator(CompactedQueueOperator):
    """Give a queue a retention of its own; what is left out stays as it was.

    :param policy: ``delete``, ``acked_only`` or ``compact`` (templated).
    :param retention: age such as ``7d`` at which the policy's messages go (templated).
    :param tombstone_life: age at which an acknowledged tombstone goes (templated).
    """

    template_fields: Sequence[str] = (*CompactedQueueOperator.template_fields, "policy", "retention", "tombstone_life")

    def __init__(
        self,
        *,
        policy: str | None = None,
        retention: str | None = None,
        tombstone_life: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.policy = policy
        self.retention = retention
        self.tombstone_life = tombstone_life

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the retention before and after."""
        with self.open_queues() as queues:
            before = queues.inspect(self.client_id).retention
            after = forms.retention(
                before, policy=self.policy, retention=self.retention, tombstone_life=self.tombstone_life
            )
            queues.configure(self.client_id, retention=after)
        self.log.info("Queue of %r: retention %s", self.client_id, after)
        return {"client_id": self.client_id} | as_dict({"before": before, "after": after})


class PurgeCompactedQueueOperator(CountsFirstOperator, CompactedQueueOperator):
    """Remove messages of a queue; its numbers, its cursor and what is appended meanwhile stay.

    :param what: ``all``, ``acked``, or a sequence number: everything up to it (templated).
    """

    template_fields: Sequence[str] = ("what",)

    def __init__(self, *, what: str | int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what = what

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many messages were removed, or would be."""
        chosen_messages = forms.purge(str(self.what))
        with self.open_queues() as queues:
            report = queues.purge(self.client_id, what=chosen_messages, dry_run=self.counts_only)
        self.log.info(
            "Queue of %r: %s messages %s, %s of them not acknowledged",
            self.client_id, report.messages, self.done("removed"), report.unacked,
        )  # fmt: skip
        return as_dict(report)


class DropCompactedQueueOperator(CountsFirstOperator, CompactedQueueOperator):
    """Remove a queue as a whole, with its numbers and its cursor."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what went with the queue, or would."""
        with self.open_queues() as queues:
            report = queues.drop(self.client_id, dry_run=self.counts_only)
        self.log.info(
            "Queue of %r %s: %s messages, %s of them not delivered",
            self.client_id, self.done("dropped"), report.messages, report.lag,
        )  # fmt: skip
        return as_dict(report)


class VerifyCompactedQueueOperator(CompactedQueueOperator):
    """Check that the keys of a queue agree; the task fails when they do not."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how much was looked at.

        :raises CheckFailed: naming the first rules that are broken.
        """
        with self.open_queues() as queues:
            report = queues.verify(self.client_id)
        self.log.info("Queue of %r: %s looked at, %s wrong", self.client_id, report.checked, report.found)
        if report.found:
            rules = ", ".join(sorted({each.rule for each in report.violations[:NAMED_VIOLATIONS]}))
            raise CheckFailed(f"the keys of {self.client_id!r} disagree in {report.found} places: {rules}")
        return verify_facts(report)


class RepairCompactedQueueOperator(CountsFirstOperator, CompactedQueueOperator):
    """Put right what a verification finds."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how much was put right, or would be."""
        with self.open_queues() as queues:
            report = queues.repair(self.client_id, dry_run=self.counts_only)
        self.log.info(
            "Queue of %r: %s wrong; %s keys put back, %s dropped; %s left",
            self.client_id, report.found, report.indexed, report.dropped, report.remaining,
        )  # fmt: skip
        return as_dict(report)
