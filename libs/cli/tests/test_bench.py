# SPDX-License-Identifier: Apache-2.0
"""Benchmarks for users: the histogram, the verdict, and short runs against a suite."""

import random

import pytest

from cometmq.cli.operation.bench import verdict
from cometmq.cli.operation.bench_client import (
    VALUE_MAX,
    Histogram,
    Outcome,
    Task,
    rounded,
)
from cometmq.client import ClientOptions


@pytest.mark.parametrize("value", [0, 1, 2047, 2048, 4095, 4096, 123_456, 10**9, VALUE_MAX])
def test_values_are_rounded_to_three_digits(value):
    high = rounded(value)
    assert value <= high <= value + value // 1000
    assert rounded(high) == high


def test_percentiles_agree_with_a_sorted_list():
    values = [random.Random(number).randrange(1, 10**6) for number in range(10_000)]
    whole, half = Histogram(), Histogram()
    for number, value in enumerate(values):
        (whole if number % 2 else half).add(value)
    whole.merge(half)
    values.sort()
    for share, found in whole.percentiles((50, 90, 99, 99.9)).items():
        exact = values[int(len(values) * share / 100) - 1]
        assert exact <= found <= exact * 1.002 + 1
    assert whole.percentiles((100,))[100] == values[-1]
    assert (whole.most, whole.count) == (values[-1], 10_000)


def test_odd_values_and_an_empty_histogram():
    found = Histogram()
    assert found.percentiles() == {}
    found.add(-5)
    found.add(1 << 40)
    assert (found.most, found.total, found.percentiles((1,))[1]) == (VALUE_MAX, VALUE_MAX, 0)


def task(**changes):
    facts = {"kind": "send", "namesrv": "n:1", "topic": "T", "options": ClientOptions()}
    return Task(**{**facts, **changes})


@pytest.mark.parametrize(
    ("one", "outcome", "words"),
    [
        (task(rate=100.0), Outcome(messages=1000, seconds=10.0), "the rate was kept"),
        (task(rate=100.0), Outcome(messages=500, seconds=10.0), "brokers or the network are"),
        (
            task(rate=100.0),
            Outcome(messages=500, seconds=10.0, cpu_s=9.9),
            "the clients are at their limit",
        ),
        (task(), Outcome(messages=500, seconds=10.0, cpu_s=9.9), "give more --clients"),
        (task(), Outcome(messages=500, seconds=10.0, cpu_s=1.0), "brokers or the network limit"),
        (task(), Outcome(messages=5, seconds=1.0, failures=2), "2 messages failed"),
        (task(), Outcome(seconds=0.01, cpu_s=0.01), "nothing was measured"),
    ],
)
def test_the_verdict_names_what_limits_the_result(one, outcome, words):
    assert words in verdict([one], [outcome])


def test_a_process_that_died_is_part_of_the_verdict():
    assert "did not end" in verdict([task(), task()], [Outcome(messages=1, seconds=1.0)])


def test_messages_are_sent_at_the_rate_and_read_again(ask, topic):
    sent = ask(
        *("bench", "send", topic, "--rate", 40, "--seconds", 1, "--clients", 2, "--size", 100),
        "--json",
    ).json
    assert sent["messages"] == 40
    assert sent["clients"] == len(sent["client_cpu_percent"]) == 2
    assert (
        0 < sent["latency_ms"]["p50"] <= sent["latency_ms"]["p99.99"] <= sent["latency_ms"]["max"]
    )
    assert "Python client" in sent["note"]
    read = ask("bench", "consume", topic, "--clients", 8, "--json").json
    assert (read["messages"], read["clients"]) == (40, 2), "a client per queue at most"


@pytest.mark.parametrize("way", ["send", "latency"])
def test_a_short_run_shows_its_rate_and_not_what_starting_costs(ask, topic, way):
    found = ask("bench", way, topic, "--rate", 2, "--seconds", 1, "--json").json
    assert found["messages"] == 2
    assert found["seconds"] > 0.9
    assert found["per_second"] < 2.3
    assert max(found["client_cpu_percent"]) <= 100


def test_the_way_of_messages_is_measured(ask, topic):
    found = ask("bench", "latency", topic, "--rate", 20, "--seconds", 1, "--json").json
    assert found["messages"] == 20
    assert found["latency_ms"]["p50"] > 0


def test_delayed_messages_are_measured_from_the_end_of_their_delay(ask, topic):
    found = ask(
        "bench", "latency", topic, "--delay-level", 1, "--rate", 20, "--seconds", 0.5, "--json"
    ).json
    assert found["messages"] == 10
    assert found["latency_ms"]["p50"] < 60_000


def test_transactions_are_committed(ask, topic):
    found = ask(
        "bench", "send", topic, "--transaction", "--count", 10, "--in-flight", 2, "--json"
    ).json
    assert (found["messages"], found["failed"]) == (10, 0)
    read = ask("consume", topic, "--from", "first", "--max", 10, "--timeout", 60, "--json")
    assert len(read.lines) == 10


def test_flushes_of_a_folder_are_measured_and_nothing_stays(call, tmp_path):
    found = call("bench", "disk", tmp_path, "--seconds", 0.1, "--json").json
    assert found["flushes"] > 0
    assert found["latency_ms"]["p50"] > 0
    assert list(tmp_path.iterdir()) == []
    refused = call("bench", "disk", "/proc", "--seconds", 0.1)
    refused.assert_refused(2, "cannot write to /proc: ")


def test_a_count_ends_the_run_and_a_table_is_printed(ask, topic):
    done = ask("bench", "send", topic, "--count", 10, "--in-flight", 2)
    assert done.status == 0, done.err
    assert "p99.9" in done.out
    assert "verdict" in done.out


def test_what_cannot_work_is_refused_before_a_process_starts(ask, call):
    assert ask("bench", "send", "Missing").status == 1
    assert call("bench", "send", "T", "-n", "127.0.0.1:1").status == 1
    assert call("bench", "send", "T", "--rate", 0).status == 2
