# SPDX-License-Identifier: Apache-2.0
"""The lag of reports is that of metrics and commands (`cometmq.remoting.progress`)."""

from cometmq.remoting.progress import lost, unread
from cometmq.spark.lag.analysis.series import LAG, LOST

CASES = [(c, n, n + more) for c in (*range(12), 1000) for n in (0, 1, 5, 11) for more in (0, 1, 7)]
"""Committed offset, oldest offset, end."""


def test_the_queries_of_a_report_compute_the_same_lag(spark):
    rows = spark.createDataFrame(CASES, "c bigint, n bigint, m bigint")
    found = rows.selectExpr("c", "n", "m", f"{LAG} AS lag", f"{LOST} AS lost").collect()
    assert len(found) == len(CASES)
    for row in found:
        assert row.lag == unread(row.c, row.n, row.m), row
        assert row.lost == lost(row.c, row.n), row


def test_a_queue_without_an_offset_is_unknown_unless_it_is_empty(spark):
    """Commands count all its messages; a report calls it NEVER_COMMITTED and adds nothing."""
    schema = "c bigint, n bigint, m bigint"
    rows = spark.createDataFrame([(None, 3, 9), (None, 9, 9)], schema)
    assert [row.lag for row in rows.selectExpr(f"{LAG} AS lag").collect()] == [None, 0]
    assert [unread(None, 3, 9), unread(None, 9, 9)] == [6, 0]
