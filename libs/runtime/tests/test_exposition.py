# SPDX-License-Identifier: Apache-2.0
"""/metrics is in the format that the scraper asks for, by prometheus_client's encoders."""

import pytest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from cometmq.runtime.metrics.exposition import Dropping, encoder_of

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
