# SPDX-License-Identifier: Apache-2.0
"""What to do about a group: the steps of the runbook, and a command to begin with.

The page contains the steps, so that its links work wherever it is stored. A test compares them with
docs/runbooks/lag-report.md.
"""

import shlex
from collections.abc import Mapping
from typing import Final

from cometmq.spark.lag.columns import Row

STEPS: Final[Mapping[str, tuple[str, str]]] = {
    "at-risk-by-time": (
        "AT_RISK, by time",
        (
            "First buy time: raise `fileReservedTime` of the running broker with"
            " `cometmq updateBrokerConfig -b ADDRESS -k fileReservedTime -v 120`, after checking"
            " that the disk has room. Then add members, up to one per queue"
        ),
    ),
    "at-risk-by-disk": (
        "AT_RISK, by disk",
        "See The disk is full and make space first. A longer `fileReservedTime` does not help",
    ),
    "lost": (
        "LOST",
        (
            "Act as for `AT_RISK`, to stop further losses. Deleted messages cannot be recovered:"
            " tell the owner of the group how many were lost, and from which queue"
        ),
    ),
    "stopped": (
        "STOPPED",
        (
            "Start the consumers of the group. If the group is no longer used, delete it with"
            " `cometmq group delete GROUP`; otherwise every report will list it"
        ),
    ),
    "stalled": (
        "STALLED",
        (
            "Take thread dumps of the group's members: `cometmq-lag report --deep --namesrv ADDRESS"
            " --out DIR` writes them to `DIR/threads` and lists queues without a reader; or use"
            " `cometmq consumerStatus -g GROUP -s`. If only one queue is stalled, either an orderly"
            " listener keeps failing, or one message never completes. See The lag of a group grows"
        ),
    ),
    "rewind": (
        "REWIND",
        (
            "Find out who reset the offsets. If they were not reset manually, either a member"
            " started with old offsets, or two clusters share one group. The status clears when the"
            " group reaches its old position again"
        ),
    ),
    "slow": (
        "SLOW",
        (
            "Add members or threads, up to one member per queue. Check `Hot queues` first: if one"
            " queue receives most of the messages, adding members does not help"
        ),
    ),
    "never-committed": (
        "NEVER_COMMITTED",
        (
            "Check whether the group's listener ever returns, and whether its members' account may"
            " commit offsets"
        ),
    ),
}
"""By anchor: the title and the steps. `code` is in backticks."""

_MORE_HOURS: Final = 48
"""Retention to add, to gain time."""


def anchor(row: Row) -> str | None:
    """Return the anchor of the steps for a group; None if it needs none."""
    if row["status"] == "AT_RISK":
        return "at-risk-by-disk" if row["ttl_model"] == "disk" else "at-risk-by-time"
    name = row["status"].lower().replace("_", "-")
    return name if name in STEPS else None


def command(row: Row, broker: Row | None) -> str:
    """Return a command to copy; `broker` is that of the group's worst queue."""
    group = shlex.quote(row["group"])
    if row["status"] in ("AT_RISK", "LOST") and row["ttl_model"] != "disk" and broker is not None:
        kept = broker["file_reserved_hours"]
        if kept is not None and broker["reachable"]:
            return (
                f"cometmq updateBrokerConfig -b {shlex.quote(broker['addr'])} -k fileReservedTime"
                f" -v {kept + _MORE_HOURS}"
            )
    if row["status"] == "STALLED":
        return f"cometmq consumerStatus -g {group} -s"
    if row["status"] in ("NEVER_COMMITTED", "REWIND"):
        return f"cometmq group describe {group}"
    return f"cometmq lag {group}"
