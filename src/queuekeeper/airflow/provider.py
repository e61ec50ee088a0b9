"""Describes to Airflow what this package adds: connection types with their forms, hooks, operators, links, settings.

Airflow reads this at the start of every command, so this module does not import Airflow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

POSTGRES_TYPE = "queuekeeper_postgres"
REDIS_TYPE = "queuekeeper_redis"
POSTGRES_NAME = "Queuekeeper PostgreSQL"
REDIS_NAME = "Queuekeeper Redis or Valkey"
"""Connection types with our own form and test; the types ``postgres`` and ``redis`` are accepted, too."""

CONFIGURATION = "queuekeeper"
NOTIFIERS = "notifiers"
"""Section and option of Airflow's configuration that :mod:`queuekeeper.airflow.notifiers` reads."""

_INTEGRATION = "Queuekeeper"
_OPERATORS = Path(__file__).parent / "operators"


def get_provider_info() -> dict[str, Any]:
    """Return the provider metadata for Airflow, which finds this by the entry point ``apache_airflow_provider``."""
    return {
        "package-name": "queuekeeper",
        "name": "Queuekeeper",
        "description": "Moves, maintains and proves message queues that live in Redis and PostgreSQL.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": [_of("queuekeeper.airflow.hooks")],
        "operators": [
            _of(*(f"queuekeeper.airflow.operators.{path.stem}" for path in sorted(_OPERATORS.glob("[!_]*.py"))))
        ],
        "extra-links": ["queuekeeper.airflow.links.ReportLink"],
        "notifications": ["queuekeeper.airflow.notifiers.ConfiguredNotifier"],
        "connection-types": [_postgres(), _redis()],
        "config": {
            CONFIGURATION: {
                "description": "Settings of Queuekeeper's DAGs.",
                "options": {NOTIFIERS: _notifiers_option()},
            }
        },
    }


def _of(*modules: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(modules)}


def _text(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


_AUTHORITY = _text("CA certificate path", "File on every worker that the server's certificate is signed by.")
_CERTIFICATE = _text("Client certificate path", "Only where the server asks for a certificate.")
_KEY = _text("Client key path", "Key of the client certificate.")


def _postgres() -> dict[str, Any]:
    return {
        "connection-type": POSTGRES_TYPE,
        "hook-class-name": "queuekeeper.airflow.hooks.QueuekeeperPostgresHook",
        "hook-name": POSTGRES_NAME,
        "ui-field-behaviour": {
            "hidden-fields": [],
            "relabeling": {"schema": "Database", "login": "User"},
            "placeholders": {
                "host": "db.example",
                "port": "5432",
                "schema": "thingsboard_mqtt_broker",
                "login": "queuekeeper",
                "sslrootcert": "/etc/ssl/ours.pem",
            },
        },
        "conn-fields": {
            "sslmode": _text(
                "TLS mode",
                "One of disable, allow, prefer, require, verify-ca, verify-full. Empty: prefer. Use verify-full unless "
                "the server is on the same machine.",
            ),
            "sslrootcert": _AUTHORITY,
            "sslcert": _CERTIFICATE,
            "sslkey": _KEY,
            "sslpassword": _text("Client key password", "Only for an encrypted key.", format="password"),
            "connect_timeout": {
                "label": "Connection time-out (s)",
                "description": "How many seconds to wait for the server.",
                "schema": {"type": ["integer", "null"], "minimum": 1},
            },
        },
    }


def _redis() -> dict[str, Any]:
    return {
        "connection-type": REDIS_TYPE,
        "hook-class-name": "queuekeeper.airflow.hooks.QueuekeeperRedisHook",
        "hook-name": REDIS_NAME,
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "extra"],
            "relabeling": {"login": "User", "host": "Host (of a cluster: any node)"},
            "placeholders": {
                "host": "redis.example",
                "port": "6379",
                "login": "queuekeeper",
                "ssl_ca_certs": "/etc/ssl/ours.pem",
            },
        },
        "conn-fields": {
            "db": {
                "label": "Database number",
                "description": "0 on a cluster.",
                "schema": {"type": ["integer", "null"], "minimum": 0, "default": 0},
            },
            "ssl": {
                "label": "TLS",
                "description": "Switch it on unless the server is on the same machine.",
                "schema": {"type": ["boolean", "null"], "default": False},
            },
            "ssl_ca_certs": _AUTHORITY,
            "ssl_cert_reqs": _text(
                "Server certificate",
                "Check of the server's certificate: required, optional or none.",
                enum=["required", "optional", "none"],
                default="required",
            ),
            "ssl_check_hostname": {
                "label": "Check the host name",
                "description": "Whether the server's certificate must name its host.",
                "schema": {"type": ["boolean", "null"], "default": True},
            },
            "ssl_certfile": _CERTIFICATE,
            "ssl_keyfile": _KEY,
        },
    }


def _notifiers_option() -> dict[str, Any]:
    return {
        "description": (
            "Notifiers that Queuekeeper's DAGs call when a person is asked (approval), a quality gate has failed "
            "(quality_gate) or any task has failed for good (failure): a JSON list, each with its class, its arguments "
            "and its events. Passwords belong in the connection that a notifier names."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": (
            '[{"class": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", '
            '"arguments": {"to": "queues@example.org"}, "events": ["approval", "quality_gate"]}]'
        ),
        "default": "",
    }
