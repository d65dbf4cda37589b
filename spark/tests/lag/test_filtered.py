# SPDX-License-Identifier: Apache-2.0
"""The table `filtered` contains estimates from sampled messages."""

import math
from typing import Any

import pyarrow as pa
import pytest

from cometmq.spark.lag.analysis.side_tables import filtered
from cometmq.spark.lag.analysis.side_tables import wilson as bounds
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.columns import GROUPS
from cometmq.spark.tables.rows import Sample

Z = 1.96
Counts = list[tuple[str, int]] | None


def said(
    group: str, broker: str, snapshot_id: int, tried: Counts, matched: Counts
) -> tuple[Any, ...]:
    values = {
        "snapshot_id": snapshot_id,
        "cluster": "c",
        "group": group,
        "broker_name": broker,
        "online_clients": 1,
        "subscriptions": [("T", "a || b")],
        "languages": [],
        "tried": tried,
        "matched": matched,
        "read_ts": snapshot_id,
    }
    return tuple(values.get(column.name) for column in GROUPS)


def queue(group: str, broker: str, topic: str, lag: int | None, *, is_filtered: bool = True) -> Any:
    place = {"cluster": "c", "group": group, "broker_name": broker, "topic": topic}
    return {**place, "lag": lag, "filtered": is_filtered}


def wilson(matched: int, tried: int) -> tuple[float, float]:
    """Compute the bounds with the textbook formula."""
    share = matched / tried
    centre = (share + Z * Z / (2 * tried)) / (1 + Z * Z / tried)
    spread = share * (1 - share) / tried + Z * Z / (4 * tried * tried)
    half = Z / (1 + Z * Z / tried) * math.sqrt(spread)
    return centre - half, centre + half


def rows_of(queues: list[Any], groups: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return filtered(pa.Table.from_pylist(queues), table_of(GROUPS, groups)).to_pylist()


def test_estimate_uses_the_newest_sample_of_each_broker() -> None:
    groups = [
        said("G", "b1", 1, [("T", 10)], [("T", 10)]),
        said("G", "b1", 2, [("T", 90)], [("T", 30)]),
        said("G", "b1", 3, None, None),  # another group was sampled
        said("G", "b2", 2, [("T", 50)], [("T", 0)]),
        said("H", "b1", 2, [("T", 0)], [("T", 0)]),  # it could not be sampled
    ]
    queues = [
        queue("G", "b1", "T", 600),
        queue("G", "b1", "T", 300),
        queue("G", "b2", "T", 100),
        queue("G", "b1", "Everything", 100, is_filtered=False),
        queue("H", "b1", "T", 50),
        queue("I", "b1", "T", None),
    ]
    first, second = rows_of(queues, groups)
    low, high = (
        900 * of_first + 100 * of_second
        for of_first, of_second in zip(wilson(30, 90), wilson(0, 50), strict=True)
    )
    assert (first["group"], first["topic"], first["expression"]) == ("G", "T", "a || b")
    assert (first["lag"], first["tried"], first["matched"]) == (1000, 140, 30)
    assert first["lag_matching"] == 300
    assert first["lag_low"] == pytest.approx(low, abs=0.51)
    assert first["lag_high"] == pytest.approx(high, abs=0.51)
    assert (second["group"], second["lag"], second["lag_matching"]) == ("H", 50, None)


def test_no_row_without_filtering_groups() -> None:
    queues = [queue("G", "b1", "T", 5, is_filtered=False)]
    assert rows_of(queues, [said("G", "b1", 1, None, None)]) == []
    assert rows_of([queue("G", "b1", "T", 5)], [])[0]["expression"] is None


@pytest.mark.parametrize(("tried", "matched"), [(1, 0), (1, 1), (200, 0), (200, 200), (90, 30)])
def test_bounds_contain_the_share(tried: int, matched: int) -> None:
    low, high = bounds(Sample(tried, matched))
    assert (low, high) == pytest.approx(wilson(matched, tried))
    assert 0 <= low <= matched / tried <= high <= 1
