# SPDX-License-Identifier: Apache-2.0
"""The figures that an operator reports about itself and its groups."""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from cometmq.elector.metrics import ElectorStats
from cometmq.operator.api_types.status import Condition, GroupStatus
from cometmq.operator.api_types.topics_and_groups import DeclaredStatus
from cometmq.operator.broker_groups.status import Findings, status_of
from cometmq.operator.metrics import (
    ELECTOR_FAMILIES,
    FAMILIES,
    DeclaredFigures,
    GroupFigures,
    OperatorFigures,
    electors,
)
from cometmq.runtime.incremental import finish
from cometmq.runtime.metrics import Registry, StatsCollector
from cometmq.testing.operator.states import DOWN, READY, group, seen
from cometmq.testing.runtime.pages import render

NOW = "2026-01-01T00:00:00Z"
LABELS = (
    "group_namespace",
    "group",
    "condition",
    "cause",
    "order",
    "outcome",
    "verb",
    "method",
    "result",
    "status",
    "kind",
    "object",
)


def shown(figures):
    """Return the samples as {(name, label values): value}."""
    registry = Registry(has_process_metrics=False)
    registry.add(StatsCollector(FAMILIES, lambda: figures))
    registry.add(StatsCollector(ELECTOR_FAMILIES, lambda: electors(figures)))
    text = render(finish(registry.collect()))
    return {
        (one.name, *(one.labels[it] for it in LABELS if it in one.labels)): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def figures_of(namespace, state):
    status = status_of(group(replicas=3), Findings(seen=state), GroupStatus(), NOW)
    return GroupFigures(namespace=namespace, name="orders", status=status)


def test_a_standby_looks_after_no_group():
    found = shown(OperatorFigures())
    assert found["cometmq_operator_acting",] == 0
    assert found["cometmq_operator_groups",] == 0


def test_groups_of_the_same_name_in_two_namespaces():
    good = figures_of("a", seen(READY, READY, READY))
    bad = figures_of("b", seen(READY, DOWN, READY, out=(1,)))
    found = shown(OperatorFigures(is_acting=True, groups=[good, bad]))
    assert found["cometmq_operator_groups",] == 2
    assert found["cometmq_brokergroup_condition", "a", "orders", "Ready"] == 1
    assert found["cometmq_brokergroup_condition", "b", "orders", "Ready"] == 0
    assert found["cometmq_brokergroup_pods", "b", "orders"] == 3
    assert found["cometmq_brokergroup_pods_ready", "b", "orders"] == 2


def test_electors_of_the_same_group_name_in_two_namespaces():
    good, bad = ElectorStats("orders", 3, last_outage_ms=1_250), ElectorStats("orders", 2)
    bad.elections["Gone"] += 2
    bad.orders["Promote", "obeyed"] += 1
    groups = [
        GroupFigures(namespace="a", name="one", elector=good),
        GroupFigures(namespace="b", name="two", elector=bad),
        GroupFigures(namespace="c", name="new"),
    ]
    found = shown(OperatorFigures(groups=groups))
    assert found["cometmq_elector_last_outage_seconds", "a", "orders"] == 1.25
    assert found["cometmq_elector_elections_total", "a", "orders", "Gone"] == 0
    assert found["cometmq_elector_elections_total", "b", "orders", "Gone"] == 2
    assert found["cometmq_elector_orders_total", "b", "orders", "Promote", "obeyed"] == 1
    assert found["cometmq_elector_members", "b", "orders"] == 2
    assert not [key for key in found if key[1:2] == ("c",)]


def test_a_group_without_a_complete_pass_has_no_status_yet():
    found = shown(OperatorFigures(groups=[GroupFigures(namespace="a", name="orders")]))
    assert ("cometmq_brokergroup_pods", "a", "orders") not in found


def test_passes_requests_and_orders():
    figures = OperatorFigures()
    figures.passes["done"] += 1
    figures.pass_seconds.observe(0.2)
    figures.requests["GET", "200"] += 3
    orders = Counter({("rebuild", "Refused"): 1})
    figures.groups = [GroupFigures(namespace="a", name="orders", operations=orders)]
    found = shown(figures)
    assert found["cometmq_operator_passes_total", "done"] == 1
    assert found["cometmq_operator_pass_seconds_count",] == 1
    assert found["cometmq_operator_api_requests_total", "GET", "200"] == 3
    key = ("cometmq_brokergroup_operations_total", "a", "orders", "rebuild", "Refused")
    assert found[key] == 1


def test_declared_topics_and_groups_are_counted_by_kind():
    ready = Condition(type="Ready", status="True", reason="AsSpecified")
    declared = [
        DeclaredFigures("Topic", "a", "orders", DeclaredStatus(conditions=[ready])),
        DeclaredFigures("Topic", "a", "new"),
    ]
    passes = Counter({("Topic", "done"): 4})
    found = shown(OperatorFigures(declared=declared, declared_passes=passes))
    assert found["cometmq_operator_declared", "Topic"] == 2
    assert found["cometmq_operator_declared_passes_total", "done", "Topic"] == 4
    assert found["cometmq_operator_declared_ready", "Topic", "orders"] == 1
    assert ("cometmq_operator_declared_ready", "Topic", "new") not in found
