# SPDX-License-Identifier: Apache-2.0
"""Steps of a report that run on Arrow tables in the driver.

Spark spends about a second on any query, however small: planning, code generation, stages. These
tables have a row per queue or group, so Arrow finishes in milliseconds.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.spark.lag.columns import SEVERITIES, STATUSES
from cometmq.spark.lag.rules import Rules

GROUP_KEY: Final = ["cluster", "group"]
BROKER_KEY: Final = ["cluster", "broker_name"]

_BAD: Final = SEVERITIES[SEVERITIES.index("error") :]
_FINE: Final = ("OK", "UNKNOWN", "BROADCAST")


def worst_first(table: pa.Table, lag: str, *key: str) -> pa.Table:
    """Sort rows by status, then by nearest loss, oldest message and highest lag; nulls last."""
    rank = pc.index_in(table["status"], value_set=pa.array(STATUSES))
    order = [
        ("rank", "ascending"),
        ("time_to_loss_s", "ascending"),
        ("lag_time_s", "descending"),
        (lag, "descending"),
        *((name, "ascending") for name in key),
    ]
    ranked = table.append_column("rank", rank)
    return table.take(pc.sort_indices(ranked, sort_keys=order))


def behind(groups: pa.Table, rules: Rules) -> pa.Table:
    """Select the groups whose curves are needed, with the highest acceptable lag of each."""
    wanted = groups.filter(pc.invert(pc.is_in(groups["status"], value_set=pa.array(_FINE))))
    by_lag = pc.multiply(pc.cast(wanted["queues"], pa.float64()), float(rules.allowed_lag))
    by_age = pc.multiply(pc.coalesce(wanted["rate_in"], 0.0), rules.allowed_age_s)
    return wanted.select(GROUP_KEY).append_column("fine_lag", pc.add(by_lag, by_age))


def with_since(groups: pa.Table, curves: pa.Table, wanted: pa.Table) -> pa.Table:
    """Add the time since which each group has been behind without interruption."""
    points = curves.select([*GROUP_KEY, "ts", "lag"]).join(wanted, GROUP_KEY, join_type="inner")
    fine = points.filter(pc.less_equal(points["lag"].cast(pa.float64()), points["fine_lag"]))
    last_fine = fine.group_by(GROUP_KEY).aggregate([("ts", "max")])
    points = points.select([*GROUP_KEY, "ts"]).join(last_fine, GROUP_KEY)
    is_after = pc.or_(pc.is_null(points["ts_max"]), pc.greater(points["ts"], points["ts_max"]))
    after = points.filter(pc.fill_null(is_after, True))
    first = after.group_by(GROUP_KEY).aggregate([("ts", "min")])
    return groups.join(first.rename_columns([*GROUP_KEY, "since_ts"]), GROUP_KEY)


def with_change(
    groups: pa.Table, name: str, before: Iterable[tuple[str, str, int | None]]
) -> pa.Table:
    """Add the difference between the lag of each group and its lag in an earlier report."""
    was = {(cluster, group): lag for cluster, group, lag in before}
    keys = zip(*(groups[key].to_pylist() for key in GROUP_KEY), strict=True)
    old = pa.array([was.get(key) for key in keys], type=pa.int64())
    return groups.append_column(name, pc.subtract(groups["lag_sum"], old))


def rows_of_groups(rows: pa.Table, groups: pa.Table) -> pa.Table:
    return rows.join(groups.select(GROUP_KEY), GROUP_KEY, join_type="left semi")


def by_broker(queues: pa.Table) -> dict[tuple[str, str], dict[str, int | None]]:
    is_bad = pc.is_in(queues["severity"], value_set=pa.array(_BAD))
    is_counted = pc.not_equal(queues["status"], "BROADCAST")
    rows = queues.select(BROKER_KEY)
    rows = rows.append_column("bad", pc.if_else(is_bad, queues["group"], None))
    rows = rows.append_column("lag", pc.if_else(is_counted, queues["lag"], None))
    counted = rows.group_by(BROKER_KEY).aggregate(
        [("bad", "count_distinct", pc.CountOptions(mode="only_valid")), ("lag", "sum")]
    )
    return {
        (row["cluster"], row["broker_name"]): {
            "groups_bad": row["bad_count_distinct"],
            "lag_sum": row["lag_sum"],
        }
        for row in counted.to_pylist()
    }
