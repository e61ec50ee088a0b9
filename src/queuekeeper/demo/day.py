"""What the steps of the demo share: the wishes, the servers, and the lines that it prints."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from rich.console import Console

from queuekeeper.config import Settings
from queuekeeper.embedded import AirflowClient
from queuekeeper.errors import UsageError
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient

T = TypeVar("T")

Approval = Literal["auto", "ui"]
Waiting: TypeAlias = Generator[None, None, T]
"""Work that yields whenever it waits, so that other work goes on meanwhile, and returns its result."""

_LOOK_EVERY_S = 1.0
_ENDED = object()

_READ_WITHIN_S = 300.0
"""On a busy machine Airflow takes minutes to read all DAGs."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of a demo, from the environment.

    :param approval: ``auto`` lets the demo approve and say so, ``ui`` waits for a person.
    :param leave: end when the result is shown, instead of leaving the user interface up.
    :param messages: healthy messages of the sample, at least 5,000 in a tenth as many sessions. With fewer messages a
        plan would refuse the share of hostile rows.
    """

    approval: Approval = "auto"
    leave: bool = False
    messages: int = 20_000

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> DemoOptions:
        """Read ``DEMO_APPROVE``, ``DEMO_EXIT`` and ``DEMO_MESSAGES``.

        :raises UsageError: when a variable has a wrong value; names it and the values that it may have.
        """
        approval = environment.get("DEMO_APPROVE") or "auto"
        if approval not in ("auto", "ui"):
            raise UsageError(f"DEMO_APPROVE is {approval!r}: it may be 'auto' or 'ui'")
        messages = environment.get("DEMO_MESSAGES") or str(cls.messages)
        if not messages.isdecimal() or not 5_000 <= int(messages) <= 100_000_000:
            raise UsageError(f"DEMO_MESSAGES is {messages!r}: it must be a number from 5000 to 100000000")
        leave = environment.get("DEMO_EXIT") or "0"
        if leave not in ("0", "1"):
            raise UsageError(f"DEMO_EXIT is {leave!r}: it may be '0' or '1'")
        return cls(approval="ui" if approval == "ui" else "auto", leave=leave == "1", messages=int(messages))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a step of the day.

    :param step: name of the step, such as "Migration".
    :param line: what the step has shown, with its figures.
    :param page: address of the page that shows it.
    :param sound: whether it came out as it should.
    """

    step: str
    line: str
    page: str
    sound: bool = True


@dataclass(frozen=True, kw_only=True)
class Day:
    """Servers and screen of a demo.

    :param connection: connection to the private PostgreSQL, with ``autocommit``.
    :param redis: connection to the private Redis.
    :param began: when the demo began, by the monotonic clock.
    :ivar outcomes: of the steps that have ended, in the order of their ends.
    """

    settings: Settings
    options: DemoOptions
    console: Console
    began: float
    client: AirflowClient
    connection: Connection
    redis: RedisClient
    outcomes: list[Outcome] = field(default_factory=list, init=False)

    def say(self, text: str) -> None:
        """Print a line behind the seconds that have passed."""
        say(self.console, self.began, text)

    def show(self, outcome: Outcome) -> None:
        """Print what a step has come to, and keep it."""
        self.outcomes.append(outcome)
        mark = "[green]✓[/]" if outcome.sound else "[red]✗[/]"
        self.say(f"{mark} [b]{outcome.step}[/]: {outcome.line}: [link]{outcome.page}[/]")

    def page(self, path: str) -> str:
        """Return the address of one of our pages in Airflow."""
        return f"{self.client.base_url}/queuekeeper{path}"

    def run_page(self, dag_id: str, run_id: str) -> str:
        """Return the address of a run's own page in Airflow."""
        return f"{self.client.base_url}/dags/{dag_id}/runs/{run_id}"

    def trigger(self, dag_id: str, *, note: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a run of a DAG, and return the run's id.

        :param note: what the run is about; Airflow shows it beside the run.
        """
        self.client.wait_for_dag(dag_id, timeout_s=_READ_WITHIN_S)
        return self.client.trigger(dag_id, conf=conf, note=note)


def say(console: Console, began: float, text: str) -> None:
    """Print a line behind the seconds that have passed since ``began``, by the monotonic clock."""
    console.print(f"[dim]{time.monotonic() - began:6.1f} s[/] {text}", soft_wrap=True)


def side_by_side(works: Sequence[Waiting[None]]) -> None:
    """Do several works at once, in this thread, until the last of them has ended."""
    going = [*works]
    try:
        while going:
            going = [work for work in going if next(work, _ENDED) is not _ENDED]
            if going:
                time.sleep(_LOOK_EVERY_S)
    finally:
        # What one has started, such as a process, ends before its servers do.
        for work in works:
            work.close()
