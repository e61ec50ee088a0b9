"""Starts, recognises and ends one background process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from queuekeeper.embedded.files import write_private
from queuekeeper.errors import RefusedError, ServerUnavailable

_MARKER = "QUEUEKEEPER_STARTED_FOR"

# Children of this process; the caller that stops one collects its exit code, so that no zombie stays.
_children: set[int] = set()


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """Record of a started process, by which no other process is mistaken for it.

    :param started: start of the process as the kernel counts; a process that reuses the pid has another one.
    :param settings: checksum of the settings that it was started with, so that a change is noticed.
    """

    pid: int
    started: str
    port: int | None
    version: str
    settings: str = ""


class ManagedProcess:
    """One background process with a state file and a log file in its own folder.

    :param directory: holds ``<name>.json`` and ``<name>.log``.
    :param stop_signal: signal that asks the program to end in good order.
    :param die_with_parent: let a guardian end the process when this Python process is gone, even by SIGKILL.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        stop_signal: signal.Signals = signal.SIGTERM,
        stop_timeout_s: float = 20.0,
        die_with_parent: bool = False,
    ) -> None:
        self.name = name
        self.directory = directory
        self.state_path = directory / f"{name}.json"
        self.log_path = directory / f"{name}.log"
        self._stop_signal = stop_signal
        self._stop_timeout_s = stop_timeout_s
        self._die_with_parent = die_with_parent

    def record(self) -> ProcessRecord | None:
        """Return the record of the last start, whether or not the process still lives.

        :raises RefusedError: when it is there and cannot be read, so that nobody starts a second process beside it.
        """
        try:
            return ProcessRecord(**json.loads(self.state_path.read_text("utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RefusedError(
                f"{self.state_path}, which says whether {self.name} runs, cannot be read: {error.strerror}; run this "
                "as the account that has started it, or name another folder in QUEUEKEEPER_HOME"
            ) from error
        except (ValueError, TypeError):
            # A truncated state file names no process that could be ended safely.
            return None

    def running(self) -> ProcessRecord | None:
        """Return the record of the living process, or ``None`` when it has ended or another process has its pid."""
        record = self.record()
        return record if record is not None and _process_of(record) is not None else None

    def listening_port(self, what: str, *, command: str) -> int:
        """Return the port of the living process.

        :param what: name of the server for the error.
        :param command: command that starts it, for the error.
        :raises ServerUnavailable: when it is not running.
        """
        record = self.running()
        if record is None or record.port is None:
            raise ServerUnavailable(f"{what} in {self.directory} is not running: start it by `{command}`")
        return record.port

    def start(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
        version: str = "",
        settings: str = "",
        user: int | None = None,
        group: int | None = None,
        working_directory: Path | None = None,
    ) -> ProcessRecord:
        """Start the process in a session of its own, with its output in the log file.

        :param user: numeric user to run as; only root may choose.
        :raises ServerUnavailable: when the program cannot be started.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.running() is None:
            _collect(self.record())
        identity: dict[str, Any] = {}
        if user is not None:
            identity = {"user": user, "group": group, "extra_groups": []}
        marked = {**(os.environ if environment is None else environment), _MARKER: str(self.directory)}
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=marked,
                cwd=working_directory or "/",
                start_new_session=True,
                **identity,
            )
        except OSError as error:
            raise ServerUnavailable(f"cannot start {self.name}: {error}") from error
        finally:
            os.close(log)
        _children.add(child.pid)
        # The process may outlive this one on purpose; Popen would warn about that when it is collected.
        child.returncode = 0
        record = ProcessRecord(
            pid=child.pid,
            started=_start_of(child.pid) or "",
            port=port,
            version=version,
            settings=settings,
        )
        try:
            write_private(self.state_path, json.dumps(asdict(record)))
            if self._die_with_parent:
                _guardian().watch(record.pid)
        except BaseException as error:
            # Nobody would find it again, and the next start would put another one on its data.
            self._end(record)
            if isinstance(error, OSError):
                raise ServerUnavailable(f"cannot start {self.name}: {error}") from error
            raise
        return record

    def annotate(self, *, version: str) -> None:
        """Record the version of the running server."""
        record = self.record()
        if record is not None and record.version != version:
            write_private(self.state_path, json.dumps({**asdict(record), "version": version}))

    def wait_ready(self, probe: Callable[[], bool], *, timeout_s: float) -> None:
        """Wait until ``probe`` returns true.

        :raises ServerUnavailable: when the process ends or the time is over; shows the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 0.01
        while not probe():
            if self.running() is None:
                raise ServerUnavailable(f"{self.name} ended while it was starting\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerUnavailable(
                    f"{self.name} did not answer within {timeout_s:.0f} s; its log {self.log_path} ends:\n"
                    + self.log_tail()
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.5)

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - 16_384))
                return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(no log was written)"

    def stop(self) -> bool:
        """End the process and everything it started; a pid that another program has now is left alone.

        :returns: whether anything had to be ended.
        """
        record = self.record()
        family: list[psutil.Process] = []
        if record is not None:
            process = _process_of(record)
            if process is not None:
                family = _descendants(process)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(self._stop_signal)
                _wait_until_gone([process], timeout_s=self._stop_timeout_s)
                family += [process, *_session_members(record)]
            else:
                family = self._orphans(record)
        _kill(family)
        _collect(record)
        self.state_path.unlink(missing_ok=True)
        return bool(family)

    def kill(self) -> None:
        """End the process and its children with SIGKILL, as a crash would; the state file stays behind."""
        self._end(self.record())

    def _end(self, record: ProcessRecord | None) -> None:
        process = None if record is None else _process_of(record)
        if record is not None and process is not None:
            _kill([process, *_descendants(process)])
            # What it has started since they were looked up.
            _kill(self._orphans(record))
        _collect(record)

    def _orphans(self, record: ProcessRecord) -> list[psutil.Process]:
        """Return what is left of the session of a leader that is gone; its pid may have led another one since."""
        return [member for member in _session_members(record) if _marker(member) == str(self.directory)]


def end_marked(directory: Path) -> int:
    """End processes that outlived the server of ``directory`` that started them, such as drivers of killed tasks.

    :returns: how many were ended.
    """
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    left: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in ours and _marker(process) == str(directory):
                left.append(process)
    _kill(left)
    return len(left)


def _marker(process: psutil.Process) -> str | None:
    try:
        marker: str | None = process.environ().get(_MARKER)
    except (psutil.Error, OSError):
        return None
    return marker


def _start_of(pid: int) -> str | None:
    """Return a process's exact start: on Linux in clock ticks since boot, since a time of day moves with the clock."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text('utf-8').strip()}:{ticks}"
    except ProcessLookupError:
        return None
    except OSError:
        try:
            return str(psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None


def _process_of(record: ProcessRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if alive and _start_of(record.pid) == record.started else None


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _session_members(record: ProcessRecord) -> list[psutil.Process]:
    """Find the other processes in the session that this process led, orphans among them."""
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != record.pid and os.getsid(process.pid) == record.pid:
                members.append(process)
    return members


def _collect(record: ProcessRecord | None) -> None:
    if record is None or record.pid not in _children:
        return
    _children.discard(record.pid)
    deadline = time.monotonic() + 5
    # After a fork, the process is a child of another process.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(record.pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.005)


def _kill(processes: Iterable[psutil.Process]) -> None:
    alive = list(processes)
    for process in alive:
        # psutil compares start times before it signals, so a pid recycled meanwhile is safe.
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_until_gone(alive, timeout_s=10)


def _wait_until_gone(processes: Iterable[psutil.Process], *, timeout_s: float) -> None:
    """Wait until no process runs; a zombie counts as gone."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        while _lives(process) and time.monotonic() < deadline:
            time.sleep(0.005)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class _Guardian:
    """A small process that ends the watched processes when this process is gone, even by SIGKILL.

    The kernel's parent-death signal does not serve here: it is sent when the starting *thread* ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("guardian.py")), str(self._owner)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            text=True,
        )
        atexit.register(self.end)

    def usable(self) -> bool:
        return self._owner == os.getpid() and self._process.poll() is None

    def watch(self, pid: int) -> None:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{pid}\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """Let the guardian end what it watches, and wait for it."""
        if self._owner == os.getpid():
            self._process.communicate()


_guardian_lock = threading.Lock()
_guardians: list[_Guardian] = []


def _guardian() -> _Guardian:
    """Return this process's guardian; after a fork the child needs one of its own."""
    with _guardian_lock:
        if not _guardians or not _guardians[-1].usable():
            _guardians.append(_Guardian())
        return _guardians[-1]
