# SPDX-License-Identifier: Apache-2.0
"""The operator's metric families; group labels avoid `namespace`, which Prometheus sets."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from cometmq.elector.metrics import Electors, ElectorStats, families
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.api_types.topics_and_groups import DeclaredStatus
from cometmq.runtime.metrics import Family, Row, gauge, histogram, labelled_counter, labelled_gauge
from cometmq.runtime.metrics.histogram import Buckets

PASS_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LABELS: Final = ("group_namespace", "group")


class GroupFigures(msgspec.Struct):
    """Figures of one group; counters cover only this operator."""

    namespace: str
    name: str
    status: GroupStatus | None = None
    """The status of the last complete pass."""
    elector: ElectorStats | None = None
    """None until the first pass has started the elector."""
    operations: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Orders given by annotations, by verb and result."""


class DeclaredFigures(msgspec.Struct):
    """Figures of one Topic or ConsumerGroup."""

    kind: str
    namespace: str
    name: str
    status: DeclaredStatus | None = None
    """The status of the last complete pass."""


class OperatorFigures(msgspec.Struct):
    is_acting: bool = False
    passes: Counter[str] = msgspec.field(default_factory=lambda: Counter(done=0, failed=0))
    """Passes over groups by result: done or failed."""
    pass_seconds: Buckets = msgspec.field(default_factory=lambda: Buckets(PASS_BOUNDS_S))
    requests: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Requests to the API server by method and status; the status is `none` without a response."""
    groups: list[GroupFigures] = []
    declared: list[DeclaredFigures] = []
    declared_passes: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Passes over Topics and ConsumerGroups by kind and result."""

    def count(self, kind: str, result: str, seconds: float) -> None:
        if kind == KIND:
            self.passes[result] += 1
            self.pass_seconds.observe(seconds)
        else:
            self.declared_passes[kind, result] += 1


Rows = Callable[[OperatorFigures], Iterable[Row]]


def _each(value: Callable[[GroupStatus], float]) -> Rows:
    """Return one row for each group whose status is known."""
    return lambda figures: (
        ((one.namespace, one.name), value(one.status))
        for one in figures.groups
        if one.status is not None
    )


def _conditions(figures: OperatorFigures) -> Iterable[Row]:
    for one in figures.groups:
        for condition in one.status.conditions if one.status is not None else ():
            yield (one.namespace, one.name, condition.type), float(condition.status == "True")


def _operations(figures: OperatorFigures) -> Iterable[Row]:
    for one in figures.groups:
        for key, count in tuple(one.operations.items()):
            yield (one.namespace, one.name, *key), count


def _declared_ready(figures: OperatorFigures) -> Iterable[Row]:
    for one in figures.declared:
        for condition in one.status.conditions if one.status is not None else ():
            yield (one.kind, one.namespace, one.name), float(condition.status == "True")


def _declared_count(figures: OperatorFigures) -> Iterable[Row]:
    kinds = Counter(one.kind for one in figures.declared)
    return (((kind,), count) for kind, count in kinds.items())


FAMILIES: Final[tuple[Family[OperatorFigures], ...]] = (
    gauge(
        "cometmq_operator_acting", "1 while this operator manages groups, 0 on a standby.",
        lambda s: float(s.is_acting),
    ),
    gauge("cometmq_operator_groups", "BrokerGroups being managed.", lambda s: len(s.groups)),
    labelled_counter(
        "cometmq_operator_passes_total", "Reconciliations of groups, by result (done, failed).",
        ("result",), lambda s: (((result,), count) for result, count in s.passes.items()),
    ),
    histogram(
        "cometmq_operator_pass_seconds", "Duration of passes over groups.",
        lambda s: s.pass_seconds,
    ),
    labelled_counter(
        "cometmq_operator_api_requests_total",
        "Requests to the API server, except for watches and records, by method and status.",
        ("method", "status"), lambda s: s.requests.items(),
    ),
    labelled_gauge(
        "cometmq_brokergroup_condition", "1 while a condition of the group is True.",
        (*_LABELS, "condition"), _conditions,
    ),
    labelled_gauge(
        "cometmq_brokergroup_pods", "Pods of the group.", _LABELS,
        _each(lambda status: status.replicas),
    ),
    labelled_gauge(
        "cometmq_brokergroup_pods_ready", "Pods of the group that are ready.", _LABELS,
        _each(lambda status: status.ready_replicas),
    ),
    labelled_counter(
        "cometmq_brokergroup_operations_total",
        "Orders given by annotation, by verb and result (Started, Done, Refused).",
        (*_LABELS, "verb", "result"), _operations,
    ),
    labelled_gauge(
        "cometmq_operator_declared", "Topics and ConsumerGroups being managed, by kind.",
        ("kind",), _declared_count,
    ),
    labelled_counter(
        "cometmq_operator_declared_passes_total",
        "Reconciliations of Topics and ConsumerGroups, by kind and result (done, failed).",
        ("kind", "result"), lambda s: s.declared_passes.items(),
    ),
    labelled_gauge(
        "cometmq_operator_declared_ready",
        "1 while the brokers have the settings of a Topic or ConsumerGroup.",
        ("kind", "object_namespace", "object"), _declared_ready,
    ),
)  # fmt: skip

ELECTOR_FAMILIES: Final = families("group_namespace")


def electors(figures: OperatorFigures) -> Electors:
    """Return the electors in this operator; `group` is the `brokerName` of each."""
    return [((one.namespace,), one.elector) for one in figures.groups if one.elector is not None]
