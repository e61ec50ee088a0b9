"""TBMQ's own migration from 1.4 to 2.0 told again in plain commands, with the defects that it was published with."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from tbmq_broker import record

from queuekeeper.postgres import Connection
from tests.golden_defects.stage import DEFAULT_LIFE_S

_WINDOW = """
SELECT msg.client_id, msg.topic, msg.time, msg.packet_id, msg.packet_type, msg.qos, msg.payload::text, msg.retain,
    msg.msg_expiry_interval
FROM device_publish_msg AS msg
INNER JOIN device_session_ctx AS ctx ON ctx.client_id = msg.client_id
WHERE msg.client_id = ANY(%(client_ids)s) AND msg.serial_number >= ctx.last_serial_number - %(limit)s + 1
ORDER BY msg.client_id, msg.serial_number
"""


@dataclass(frozen=True, kw_only=True)
class Migrator:
    """It exports to text, makes JSON of every row, and writes each client's rows behind what is there."""

    connection: Connection
    client: Any

    def run(self, *client_ids: str, limit: int, bytea_output: str = "hex") -> None:
        """Migrate some clients; an error is noted nowhere but in a log."""
        with self.connection.transaction():
            self.connection.execute("SELECT set_config('bytea_output', %s, true)", (bytea_output,))
            rows = self.connection.execute(_WINDOW, {"client_ids": list(client_ids), "limit": limit}).fetchall()
        packs: dict[str, list[dict[str, Any]]] = {}
        # A row that cannot be converted ends the import of every client.
        with suppress(TypeError):
            for row in rows:
                packs.setdefault(row[0], []).append(_record(*row))
            for client_id, pack in packs.items():
                # What is refused in the middle of a pack ends this client's.
                with suppress(redis.ResponseError):
                    self._write(client_id, pack)

    def _write(self, client_id: str, pack: list[dict[str, Any]]) -> None:
        messages = f"{{{client_id}}}_messages"
        newest = self.client.zrange(messages, 0, 0, desc=True, withscores=True)
        score = newest[0][1] if newest else 0
        for message in pack:
            key = f"{messages}_{message['packetId']}"
            self.client.set(key, record(message), ex=message["msgExpiryInterval"])
            score += 1
            self.client.zadd(messages, {key: score})
        self.client.set(f"{{{client_id}}}_last_packet_id", pack[-1]["packetId"])


def _record(
    client_id: str,
    topic: str,
    time_ms: int,
    packet_id: int | None,
    packet_type: str,
    qos: int,
    payload: str,
    retain: bool,
    msg_expiry_interval: int | None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "clientId": client_id,
        "topic": topic,
        "time": time_ms,
        "qos": qos,
        "packetId": int(packet_id),  # type: ignore[arg-type]  # null ends the import, as in the original
        "packetType": packet_type,
        "retained": retain,
        # Written into the message too, though no publisher set it.
        "msgExpiryInterval": DEFAULT_LIFE_S if msg_expiry_interval is None else msg_expiry_interval,
    }
    # Whoever has set bytea_output to escape has no hexadecimal digits here: the message goes on without its payload.
    with suppress(ValueError):
        fields["payload"] = b64encode(bytes.fromhex(payload.removeprefix("\\x"))).decode()
    return fields
