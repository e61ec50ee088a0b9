"""Ends a task whose worker was killed, which would otherwise continue beside its own retry on another worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from queuekeeper.airflow.compatibility import is_supervised

if TYPE_CHECKING:
    from airflow.sdk import Context

_LOOK_S = 1.0


class SupervisedOperator(BaseOperator):
    """A task that ends, with all that it has started, soon after the worker process that started it has ended.

    Airflow gives a task its own process group, so a signal to the worker's process group leaves the task alive.
    """

    def pre_execute(self, context: Context | Any) -> None:
        """Start to watch the process that started this one."""
        super().pre_execute(context)
        if not is_supervised():
            return
        supervisor = os.getppid()

        def watch() -> None:
            while os.getppid() == supervisor:
                time.sleep(_LOOK_S)
            try:
                self.on_kill()
            finally:
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
