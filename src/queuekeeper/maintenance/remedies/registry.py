"""All remedies by name, and the form by which one of them is chosen."""

from __future__ import annotations

from typing import cast

from queuekeeper.jobs import common
from queuekeeper.jobs.parameters import Parameters, parameter
from queuekeeper.jobs.registry import job_of
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES, throttle

REMEDIES = {name: cast(type[Remedy], job_of(name)) for name in REMEDY_NAMES}


class RepairWish(Parameters):
    """What the DAG of the remedies is asked to do, besides which queues to treat."""

    remedy: str = parameter(
        REMEDY_NAMES[0],
        title="Remedy",
        help="What to mend. The plan says how it can be undone, or that it cannot.",
        choices={name: f"{name}: {remedy.purpose}" for name, remedy in REMEDIES.items()},
    )
    max_operations_per_s: int | None = throttle()
    key_prefix: str = common.key_prefix()
