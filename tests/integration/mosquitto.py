"""A private Mosquitto, and clients of it that an asyncio test can wait for; paho-mqtt is what they are made of."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from queuekeeper.embedded.process import ManagedProcess
from tests.patience import PATIENCE_S

PROGRAM = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
QUIET_S = 0.4
"""How long nothing has to come for a test to say that nothing comes."""

MQTT_5, MQTT_3 = MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Mosquitto:
    """A broker of the test's own.

    :param keeps: whether it has after a restart what it had before.
    :param acl: lines of its access control; everybody may do everything without.
    :param tls: certificate and key.
    :param settings: further lines of its configuration.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keeps: bool = True,
        acl: str | None = None,
        tls: tuple[Path, Path] | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        self.port = free_port()
        self._scheme = "mqtt" if tls is None else "mqtts"
        self._directory = directory
        directory.mkdir(parents=True)
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            f"persistence {str(keeps).lower()}",
            f"persistence_location {directory}/",
            # By default it drops what goes beyond a thousand messages.
            "max_queued_messages 0",
            "set_tcp_nodelay true",
            *settings,
        ]
        if os.getuid() == 0:
            lines.append("user root")
        if tls is not None:
            lines += [f"certfile {tls[0]}", f"keyfile {tls[1]}"]
        if acl is not None:
            (directory / "acl").write_text(acl, "utf-8")
            (directory / "acl").chmod(0o600)
            lines.append(f"acl_file {directory / 'acl'}")
        (directory / "mosquitto.conf").write_text("\n".join(lines) + "\n", "utf-8")
        self._process = ManagedProcess("mosquitto", directory, die_with_parent=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://door:secret@127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process.start([PROGRAM, "-c", self._directory / "mosquitto.conf"], port=self.port)
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError(self._process.log_path.read_text("utf-8"))

    def stop(self) -> None:
        self._process.stop()


class Got:
    """A message that a client got."""

    def __init__(self, message: MQTTMessage) -> None:
        self.topic, self.payload, self.qos, self.dup = message.topic, bytes(message.payload), message.qos, message.dup
        self.mid = message.mid
        self.pairs: list[tuple[str, str]] = list(getattr(message.properties, "UserProperty", []))
        self.properties = dict(self.pairs)
        self.content_type: str | None = getattr(message.properties, "ContentType", None)
        self.subscription_ids: list[int] = getattr(message.properties, "SubscriptionIdentifier", [])


class MqttClient:
    """A client in an asyncio test.

    :param manual_ack: the test acknowledges by :meth:`ack`.
    """

    def __init__(
        self,
        client_id: str,
        port: int,
        *,
        version: MQTTProtocolVersion = MQTT_5,
        clean: bool = True,
        manual_ack: bool = False,
        username: str | None = None,
        ca_file: Path | None = None,
        **properties: Any,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.got: asyncio.Queue[Got] = asyncio.Queue()
        self.connected = asyncio.Event()
        self.lost = asyncio.Event()
        self.reason = ""
        self.session_present = False
        self.suback_reason: str | None = None
        self.disconnect_reason: str | None = None
        self._subscribed: dict[int, asyncio.Future[list[Any]]] = {}
        self._published: dict[int, asyncio.Future[Any]] = {}
        self._port = port
        self._options: dict[str, Any] = {}
        if version == MQTT_5:
            packed: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            if not clean:
                packed.SessionExpiryInterval = 3_600
            for name, value in properties.items():
                setattr(packed, name, value)
            self._options = {"clean_start": clean, "properties": packed}
        client = self.client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            manual_ack=manual_ack,
            reconnect_on_failure=False,
            clean_session=None if version == MQTT_5 else clean,
        )
        if username is not None:
            client.username_pw_set(username, "secret")
        if ca_file is not None:
            client.tls_set(str(ca_file))
        client.on_connect = lambda _c, _d, flags, reason, _p: self._say(self._on_connect, flags, reason)
        client.on_disconnect = lambda _c, _d, _f, reason, said: self._say(self._on_lost, reason, said)
        client.on_message = lambda _c, _d, message: self._say(self.got.put_nowait, Got(message))
        client.on_subscribe = lambda _c, _d, mid, reasons, said: self._say(self._on_subscribe, mid, reasons, said)
        client.on_unsubscribe = lambda _c, _d, mid, reasons, _p: self._say(self._settle, self._subscribed, mid, reasons)
        client.on_publish = lambda _c, _d, mid, reason, _p: self._say(self._settle, self._published, mid, reason)

    def _say(self, what: Any, *about: Any) -> None:
        self._loop.call_soon_threadsafe(what, *about)

    def _on_connect(self, flags: Any, reason: Any) -> None:
        self.session_present, self.reason = flags.session_present, str(reason)
        if not reason.is_failure:
            self.connected.set()

    def _on_subscribe(self, mid: int, reasons: Any, said: Any) -> None:
        self.suback_reason = getattr(said, "ReasonString", None)
        self._settle(self._subscribed, mid, reasons)

    def _on_lost(self, reason: Any, said: Any) -> None:
        if self.connected.is_set():
            self.reason = str(reason)
            self.disconnect_reason = getattr(said, "ReasonString", None)
        self.lost.set()

    def _settle(self, waiting: dict[int, asyncio.Future[Any]], mid: int, result: Any) -> None:
        waiting.setdefault(mid, self._loop.create_future()).set_result(result)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.client.connect, "127.0.0.1", self._port, 60, **self._options)
        self.client.loop_start()
        waits = [asyncio.create_task(event.wait()) for event in (self.connected, self.lost)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not self.connected.is_set():
            await self.__aexit__(None, None, None)
            raise ConnectionRefusedError(self.reason)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.disconnect()
        await asyncio.to_thread(self.client.loop_stop)
        # It closes its sockets when nobody has it any more.
        del self.client

    async def vanish(self) -> None:
        """Leave without a word."""
        connection: Any = self.client.socket()
        connection.shutdown(socket.SHUT_RDWR)
        await self.lost.wait()

    async def subscribe(self, *filters: tuple[str, int], **properties: Any) -> list[int]:
        packed: Any = None
        if properties:
            packed = Properties(PacketTypes.SUBSCRIBE)  # type: ignore[no-untyped-call]
            for name, value in properties.items():
                setattr(packed, name, value)
        _, mid = self.client.subscribe(list(filters), properties=packed)
        assert mid is not None
        reasons = await self._subscribed.setdefault(mid, self._loop.create_future())
        return [reason.value for reason in reasons]

    async def unsubscribe(self, name: str) -> None:
        _, mid = self.client.unsubscribe(name)
        assert mid is not None
        await self._subscribed.setdefault(mid, self._loop.create_future())

    async def publish(
        self, topic: str, payload: bytes = b"", *, qos: int = 1, retain: bool = False, **properties: Any
    ) -> Any:
        """Publish, and return the reason code of the acknowledgement, if one is asked for."""
        packed: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for name, value in properties.items():
            setattr(packed, name, value)
        told = self.client.publish(topic, payload, qos, retain, properties=packed if properties else None)
        if qos:
            return await self._published.setdefault(told.mid, self._loop.create_future())
        return None

    def ack(self, message: Got) -> None:
        self.client.ack(message.mid, message.qos)

    async def take(self, count: int) -> list[Got]:
        return [await self.got.get() for _ in range(count)]

    async def nothing(self) -> None:
        """Fail if something comes within a while."""
        try:
            async with asyncio.timeout(QUIET_S):
                message = await self.got.get()
        except TimeoutError:
            return
        raise AssertionError(f"{message.topic}: {message.payload!r} has come")


def payloads(messages: Sequence[Got]) -> list[bytes]:
    return [message.payload for message in messages]
