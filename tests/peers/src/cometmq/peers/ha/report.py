# SPDX-License-Identifier: Apache-2.0
"""Reports the distribution of outages by kind of fault."""

from collections.abc import Sequence

from cometmq.peers.ha.ledger import Outage

COLUMNS = ("fault", "count", "again p50", "p95", "max [s]", "longest pause [s]", "failed sends")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def table(outages: dict[str, list[Outage]]) -> list[str]:
    """Return the lines of a Markdown table, one row per kind of fault."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for kind, found in outages.items():
        again = [one.again_s for one in found]
        figures = (percentile(again, 0.5), percentile(again, 0.95), max(again))
        pause = max(one.pause_s for one in found)
        failed = sum(one.failed_count for one in found)
        cells = [f"{figure:.2f}" for figure in (*figures, pause)]
        lines.append(_line([kind, str(len(found)), *cells, str(failed)]))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
