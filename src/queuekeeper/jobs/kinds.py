"""What is to be known of runs of a kind, whoever carries them out: in one record, which their owner has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from queuekeeper.jobs.model import Table
    from queuekeeper.jobs.store import MaintenanceRun
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient
    from queuekeeper.report.files import ReportFiles


class Stores(Protocol):
    """Where runs are on record and what they work on; each is opened when it is asked for."""

    @property
    def connection(self) -> Connection:
        """Connection to the control database, which commits by itself."""

    @property
    def client(self) -> RedisClient:
        """Connection to Redis."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a run has come to.

    :param verdict: in a sentence.
    :param facts: for JSON.
    :param healthy: whether the verdict is a good one; none where it is neither.
    :param lines: sentences that explain the verdict.
    :param write: writes the report's two files into a folder.
    :param failed: why a command that asks for it fails, to be filled with ``html``; empty where it does not.
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
    """A kind of runs. Its owner names it in the group ``queuekeeper.jobs`` of its distribution's entry points.

    :param name: under which its runs are on record, and how that of the entry point is.
    :param dag: whose runs carry them out: who may start those may steer these.
    :param noun: one of them, as sentences say it.
    :param command: makes one; empty where several do.
    :param unit: what their throttle counts, in the plural.
    :param fact_names: instants in the record's report, each with what people call it.
    :param alike: kinds that do for this one where somebody names a run of it; itself alone where none is named.
    :param page: of the site, which shows one, with ``{run_id}``; empty for the page of all jobs.
    :param looks_again: whether a run is still at work once all is done, until its report is there.
    :param no_pace: says why there is nothing in a run that a throttle could slow down; empty where there is.
    :param no_undo: says why ``queuekeeper run undo`` does not take a run back, and what does; empty where it does.
    :param undo: takes a run back, or only counts, where the engine does not: it is given the stores, the run,
        ``dry_run``, and ``agree``, which asks a person before anything changes.
    :param report: tells what a run has come to, where the engine does not.
    :param keeps_files: whether its reports are written as files though nobody has named a folder.
    """

    name: str
    dag: str
    noun: str
    command: str = ""
    unit: str = "operations"
    fact_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    alike: tuple[str, ...] = ()
    page: str = ""
    looks_again: bool = True
    no_pace: Callable[[MaintenanceRun], str] = _nothing
    no_undo: Callable[[MaintenanceRun], str] = _nothing
    undo: Callable[..., Any] | None = None
    report: Callable[..., Told] | None = None
    keeps_files: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Kinds of which a run may be where one of this kind is meant."""
        return self.alike or (self.name,)
