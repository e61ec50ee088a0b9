"""The record that describes a kind of runs, whoever carries them out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from queuekeeper.jobs.store import MaintenanceRun
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient
    from queuekeeper.report.files import ReportFiles


class Stores(Protocol):
    """The control database and Redis; each connection is opened when it is first used."""

    @property
    def connection(self) -> Connection:
        """Connection to the control database, with ``autocommit``."""

    @property
    def client(self) -> RedisClient:
        """Connection to Redis."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of what a plan has found, for reports and screens.

    :param empty: sentence in place of a table without rows.
    :param note: sentence below the table.
    :param links: address that the last cell of each row leads to on a page; empty for none.
    """

    heading: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str
    note: str = ""
    links: tuple[str, ...] = ()

    def is_text(self, column: int) -> bool:
        """Return whether a column holds words, which stand on the left; figures stand on the right."""
        return not self.rows[0][column][:1].isdigit()


@dataclass(frozen=True, kw_only=True)
class Told:
    """Result of a run.

    :param verdict: the result in a sentence.
    :param facts: values for JSON.
    :param healthy: whether the verdict is good; none where it is neither good nor bad.
    :param lines: sentences that explain the verdict.
    :param write: writes the report's two files into a folder.
    :param failed: why the report's command fails; empty where it does not fail.
    """

    verdict: str
    facts: Mapping[str, Any]
    write: Callable[[Path], ReportFiles]
    healthy: bool | None = None
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    failed: str = ""


def _nothing(_: MaintenanceRun) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """A kind of runs. Its distribution names it in the entry point group ``queuekeeper.jobs``.

    :param name: name of the kind in records, and of its entry point.
    :param dag: DAG that carries the runs out; who may trigger it may also pause, resume and throttle the runs.
    :param noun: a run in sentences, such as "repair of fan-out queues".
    :param command: command that makes a run; empty where several do.
    :param go_on: returns the command that carries out a planned run or goes on with one; empty where none does.
    :param unit: what the throttle counts, in the plural.
    :param fact_names: instants in the record's report, each with its label.
    :param alike: kinds that a command for this kind accepts; only this kind when empty.
    :param page: page of the site that shows a run, with ``{run_id}``; empty for the page of all jobs.
    :param overview: page of the site that shows what all runs of the kind's DAG have led to; empty for none.
    :param looks_again: whether a run counts as at work after its work is done, until its report exists.
    :param no_pace: returns why a throttle has no effect on a run, as sentences; empty where it has.
    :param no_undo: returns why ``queuekeeper run undo`` does not undo a run, and what does, as sentences; empty where
        it does.
    :param stands: words about a run that is said to be at work and has made no progress for a ``{time}``.
    :param waits_for: returns what a run that is said to be at work waits for, told the shares that have made progress
        lately; empty where it waits for nothing.
    :param is_empty: returns whether a run's plan has nothing to do, so that nobody has to approve it.
    :param undo: undoes a run, or only counts, where the engine does not. Its arguments are the stores, the run,
        ``dry_run``, and ``agree``, which asks a person before anything changes.
    :param report: returns the result of a run, where the engine does not.
    :param keeps_files: whether reports are written as files without a named folder.
    """

    name: str
    dag: str
    noun: str
    command: str = ""
    go_on: Callable[[MaintenanceRun], str] = _nothing
    unit: str = "operations"
    fact_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    alike: tuple[str, ...] = ()
    page: str = ""
    overview: str = ""
    looks_again: bool = True
    no_pace: Callable[[MaintenanceRun], str] = _nothing
    no_undo: Callable[[MaintenanceRun], str] = _nothing
    stands: str = "has made no progress for {time}; it may have been killed"
    waits_for: Callable[[MaintenanceRun, Collection[str]], str] = lambda *_: ""
    is_empty: Callable[[MaintenanceRun], bool] = lambda _: False
    undo: Callable[..., Any] | None = None
    report: Callable[..., Told] | None = None
    keeps_files: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Kinds of runs that a command for this kind accepts."""
        return self.alike or (self.name,)
