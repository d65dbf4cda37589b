# SPDX-License-Identifier: Apache-2.0
"""Stats become Prometheus families at scrape time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from cometmq.remoting.transport.stats import TransportStats
from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import (
    PART_ROWS,
    Registry,
    RowLimit,
    StatsCollector,
    counter,
    gauge,
    histogram,
    labelled_counter,
    labelled_gauge,
    labelled_histogram,
    loop_families,
)
from cometmq.runtime.metrics.exposition import Dropping, encoder_of
from cometmq.runtime.metrics.histogram import Buckets
from cometmq.runtime.metrics.transport import TRANSPORT_FAMILIES
from cometmq.runtime.process.loop_lag import LoopLag
from cometmq.testing.runtime.pages import render


def scrape(*sources):
    registry = Registry(has_process_metrics=False)
    for source in sources:
        registry.add(source)
    return render(finish(registry.collect()))


def test_families_read_one_snapshot():
    families: Any = (
        counter("cometmq_put_total", "Puts.", lambda s: s.puts),
        gauge("cometmq_held", "Held.", lambda s: s.held),
        labelled_counter("cometmq_codes_total", "Codes.", ("code",), lambda s: s.codes),
        labelled_gauge("cometmq_lag", "Lag.", ("group", "topic"), lambda s: s.lag),
    )
    stats = SimpleNamespace(
        puts=3, held=2, codes=[(("10",), 5), (("11",), 6)], lag=[(("g", 'a"b'), 7)]
    )
    text = scrape(StatsCollector(families, lambda: stats))
    assert "cometmq_put_total 3.0" in text
    assert "cometmq_held 2.0" in text
    assert 'cometmq_codes_total{code="11"} 6.0' in text
    assert 'cometmq_lag{group="g",topic="a\\"b"} 7.0' in text


def test_equal_families_of_two_components_are_joined():
    families = (counter("cometmq_requests_total", "Requests.", lambda s: s),)
    text = scrape(
        StatsCollector(families, lambda: 1, {"server": "namesrv"}),
        StatsCollector(families, lambda: 2, {"server": "broker"}),
    )
    assert text.count("# TYPE cometmq_requests_total counter") == 1
    assert 'cometmq_requests_total{server="namesrv"} 1.0' in text
    assert 'cometmq_requests_total{server="broker"} 2.0' in text


def test_a_histogram_is_cumulative_and_bounds_are_inclusive():
    buckets = Buckets((1, 2))
    for value in (0.5, 1, 2, 3):
        buckets.observe(value)
    text = scrape(StatsCollector((histogram("cometmq_x", "X.", lambda s: s),), lambda: buckets))
    assert 'cometmq_x_bucket{le="1.0"} 2.0' in text
    assert 'cometmq_x_bucket{le="2.0"} 3.0' in text
    assert 'cometmq_x_bucket{le="+Inf"} 4.0' in text
    assert "cometmq_x_sum 6.5" in text
    assert buckets.count == 4


def test_many_rows_are_read_in_parts():
    families = (labelled_gauge("cometmq_lag", "Lag.", ("group",), lambda s: s),)
    rows = (((str(number),), number) for number in range(2 * PART_ROWS + 1))
    registry = Registry(has_process_metrics=False)
    registry.add(StatsCollector(families, lambda: rows))
    parts = registry.collect()
    next(parts)
    assert next(rows) == ((str(PART_ROWS),), PART_ROWS)
    (family,) = finish(parts)
    assert len(family.samples) == 2 * PART_ROWS


def test_rows_above_the_limit_are_left_out_and_counted():
    families: Any = (
        labelled_gauge("cometmq_lag", "Lag.", ("group",), lambda s: s),
        gauge("cometmq_one", "One.", len),
    )
    limit = RowLimit(2)
    collector = StatsCollector(families, lambda: [(("a",), 1), (("b",), 2), (("c",), 3)], {}, limit)
    for _ in range(2):
        text = scrape(collector)
        assert 'cometmq_lag{group="b"} 2.0' in text
        assert 'group="c"' not in text
        assert "cometmq_one 3.0" in text
        assert limit.dropped_count == 1, "of one scrape, not of all"


def test_a_histogram_may_have_labels_and_count_a_batch_at_once():
    fast, slow = Buckets((1, 2)), Buckets((1, 2))
    fast.observe(0.5, 10)
    slow.observe(9, 2)
    rows = ((("fast",), fast), (("slow",), slow))
    family = labelled_histogram("cometmq_x", "X.", ("kind",), lambda s: s)
    text = scrape(StatsCollector((family,), lambda: rows, {"broker": "b"}))
    assert 'cometmq_x_bucket{broker="b",kind="fast",le="1.0"} 10.0' in text
    assert 'cometmq_x_sum{broker="b",kind="fast"} 5.0' in text
    assert 'cometmq_x_bucket{broker="b",kind="slow",le="2.0"} 0.0' in text
    assert 'cometmq_x_count{broker="b",kind="slow"} 2.0' in text


def test_a_counter_must_be_named_as_one():
    with pytest.raises(AssertionError):
        counter("cometmq_put", "Puts.", lambda s: s)


def test_the_process_itself_is_measured():
    assert "process_resident_memory_bytes" in render(finish(Registry().collect()))


async def test_the_lag_of_the_loop_is_measured():
    loop = asyncio.get_running_loop()
    fired = asyncio.Event()

    class Observed(LoopLag):
        def observe(self, lag_s):
            super().observe(lag_s)
            fired.set()

    lag = Observed()
    lag.start(loop)
    async with asyncio.timeout(60):
        await fired.wait()
    lag.stop()
    count = lag.seconds.count
    assert count >= 1
    lag.observe(700.0)
    text = scrape(StatsCollector(loop_families(), lambda: lag))
    assert "cometmq_loop_lag_max_seconds 700.0" in text
    assert f"cometmq_loop_lag_seconds_count {count + 1}.0" in text


def test_each_counter_of_the_server_has_its_sample():
    names = [field.name for field in msgspec.structs.fields(TransportStats)]
    stats = TransportStats(**{name: 1000 + index for index, name in enumerate(names)})
    registry = Registry(has_process_metrics=False)
    registry.add(StatsCollector(TRANSPORT_FAMILIES, lambda: stats, {"server": "namesrv"}))
    text = render(finish(registry.collect()))
    unseen = {name for name in names if f" {float(getattr(stats, name))}\n" not in text}
    assert unseen == set()
    assert 'cometmq_connections_closed_total{reason="idle",server="namesrv"}' in text or (
        'cometmq_connections_closed_total{server="namesrv",reason="idle"}' in text
    )


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;"
    "escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
OPEN, PLAIN = "application/openmetrics-text; version=", "text/plain; version="


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("", PLAIN + "0.0.4"),
        ("*/*", PLAIN + "0.0.4"),
        ("text/html, image/png;q=0.9", PLAIN + "0.0.4"),
        (PROMETHEUS_2, OPEN + "1.0.0; escaping=underscores"),
        (PROMETHEUS_3, OPEN + "1.0.0; escaping=allow-utf-8"),
        ("application/openmetrics-text", OPEN + "1.0.0"),
        ("application/openmetrics-text;version=0.0.1", PLAIN + "0.0.4"),
        ("application/openmetrics-text;version=3.0.0,text/plain;q=0.1", PLAIN + "0.0.4"),
        (
            "text/plain; version=0.0.4; q=0.3, text/plain; version=1.0.0; q=0.4",
            PLAIN + "1.0.0; escaping=underscores",
        ),
        ("application/openmetrics-text;version=1.0.0;q=0.1,text/plain;q=0.9", PLAIN + "0.0.4"),
        ("application/openmetrics-text;version=1.0.0;q=0, */*;q=0.1", PLAIN + "0.0.4"),
        ('APPLICATION/OpenMetrics-Text; Version="1.0.0"; q=x, text/*', PLAIN + "0.0.4"),
        (
            "text/plain;version=1.0.0,text/plain;version=0.0.4",
            PLAIN + "1.0.0; escaping=underscores",
        ),
        (";,;q=;=,/;version", PLAIN + "0.0.4"),
    ],
)
def test_the_format_is_the_one_that_the_scraper_wants_most(accept, answered):
    encoder, content_type = encoder_of(accept)
    assert content_type.replace("; charset=utf-8", "") == answered
    assert "; charset=utf-8" in content_type
    counter = CounterMetricFamily("cometmq_x", 'Of "x" and\n\\.', labels=("topic",))
    for text in ("", 'a "quoted" one', "back\\slash", "two\nlines", "%RETRY%G", "主题", "a,b={}"):
        counter.add_metric((text,), 2)
    histogram = HistogramMetricFamily("cometmq_y", "Y.")
    histogram.add_metric((), [("0.5", 1), ("+Inf", 2)], 1.5)
    wanted = [list(counter.samples), list(histogram.samples)]
    text = encoder(Dropping([counter, histogram])).decode()
    parse = openmetrics if answered.startswith(OPEN) else plain
    assert [it.samples for it in parse(text)] == wanted
    assert (counter.samples, histogram.samples) == ([], [])  # freed
