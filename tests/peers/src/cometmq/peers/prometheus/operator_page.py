# SPDX-License-Identifier: Apache-2.0
"""The metrics of an operator, for tests without Kubernetes; `make e2e` scrapes a running one."""

from cometmq.elector.metrics import ElectorStats
from cometmq.operator.api_types.status import Condition, GroupStatus
from cometmq.operator.api_types.topics_and_groups import DeclaredStatus
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
from cometmq.testing.ha.samples import recorded
from cometmq.testing.runtime.pages import render


def operator_page() -> str:
    """Return the metrics of an operator with one group and one Topic, which are ready."""
    ready = Condition(type="Ready", status="True", reason="AsSpecified")
    figures = OperatorFigures(is_acting=True)
    figures.passes["done"] += 1
    figures.pass_seconds.observe(0.1)
    figures.requests["GET", "200"] += 1
    figures.declared_passes["Topic", "done"] += 1
    figures.declared = [DeclaredFigures("Topic", "ns", "t", DeclaredStatus(conditions=[ready]))]
    status = GroupStatus(replicas=1, ready_replicas=1, conditions=[ready])
    elector = ElectorStats("orders", 3, record=recorded().record, is_record_reachable=True)
    figures.groups = [GroupFigures(namespace="ns", name="g", status=status, elector=elector)]
    registry = Registry()
    registry.add(StatsCollector(FAMILIES, lambda: figures))
    registry.add(StatsCollector(ELECTOR_FAMILIES, lambda: electors(figures)))
    return render(finish(registry.collect()))
