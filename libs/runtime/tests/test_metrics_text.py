# SPDX-License-Identifier: Apache-2.0
"""The text format equals the output of prometheus_client."""

import math

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import CollectorRegistry

from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import Registry
from cometmq.runtime.metrics.text import render

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
