"""All remedies by name."""

from __future__ import annotations

from queuekeeper.errors import UsageError
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES, Remedy
from queuekeeper.maintenance.remedies.quarantine_messages import QuarantineMessages, ReplayQuarantined
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


def remedy_named(name: str) -> Remedy:
    """Return a remedy.

    :raises UsageError: when there is none of this name.
    """
    try:
        return REMEDIES[name]
    except KeyError:
        raise UsageError(f"there is no remedy {name!r}: one of {', '.join(REMEDY_NAMES)}") from None
