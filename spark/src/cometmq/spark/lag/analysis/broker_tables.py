# SPDX-License-Identifier: Apache-2.0
"""Turns facts about brokers into tables: their limits, and the report's table `broker`."""

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.spark.lag.analysis.brokers import BrokerFacts
from cometmq.spark.lag.columns import REPORT_TABLES, SEVERITIES
from cometmq.spark.tables.arrow import arrow_schema

BROKER_KEY: Final = ["cluster", "broker_name"]

_ERRORS: Final = SEVERITIES[SEVERITIES.index("error") :]
"""The severities that count against a broker; a warning concerns a group, not its broker."""
_SPAN: Final = pa.struct([("begin_us", pa.int64()), ("end_us", pa.int64())])
_LIMITS: Final = pa.schema(
    [
        ("cluster", pa.string()),
        ("broker_name", pa.string()),
        ("file_reserved_hours", pa.int32()),
        ("disk_fills", pa.bool_()),
        ("disk_full_s", pa.float64()),
        ("disk_forced_s", pa.float64()),
        ("sweep_s", pa.float64()),
        ("reachable", pa.bool_()),
        ("deletions", pa.list_(_SPAN)),
    ]
)


def limits_table(facts: Iterable[BrokerFacts]) -> pa.Table:
    """Build a row per broker with the facts that limit how long its messages are kept."""
    rows = [it.row | msgspec.structs.asdict(it) for it in facts]
    return pa.Table.from_pylist(rows, schema=_LIMITS)


def broker_table(facts: Iterable[BrokerFacts], queues: pa.Table) -> pa.Table:
    """Build the table `broker`; `queues` is the table `queue`."""
    sums, none = by_broker(queues), {"groups_bad": 0, "lag_sum": None}
    rows = [
        it.row
        | {
            "disk_ratio": it.row["commitlog_disk_ratio"],
            "disk_ratio_slope": it.disk_ratio_slope,
            "disk_full_s": it.disk_full_s,
        }
        | sums.get((it.row["cluster"], it.row["broker_name"]), none)
        for it in facts
    ]
    return pa.Table.from_pylist(rows, schema=arrow_schema(REPORT_TABLES["broker"]))


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
