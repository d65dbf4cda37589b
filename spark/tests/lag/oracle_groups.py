# SPDX-License-Identifier: Apache-2.0
"""Computes the table `group` a second time from the table `queue`: sums, worst queue, coverage."""

import math
from collections import defaultdict
from typing import Any

from .oracle import Row

GROUP_KEY = ("cluster", "group")
WORST_FIRST = ("LOST", "AT_RISK", "REWIND", "STALLED", "STOPPED", "NEVER_COMMITTED", "SLOW",
               "CATCHING_UP", "UNKNOWN", "BROADCAST", "OK")  # fmt: skip
SEVERITY = dict(zip(WORST_FIRST, ["critical"] * 2 + ["error"] * 3 + ["warn"] * 2 + ["info"] * 3
                    + ["ok"], strict=True))  # fmt: skip


def group_table(queues: dict[tuple[Any, ...], Row]) -> dict[tuple[Any, ...], Row]:
    by_group = defaultdict(list)
    for (cluster, group, broker, topic, queue_id), row in queues.items():
        by_group[cluster, group].append((topic, broker, queue_id, row))
    return {key: _group(members) for key, members in by_group.items()}


def _group(members: list[tuple[str, str, int, Row]]) -> Row:
    rows = [row for *_, row in members]
    counted = [row for row in rows if row["status"] != "BROADCAST"]
    topic, broker, queue_id, worst = min(members, key=lambda it: (*_badness(it[3]), *it[:3]))
    loss = [row for row in counted if row["time_to_loss_s"] is not None]
    first = min(loss, key=lambda it: it["time_to_loss_s"], default=None)
    etas = [row["eta_catchup_s"] for row in counted]
    bad = ("warn", "error", "critical")
    return {
        "status": worst["status"], "severity": SEVERITY[worst["status"]],
        "online": any(row["online"] for row in rows),
        "filtered": any(row["filtered"] for row in rows),
        "topics": len({it[0] for it in members}), "queues": len(rows),
        "queues_bad": sum(SEVERITY[row["status"]] in bad for row in rows),
        "lag_sum": _of(sum, counted, "lag"), "lag_max": _of(max, counted, "lag"),
        "lag_time_s": _of(max, counted, "lag_time_s"),
        "lost_sum": _of(sum, counted, "lost"),
        "rate_in": _of(math.fsum, rows, "rate_in"), "rate_out": _of(math.fsum, rows, "rate_out"),
        "eta_catchup_s": None if None in etas else max(etas, default=None),
        "time_to_loss_s": first and first["time_to_loss_s"],
        "worst_topic": topic, "worst_broker_name": broker, "worst_queue_id": queue_id,
        "worst_lag": worst["lag"],
        "coverage": sum(row["present"] for row in rows) / len(rows),
    }  # fmt: skip


def _badness(row: Row) -> tuple[float, ...]:
    """Return a sort key that puts the worst queue first and unknown values last."""
    loss, time, lag = row["time_to_loss_s"], row["lag_time_s"], row["lag"]
    return (
        WORST_FIRST.index(row["status"]),
        math.inf if loss is None else loss,
        math.inf if time is None else -time,
        math.inf if lag is None else -lag,
    )


def _of(combine: Any, rows: list[Row], name: str) -> Any:
    values = [row[name] for row in rows if row[name] is not None]
    return combine(values) if values else None
