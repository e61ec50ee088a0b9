"""A connection of Airflow becomes the URL that every other part of Queuekeeper takes, TLS included."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from queuekeeper import postgres, redis_client
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.embedded.airflow_server import AirflowServer
from queuekeeper.errors import ServerUnavailable, UsageError

pytestmark = pytest.mark.dags

Connections = Callable[..., None]


def test_connections_reach_real_servers(connections: Connections, postgres_url: str, valkey_url: str) -> None:
    connections(queuekeeper_postgres=postgres_url, queuekeeper_redis=valkey_url)

    with QueuekeeperPostgresHook().connect() as connection:
        assert connection.execute("SHOW application_name").fetchone() == ("queuekeeper",)
        assert connection.autocommit
    with QueuekeeperRedisHook().connect() as client:
        assert [server.is_valkey for server in redis_client.facts(client)] == [True]


def test_cluster_is_found_by_asking_it(connections: Connections, redis_cluster_url: str) -> None:
    connections(queuekeeper_redis=redis_cluster_url)

    with QueuekeeperRedisHook().connect() as client:
        assert len(redis_client.facts(client)) == 3


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ({"host": "db", "schema": "tbmq"}, "postgresql://db:5432/tbmq"),
        ({"schema": "tbmq"}, "postgresql:///tbmq"),
        ({"login": "u", "port": 6000, "schema": "tbmq"}, "postgresql://u@:6000/tbmq"),
        ({"host": "db", "login": "u", "password": "p@/:?#%", "port": 6000, "schema": "a b"},
         "postgresql://u:p%40%2F%3A%3F%23%25@db:6000/a%20b"),
        ({"host": "::1", "schema": "tbmq"}, "postgresql://[::1]:5432/tbmq"),
        ({"host": "[fe80::1%eth0]", "schema": "tbmq"}, "postgresql://[fe80::1%25eth0]:5432/tbmq"),
        ({"host": "a.db,::1", "port": 6000, "schema": "tbmq"}, "postgresql://a.db:6000,[::1]:6000/tbmq"),
        ({"host": "/run/postgresql", "login": "u", "schema": "tbmq"}, "postgresql://u@%2Frun%2Fpostgresql:5432/tbmq"),
        ({"host": "db", "schema": "t", "extra": {"sslmode": "verify-full", "sslrootcert": "/etc/ca file.pem",
                                                "cursor": "dictcursor"}},
         "postgresql://db:5432/t?sslmode=verify-full&sslrootcert=%2Fetc%2Fca%20file.pem"),
    ],
)  # fmt: skip
def test_postgres_url(connections: Connections, connection: dict[str, object], url: str) -> None:
    connections(queuekeeper_postgres=json.dumps({"conn_type": "postgres", **connection}))

    assert QueuekeeperPostgresHook().url == url


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ({"host": "cache"}, "redis://cache:6379/0"),
        ({"host": "cache", "password": "None"}, "redis://cache:6379/0"),
        ({"host": "cache", "password": "s/e@c", "port": 7000, "extra": {"db": 3}}, "redis://:s%2Fe%40c@cache:7000/3"),
        ({"host": "cache", "login": "u", "password": "p", "extra": {"cluster": True}}, "redis://u:p@cache:6379/0"),
        ({"host": "cache", "extra": {"ssl": True, "ssl_ca_certs": "/etc/ca.pem", "ssl_check_hostname": True}},
         "rediss://cache:6379/0?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_check_hostname=true"),
        ({"conn_type": "rediss", "host": "cache", "schema": "2"}, "rediss://cache:6379/2"),
    ],
)  # fmt: skip
def test_redis_url(connections: Connections, connection: dict[str, object], url: str) -> None:
    connections(queuekeeper_redis=json.dumps({"conn_type": "redis", **connection}))

    assert QueuekeeperRedisHook().url == url


HOME = "redis://cache:6379/0"
SOURCE = "postgresql://db:5432/tbmq"


def of_private_airflow(*, postgres_url: str = SOURCE, redis_url: str = HOME) -> dict[str, str]:
    """Return the connections that a private Airflow is started with."""
    server = AirflowServer(Path("home"), metadata_url="", postgres_url=postgres_url, redis_url=redis_url)
    return {name: json.dumps(connection) for name, connection in server._connections.items()}


@pytest.mark.parametrize(
    "url",
    [
        SOURCE,
        "postgres://u:p%40%2F%3A%3F%23%25@[::1]:6000/a%20b?sslmode=require&sslrootcert=/etc/a+b.pem",
        "host=db.example port=6000 dbname=tbmq user=u password='ge heim'",
        "postgresql:///tbmq?host=/run/PostgreSQL&port=5432&user=u&password=a%2Bb",
        "postgresql://u@%2Frun%2FPostgreSQL:5432/tbmq",
        "postgresql:///tbmq",
        "postgresql://u:p@:6000/tbmq",
        "postgresql://a.db:6000,b.db:6000/tbmq?target_session_attrs=read-write",
    ],
)
def test_private_airflow_reaches_the_postgres_of_any_address_that_commands_take(
    connections: Connections, url: str
) -> None:
    connections(**of_private_airflow(postgres_url=url))

    reached, wanted = postgres.read_url(QueuekeeperPostgresHook().url), postgres.read_url(url)

    assert set(reached.pop("port", "5432").split(",")) == set(wanted.pop("port", "5432").split(","))
    assert reached == wanted


@pytest.mark.parametrize(
    "url",
    [
        HOME,
        "redis://u:s%2Fe%40c%2B@[::1]:7000/3",
        "redis://cache:6379?db=3",
        "redis://cache:6379/0?username=u&password=a%2Bb",
        "rediss://:p@cache:6380/2?ssl_ca_certs=/etc/a%2Bb.pem&ssl_check_hostname=false",
    ],
)
def test_private_airflow_reaches_the_redis_of_any_address_that_commands_take(
    connections: Connections, url: str
) -> None:
    connections(**of_private_airflow(redis_url=url))

    assert redis_client.read_url(QueuekeeperRedisHook().url) == redis_client.read_url(url)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"postgres_url": "postgresql://db/tbmq?options=-csearch_path%3Dx"},
            "do not take: options; they take .*sslmode",
        ),
        ({"postgres_url": "postgresql://a:1,b:2/tbmq"}, "has several ports, .*: give all hosts the same port"),
        ({"postgres_url": "postgresql://u:ge@heim@db:x/tbmq"}, "URL does not parse"),
        ({"redis_url": "redis://cache/0?socket_timeout=5"}, "do not take: socket_timeout; they take ssl_ca_certs"),
        ({"redis_url": "redis://cache/first"}, "its database is not a number"),
    ],
)
def test_address_that_every_task_would_refuse_is_refused_before_airflow_starts(
    given: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        of_private_airflow(**given)
    assert "heim" not in str(refused.value)


def test_missing_connection_says_how_to_make_it() -> None:
    with pytest.raises(UsageError, match=r"no connection 'absent': airflow connections add absent --conn-uri "):
        _ = QueuekeeperPostgresHook(postgres_conn_id="absent").url


def test_connection_of_another_kind_is_refused(connections: Connections) -> None:
    connections(queuekeeper_postgres="mysql://db/tbmq")

    with pytest.raises(UsageError, match="'queuekeeper_postgres' is of type 'mysql': it must be postgres"):
        _ = QueuekeeperPostgresHook().url


@pytest.mark.parametrize("extra", [{"ssl_mode": "verify-full"}, {"iam": True}, {"options": "-c search_path=x"}])
def test_unknown_extra_is_refused_rather_than_dropped(connections: Connections, extra: dict[str, object]) -> None:
    connections(queuekeeper_postgres=json.dumps({"conn_type": "postgres", "host": "db", "extra": extra}))

    with pytest.raises(UsageError, match=rf"has an extra that is not known: {next(iter(extra))}; known are .*sslmode"):
        _ = QueuekeeperPostgresHook().url


@pytest.mark.parametrize("kind", ["postgres", "redis"])
@pytest.mark.parametrize(
    ("connection", "words"),
    [
        # Airflow reads the first three as no extras at all, and so as a connection without TLS.
        ({"extra": "ssl=geheim"}, "has extras that are not a JSON object: write "),
        ({"extra": '{"sslmode": "geheim"'}, "has extras that are not a JSON object: write "),
        ({"extra": "{'ssl': 'geheim'}"}, "has extras that are not a JSON object: write "),
        ({"extra": '["geheim"]'}, "has extras that are not a JSON object: write "),
        ({"host": "cache:6380"}, "has a host with a colon that is no IPv6 address: name only the host there"),
        ({"host": "[::1]:6380"}, "has a host with a colon that is no IPv6 address: name only the host there"),
        ({"host": "redis://u:geheim@cache"}, "has a host with a colon that is no IPv6 address"),
    ],
)
def test_what_is_in_a_wrong_field_or_does_not_parse_is_refused(
    connections: Connections, kind: str, connection: dict[str, str], words: str
) -> None:
    connections(**{f"queuekeeper_{kind}": json.dumps({"conn_type": kind, "host": "db", **connection})})

    with pytest.raises(UsageError, match=f"^connection 'queuekeeper_{kind}' {words}") as refused:
        _ = {"postgres": QueuekeeperPostgresHook, "redis": QueuekeeperRedisHook}[kind]().url
    assert "geheim" not in str(refused.value)


def test_tls_options_without_tls_are_refused(connections: Connections) -> None:
    connections(
        queuekeeper_redis=json.dumps({"conn_type": "redis", "host": "cache", "extra": {"ssl_ca_certs": "/etc/ca.pem"}})
    )

    with pytest.raises(UsageError, match=r"has TLS options \(ssl_ca_certs\) but TLS is off: add \"ssl\": true"):
        _ = QueuekeeperRedisHook().url


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        # Airflow's own hook encrypts by each of them.
        ({"extra": {"ssl": "yes"}}, "has ssl 'yes': it must be true or false"),
        ({"extra": {"ssl": "on"}}, "has ssl 'on': it must be true or false"),
        ({"conn_type": "rediss", "extra": {"ssl": "please"}}, "has ssl 'please': it must be true or false"),
        ({"schema": "3", "extra": {"db": 0}}, r"names database 0 \(db\) and database '3' \(schema\): name one"),
        ({"extra": {"db": "first"}}, "names database 'first': it must be a number"),
        ({"host": "a,b"}, "names several hosts: name one, of a cluster any node"),
        ({"extra": {"ssl": True, "ssl_ca_certs": ["ca"]}}, "has an extra that is not one value: ssl_ca_certs"),
        ({"extra": {"tls": True}}, "has an extra that is not known: tls; known are db, ssl, ssl_ca_certs"),
        ({"schema": "\u00b2"}, "names database '\u00b2': it must be a number"),
    ],
)
def test_redis_connection_that_says_two_things_or_nothing_clear_is_refused(
    connections: Connections, connection: dict[str, object], words: str
) -> None:
    connections(queuekeeper_redis=json.dumps({"conn_type": "redis", "host": "cache", **connection}))

    with pytest.raises(UsageError, match=words):
        _ = QueuekeeperRedisHook().url


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ({"extra": {"ssl": "0", "db": "0"}, "schema": "0"}, HOME),
        ({"extra": {"ssl": "", "db": None}, "schema": "4"}, "redis://cache:6379/4"),
        ({"extra": {"ssl": "TRUE", "db": 2}, "schema": "other"}, "rediss://cache:6379/2"),
    ],
)
def test_redis_connection_is_read_as_its_form_shows_it(
    connections: Connections, connection: dict[str, object], url: str
) -> None:
    connections(queuekeeper_redis=json.dumps({"conn_type": "redis", "host": "cache", **connection}))

    assert QueuekeeperRedisHook().url == url


def test_misspelt_value_of_an_option_is_refused_rather_than_tried_again(connections: Connections) -> None:
    for extra, words in (
        ({"sslmode": "verify_full"}, 'invalid sslmode value: "verify_full"'),
        ({"keepalives": "on"}, 'invalid integer value "on" for connection option "keepalives"'),
        ({"connect_timeout": "soon"}, "bad value for connect_timeout: 'soon'"),
    ):
        connections(queuekeeper_postgres=json.dumps({"conn_type": "postgres", "host": "127.0.0.1", "extra": extra}))

        with pytest.raises(UsageError, match=words), QueuekeeperPostgresHook().connect():
            pass


def test_unreachable_server_is_named_without_the_password(connections: Connections) -> None:
    connections(queuekeeper_postgres="postgresql://u:geheim@127.0.0.1:1/tbmq")

    with (
        pytest.raises(ServerUnavailable, match=r"PostgreSQL at 127\.0\.0\.1:1 is not available") as caught,
        QueuekeeperPostgresHook().connect(),
    ):
        pass
    assert "geheim" not in str(caught.value)
