# SPDX-License-Identifier: Apache-2.0
"""The text format equals the output of prometheus_client, and is the one asked for."""

import math

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.registry import CollectorRegistry

from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import Registry
from cometmq.runtime.metrics.formats import format_of
from cometmq.runtime.metrics.text import render, render_and_drop

VALUES = (
    0, -0.0, 1, 2.5, -1, 0.1, 1e-7, 999_999, 999_999.5, 1e6, 1_000_000, 123_456_789, 1e15, 1e16,
    2**53, 1e21, -5e9, True, math.inf, -math.inf, math.nan,
)  # fmt: skip
TEXTS = (
    "",
    "plain",
    'a "quoted" one',
    "back\\slash",
    "two\nlines",
    "%RETRY%G",
    "\u4e3b\u9898",
    "a,b={}",
)


class Families:
    def __init__(self, *families):
        self.families = families

    def collect(self):
        return self.families


def reference(*families):
    registry = CollectorRegistry()
    registry.register(Families(*families))
    return generate_latest(registry)


@pytest.mark.parametrize("kind", [CounterMetricFamily, GaugeMetricFamily])
def test_numbers_and_labels_are_those_of_the_library(kind):
    bare = kind("cometmq_bare", "Help with \\ and\na second line.")
    bare.add_metric((), 3)
    labelled = kind("cometmq_labelled", "Help.", labels=("topic", "group", "Zone"))
    for number, value in enumerate(VALUES):
        labelled.add_metric((f"t{number}", "g", "z"), value)
    for text in TEXTS:
        labelled.add_metric((text, text, "z"), 1)
    empty = kind("cometmq_empty", "No rows.", labels=("topic",))
    assert render([bare, labelled, empty]) == reference(bare, labelled, empty)


def test_histograms_are_those_of_the_library():
    family = HistogramMetricFamily("cometmq_x", "X.", labels=("broker",))
    family.add_metric(("b",), [("0.5", 1), ("1.0", 2_000_000), ("+Inf", 2_000_001)], 1234567.5)
    assert render([family]) == reference(family)


def test_metrics_of_the_process_are_those_of_the_library():
    families = finish(Registry().collect())
    assert render(families) == reference(*families)


def test_another_kind_is_refused():
    with pytest.raises(AssertionError, match="info"):
        render([InfoMetricFamily("cometmq_x", "X.")])


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
        (PROMETHEUS_2, OPEN + "1.0.0"),
        (PROMETHEUS_3, OPEN + "1.0.0; escaping=allow-utf-8"),
        ("application/openmetrics-text", OPEN + "0.0.1"),
        ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", PLAIN + "0.0.4"),
        ("text/plain; version=0.0.4; q=0.3, text/plain; version=1.0.0; q=0.4", PLAIN + "1.0.0"),
        ("application/openmetrics-text;version=1.0.0;q=0.1,text/plain;q=0.9", PLAIN + "0.0.4"),
        ("application/openmetrics-text;version=1.0.0;q=0, */*;q=0.1", PLAIN + "0.0.4"),
        ('APPLICATION/OpenMetrics-Text; Version="1.0.0"; q=x, text/*', PLAIN + "0.0.4"),
        ("text/plain;version=1.0.0,text/plain;version=0.0.4", PLAIN + "1.0.0"),
        (";,;q=;=,/;version", PLAIN + "0.0.4"),
    ],
)
def test_the_format_is_the_one_that_the_scraper_wants_most(accept, answered):
    found = format_of(accept)
    assert found.content_type.replace("; charset=utf-8", "") == answered
    assert "; charset=utf-8" in found.content_type
    assert found.is_openmetrics == answered.startswith(OPEN)


def test_openmetrics_has_the_same_families():
    counter = CounterMetricFamily("cometmq_x", 'Of "x" and\n\\.', labels=("topic",))
    for text in TEXTS:
        counter.add_metric((text,), 2)
    histogram = HistogramMetricFamily("cometmq_y", "Y.")
    histogram.add_metric((), [("0.5", 1), ("+Inf", 2)], 1.5)
    gauge = GaugeMetricFamily("cometmq_z_total", "A gauge of this name.", value=1)
    families = [counter, histogram, gauge]
    found = render_and_drop([*families], is_openmetrics=True)
    for family in families:
        assert family.samples == []  # dropped
    parsed = {it.name: it for it in openmetrics(found.decode() + "# EOF\n")}
    assert {name: it.type for name, it in parsed.items()} == {
        "cometmq_x": "counter", "cometmq_y": "histogram", "cometmq_z_total": "gauge",
    }  # fmt: skip
    assert parsed["cometmq_x"].documentation == 'Of "x" and\n\\.'
    assert [it.labels["topic"] for it in parsed["cometmq_x"].samples] == list(TEXTS)
