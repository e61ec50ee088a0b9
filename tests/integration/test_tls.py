"""Encrypted connections with a private authority: to Redis by each client, to PostgreSQL, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queuekeeper import postgres, redis_async
from queuekeeper.doctor import State, examine_postgres, examine_redis
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.errors import ServerUnavailable
from queuekeeper.redis_client import connect
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A certificate authority of nobody but ourselves, and a server's certificate from it."""

    root: Path
    certificate: Path
    key: Path


def authority(folder: Path) -> Authority:
    """Make one; everybody may read the files, as servers run under accounts of their own."""
    folder.mkdir(mode=0o755)
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: str, *, issuer: x509.Name, key: Any, signer: Any, is_root: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
        )
        if not is_root:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(signer, hashes.SHA256())

    root_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
    root = certificate(folder.name, issuer=root_name, key=root_key, signer=root_key, is_root=True)
    server = certificate("localhost", issuer=root_name, key=server_key, signer=root_key, is_root=False)
    files = Authority(root=folder / "root.pem", certificate=folder / "server.pem", key=folder / "server.key")
    files.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files


@pytest.fixture(scope="module")
def ours(server_home: Path) -> Authority:
    """The authority that the servers' certificates are from."""
    return authority(server_home / "authority")


@pytest.fixture(scope="module")
def strangers(server_home: Path) -> Authority:
    """An authority that has signed none of them."""
    return authority(server_home / "stranger")


@pytest.fixture
def secured_redis(ours: Authority, redis_server_factory: Callable[..., RedisServer]) -> str:
    """Address of a Redis on its TLS port, without options."""
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server is installed, and the package's Valkey is built without TLS")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = redis_server_factory(
        flavour="redis",
        tls_port=port,
        tls_cert_file=str(ours.certificate),
        tls_key_file=str(ours.key),
        tls_ca_cert_file=str(ours.root),
        tls_auth_clients="no",
    )
    return server.url.replace("redis://", "rediss://").replace(f":{server.port}/", f":{port}/")


def test_every_client_of_redis_speaks_tls_and_checks_the_certificate(
    secured_redis: str, ours: Authority, strangers: Authority
) -> None:
    url = f"{secured_redis}?ssl_ca_certs={ours.root}"
    now_ms = time.time_ns() // 1_000_000
    save = SessionSave(client_id="meter", messages=(NewMessage(topic="t", payload=b"x", qos=1, time_ms=now_ms),))
    with connect(url) as client:
        store = RedisSessionStore(client)
        (report,) = store.save_messages([save])
        assert report.packet_ids == (1,)

        async def write() -> None:
            async with await redis_async.connect(url) as caller:
                (written,) = await AsyncRedisSessionStore(caller).save_messages([save])
                assert written.packet_ids == (2,)

        asyncio.run(write())
        assert len(store.fetch_pending("meter").messages) == 2
    found = {finding.check: finding for finding in examine_redis(url)}
    assert (found["encryption"].state, found["encryption"].found) == (State.OK, "TLS")

    for wrong in (secured_redis, f"{secured_redis}?ssl_ca_certs={strangers.root}"):
        with pytest.raises(ServerUnavailable, match=r"TLS failed.*ssl_ca_certs=FILE"):
            connect(wrong)
    with pytest.raises(ServerUnavailable, match="speaks TLS only"):
        connect(secured_redis.replace("rediss://", "redis://"))


@pytest.fixture
def secured_postgres(ours: Authority, system_postgres: PostgresServer) -> str:
    """Address of the system's PostgreSQL, since the package's has no TLS; it takes encrypted connections only."""
    server = system_postgres
    owner = server.data.stat()
    key = server.data / "server.key"
    shutil.copy(ours.key, key)
    os.chown(key, owner.st_uid, owner.st_gid)
    key.chmod(0o600)
    with postgres.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET ssl_cert_file = '{ours.certificate}'".encode())
        connection.execute("ALTER SYSTEM SET ssl_key_file = 'server.key'")
        connection.execute("ALTER SYSTEM SET ssl = on")
    access = server.data / "pg_hba.conf"
    access.write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n", "utf-8")
    server.stop()
    server.start()
    return server.url


def test_postgres_is_reached_by_tls_with_our_authority_alone(
    secured_postgres: str, ours: Authority, strangers: Authority
) -> None:
    url = f"{secured_postgres}?sslmode=verify-full&sslrootcert={ours.root}"
    with postgres.connect(url) as connection:
        assert connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (True,)
    # Spark reads by another driver.
    with adbc.connect(url) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert cursor.fetchone() == (True,)
    found = {finding.check: finding for finding in examine_postgres(url)}
    assert (found["encryption"].state, found["encryption"].found) == (State.OK, "TLS")

    with pytest.raises(ServerUnavailable, match="check sslmode and sslrootcert"):
        postgres.connect(f"{secured_postgres}?sslmode=verify-full&sslrootcert={strangers.root}")
    with pytest.raises(ServerUnavailable, match=r"no pg_hba\.conf entry.*no encryption"):
        postgres.connect(f"{secured_postgres}?sslmode=disable")
