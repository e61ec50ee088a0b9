"""Base of the private stores: password, port, start and stop."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from queuekeeper.embedded.files import demand_free, free_port, is_free, noted_port, secret, write_private
from queuekeeper.embedded.process import ManagedProcess, ProcessRecord
from queuekeeper.errors import ServerUnavailable

_START_TIMEOUT_S = 60.0
_ATTEMPTS = 5


class PrivateServer(ABC):
    """One server process on loopback with state, log, password and port in a folder of its own.

    :param port: the only port to use; by default the last port if it is free, else any free one.
    """

    product: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        port: int | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        die_with_parent: bool = False,
    ) -> None:
        self.name = name
        self.directory = directory.absolute()
        self._wanted_port = port
        self.process = ManagedProcess(name, self.directory, stop_signal=stop_signal, die_with_parent=die_with_parent)

    @property
    def port(self) -> int:
        """Port of the running server.

        :raises ServerUnavailable: when it is not running.
        """
        return self.process.listening_port(f"the private {self.product}", command="queuekeeper up")

    @property
    def pid(self) -> int | None:
        """Process id, or ``None`` when it is not running."""
        record = self.process.running()
        return None if record is None else record.pid

    def start(self) -> ProcessRecord:
        """Start the server unless it runs, and wait until it answers; the first start creates its data.

        :raises ServerUnavailable: when there is no program, the given port is taken, or the server does not come up.
        """
        running = self.process.running()
        if running is not None:
            return running
        start_on = self._prepare()
        for attempt in range(1, _ATTEMPTS + 1):
            port = self._wanted_port or free_port(self._last_port() if attempt == 1 else None)
            try:
                return start_on(port)
            except ServerUnavailable:
                # Another program may have taken the port between the check and the start.
                if attempt == _ATTEMPTS or self._wanted_port is not None or is_free(port):
                    raise
        raise AssertionError("the loop above returns or raises")

    def stop(self) -> bool:
        """Shut the server down in good order and return whether it ran."""
        return self.process.stop()

    def kill(self) -> None:
        """Kill the server and its children at once, as a crash would; the next start finds what was on disk."""
        self.process.kill()

    def restart(self) -> ProcessRecord:
        """Stop and start the server; the data stay."""
        self.stop()
        return self.start()

    @abstractmethod
    def erase(self) -> None:
        """Stop the server and remove its data."""

    @abstractmethod
    def _prepare(self) -> Callable[[int], ProcessRecord]:
        """Prepare a start, and return the function that starts the server on a port."""

    def _claim_port(self) -> None:
        if self._wanted_port is not None:
            demand_free(self._wanted_port, self.product)

    def _password(self) -> str:
        return secret(self.directory / "password")

    def _last_port(self) -> int | None:
        record = self.process.record()
        return noted_port(self.directory / "port") if record is None else record.port

    def _wait_ready(self, probe: Callable[[], bool], *, port: int) -> None:
        """Wait until the server answers; end it when it does not."""
        try:
            self.process.wait_ready(probe, timeout_s=_START_TIMEOUT_S)
        except BaseException:
            self.process.stop()
            raise
        write_private(self.directory / "port", str(port))
