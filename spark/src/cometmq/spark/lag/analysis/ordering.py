# SPDX-License-Identifier: Apache-2.0
"""The order of rows in the tables of a report."""

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.spark.lag.columns import SEVERITIES, STATUSES


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
