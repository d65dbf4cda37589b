# SPDX-License-Identifier: Apache-2.0
"""Reports the distributions of outages by client and kind of fault, next to the goals."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from cometmq.peers.ha.faults import KILLS, PARTITIONS, STOP, SWITCHOVER
from cometmq.peers.ha.ledger import Outage

_SHARES: Final = (0.5, 0.95, 0.99)
_PERCENTILES: Final = ("p50", "p95", "p99", "max")
COLUMNS: Final = (
    "client", "fault", "count",
    *(f"again {name} [s]" for name in _PERCENTILES),
    *(f"pause {name} [s]" for name in _PERCENTILES),
    "failed sends",
)  # fmt: skip
GOAL_COLUMNS: Final = ("client", "figure", "count", *_PERCENTILES, "goal", "result")


class Goal(NamedTuple):
    """The limit for one percentile of a figure, over several kinds of faults."""

    name: str
    kinds: Sequence[str]
    figure: Callable[[Outage], float]
    share: float
    limit: float
    unit: str = " s"


def _again(outage: Outage) -> float:
    return outage.again_s


def _pause(outage: Outage) -> float:
    return outage.pause_s


def _failed(outage: Outage) -> float:
    return outage.failed_count


GOALS: Final = (
    Goal("again after kill -9 of the master", KILLS, _again, 0.95, 2.0),
    Goal("again after SIGSTOP of the master", (STOP,), _again, 0.95, 4.0),
    Goal("again after a partition", PARTITIONS, _again, 0.95, 4.0),
    Goal("pause of a switchover", (SWITCHOVER,), _pause, 0.99, 0.5),
    Goal("failed sends of a switchover", (SWITCHOVER,), _failed, 1.0, 0.0, ""),
)


class Outages:
    """The outages of a run by client and kind of fault."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[Outage]]] = {}

    def add(self, client: str, kind: str, outage: Outage) -> None:
        self._found.setdefault(client, {}).setdefault(kind, []).append(outage)

    def add_all(self, other: "Outages") -> None:
        for client, kinds in other._found.items():
            for kind, outages in kinds.items():
                for outage in outages:
                    self.add(client, kind, outage)

    def again(self, client: str) -> list[float]:
        """Return how long after each fault a client's sends were acknowledged again."""
        return [it.again_s for it in chain.from_iterable(self._found.get(client, {}).values())]

    def failed_count(self, client: str, kind: str) -> int:
        return sum(it.failed_count for it in self._found.get(client, {}).get(kind, []))

    def table(self) -> list[str]:
        """Return the lines of a Markdown table, one row per client and kind of fault."""
        rows = []
        for client, kinds in self._found.items():
            for kind, outages in kinds.items():
                again = _distribution([it.again_s for it in outages])
                pause = _distribution([it.pause_s for it in outages])
                failed = str(self.failed_count(client, kind))
                rows.append([client, kind, str(len(outages)), *again, *pause, failed])
        return _table(COLUMNS, rows)

    def goals(self) -> list[str]:
        """Return the lines of a Markdown table, one row per client and goal."""
        rows = []
        for client, kinds in self._found.items():
            for goal in GOALS:
                values = [goal.figure(it) for kind in goal.kinds for it in kinds.get(kind, [])]
                if values:
                    rows.append([client, goal.name, *_compared(goal, values)])
        return _table(GOAL_COLUMNS, rows)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def _compared(goal: Goal, values: list[float]) -> list[str]:
    is_met = percentile(values, goal.share) <= goal.limit
    name = "max" if goal.share == 1 else f"p{goal.share * 100:.0f}"
    limit = f"{name} at most {goal.limit:g}{goal.unit}"
    return [str(len(values)), *_distribution(values), limit, "met" if is_met else "missed"]


def _distribution(values: list[float]) -> list[str]:
    figures = [*(percentile(values, share) for share in _SHARES), max(values)]
    return [f"{figure:.2f}" for figure in figures]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(cells) for cells in (columns, ["---"] * len(columns), *rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
