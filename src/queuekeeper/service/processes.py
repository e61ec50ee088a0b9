"""Runs several processes of one service: starts, replaces and restarts them, and ends them in good order."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queuekeeper.clock import Backoff
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.service.app import App
from queuekeeper.service.handlers import reason_of
from queuekeeper.service.signals import stopped_by_signals
from queuekeeper.wording import article

WORKER = "QUEUEKEEPER_WORKER"
"""Environment variable that tells a process that it is one of several."""

LOOK_S = 0.2
"""Seconds between two checks of processes and files."""

STEADY_S = 60.0
"""Lifetime in seconds after which a process that dies is replaced at once."""

BACKOFF = Backoff(first_s=0.5, longest_s=30.0)
"""Pauses in seconds before a process is replaced that has died soon after its start."""

_log = logging.getLogger(__name__)


def load(target: str) -> Any:
    """Return the function or app that ``MODULE:NAME`` names; modules in the current folder are found, too.

    :raises UsageError: when there is no such module or name, or it is neither a function nor an app.
    :raises QueuekeeperError: when the module raises an error; names its line.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name or module_name.startswith(".") or "/" in module_name:
        raise UsageError(f"{target!r} is not MODULE:NAME, such as billing:bill")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(module_name, error) from error
        raise UsageError(f"there is no module {error.name} in {folder} or in Python's path") from error
    except (Exception, SystemExit) as error:
        raise _broken(module_name, error) from error
    if found is None:
        raise UsageError(f"module {module_name} has no {name!r}")
    if not callable(found) and not isinstance(found, App):
        raise UsageError(f"{target} is {article(type(found).__name__)}: it must be a function or an app")
    return found


def _broken(module_name: str, error: Exception | SystemExit) -> QueuekeeperError:
    """Return the error of a module that cannot be imported, with the line of the current folder's file that raised.

    It is a :class:`UsageError` only where that is what was raised: what a server's absence has raised may pass.
    """
    here, packages = Path.cwd(), Path(sys.prefix)
    text = str(error) if isinstance(error, QueuekeeperError) else reason_of(error)
    lines = [
        f" ({path.relative_to(here)}, line {frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if (path := Path(frame.filename)).is_relative_to(here) and not path.is_relative_to(packages)
    ]
    # A syntax error names its line itself.
    where = "" if isinstance(error, SyntaxError) or not lines else lines[-1]
    kind = UsageError if isinstance(error, UsageError) else QueuekeeperError
    return kind(f"module {module_name} cannot be imported: {text}{where}")


def is_worker() -> bool:
    """Return whether this process is one of several that :class:`Processes` has started."""
    return WORKER in os.environ


def end_with_parent(stop: Callable[[], object]) -> None:
    """Call a function when the process that started this one ends it or has died.

    Standard input is the sign of life from now on. Handlers and their processes, which would wait for it, read nothing.
    """
    standard_input = sys.stdin.fileno()
    sign_of_life = os.dup(standard_input)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), standard_input)

    def watch() -> None:
        # A thread in a buffered read would abort the process when it ends by itself.
        while os.read(sign_of_life, 1):
            pass
        stop()

    threading.Thread(target=watch, name="queuekeeper-parent", daemon=True).start()


@dataclass
class _Process:
    began_s: float
    deaths: int
    running: subprocess.Popen[bytes] | None = field(default=None)
    """``None`` while the process waits to be replaced."""
    is_refused: bool = False
    """Whether it has refused its arguments, which only a changed file can cure."""


class Processes:
    """Keeps processes of a command running until it is stopped.

    :param count: number of processes.
    :param watched: folders; when a Python file below them changes, all processes are restarted.
    """

    def __init__(self, command: Sequence[str], *, count: int, watched: Iterable[Path] = ()) -> None:
        self._command = list(command)
        self._watched = tuple(watched)
        self._stopped = threading.Event()
        self._processes = [_Process(began_s=0.0, deaths=0) for _ in range(count)]

    def run(self) -> int:
        """Run until SIGTERM, Ctrl-C or :meth:`stop`, and return an exit code.

        The code is 0 after a stop, or the code of a process that refuses its arguments, which a restart would not cure.
        Where files are watched, such a process starts anew when one changes.
        """
        with stopped_by_signals(self.stop):
            seen = self._state()
            for process in self._processes:
                self._start(process)
            try:
                while not self._stopped.wait(LOOK_S):
                    code = self._replace_dead()
                    if code is not None:
                        return code
                    state = self._state()
                    if state != seen:
                        _log.warning("files have changed: the processes are restarted")
                        self._end()
                        seen = state
                        for process in self._processes:
                            self._start(process)
            finally:
                self._end()
        return 0

    def stop(self) -> None:
        """Stop all processes in good order; may be called in another thread and in a signal handler."""
        self._stopped.set()

    def _start(self, process: _Process) -> None:
        # The process gets its own session: Ctrl-C reaches only this process, which then tells the others once.
        process.running = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, env={**os.environ, WORKER: "1"}, start_new_session=True
        )
        process.began_s = time.monotonic()
        process.is_refused = False

    def _replace_dead(self) -> int | None:
        """Restart processes that have died; return the exit code of a process that refuses its arguments."""
        for process in self._processes:
            running = process.running
            if running is not None and running.poll() is not None:
                assert running.stdin is not None
                running.stdin.close()
                process.running = None
                if running.returncode == UsageError.exit_code:
                    if not self._watched:
                        return UsageError.exit_code
                    process.is_refused = True
                    _log.error("process %d ended with code %d: save the mended file", running.pid, running.returncode)
                    continue
                lived_s = time.monotonic() - process.began_s
                process.deaths = 0 if lived_s >= STEADY_S else process.deaths + 1
                process.began_s = time.monotonic()
                _log.error("process %d ended with code %d and is replaced", running.pid, running.returncode)
            if process.is_refused:
                continue
            if process.running is None and time.monotonic() >= process.began_s + self._pause_s(process):
                self._start(process)
        return None

    @staticmethod
    def _pause_s(process: _Process) -> float:
        return 0.0 if process.deaths < 2 else BACKOFF.after(process.deaths - 2)

    def _end(self) -> None:
        """Tell all processes to end, and wait until they have ended."""
        running = [process.running for process in self._processes if process.running is not None]
        for one in running:
            assert one.stdin is not None
            one.stdin.close()
        for one in running:
            one.wait()
        for process in self._processes:
            process.running = None

    def _state(self) -> dict[Path, int]:
        """Return the time of the last change of each Python file, without hidden folders and virtual environments."""
        found = {}
        for folder in self._watched:
            # What is gone meanwhile is left out.
            for place, folders, names in os.walk(folder):
                if "pyvenv.cfg" in names and Path(place) != folder:
                    folders.clear()
                    continue
                folders[:] = [name for name in folders if not name.startswith(".")]
                for path in (Path(place, name) for name in names if name.endswith(".py")):
                    with suppress(OSError):
                        found[path] = path.stat().st_mtime_ns
        return found
