"""All remedies by name."""

from __future__ import annotations

from typing import Any

from queuekeeper.errors import UsageError
from queuekeeper.jobs import common
from queuekeeper.jobs.parameters import Parameters, parameter
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES, Remedy, RemedyParameters
from queuekeeper.maintenance.remedies.quarantine_messages import QuarantineMessages, ReplayQuarantined
from queuekeeper.maintenance.remedies.queues import Selection
from queuekeeper.maintenance.remedies.rekey_clients import RekeyClients
from queuekeeper.maintenance.remedies.remove_duplicates import RemoveDuplicates
from queuekeeper.maintenance.remedies.reorder_from_source import ReorderFromSource
from queuekeeper.maintenance.remedies.repair_counter import RepairCounter
from queuekeeper.maintenance.remedies.repair_ttl import RepairTtl
from queuekeeper.maintenance.remedies.trim_dead_first import TrimDeadFirst
from queuekeeper.maintenance.remedies.unlink_orphans import UnlinkOrphans

_ALL: tuple[Remedy, ...] = (
    RepairCounter(),
    RepairTtl(),
    ReorderFromSource(),
    UnlinkOrphans(),
    RemoveDuplicates(),
    RekeyClients(),
    TrimDeadFirst(),
    QuarantineMessages(),
    ReplayQuarantined(),
)
REMEDIES: dict[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
assert tuple(REMEDIES) == REMEDY_NAMES


def throttle() -> Any:
    """Declare how fast a remedy reads; a form is careful where a command goes as fast as it can."""
    return common.max_operations_per_s(
        None, proposed=5_000, counted="Keys asked for, by plan and repair,", examples=(None, 1_000, 20_000)
    )


class RepairWish(Parameters):
    """What the DAG of the remedies is asked to do, besides which queues to treat."""

    remedy: str = parameter(
        REMEDY_NAMES[0],
        title="Remedy",
        help="What to mend. The plan says how it can be undone, or that it cannot.",
        choices={remedy.name: f"{remedy.name}: {remedy.purpose}" for remedy in _ALL},
    )
    max_operations_per_s: int | None = throttle()
    key_prefix: str = common.key_prefix()


class RepairOptions(Selection, RemedyParameters):
    """What a command of a remedy is asked to do, besides which sessions to treat by name."""

    max_operations_per_s: int | None = throttle()


def remedy_named(name: str) -> Remedy:
    """Return a remedy.

    :raises UsageError: when there is none of this name.
    """
    try:
        return REMEDIES[name]
    except KeyError:
        raise UsageError(f"there is no remedy {name!r}: one of {', '.join(REMEDY_NAMES)}") from None
