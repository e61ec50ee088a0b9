"""Connections, pools and roles that the documents tell people to make are ones that the DAGs can work with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from airflow.models.connection import Connection

from queuekeeper import assets, postgres, schema_migrations
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.embedded import PostgresServer
from queuekeeper.jobs.resources import POOLS, POSTGRES_CONNECTION, REDIS_CONNECTION, SPARK_CONNECTION

pytestmark = pytest.mark.dags

DOCS = Path(__file__).parents[2] / "docs"


def documented() -> dict[str, str]:
    """Return the connections of the guide as name -> URI."""
    text = (DOCS / "servers.md").read_text("utf-8")
    lines = re.findall(r"^airflow connections add .*$", text, re.MULTILINE)
    return {words[3]: words[5] for words in map(shlex.split, lines)}


@pytest.fixture(autouse=True)
def _in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, uri in documented().items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", uri)


def test_all_connections_of_the_dags_are_documented() -> None:
    assert set(documented()) == {POSTGRES_CONNECTION, REDIS_CONNECTION, SPARK_CONNECTION}


def test_addresses_of_both_servers_ask_for_tls_and_name_the_authority() -> None:
    source = urlsplit(QueuekeeperPostgresHook().url)
    assert (source.hostname, source.username, source.path) == ("db.example", "queuekeeper", "/thingsboard_mqtt_broker")
    assert parse_qs(source.query) == {"sslmode": ["verify-full"], "sslrootcert": ["/etc/ssl/ours.pem"]}
    target = urlsplit(QueuekeeperRedisHook().url)
    assert (target.scheme, target.hostname, target.port) == ("rediss", "redis.example", 6380)
    assert parse_qs(target.query) == {"ssl_ca_certs": ["/etc/ssl/ours.pem"]}


@pytest.mark.parametrize("line", re.findall(r"`(spark://[^`]+)`", (DOCS / "deploying.md").read_text("utf-8")))
def test_spark_connections_name_a_master_that_spark_knows(line: str) -> None:
    connection = Connection(uri=line)
    assert connection.conn_type == "spark"
    assert connection.extra_dejson["deploy-mode"] == "client"
    assert re.fullmatch(r"local\[2\]|spark\.example|yarn|k8s://https://kubernetes\.example", connection.host or "")


def test_pools_of_the_dags_are_documented_with_their_size() -> None:
    found = re.findall(r"^airflow pools set (\w+) (\d+) '", (DOCS / "deploying.md").read_text("utf-8"), re.MULTILINE)
    assert {name: int(slots) for name, slots in found} == {pool.value: size.slots for pool, size in POOLS.items()}


def test_documented_role_can_make_our_schema_and_reads_the_source_alone(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    (block,) = re.findall(r"```sql\n(.*?)```", (DOCS / "servers.md").read_text("utf-8"), re.DOTALL)
    database = urlsplit(postgres_url).path[1:]
    role = f"{database}_role"
    with postgres.connect(postgres_url, autocommit=True) as admin:
        admin.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        for statement in block.replace("thingsboard_mqtt_broker", database).split(";\n"):
            admin.execute(re.sub(r"\bqueuekeeper\b", role, statement).encode())
        try:
            host = postgres_url.rpartition("@")[2]
            with postgres.connect(f"postgresql://{role}:choose%20one@{host}", autocommit=True) as connection:
                assert schema_migrations.migrate(connection).version > 0
                assert connection.execute("SELECT count(*) FROM device_publish_msg").fetchone() == (0,)
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("DELETE FROM device_publish_msg")
        finally:
            admin.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'.encode())
