"""Ends a task whose worker was killed: it would otherwise go on unseen, and meet its own retry on another worker."""

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
    """A task that ends, with all that it has started, soon after the process of its worker that started it is gone.

    Airflow gives a task a process group of its own: a signal that kills those of a worker leaves the task alive.
    """

    def pre_execute(self, context: Context | Any) -> None:
        """Begin to look whether the process that started this one is still there."""
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
