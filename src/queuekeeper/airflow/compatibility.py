"""Names of Airflow that are internal or have moved between releases; everything else imports them from here."""

from __future__ import annotations

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import CommsDecoder


def is_supervised() -> bool:
    """Tell whether this process is a task that a supervisor of Airflow started, and not ``dag.test()``."""
    return isinstance(getattr(task_runner, "SUPERVISOR_COMMS", None), CommsDecoder)
