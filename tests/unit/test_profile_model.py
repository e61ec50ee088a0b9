"""What a profile may be asked for, and how clients are named in reports."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from queuekeeper import assets, sql_statements
from queuekeeper.config import Settings
from queuekeeper.errors import UsageError
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.keyspace import SLOTS
from queuekeeper.quality.profile.model import FAULTS, ProfileParameters, in_sample
from queuekeeper.quality.profile.tables import QUEUE_ROWS

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"mode": "quick"}, "mode is 'quick': it must be fast or full"),
        ({"turn": 96}, "turn is 96: it must be an integer from 0 to 95"),
        ({"mode": "fast", "cohort_count": 95}, "cohort_count is 95: a fast profile needs 96 to 16384"),
        ({"mode": "fast", "cohorts": "0-94"}, "cohorts '0-94' are 95: a fast profile reads one in 96"),
        ({"cohorts": "96"}, "cohort 96 is out of range"),
        ({"sample_percent": 0}, "sample_percent is 0: it must be an integer from 1 to 100"),
        ({"cohort_count": 0}, "cohort_count is 0: it must be an integer from 1 to 16,384"),
        ({"session_limit": 65_536}, "limit is 65536: it must be an integer from 1 to 65,535"),
        ({"default_ttl_s": 0}, "default_ttl_s is 0: it must be an integer from 1 to 4,294,967,295"),
        ({"max_payload_bytes": 0}, "max_payload_bytes is 0: it must be an integer from 1 to 268,435,455"),
        (
            {"throttle_references_per_s": 0},
            "throttle_references_per_s is 0: it must be an integer from 1 to",
        ),
        ({"keep_profiles": 0}, "keep_profiles is 0: it must be an integer of 1 or more"),
        ({"key_prefix": "{a}"}, "it must be text of at most 200 characters without a brace"),
    ],
)
def test_wish_that_no_profile_could_honour_is_named(wish: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        ProfileParameters(**wish)


def test_samples_are_nested_and_spread_evenly_over_cohorts() -> None:
    slots = range(SLOTS)
    samples = {percent: {slot for slot in slots if in_sample(slot, percent=percent)} for percent in (2, 10, 50, 100)}

    assert samples[2] < samples[10] < samples[50] < samples[100] == set(slots)
    for percent, sample in samples.items():
        of_cohorts = [sum(slot * 96 // SLOTS == cohort for slot in sample) for cohort in range(96)]
        assert min(of_cohorts) > 0
        assert max(abs(found - SLOTS / 96 * percent / 100) for found in of_cohorts) < 3


def test_profile_without_a_name_gets_one_of_what_it_was_asked_for() -> None:
    parameters = ProfileParameters()
    names = {
        parameters.profile_id("redis", now_ms=1),
        parameters.profile_id("redis", now_ms=2),
        parameters.profile_id("postgres", now_ms=1),
        ProfileParameters(contents=True).profile_id("redis", now_ms=1),
    }
    assert len(names) == 4
    assert parameters.profile_id("redis", now_ms=1) in names


def test_columns_are_those_of_the_table_and_faults_those_that_sums_count() -> None:
    table = assets.read("sql", "queuekeeper/tables/queue_profiles.sql")
    columns = re.findall(r"^    ([a-z_0-9]+) (?:text|int|bigint|double)", table, re.MULTILINE)
    assert columns == ["profile_id", *QUEUE_ROWS.names]
    loaded = sql_statements.statement("quality/load_queue_profiles").partition("(")[2].partition(")")[0]
    assert re.findall(r"\w+", loaded) == columns
    counted = assets.read("sql", "quality/sum_cohorts.sql").partition("greatest(")[2].partition(")")[0]
    assert tuple(re.findall(r"queues\.(\w+)", counted)) == FAULTS


def test_name_of_a_client_depends_on_the_key() -> None:
    assert client_hash("meter-7", key=b"a") == client_hash("meter-7", key=b"a")
    assert re.fullmatch(r"[0-9a-f]{16}", client_hash("meter-7", key=b"a"))
    names = {client_hash(name, key=key) for name in ("meter-7", "meter-8", "") for key in (b"a", b"b")}
    assert len(names) == 6


def test_key_is_made_once_however_many_ask_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", hash_key=None)
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: hash_key(settings), range(8)))
    assert len(keys) == 1
    (kept,) = (tmp_path / "home").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_key_may_be_a_setting_but_no_short_one(tmp_path: Path) -> None:
    one, other = (
        Settings(home=tmp_path, hash_key=SecretStr(text)) for text in ("one long secret", "one long secret!!")
    )
    with pytest.raises(UsageError, match="QUEUEKEEPER_HASH_KEY is too short"):
        hash_key(one)
    assert hash_key(other) == hash_key(other)
    assert list(tmp_path.iterdir()) == []
