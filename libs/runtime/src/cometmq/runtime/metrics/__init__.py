# SPDX-License-Identifier: Apache-2.0
"""Metrics: components count in plain integers, which a scrape converts to Prometheus families.

A component has a method that returns its stats. A service declares a table of families, each with a
function that derives the family's value or rows from the stats, and adds a `StatsCollector`.
Counting a message costs one integer addition. When two collectors declare the same family (as the
two servers of `standalone` do), the registry merges them.

prometheus_client takes 7 MB of memory and a fifth of the time of a start, so it is imported on a
thread at the first connection (`admin_http.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from cometmq.runtime.incremental import Steps
from cometmq.runtime.metrics.histogram import Buckets
from cometmq.runtime.process.loop_lag import LoopLag

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry

S = TypeVar("S")
Row = tuple[Sequence[str], "float | Buckets"]
"""The label values and the value of one sample, or of one histogram."""

PART_ROWS: Final = 128  # about 0.5 ms, including the time to read the values


class RowLimit:
    """The number of rows that a family may show, and how many rows the last scrape left out."""

    __slots__ = ("dropped_count", "rows_max")

    def __init__(self, rows_max: int | None = None) -> None:
        self.rows_max = rows_max
        self.dropped_count = 0


class Family(NamedTuple, Generic[S]):
    """One metric: its kind, name, help text and labels, and the function that reads it from the
    stats.
    """

    kind: str
    """`counter`, which only grows and is named `*_total`, `gauge` or `histogram`."""
    name: str
    help: str
    labels: tuple[str, ...]
    rows: Callable[[S], "Iterable[Row]"]

    def sample(self, stats: S, constant: Mapping[str, str], limit: RowLimit) -> "Steps[Metric]":
        """Return the family with its rows of now, a bounded number of them at a time."""
        from prometheus_client import metrics_core  # noqa: PLC0415

        type_ = getattr(metrics_core, f"{self.kind.capitalize()}MetricFamily")
        family: Any = type_(self.name, self.help, labels=(*constant, *self.labels))
        rows_max, add, before = limit.rows_max, family.add_metric, tuple(constant.values())
        for number, (labels, value) in enumerate(self.rows(stats), 1):
            if isinstance(value, Buckets):
                add((*before, *labels), value.cumulative(), value.sum)
            elif rows_max is None or number <= rows_max:
                add((*before, *labels), value)
            else:
                limit.dropped_count += 1
            if number % PART_ROWS == 0:
                yield
        found: Metric = family
        return found


class MetricSource(Protocol):
    """A source from which a registry collects families."""

    def collect(self) -> "Iterable[Metric | None]":
        """Yield the families with their current values; a None marks a point at which other
        callbacks may run.
        """
        ...


def labelled_counter(
    name: str, help_: str, labels: tuple[str, ...], rows: Callable[[S], Iterable[Row]]
) -> Family[S]:
    """Declare a counter with labels; `rows` returns (label values, value) pairs."""
    assert name.endswith("_total"), f"{name}: a counter ends in _total"
    return Family("counter", name, help_, labels, rows)


def labelled_gauge(
    name: str, help_: str, labels: tuple[str, ...], rows: Callable[[S], Iterable[Row]]
) -> Family[S]:
    """Declare a gauge with labels, which may rise and fall; `rows` is that of a counter."""
    return Family("gauge", name, help_, labels, rows)


def labelled_histogram(
    name: str, help_: str, labels: tuple[str, ...], rows: Callable[[S], Iterable[Row]]
) -> Family[S]:
    """Declare a histogram with labels from a short, closed list; its values are `Buckets`."""
    return Family("histogram", name, help_, labels, rows)


def counter(name: str, help_: str, value: Callable[[S], float]) -> Family[S]:
    """Declare a counter without labels."""
    return labelled_counter(name, help_, (), lambda stats: (((), value(stats)),))


def gauge(name: str, help_: str, value: Callable[[S], float]) -> Family[S]:
    """Declare a gauge without labels."""
    return labelled_gauge(name, help_, (), lambda stats: (((), value(stats)),))


def histogram(name: str, help_: str, buckets: Callable[[S], Buckets]) -> Family[S]:
    """Declare a histogram without labels."""
    return labelled_histogram(name, help_, (), lambda stats: (((), buckets(stats)),))


class StatsCollector(Generic[S]):
    """Fills a table of families from a snapshot of a component's stats."""

    __slots__ = ("_constant", "_families", "_limit", "_snapshot")

    def __init__(
        self,
        families: Sequence[Family[S]],
        snapshot: Callable[[], S],
        constant_labels: Mapping[str, str] | None = None,
        limit: RowLimit | None = None,
    ) -> None:
        """Show only the first rows of each family, as `limit` says.

        The order of the rows must be stable; otherwise series would appear and disappear between
        scrapes.
        """
        self._families = families
        self._limit = limit or RowLimit()
        self._snapshot = snapshot
        self._constant = dict(constant_labels or {})

    def collect(self) -> "Iterator[Metric | None]":
        """Yield every family of one snapshot; a None marks a point at which other callbacks may
        run.

        If a family has thousands of rows, they are read at slightly different moments.
        """
        stats = self._snapshot()
        self._limit.dropped_count = 0
        for family in self._families:
            metric = yield from family.sample(stats, self._constant, self._limit)
            yield metric


class ProcessMetrics:
    """The metrics of the process and of its garbage collector."""

    def collect(self) -> "Iterable[Metric]":
        """Return every family."""
        return _process_registry().collect()


@cache
def _process_registry() -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector  # noqa: PLC0415

    own = CollectorRegistry()
    ProcessCollector(registry=own)
    GCCollector(registry=own)
    return own


class Registry:
    """Collects the metrics of all sources of a process."""

    __slots__ = ("_sources",)

    def __init__(self, *, has_process_metrics: bool = True) -> None:
        self._sources: list[MetricSource] = [ProcessMetrics()] if has_process_metrics else []

    def add(self, source: MetricSource) -> None:
        """Include a source in scrapes."""
        self._sources.append(source)

    def collect(self) -> "Steps[list[Metric]]":
        """Copy the counters of every source on the event loop, a bounded number at a time."""
        families: dict[str, Metric] = {}
        for source in self._sources:
            for family in source.collect():
                if family is None:
                    yield
                    continue
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        return list(families.values())


def build_families() -> tuple[Family[tuple[str, str]], ...]:
    """Return the family that shows the program's release; its stats are (version, Python)."""
    return (
        labelled_gauge(
            "cometmq_build_info", "1, with the versions of CometMQ and Python.",
            ("version", "python"), lambda versions: ((versions, 1),),
        ),
    )  # fmt: skip


def loop_families() -> tuple[Family[LoopLag], ...]:
    """Return the metric families for event loop lag."""
    return (
        histogram(
            "cometmq_loop_lag_seconds", "How late the event loop's timers fire.",
            lambda lag: lag.seconds,
        ),
        gauge(
            "cometmq_loop_lag_max_seconds", "Worst lag since the program started.",
            lambda lag: lag.max_s,
        ),
    )  # fmt: skip
