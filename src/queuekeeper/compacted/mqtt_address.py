"""Address of the door's MQTT broker, and the door's credentials there."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from queuekeeper.checks import checked
from queuekeeper.errors import UsageError
from queuekeeper.hosts import check_host


@dataclass(frozen=True, kw_only=True)
class BrokerAddress:
    """Address of the broker.

    :param username: user name of the door itself; each client logs in with its own. None for no user name.
    :param password: password of the door itself; none for no password.
    :param tls: TLS context of the connection; none for a connection without TLS.
    """

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @classmethod
    @checked
    def parse(cls, url: str, *, ca_file: str | None = None) -> BrokerAddress:
        """Read ``mqtt://user:password@host:port``, or ``mqtts://..`` for TLS.

        The default port is 1883, or 8883 for ``mqtts``.

        :param ca_file: file with the certificates to trust; none for the system's.
        :raises UsageError: when the URL does not parse; the message does not contain the password.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            check_host(parts.hostname or "")
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or port == 0 or parts.path.strip("/"):
            raise UsageError("the broker's URL does not parse: write mqtt://[user:password@]host[:port], or mqtts://..")
        try:
            tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "mqtts" else None
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"the certificates of {ca_file} cannot be read: {error}") from None
        return cls(
            host=parts.hostname,
            port=port or (8_883 if tls else 1_883),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=tls,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
