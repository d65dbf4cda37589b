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
QUEUE_KEY: Final = ["group", "broker_name", "topic", "queue_id"]
BROKER_KEY: Final = ["cluster", "broker_name"]

_ERRORS: Final = SEVERITIES[SEVERITIES.index("error") :]
"""What counts as bad in the figure of a broker: warnings are about groups, not about brokers."""
_FINE: Final = ("OK", "UNKNOWN", "BROADCAST")


def worst_first(table: pa.Table, lag: str, *key: str) -> pa.Table:
    """Sort rows by severity, then by the time until loss, then by unread messages; nulls last."""
    severity = pc.index_in(table["severity"], value_set=pa.array(SEVERITIES))
    status = pc.index_in(table["status"], value_set=pa.array(STATUSES))
    order = [
        ("severity_rank", "descending"),
        ("time_to_loss_s", "ascending"),
        (lag, "descending"),
        ("status_rank", "ascending"),
        *((name, "ascending") for name in key),
    ]
    ranked = table.append_column("severity_rank", severity).append_column("status_rank", status)
    return table.take(pc.sort_indices(ranked, sort_keys=order))


def behind(groups: pa.Table, queues: pa.Table, rules: Rules) -> pa.Table:
    """Select the queues whose curves are needed, with the highest acceptable lag of each.

    All queues of a group that is behind are needed. The lag of a whole group would not show that
    one of its queues hangs.
    """
    is_behind = pc.invert(pc.is_in(groups["status"], value_set=pa.array(_FINE)))
    wanted = queues.join(
        groups.filter(is_behind).select(GROUP_KEY), GROUP_KEY, join_type="left semi"
    )
    wanted = wanted.filter(pc.not_equal(wanted["status"], "BROADCAST"))
    by_age = pc.multiply(pc.coalesce(wanted["rate_in"], 0.0), rules.allowed_age_s)
    fine = pc.add(pc.max_element_wise(by_age, 0.0), float(rules.allowed_lag))
    return wanted.select([*QUEUE_KEY, "cluster"]).append_column("fine_lag", fine)


def with_since(groups: pa.Table, curves: pa.Table) -> pa.Table:
    """Add the time since which each group has been behind without interruption.

    If no snapshot shows the group before that, it may have been behind for longer.
    """
    fine = curves.filter(curves["fine"])
    last_fine = fine.group_by(GROUP_KEY).aggregate([("ts", "max")])
    points = curves.select([*GROUP_KEY, "ts"]).join(last_fine, GROUP_KEY)
    is_first = pc.is_null(points["ts_max"])
    is_after = pc.or_(is_first, pc.greater(points["ts"], points["ts_max"]))
    points = points.append_column("since_at_least", is_first)
    after = points.filter(pc.fill_null(is_after, True))
    first = after.group_by(GROUP_KEY).aggregate([("ts", "min"), ("since_at_least", "max")])
    first = first.rename_columns([*GROUP_KEY, "since_ts", "since_at_least"])
    return groups.join(first, GROUP_KEY)


def with_change(
    groups: pa.Table, name: str, before: Iterable[tuple[str, str, int | None]]
) -> pa.Table:
    """Add the difference between the lag of each group and its lag in an earlier report."""
    was = {(cluster, group): lag for cluster, group, lag in before}
    keys = zip(*(groups[key].to_pylist() for key in GROUP_KEY), strict=True)
    old = pa.array([was.get(key) for key in keys], type=pa.int64())
    return groups.append_column(name, pc.subtract(groups["lag_sum"], old))


def with_members(groups: pa.Table, counts: pa.Table) -> pa.Table:
    """Add the number of connected members: each is connected to all brokers, or will be."""
    most = counts.group_by(GROUP_KEY).aggregate([("online_clients", "max")])
    return groups.join(most.rename_columns([*GROUP_KEY, "members"]), GROUP_KEY)


def rows_of_groups(rows: pa.Table, groups: pa.Table) -> pa.Table:
    return rows.join(groups.select(GROUP_KEY), GROUP_KEY, join_type="left semi")


def by_broker(queues: pa.Table) -> dict[tuple[str, str], dict[str, int | None]]:
    is_bad = pc.is_in(queues["severity"], value_set=pa.array(_ERRORS))
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
