"""Benchmarks measure what they say, with counts too small for their figures to mean anything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.benchmark_runs import ROOT, is_refused, measured
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

ONE_OF_EACH = "|".join(
    [
        "^publish, single", "^(publish|insert|copy|limit), by 100,", "^poll", "^(read|queue) 1,000", "2 consumers",
        "broker at", "^. conditions", "^4 subscriptions", "^idle poll, 9",
    ]
)  # fmt: skip


@pytest.mark.nightly
def test_a_small_run_on_compacted_queues_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, said = measured(
        "compacted",
        tmp_path,
        *("--rounds", "1", "--messages", "400", "--clients", "2", "--keys", "20", "--payload-bytes", "256"),
        *("--rows", "1000"),
        servers={"valkey"},
    )
    ways = result["summary"]
    appending = [
        *("producer", "mixed", "append x 1", "append x 100", "piped append x 1", "piped append x 100"),
        *("plain append x 1", "plain append x 100"),
    ]
    reading = ["consumer", "fetch x 5", "fetch x 100", "piped fetch x 100", "plain fetch x 100"]
    assert ways.keys() == {
        *(f"{way}, {keys}, 256 B" for way in appending for keys in ("new", "reused")),
        *(f"{way}, 256 B" for way in reading),
        "append x 100, reused, flushed always, 256 B",
    }
    for way, (sample,) in result["rounds"].items():
        assert ways[way]["messages_per_s"] == round(sample["messages"] / sample["seconds"])
        assert sample["server_cpu_s"] > 0, way
        made_beforehand = way.startswith(("piped", "plain"))
        assert (sample["client_cpu_s"] is None) == (sample["p50_ms"] is None) == made_beforehand, way
        # What is overwritten before it is read does not come; what the queues held before may.
        assert sample["messages"] == 400 or way.startswith("mixed"), way
    (both,) = result["rounds"]["mixed, new, 256 B"]
    assert both["messages"] == 800
    ours, plain = ways["append x 100, new, 256 B"], ways["plain append x 100, new, 256 B"]
    assert ours["of_limit"] == pytest.approx(ours["messages_per_s"] / plain["messages_per_s"], rel=0.01)
    assert ours["per_server_cpu_s"] == pytest.approx(1e6 / ours["server_cpu_us"], rel=0.01)
    stored = result["bytes_per_message"]["256"]
    assert set(stored) == {"100", "1000", "20000"}
    assert all(256 < each < 1_000 for each in stored.values())
    operations = result["blocking"]["1000"]
    # The first makes the queue known to the collector.
    assert operations["append, 100 new keys"]["calls"] == 1 + 10
    assert {"collect, 100 at once", "verify", "fetch, a window of 500", "rewind", "purge", "drop"} < operations.keys()
    for operation, found in operations.items():
        assert 0 < found["p10_ms"] <= found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"], operation
    assert [each["what"] for each in result["original"]] == ["appends"]
    # What is not alike is said wherever the figures stand side by side.
    assert "do not compare like with like" in " ".join(said.split())


@pytest.mark.nightly
def test_a_small_run_of_redis_clients_measures_what_is_installed_and_names_what_is_not(tmp_path: Path) -> None:
    result, said = measured("drivers", tmp_path, "--rounds", "1", "--seconds", "0.05", servers={"valkey"})
    for driver in ("ours", "redis.asyncio", "coredis", "glide"):
        is_left_out = importlib.util.find_spec(driver.partition(".")[0]) is None if driver != "ours" else False
        assert (f"{driver} is left out" in said) == is_left_out, driver
        for case in ("writer, 512 publishers", "overlap, 100 x 1", "overlap, 10 x 10"):
            assert (f"{case}: {driver}" in result["summary"]) != is_left_out, driver
    for way, figures in result["summary"].items():
        [sample] = result["rounds"][way]
        assert sample["messages"] > 0, way
        ours = result["summary"][f"{way.partition(': ')[0]}: ours"]
        expected = figures["messages_per_s"] / ours["messages_per_s"]
        assert figures["speed_to_ours"] == pytest.approx(expected, rel=0.01, abs=0.001), way


@pytest.mark.nightly
def test_a_small_run_on_the_event_broker_measures_all_ways_checks_delivery_and_writes_it_down(tmp_path: Path) -> None:
    result, _ = measured(
        "events",
        tmp_path,
        *("--rounds", "1", "--events", "400", "--delivered", "400", "--payload-bytes", "64", "--consumers", "2"),
        *("--conditions", "1", "4", "--per-s", "900", "--waiting", "9", "--not-durable", "--only", ONE_OF_EACH),
        servers={"postgresql"},
    )
    ways = result["summary"]["ways"]
    assert ways.keys() == {
        *("publish, single, 64 B", "publish, by 100, 64 B", "insert, by 100, 64 B", "copy, by 100, 64 B"),
        *("limit, by 100, 64 B", "poll, 64 B", "read 1,000 at once, 64 B", "queue 1,000 at once, 64 B"),
        *("broker end to end, 2 consumers, 64 B", "queue end to end, 2 consumers, 64 B"),
        *("broker at 900/s, 1 consumers, 64 B", "1 conditions", "4 conditions", "4 subscriptions of one condition"),
        "idle poll, 9 waiting",
    }
    for way, (sample,) in result["rounds"].items():
        assert ways[way]["events_per_s"] == round(sample["events"] / sample["seconds"])
        assert (sample["missing"], sample["twice"], sample["out_of_order"]) == (0, 0, 0), way
    for system in ("broker", "queue"):
        (sample,) = result["rounds"][f"{system} end to end, 2 consumers, 64 B"]
        assert sample["events"] == 800  # each consumer has each event
        assert 0 < sample["p50_ms"] <= sample["p99_ms"]
    ours, limit = ways["insert, by 100, 64 B"], ways["limit, by 100, 64 B"]
    assert ours["of_limit"] == pytest.approx(ours["events_per_s"] / limit["events_per_s"], rel=0.01)
    assert set(result["summary"]["time_per_condition"]) == {"1 to 4"}


@pytest.mark.nightly
def test_a_small_run_beside_what_grows_reads_each_event_and_says_what_came_over_time(tmp_path: Path) -> None:
    result, _ = measured(
        "event_growth",
        tmp_path,
        *("--rounds", "1", "--polls", "5", "--waiting", "9", "--partitions", "20", "--groups", "3"),
        *("--subscriptions", "200", "--held-s", "2", "--per-s", "200", "--payload-bytes", "64", "--not-durable"),
        servers={"postgresql"},
    )
    for system in ("broker", "queue"):
        held = result["summary"].pop(f"held snapshot, {system}")
        assert held["missing"] == 0
        assert sum(each["events"] for each in held["slices"]) == 400
        # Nothing that is deleted or updated can be removed.
        assert held["slices"][-1]["dead_rows"] > 0
    assert result["summary"].keys() == {
        *("beside nothing", "beside 9 scheduled", "beside 20 partitions", "beside 3 groups", "beside 100 conditions"),
        *("beside 200 subscriptions of 100 conditions", "beside all of it"),
    }
    for name, steps in result["summary"].items():
        assert 0 < steps["poll_p50_ms"] <= steps["poll_p99_ms"], name
        assert 0 < steps["read_p50_ms"] <= steps["read_p99_ms"], name


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("benchmark", "server", "in_hand"),
    [
        # One message per thread or task.
        ("peers", "valkey", {"queuekeeper": 8, "queuekeeper, asyncio": 8}),
        # Ten pages that are read ahead.
        ("event_peers", "postgresql", {"queuekeeper": 200, "queuekeeper, by 8": 10 * 8}),
    ],
)
def test_a_small_run_beside_job_queues_loses_nothing_of_ours_when_workers_are_killed(
    tmp_path: Path, benchmark: str, server: str, in_hand: dict[str, int]
) -> None:
    result, said = measured(
        benchmark,
        tmp_path,
        *("--rounds", "1", "--messages", "200", "--kills", "2", "--crash-messages", "200", "--systems", *in_hand),
        servers={server},
    )
    assert set(result["summary"]) == set(result["versions"]) == set(in_hand)
    for name, most in in_hand.items():
        assert name in said
        [sample], [crashes] = result["rounds"][name], result["crashes"][name]
        # So few messages may take a worker less time than starts differ by.
        assert min(value for key, value in sample.items() if key not in {"twice", "work_client_us"}) > 0, name
        assert sample["twice"] == 0, name
        assert (crashes["kills"], crashes["lost"]) == (2, 0), name
        assert 0 <= crashes["twice"] <= 2 * most, name


@pytest.mark.nightly
def test_a_small_run_on_fanout_queues_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, said = measured(
        "fanout",
        tmp_path,
        *("--rounds", "1", "--consumers", "1", "3", "--messages", "20", "--deliveries", "60"),
        *("--payload-bytes", "256", "--rows", "1000"),
        servers={"valkey"},
    )
    ways = result["summary"]
    both = ["publish x 1", "publish x 100", "consume x 1", "consume x 100", "end to end"]
    works = {"fanout": both, "streams": both, "naive": ["publish x 1", "consume x 1", "end to end"]}
    assert ways.keys() == {
        f"{system} {work}, {consumers} consumers, 256 B"
        for system, all_works in works.items()
        for work in all_works
        for consumers in (1, 3)
    }
    for way, (sample,) in result["rounds"].items():
        consumers = 3 if ", 3 consumers" in way else 1
        # The first message end to end opens connections.
        done_messages = {"publish": 20, "consume": 20 * consumers, "end": 19 * consumers}[way.split()[1]]
        assert sample["messages"] == done_messages, way
        assert min(sample["server_cpu_s"], sample["client_cpu_s"], sample["p50_ms"]) > 0, way
        assert sample["p50_ms"] <= sample["p99_ms"], way
    ours, naive = (ways[f"{system} publish x 1, 3 consumers, 256 B"] for system in ("fanout", "naive"))
    assert ours["server_cpu_of_naive"] == pytest.approx(ours["server_cpu_us"] / naive["server_cpu_us"], rel=0.02)
    for stored in result["bytes_per_message"]["256"].values():
        assert all(256 < each["stored"] < 1_500 for each in stored.values())
        # What all have had is gone; the original keeps it until its time is over.
        assert max(abs(stored[system]["left"]) for system in ("fanout", "streams")) < 20
        assert stored["naive"]["left"] > 256
    calls = result["calls"]
    assert {"publish, 1 consumers", "publish, 3 consumers", "claim 1", "claim 100", "ack 1", "ack 100"} < calls.keys()
    assert calls["claim 1"]["calls"] == calls["ack 1"]["calls"] == 200
    assert all(0 < each["p10_ms"] <= each["longest_ms"] for each in calls.values())
    # What is not alike is said wherever the figures stand side by side.
    assert "do not promise the same" in " ".join(said.split())


@pytest.mark.nightly
def test_a_small_run_on_the_online_path_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, _ = measured(
        "online",
        tmp_path,
        *("--rounds", "1", "--seconds", "0.05", "--messages", "200", "--sessions", "20", "--payload-bytes", "64"),
        *("--publishers", "8", "--long-queue", "600"),
        servers={"postgresql", "valkey"},
    )
    ways = result["summary"]["ways"]
    always = [
        *("naive, 8 publishers", "naive, 64 publishers", "writer, 8 publishers, 1p", "writer, 8 publishers, 2p"),
        "limit x 1",
        *("batch, 100 x 1, 1p", "batch, 100 x 1, 2p", "batch, 10 x 10, 1p", "batch, 10 x 10, 2p"),
        *("overlap, 100 x 1, 1p", "overlap, 100 x 1, 2p", "overlap, 10 x 10, 1p", "overlap, 10 x 10, 2p"),
        *("limit x 10", "limit x 100", "tbmq x 1", "tbmq x 10", "tbmq x 100", "postgres, 100 x 1", "postgres, 10 x 10"),
        *("packed x 1", "packed x 10", "packed x 100", "packed batch, 100 x 1, 1p", "packed batch, 10 x 10, 1p"),
    ]
    assert {f"{way}, 64 B" for way in always} <= ways.keys()
    for way, (sample,) in result["rounds"].items():
        assert ways[way]["messages_per_s"] == round(sample["messages"] / sample["seconds"])
        # So little work takes PostgreSQL less time than the kernel's clock can tell.
        assert sample["server_cpu_s"] > 0 or way.startswith("postgres"), way
        made_beforehand = way.startswith(("limit", "packed x", "tbmq", "redis-benchmark", "valkey-benchmark"))
        assert (sample["client_cpu_s"] is None) == made_beforehand, way
        assert sample["messages"] == 200 or not made_beforehand, way
    naive, limit = ways["naive, 64 publishers, 64 B"], ways["limit x 1, 64 B"]
    assert limit["times_naive"] == pytest.approx(limit["messages_per_s"] / naive["messages_per_s"], rel=0.01)
    # Publishers are compared with as many naive ones.
    writer, as_many = ways["writer, 8 publishers, 1p, 64 B"], ways["naive, 8 publishers, 64 B"]
    assert writer["times_naive"] == pytest.approx(writer["messages_per_s"] / as_many["messages_per_s"], rel=0.01)
    assert naive["of_limit"] == pytest.approx(naive["messages_per_s"] / limit["messages_per_s"], abs=0.001)
    calls = {"1 per call", "10 per call", "100 per call"}
    assert {way: set(of) for way, of in result["summary"]["server_cpu_to_tbmq"].items()} == {
        "ours": calls,
        "packed": calls,
    }
    stored = result["bytes_per_message"]["64"]
    assert all(stored[store] > 64 for store in ("ours", "packed", "tbmq", "postgres"))
    blocking = result["blocking"]
    operations = ["save", "fetch", "ack", "trim", "purge", "sweep"]
    assert {way: list(found) for way, found in blocking.items()} == {
        "ours": operations,
        "packed": operations,
        "tbmq": ["fetch"],
    }
    assert blocking["ours"]["save"]["calls"] == 3 + 1  # three of at most 256 messages, and the look before
    assert blocking["packed"]["save"]["calls"] == 3
    for way, of_way in blocking.items():
        for operation, found in of_way.items():
            assert 0 < found["p10_ms"] <= found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"], (way, operation)
            assert found["longest_ms"] <= found["total_ms"] * 1.1 + 0.01, (way, operation)
            assert found["cpu_ms"] > 0, (way, operation)
    assert [fetch["messages"] for fetch in result["fetch"]] == [600] * 4


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "target", "pair"),
    [("PostgreSQL", "Redis", ()), ("tbmq", "packed", ("--from-store", "tbmq", "--layout", "packed"))],
    ids=["from PostgreSQL", "inside Redis"],
)
def test_a_small_run_of_an_online_migration_measures_all_steps_and_writes_them_down(
    tmp_path: Path, source: str, target: str, pair: tuple[str, ...]
) -> None:
    result, said = measured(
        "online_migration",
        tmp_path,
        *pair,
        *("--clients", "40", "--messages", "2", "--rate", "40", "--seconds", "0.5", "--movers", "2"),
        # How long they take beside other tests says nothing.
        *("--longest-call-ms", f"{1_000 * PATIENCE_S:.0f}", "--longest-fence-ms", f"{1_000 * PATIENCE_S:.0f}"),
        servers={"postgresql", "valkey"},
    )
    steps = {line["step"]: line for line in result["steps"]}
    alone = (f"load on {source} alone", f"load on {target} alone")
    moving = ("cut over", "roll back", "cut over again")
    assert {*alone, *moving, "arm", "catch up", "verify", f"on {target}, mirrored", "commit"} <= steps.keys()
    for name in (*alone, *moving):
        line = steps[name]
        assert line["router"]["calls"] > 0, name
        assert line["ping"]["calls"] > 0, name
        assert 0 < line["router"]["p50_ms"] <= line["router"]["p99_ms"] <= line["router"]["longest_ms"], name
        assert (line["fenced_p50_ms"] is None) == (name in alone), name
    for name in moving:
        assert 0 < steps[name]["fenced_p50_ms"] <= steps[name]["fenced_p99_ms"] <= steps[name]["fenced_longest_ms"]
        assert steps[name]["clients_per_s"] > 0
        assert name in said


@pytest.mark.parametrize(
    ("call_ms", "fence_ms", "words"),
    [
        (2_999.0, 1_499.0, None),
        (2_999.0, None, None),
        (3_000.0, 1_499.0, "cut over: the longest call took 3,000 ms, not less than 3,000"),
        (3_000.0, None, "cut over: the longest call took 3,000 ms, not less than 3,000"),
        (2_999.0, 1_500.0, "cut over: the longest fence took 1,500 ms, not less than 1,500"),
    ],
)
def test_call_or_fence_of_an_online_migration_that_is_too_long_fails_the_benchmark(
    call_ms: float, fence_ms: float | None, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("online_migration")
    waits = {"p50_ms": 1.0, "p99_ms": 2.0, "longest_ms": call_ms}
    line = {"step": "cut over", "seconds": 1.0, "clients_per_s": 9.0, "router": waits, "ping": waits, "lag_s": 0.0}
    line |= dict.fromkeys(("fenced_p50_ms", "fenced_p99_ms", "fenced_longest_ms"), fence_ms)
    monkeypatch.setattr(benchmark, "measure", lambda *_: {"steps": [line]})
    monkeypatch.setattr(sys, "argv", ["online_migration.py"])
    if words is None:
        benchmark.main()
    else:
        with pytest.raises(SystemExit, match=words):
            benchmark.main()


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("compacted", "--rows", "0"),
        ("drivers", "--seconds", "0"),
        ("event_growth", "--held-s", "0"),
        ("events", "--events", "0"),
        ("events", "--consumers", "0"),
        ("event_peers", "--messages", "0"),
        ("fanout", "--rows", "999"),
        ("online", "--seconds", "0"),
        ("peers", "--messages", "0"),
        ("peers", "--systems", "unheard"),
        ("online", "--long-queue", "10001"),
        ("online_migration", "--seconds", "0"),
        ("online_migration", "--clients", "-1"),
        ("online_migration", "--longest-fence-ms", "0"),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_started(name: str, option: str, value: str) -> None:
    assert is_refused(name, option, value)
