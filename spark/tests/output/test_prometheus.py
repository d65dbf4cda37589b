# SPDX-License-Identifier: Apache-2.0
"""Metrics are rendered for scraping, and pushed to a gateway."""

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cometmq.spark.lag.columns import STATUSES, Report
from cometmq.spark.lag.output.prometheus import PushFailed, metrics_text, push
from cometmq.testing.spark import Gateway


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Parse metrics into values keyed by metric name and label values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_groups_have_the_documented_metrics(report: Report) -> None:
    found = samples(metrics_text(report))
    at_risk = ("DefaultCluster", "g-at_risk")
    assert found["cometmq_lag_messages"][at_risk] == 1_234_567
    assert found["cometmq_lag_age_seconds"][at_risk] == 4000
    assert found["cometmq_time_to_loss_seconds"][at_risk] == 7800
    assert found["cometmq_lost_messages_total"]["DefaultCluster", "g-lost"] == 12_400
    assert found["cometmq_lag_report_coverage_ratio"] == {(): 0.9958}
    assert found["cometmq_lag_report_timestamp_seconds"] == {(): 1_772_366_400}


def test_group_has_exactly_one_status(report: Report) -> None:
    status = samples(metrics_text(report))["cometmq_group_status"]
    assert len(status) == len(STATUSES) * (len(STATUSES) - 1) + 1
    ones = {labels[1:] for labels, value in status.items() if value == 1}
    assert ones == {(f"g-{name.lower()}", name) for name in STATUSES}


def test_unknown_values_have_no_sample(report: Report) -> None:
    found = samples(metrics_text(report))
    assert ("DefaultCluster", "g-never_committed") not in found["cometmq_lag_messages"]
    assert ("DefaultCluster", "g-ok") not in found["cometmq_time_to_loss_seconds"]


def test_only_unhealthy_groups_have_series_per_queue(
    report: Report, a_report: Any, a_group: Any
) -> None:
    queues = samples(metrics_text(report))["cometmq_lag_queue_messages"]
    assert queues["broker-a", "DefaultCluster", "g-stalled", "3", "orders"] == 51_000
    rows = report.rows("queue")
    healthy = a_report([a_group("g-stalled", "OK")], queue=rows)
    assert "cometmq_lag_queue_messages" not in samples(metrics_text(healthy))


def test_special_characters_are_escaped(a_report: Any, a_group: Any) -> None:
    name = 'a"b\\c\nd'
    found = samples(metrics_text(a_report([a_group(name, "SLOW")])))
    assert found["cometmq_lag_messages"]["DefaultCluster", name] == 20_000


def test_push_replaces_the_metrics_of_each_cluster(
    gateway: Gateway, a_report: Any, a_group: Any
) -> None:
    groups = [a_group("a", "SLOW"), a_group("b", "OK", cluster="east/1")]
    push(a_report(groups), gateway.url)
    asked = [(method, path) for method, path, _ in gateway.requests]
    first = "/metrics/job/cometmq_lag/cluster/DefaultCluster"
    second = "/metrics/job/cometmq_lag/cluster@base64/ZWFzdC8x"
    assert asked == [("DELETE", first), ("PUT", first), ("DELETE", second), ("PUT", second)]
    assert 'group="a"' in gateway.requests[1][2]
    assert 'group="b"' not in gateway.requests[1][2]


def test_rejected_push_names_address_and_reason(
    gateway: Gateway, a_report: Any, a_group: Any
) -> None:
    gateway.answer = 400
    with pytest.raises(PushFailed, match=r"http://127.0.0.1.*: 400 pushed metrics are inv"):
        push(a_report([a_group("a", "OK")]), gateway.url)


def test_address_without_scheme_is_rejected(a_report: Any, a_group: Any) -> None:
    with pytest.raises(PushFailed, match="must start with http"):
        push(a_report([a_group("a", "OK")]), "file:///etc/passwd")


def test_unreachable_gateway_is_a_one_line_error(a_report: Any, a_group: Any) -> None:
    with Gateway() as server:
        url = server.url
    with pytest.raises(PushFailed, match="refused"):
        push(a_report([a_group("a", "OK")]), url)
