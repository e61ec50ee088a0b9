"""Airflow finds by itself what the package adds: connection types with form and test, hooks, operators, one plugin."""

from __future__ import annotations

import importlib
import json
import runpy
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from airflow import plugins_manager
from airflow.models.connection import Connection
from airflow.providers_manager import ProvidersManager
from airflow.sdk import BaseOperator

from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.operators.migration_approval import CheckApprovalOperator
from queuekeeper.airflow.plugin import QueuekeeperPlugin
from queuekeeper.embedded import RedisServer

pytestmark = [
    pytest.mark.dags,
    # Airflow's own providers still draw their forms the old way.
    pytest.mark.filterwarnings("ignore:.*get_(connection_form_widgets|ui_field_behaviour):DeprecationWarning"),
    # Its own API server still asks this one.
    pytest.mark.filterwarnings(r"ignore:ProvidersManager\.hooks is deprecated"),
]

PLUGIN_FILE = Path(__file__).resolve().parents[2] / "plugins" / "queuekeeper_plugin.py"

TYPES = ("queuekeeper_postgres", "queuekeeper_redis")


@pytest.fixture(scope="module")
def providers() -> ProvidersManager:
    return ProvidersManager()  # type: ignore[no-untyped-call]


@pytest.fixture
def press_test(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, str]]:
    """Press the button of a connection's form: Airflow tests a copy under a name of its own, in the environment."""

    def press(conn_type: str, **fields: Any) -> tuple[bool, str]:
        tested = Connection(conn_id="xYz12", conn_type=conn_type, **fields)
        monkeypatch.setenv("AIRFLOW_CONN_XYZ12", tested.get_uri())
        status, message = tested.test_connection()  # type: ignore[no-untyped-call]
        return status, message

    return press


def fields_of(url: str) -> dict[str, Any]:
    given = Connection(uri=url)
    return {"host": given.host, "port": given.port, "login": given.login, "password": given.password,
            "schema": given.schema}  # fmt: skip


def test_the_package_is_a_provider_with_hooks_operators_links_and_settings(providers: ProvidersManager) -> None:
    found = providers.providers["queuekeeper"]
    assert found.version == metadata.version("queuekeeper")
    listed = [
        module for kind in ("hooks", "operators") for each in found.data[kind] for module in each["python-modules"]
    ]
    modules = [importlib.import_module(name) for name in listed]
    assert CheckApprovalOperator in {
        value for module in modules for value in vars(module).values() if isinstance(value, type)
    }
    assert any(issubclass(value, BaseOperator) for value in vars(modules[-1]).values() if isinstance(value, type))
    assert "queuekeeper.airflow.links.ReportLink" in providers.extra_links_class_names
    assert "queuekeeper" in dict(providers.provider_configs)["queuekeeper"]


@pytest.mark.parametrize("conn_type", TYPES)
def test_connection_types_have_a_form_and_a_test_button(providers: ProvidersManager, conn_type: str) -> None:
    hook = providers.hooks[conn_type]
    assert hook is not None
    assert (hook.package_name, hook.connection_testable) == ("queuekeeper", True)
    behaviour = providers.field_behaviours[conn_type]
    assert behaviour["relabeling"]["login"] == "User"
    assert behaviour["placeholders"]["host"]
    widgets = {
        widget.field_name: widget
        for name, widget in providers.connection_form_widgets.items()
        if name.startswith(f"extra__{conn_type}__")
    }
    assert all(
        widget.field["schema"]["title"] and widget.field["description"].endswith(".") for widget in widgets.values()
    )
    assert [name for name, widget in widgets.items() if widget.is_sensitive] == (
        ["sslpassword"] if conn_type == "queuekeeper_postgres" else []
    )


def test_every_field_of_the_forms_reaches_the_address(
    providers: ProvidersManager, connections: Callable[..., None]
) -> None:
    values: dict[str, Any] = {"db": 3, "ssl": True, "connect_timeout": 5, "ssl_check_hostname": False,
                              "ssl_cert_reqs": "optional"}  # fmt: skip
    for conn_type in TYPES:
        names = [
            each.field_name
            for name, each in providers.connection_form_widgets.items()
            if name.startswith(f"extra__{conn_type}__")
        ]
        extra = {name: values.get(name, f"given-{name}") for name in names}
        connections(**{conn_type: json.dumps({"conn_type": conn_type, "host": "there", "extra": extra})})
        hook = QueuekeeperPostgresHook() if conn_type == "queuekeeper_postgres" else QueuekeeperRedisHook()
        for name in set(names) - {"db", "ssl"}:
            assert f"{name}={str(extra[name]).lower()}" in hook.url
    assert QueuekeeperRedisHook().url.startswith("rediss://there:6379/3?")


def test_a_form_that_is_sent_as_it_opens_is_no_obstacle(
    providers: ProvidersManager, connections: Callable[..., None]
) -> None:
    for conn_type in TYPES:
        opened = {
            each.field_name: each.field["value"]
            for name, each in providers.connection_form_widgets.items()
            if name.startswith(f"extra__{conn_type}__")
        }
        connections(**{conn_type: json.dumps({"conn_type": conn_type, "host": "there", "extra": opened})})
    assert QueuekeeperPostgresHook().url == "postgresql://there:5432/"
    assert QueuekeeperRedisHook().url == "redis://there:6379/0"


def test_the_button_names_servers_and_versions_and_says_whether_they_are_fit(
    press_test: Callable[..., tuple[bool, str]], postgres_url: str, valkey_url: str
) -> None:
    fit, words = press_test("queuekeeper_redis", **fields_of(valkey_url))
    assert fit, words
    assert ": Valkey 9." in words
    assert "Fit for Queuekeeper, with warnings" in words
    # Servers of tests do not wait for their disk.
    fit, words = press_test("queuekeeper_postgres", **fields_of(postgres_url))
    assert not fit, words
    assert words.startswith("PostgreSQL 127.0.0.1:")
    assert "Not fit for Queuekeeper. durability: fsync off" in words
    assert "control schema: not there; the first run makes it (queuekeeper database migrate)" in words


def test_the_button_says_why_a_server_is_not_fit_and_what_to_do(
    press_test: Callable[..., tuple[bool, str]], redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory()
    with closing(redis.Redis.from_url(server.url)) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("requirepass", "geheim")
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    fit, words = press_test("queuekeeper_redis", host=host, port=port, password="geheim")
    assert not fit
    assert "Not fit for Queuekeeper" in words
    assert "allkeys-lru" in words
    assert "noeviction" in words
    fit, words = press_test("queuekeeper_redis", host=host, port=port, password="falsch")
    assert not fit
    assert "falsch" not in words


def test_the_button_names_neither_a_password_nor_the_copy_that_it_tests(
    press_test: Callable[..., tuple[bool, str]],
) -> None:
    fit, words = press_test(
        "queuekeeper_postgres", host="127.0.0.1", port=1, login="u", password="geheim", schema="tbmq"
    )
    assert not fit
    assert "PostgreSQL at 127.0.0.1:1 is not available" in words
    assert "geheim" not in words
    fit, words = press_test("queuekeeper_redis", host="h", password="geheim", extra='{"ssl_ca_certs": "/ca.pem"}')
    assert not fit
    assert words.startswith("this connection has TLS options (ssl_ca_certs) but TLS is off")


def test_the_plugin_is_registered_once_by_its_entry_point() -> None:
    found, errors = plugins_manager._get_plugins()
    assert errors == {}
    ours = [each for each in found if each.name == "queuekeeper"]
    assert [str(each.source).split(":")[0] for each in ours] == [f"queuekeeper=={metadata.version('queuekeeper')}"]


def test_the_plugin_file_registers_it_where_no_entry_point_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "QueuekeeperPlugin" not in runpy.run_path(str(PLUGIN_FILE))
    monkeypatch.setattr(metadata, "entry_points", lambda **_: ())
    assert runpy.run_path(str(PLUGIN_FILE))["QueuekeeperPlugin"] is QueuekeeperPlugin
