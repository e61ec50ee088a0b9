"""The original's configuration: its names, its defaults, its limits, and its ways to write a duration."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekeeper.compacted.model import RetentionPolicy
from queuekeeper.compacted.settings import EcqSettings
from queuekeeper.durations import duration_ms
from queuekeeper.errors import InvalidPolicy, UsageError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        ("10s", 10_000),
        ("10000", 10_000),
        ("10000ms", 10_000),
        (9999.9, 10_000),
        (9999.1, 10_000),
        (10_000, 10_000),
        ("1h", 3_600_000),
        (3_600_000, 3_600_000),
        ("7d", 604_800_000),
        ("1W", 604_800_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        (" 1s ", 1_000),
        ("0", 0),
    ],
)
def test_duration_may_be_written_in_any_of_these_ways(value: Any, expected_ms: int) -> None:
    assert duration_ms("data_retention", value) == expected_ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-1",
        "-1s",
        "1 s",
        "1y",
        "1s!",
        "1e3",
        "٣s",
        "9" * 30,
        None,
        True,
        b"1s",
        [],
        float("nan"),
        float("inf"),
    ],
)
def test_what_is_no_duration_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^gc_interval is "):
        duration_ms("gc_interval", value)


@pytest.mark.parametrize("value", [-1, -0.5, 2**53, "999999999999w"])
def test_duration_out_of_range_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^gc_interval is .*it must be 0 to"):
        duration_ms("gc_interval", value)


def test_settings_of_the_original_are_read_under_its_names() -> None:
    assert EcqSettings.parse({}) == EcqSettings(
        writer_pool_size=0,
        data_retention_ms=604_800_000,
        gc_interval_ms=3_600_000,
        reader_batch_size=5,
        write_timeout_ms=5_000,
        read_timeout_ms=5_000,
    )
    read = EcqSettings.parse(
        {
            "writer_pool_size": 16,
            "data_retention": "1s",
            "gc_interval": 1_000,
            "reader_batch_size": 31,
            "write_timeout": "100ms",
            "read_timeout": "24h",
        }
    )
    assert (read.writer_pool_size, read.reader_batch_size, read.write_timeout_ms) == (16, 31, 100)
    assert (read.retention.policy, read.retention.retention_ms) == (RetentionPolicy.DELETE, 1_000)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"writer_pool_size": -1}, UsageError, "writer_pool_size is -1: it must be 0 to 10240"),
        ({"writer_pool_size": 10_241}, UsageError, "writer_pool_size is 10241"),
        ({"reader_batch_size": 0}, UsageError, "reader_batch_size is 0: it must be 1 to 31"),
        ({"reader_batch_size": 32}, UsageError, "reader_batch_size is 32"),
        ({"reader_batch_size": True}, UsageError, "reader_batch_size is True"),
        ({"reader_batch_size": "5"}, UsageError, "reader_batch_size is '5'"),
        ({"gc_interval": 0}, UsageError, "gc_interval is 0"),
        (
            {"write_timeout": "25h"},
            UsageError,
            r"write_timeout is 90000000: it must be 1 to 86400000 \(millis",
        ),
        ({"read_timeout": "2d"}, UsageError, "read_timeout is 172800000: it must be 1 to 86400000"),
        ({"write_timeout": 0}, UsageError, "write_timeout is 0"),
        ({"data_retention": "soon"}, UsageError, "data_retention is 'soon'"),
        ({"data_retention_ms": 1}, UsageError, "there is no setting 'data_retention_ms': there are writer_pool_size"),
        ({"colour": 1, "a": 2}, UsageError, "there is no setting 'a', 'colour'"),
    ],
)
def test_setting_out_of_its_limits_is_refused(settings: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        EcqSettings.parse(settings)


def test_negative_retention_is_no_policy() -> None:
    with pytest.raises(InvalidPolicy, match="data_retention is -1"):
        EcqSettings(data_retention_ms=-1)


@given(st.one_of(st.text(max_size=12), st.floats(), st.integers(), st.none(), st.booleans()))
def test_any_value_is_a_duration_or_refused_in_words(value: Any) -> None:
    with suppress(UsageError):
        assert duration_ms("x", value) >= 0
