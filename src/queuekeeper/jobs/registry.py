"""The jobs, by name. A job is imported when it is asked for, so that naming them costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from queuekeeper.errors import UsageError
from queuekeeper.jobs.model import AnyJob, Table
from queuekeeper.jobs.store import MIGRATIONS, MaintenanceRun

_PLACES = {
    "compacted_queue_gc": "queuekeeper.maintenance.compacted.collection:Collection",
    "expired_reference_cleanup": "queuekeeper.maintenance.cleanup.expired_references:Cleanup",
    "fanout_repair": "queuekeeper.maintenance.fanout.repair:FanoutRepair",
    "event_upkeep": "queuekeeper.maintenance.events.upkeep:EventUpkeep",
    "reenqueue_events": "queuekeeper.maintenance.events.upkeep:ReenqueueEvents",
    "quarantine_subscription": "queuekeeper.maintenance.events.upkeep:QuarantineSubscription",
    "freeze_partition": "queuekeeper.maintenance.events.upkeep:FreezePartition",
    "repair_counter": "queuekeeper.maintenance.remedies.repair_counter:RepairCounter",
    "repair_ttl": "queuekeeper.maintenance.remedies.repair_ttl:RepairTtl",
    "reorder_from_source": "queuekeeper.maintenance.remedies.reorder_from_source:ReorderFromSource",
    "unlink_orphans": "queuekeeper.maintenance.remedies.unlink_orphans:UnlinkOrphans",
    "remove_duplicates": "queuekeeper.maintenance.remedies.remove_duplicates:RemoveDuplicates",
    "rekey_clients": "queuekeeper.maintenance.remedies.rekey_clients:RekeyClients",
    "trim_dead_first": "queuekeeper.maintenance.remedies.trim_dead_first:TrimDeadFirst",
    "quarantine_messages": "queuekeeper.maintenance.remedies.quarantine_messages:QuarantineMessages",
    "replay_quarantined": "queuekeeper.maintenance.remedies.quarantine_messages:ReplayQuarantined",
}
_PARTITIONS = "queuekeeper.maintenance.partitions.runs"
_added: dict[str, type[AnyJob]] = {}


def add_job(job: type[AnyJob]) -> type[AnyJob]:
    """Make a job of somebody else's known by its name; used as a decorator."""
    _added[job.kind] = job
    return job


def job_of(kind: str) -> type[AnyJob]:
    """Return a job.

    :raises UsageError: when there is none of this name; names those that there are.
    """
    if kind in _added:
        return _added[kind]
    if kind not in _PLACES:
        raise UsageError(f"there is no job {kind!r}: there are {', '.join(job_names())}")
    module, _, name = _PLACES[kind].partition(":")
    found: type[AnyJob] = getattr(import_module(module), name)
    return found


def told_of(kind: str) -> Callable[[MaintenanceRun], tuple[str, list[Table]]] | None:
    """Return what tells of a run that keeps a sequence of its own; none for a job of the engine's."""
    if kind in job_names() or not kind.startswith("partition_"):
        return None
    found: Callable[[MaintenanceRun], tuple[str, list[Table]]] = import_module(_PARTITIONS).told
    return found


def way_back_of(run: MaintenanceRun) -> str:
    """Return how a run is taken back that keeps a sequence of its own; empty for a job of the engine's."""
    return str(import_module(_PARTITIONS).way_back(run)) if told_of(run.kind) else ""


def fact_names(kind: str) -> Mapping[str, str]:
    """Return the instants that reports of a job name besides; none of what is no job of the engine's."""
    return job_of(kind).fact_names if kind in job_names() else {}


def kinds() -> list[str]:
    """Return all kinds of runs that are put on record: jobs, steps of partitions, migrations."""
    partitions = import_module(_PARTITIONS)
    return [*job_names(), *map(partitions.kind_of, partitions.Purpose), *MIGRATIONS]


def check_kind(kind: str) -> None:
    """Refuse a name under which no run is put on record.

    :raises UsageError: naming it and those that there are.
    """
    if kind not in (known := kinds()):
        raise UsageError(f"there is no job {kind!r}: there are {', '.join(known)}")


def dag_of(kind: str) -> str:
    """Return the DAG whose runs carry out runs of a kind: who may start those may pause these.

    :raises UsageError: when there is no such kind.
    """
    if kind in MIGRATIONS:
        return MIGRATIONS[0]
    if kind.startswith("partition_"):
        return "partition_maintenance"
    return job_of(kind).dag or kind


def job_names() -> list[str]:
    """Return the names of all jobs."""
    return sorted({*_PLACES, *_added})
