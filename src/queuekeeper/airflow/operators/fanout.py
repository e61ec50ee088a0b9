"""Publishing to, watching and tending one fan-out queue, as tasks.

Payloads stay out of arguments, results and logs, which Airflow keeps in its database: files of the worker have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.counts_first import CountsFirstOperator
from queuekeeper.airflow.operators.redis_queue import RedisQueueOperator
from queuekeeper.airflow.values import as_dict
from queuekeeper.durations import duration_ms
from queuekeeper.errors import CheckFailed
from queuekeeper.fanout import forms
from queuekeeper.fanout.jsonl import publish_lines, verify_facts
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.jobs.parameters import Parameters, parameter
from queuekeeper.jsonl import open_file

if TYPE_CHECKING:
    from airflow.sdk import Context

    from queuekeeper.fanout.model import ConsumerView

NAMED_FINDINGS = 20
"""As many go through Airflow's database; the command line names as many as it is asked for."""

NAMED_CONSUMERS = 100
"""As many, those who owe most, are described in a result."""


class FanoutQueueOperator(RedisQueueOperator):
    """What all tasks about one fan-out queue are given.

    :param queue_name: name of the queue (templated); Airflow's own ``queue`` says which worker runs a task.
    """

    template_fields: Sequence[str] = (*RedisQueueOperator.template_fields, "queue_name")

    def __init__(self, *, queue_name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name

    @contextmanager
    def open_queues(self) -> Iterator[FanoutQueues]:
        """Open the queues for the length of a ``with`` block."""
        with self.redis_hook().fanout_queues(key_prefix=self.key_prefix) as queues:
            yield queues


class FanoutConsumerOperator(FanoutQueueOperator):
    """What tasks about one consumer are given as well.

    :param consumer: its name (templated).
    """

    template_fields: Sequence[str] = (*FanoutQueueOperator.template_fields, "consumer")

    def __init__(self, *, consumer: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.consumer = consumer


class InspectFanoutQueueOperator(FanoutQueueOperator):
    """Say where a queue and its consumers stand: what waits and since when, who is at work, what has failed."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what the queue says of itself, and of the consumers that owe most."""
        with self.open_queues() as queues:
            view = queues.inspect(self.queue_name)
        self.log.info(
            "Queue %r: exists %s, %s messages, %s held, %s consumers, %s dead letters",
            self.queue_name, view.exists, view.messages, view.held, len(view.consumers),
            sum(each.dead for each in view.consumers),
        )  # fmt: skip
        described = sorted(view.consumers, key=_owed, reverse=True)[:NAMED_CONSUMERS]
        return as_dict(view) | {
            "consumers": [as_dict(each) for each in described],
            "consumer_count": len(view.consumers),
        }


def _owed(view: ConsumerView) -> int:
    return view.ready + view.leased + view.delayed + view.dead


class PublishToFanoutQueueOperator(FanoutQueueOperator):
    """Publish the lines of a file of the worker, in the form that ``queuekeeper fanout publish --input`` takes.

    :param path: file to read (templated).
    :param deduplicate_as: name of the file (templated), such as ``"{{ run_id }}"``: a repeated task publishes nothing
        twice.
    :param to: a consumer, for it alone (templated).
    :param ttl: life of lines that have none of their own (templated).
    """

    template_fields: Sequence[str] = (*FanoutQueueOperator.template_fields, "path", "deduplicate_as", "to", "ttl")

    def __init__(
        self, *, path: str, deduplicate_as: str | None = None, to: str | None = None, ttl: str = "1d", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.deduplicate_as = deduplicate_as
        self.to = to
        self.ttl = ttl

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many lines were published."""
        self.log.info("Publishing %s to queue %r", self.path, self.queue_name)
        with self.open_queues() as queues, open_file(Path(self.path)) as lines:
            report = publish_lines(
                queues,
                self.queue_name,
                lines,
                to=self.to,
                ttl_ms=duration_ms("ttl", self.ttl),
                deduplicate_as=self.deduplicate_as,
            )
        self.log.info(
            "Queue %r: %s published, %s published before, %s held, %s dropped",
            self.queue_name, report.published, report.duplicates, report.held, report.dropped,
        )  # fmt: skip
        return as_dict(report)


class RegisterFanoutConsumerOperator(FanoutConsumerOperator):
    """Register a consumer; one that is registered already stays as it is, so that the task can be repeated.

    :param start: ``new``, ``held`` or ``retained``: what it gets of before (templated).
    :param mode: ``fifo`` or ``ordered`` (templated).
    :param when_failed: ``skip`` or ``halt`` (templated).
    :param lanes: of an ordered consumer (templated).
    :param max_length: most messages that may wait, per lane; 0 for no bound (templated).
    :param when_full: ``reject`` or ``drop_oldest`` (templated).
    :param dead_retention: how long a dead letter is kept, such as ``7d`` (templated).
    :param idle_expiry: unseen for so long, it may be removed; ``none`` for never (templated).
    """

    template_fields: Sequence[str] = (
        *FanoutConsumerOperator.template_fields,
        "start",
        "mode",
        "when_failed",
        "lanes",
        "max_length",
        "when_full",
        "dead_retention",
        "idle_expiry",
    )

    def __init__(
        self,
        *,
        start: str = "new",
        mode: str = "fifo",
        when_failed: str = "skip",
        lanes: int | str = 1,
        max_length: int | str = 0,
        when_full: str = "reject",
        dead_retention: str = "7d",
        idle_expiry: str = forms.NONE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.start = start
        self.mode = mode
        self.when_failed = when_failed
        self.lanes = lanes
        self.max_length = max_length
        self.when_full = when_full
        self.dead_retention = dead_retention
        self.idle_expiry = idle_expiry

    def execute(self, context: Context) -> dict[str, Any]:
        """Return whether it is new, and its options."""
        options = forms.consumer_options(
            mode=self.mode,
            when_failed=self.when_failed,
            lanes=int(self.lanes),
            max_length=int(self.max_length),
            when_full=self.when_full,
            dead_retention=self.dead_retention,
            idle_expiry=self.idle_expiry,
        )
        with self.open_queues() as queues:
            report = queues.register(
                self.queue_name, consumer=self.consumer, options=options, start=forms.start(self.start)
            )
        self.log.info(
            "Queue %r: consumer %r registered, new %s, %s messages adopted",
            self.queue_name, self.consumer, report.created, report.adopted,
        )  # fmt: skip
        return as_dict(report)


class Force(Parameters):
    """Whether what is at work counts."""

    force: bool = parameter(False, title="Force", help="Remove a consumer also while somebody works on messages of it.")


class UnregisterFanoutConsumerOperator(CountsFirstOperator, FanoutConsumerOperator):
    """Remove a consumer with all that waits for it, its dead letters too.

    :param force: also while somebody works on messages of it (templated).
    """

    template_fields: Sequence[str] = ("force",)

    def __init__(self, *, force: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.force = force

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many messages went with it, or would."""
        force = Force.one("force", self.force)
        with self.open_queues() as queues:
            report = queues.unregister(self.queue_name, consumer=self.consumer, force=force, dry_run=self.counts_only)
        self.log.info(
            "Queue %r: consumer %r %s, with %s messages",
            self.queue_name, self.consumer, self.done("removed"), report.released,
        )  # fmt: skip
        return as_dict(report)


class RetryFanoutDeadLettersOperator(FanoutConsumerOperator):
    """Put all dead letters of a consumer back in line, with their counts at zero."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many wait again."""
        with self.open_queues() as queues:
            report = queues.retry_dead(self.queue_name, consumer=self.consumer)
        self.log.info(
            "Queue %r: %s dead letters of %r wait again, %s were gone",
            self.queue_name, report.retried, self.consumer, report.missing,
        )  # fmt: skip
        return as_dict(report)


class PurgeFanoutDeadLettersOperator(CountsFirstOperator, FanoutConsumerOperator):
    """Give all dead letters of a consumer up for good."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many were removed, or would be."""
        with self.open_queues() as queues:
            report = queues.purge_dead(self.queue_name, consumer=self.consumer, dry_run=self.counts_only)
        self.log.info(
            "Queue %r: %s dead letters of %r %s",
            self.queue_name, report.released, self.consumer, self.done("removed"),
        )  # fmt: skip
        return as_dict(report)


class PauseFanoutQueueOperator(FanoutQueueOperator):
    """Hand no more messages out; what is handed out can be finished, and publishes go on.

    :param consumer: to this consumer; none for any (templated).
    """

    template_fields: Sequence[str] = (*FanoutQueueOperator.template_fields, "consumer")

    def __init__(self, *, consumer: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.consumer = consumer

    def execute(self, context: Context) -> dict[str, Any]:
        """Return whether that has changed anything."""
        with self.open_queues() as queues:
            changed = self.switch(queues)
        facts = {"queue": self.queue_name, "consumer": self.consumer, "changed": changed}
        self.log.info("%s: %s", type(self).__name__, facts)
        return facts

    def switch(self, queues: FanoutQueues) -> bool:
        """Pause."""
        return queues.pause(self.queue_name, consumer=self.consumer)


class ResumeFanoutQueueOperator(PauseFanoutQueueOperator):
    """Hand messages out again, also to a consumer that has halted at a dead letter.

    :param consumer: to this consumer; none for any (templated).
    """

    def switch(self, queues: FanoutQueues) -> bool:
        """Resume."""
        return queues.resume(self.queue_name, consumer=self.consumer)


class VerifyFanoutQueueOperator(FanoutQueueOperator):
    """Check that the keys of a queue agree; the task fails when they do not."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how much was looked at.

        :raises CheckFailed: naming what is wrong, and how often.
        """
        with self.open_queues() as queues:
            facts = verify_facts(self.queue_name, queues.verify(self.queue_name, findings=NAMED_FINDINGS))
        self.log.info("Queue %r: %s looked at, %s wrong", self.queue_name, facts["checked"], facts["found"])
        if facts["found"]:
            kinds = ", ".join(f"{problem} {count}" for problem, count in sorted(facts["counts"].items()))
            raise CheckFailed(f"the keys of {self.queue_name!r} disagree in {facts['found']} places: {kinds}")
        return facts
