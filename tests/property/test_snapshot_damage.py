"""A damaged, cut or foreign RDB file is refused in words, or says what the whole one says; nothing else happens."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.embedded.redis_server import Flavour, RedisServer
from queuekeeper.errors import UnreadableSnapshot, UsageError
from queuekeeper.rdb.files import files_at
from queuekeeper.rdb.packing import decompressed
from queuekeeper.rdb.snapshot import Entry, Snapshot, Want
from tests.snapshot_samples import plant

pytestmark = pytest.mark.property

REDIS_8 = (Path(__file__).parents[1] / "data" / "redis-8.2-cluster.rdb").read_bytes()
CHECKSUM_BYTES = 8

damages = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3)


class Files(list[bytes]):
    """Files whose bytes stay out of Hypothesis' reports."""

    def __repr__(self) -> str:
        return "files"


def read(data: bytes, want: Want = Want.VALUE) -> list[Entry]:
    return list(Snapshot(io.BytesIO(data), name="dump.rdb").entries(lambda *_: want))


@pytest.fixture(scope="module")
def files(redis_servers: Callable[[Flavour], RedisServer]) -> Files:
    """A small file of each form: of Valkey 9, and of Redis 8."""
    with redis_servers("valkey").client() as client:
        client.flushall()
        plant(client, expiring_fields=True)
        for key in client.scan_iter(count=1_000):
            if client.memory_usage(key, samples=0) > 20_000:
                client.delete(key)
        client.save()
        return Files([Path(client.config_get("dir")["dir"], "dump.rdb").read_bytes(), REDIS_8])


def damaged(data: bytes, damage: list[tuple[float, int]]) -> bytes:
    found = bytearray(data)
    for place, change in damage:
        found[int(place * len(data))] ^= change
    return bytes(found)


@settings(max_examples=150)
@given(which=st.integers(0, 1), damage=damages)
def test_changed_bytes_are_noticed(files: Files, which: int, damage: list[tuple[float, int]]) -> None:
    whole = files[which]
    data = damaged(whole, damage)
    if data == whole:
        return

    with pytest.raises(UnreadableSnapshot, match=r"^dump\.rdb"):
        read(data)


@settings(max_examples=300)
@given(which=st.integers(0, 1), damage=damages, want=st.sampled_from(Want))
def test_changed_bytes_without_a_checksum_are_refused_in_words_or_read(
    files: Files, which: int, damage: list[tuple[float, int]], want: Want
) -> None:
    data = damaged(files[which][:-CHECKSUM_BYTES], damage) + bytes(CHECKSUM_BYTES)

    with suppress(UnreadableSnapshot):
        read(data, want)


@settings(max_examples=100)
@given(which=st.integers(0, 1), part=st.floats(0, 1, exclude_max=True), want=st.sampled_from(Want))
def test_a_file_that_was_cut_off_is_refused(files: Files, which: int, part: float, want: Want) -> None:
    data = files[which][: int(part * len(files[which]))]

    with pytest.raises(UnreadableSnapshot, match=rf"^dump\.rdb ends after {len(data):,} bytes"):
        read(data, want)


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableSnapshot):
        read(data)


@given(st.binary(max_size=100), st.integers(0, 1_000))
def test_only_what_has_the_size_is_decompressed(data: bytes, size: int) -> None:
    found = decompressed(data, size)

    assert found is None or len(found) == size


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x1f\x8b\x08 compressed", "it is no RDB file"),
        (b"REDIS0009\xff" + bytes(8), "from before Redis 7.0: have Redis 7 load it"),
        (b"REDIS0011\x0a\x01k\x00\xff" + bytes(8), "a value of form 10, which no Redis since 7.0 writes, at byte 9"),
        (
            b"REDIS0013\x1a\x01k\x00\xff" + bytes(8),
            "number 26, which Queuekeeper does not know, at byte 9; .* Redis 13",
        ),
        (b"REDIS0012\x16\x01k\x00\xff" + bytes(8), "number 22, which Queuekeeper does not know"),
        (b"REDIS0012\xf3\x01", "number 243, which Queuekeeper does not know"),
        (b"REDIS0012\xff" + bytes(9), "more follows behind the end at byte 18"),
        (b"REDIS0012\xff" + b"\x01" * 8, "its checksum is [0-9a-f]{16}, and 0101010101010101 is said"),
        (b"REDIS0012\x00\x01k\x82", "no length begins with 0x82 at byte 12"),
        (b"REDIS0012\x00\x01k\xc4", "no string begins with 0xc4 at byte 12"),
        (b"REDIS0012\x00\x01k\x81" + b"\x7f" * 8, "no string has 9,187,201,950,435,737,471 bytes"),
        (b"REDIS0012\x00\x01k\xc3\x02\x90", "no length begins with 0x90"),
        (b"REDIS0012\x00\x01k\xc3\x01\x43\xe8\x00", "1 bytes cannot be 1,000 compressed ones at byte 12"),
        (b"REDIS0012\x00\x01k\xc3\x02\x02\x00\x41x", "no compressed string is at byte 12"),
        (b"REDIS0012\x10\x01k\x01a", "no hash is at byte 12"),
    ],
)
def test_a_refusal_says_what_is_where(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableSnapshot, match=words):
        read(data)


def listpack(*numbers: int) -> bytes:
    """Write integers of 64 bits as elements."""
    elements = b"".join(b"\xf4" + number.to_bytes(8, "little", signed=True) + b"\x09" for number in numbers)
    return (7 + len(elements)).to_bytes(4, "little") + len(numbers).to_bytes(2, "little") + elements + b"\xff"


def test_a_node_of_a_stream_that_leads_back_into_itself_is_refused() -> None:
    # An entry with four fields fewer than none ends where it begins.
    node = listpack(2**40 + 2, 0, -4)
    stream = b"\x01\x10" + bytes(16) + bytes([len(node)]) + node
    with pytest.raises(UnreadableSnapshot, match="no stream is at byte 12"):
        read(b"REDIS0012\x0f\x01k" + stream)


def test_what_is_larger_than_it_says_is_not_decompressed() -> None:
    # Each reference of three bytes stands for 264.
    bomb = b"\x00a" + b"\xe0\xff\x00" * 2**20
    tracemalloc.start()
    try:
        assert decompressed(bomb, 1_000) is None
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("said", ["", "-1", "x", "²", "١٢٣", "9" * 5_000, "253402300800"])
def test_a_file_that_says_no_instant_has_none(said: str) -> None:
    text = said.encode()
    fact = b"\xfa\x05ctime" + (0x4000 | len(text)).to_bytes(2, "big") + text
    assert Snapshot(io.BytesIO(b"REDIS0012" + fact + b"\xff" + bytes(8)), name="dump.rdb").taken_at_ms is None


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match=f"{path} is a folder, pipe or device: name an RDB file"):
            files_at([path])


def test_what_clusters_write_between_keys_is_passed_over() -> None:
    job = b"\xf3\x03job\x02\x00\x05\x09\x0a"
    sizes = b"\xfe\x00\xfb\x01\x00\xf4\x05\x01\x00"
    data = b"VALKEY080" + job + sizes + b"\xfd\x01\x00\x00\x00\x00\x01k\x01v\xff" + bytes(8)

    assert [(each.key, each.value, each.expires_at_ms) for each in read(data)] == [(b"k", b"v", 1_000)]
