"""A proxy between a client and a server that cuts connections at the worst moment."""

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class CuttingProxy:
    """Passes bytes on until it is told to cut: then the server gets the request and the client no reply.

    :param host: address of this machine to listen at.
    :ivar url: address for clients.
    :ivar target: host and port of the server that the next connection leads to.
    :ivar cuts: replies still to be cut off.
    :ivar passed: bytes of replies that came from the server.
    """

    def __init__(self, url: str, *, host: str = "127.0.0.1") -> None:
        parts = urlsplit(url)
        self.target = (str(parts.hostname), int(parts.port or 0))
        self._listener = socket.create_server((host, 0))
        port = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}{at}{host}:{port}").geturl()
        self.cuts = 0
        self.passed = 0
        self._passing, self._most = threading.Condition(), math.inf
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(after=math.inf)
        # A thread that waits in accept() is woken by a shutdown, not by a close.
        self._end(self._listener)
        for opened in self._sockets:
            self._end(opened)
        for thread in self._threads:
            thread.join()

    def hold(self, *, after: float) -> None:
        """Keep replies back once so many bytes of them have come; infinity lets go what is kept."""
        with self._passing:
            self._most = after
            self._passing.notify_all()

    @property
    def holds(self) -> bool:
        """Whether a client waits for a reply that is kept back."""
        return self.passed > self._most

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self.target)
                self._sockets += (client, server)
                for source, sink, replies in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(target=self._pass_on, args=(source, sink, replies))
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if replies and self.cuts:
                    self.cuts -= 1
                    break
                if replies:
                    with self._passing:
                        self.passed += len(data)
                        self._passing.wait_for(lambda: self.passed <= self._most)
                sink.sendall(data)
        self._end(source)
        self._end(sink)

    @staticmethod
    def _end(opened: socket.socket) -> None:
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)
        opened.close()
