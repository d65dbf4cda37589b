# SPDX-License-Identifier: Apache-2.0
"""A report's time windows, and the limits beyond which a status is bad."""

import msgspec

from cometmq.insight.judge import LATE_S, RISK_S, WINDOW_S


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one report; the options of the command line have bounds."""

    window_s: int = WINDOW_S
    """Length of W, the window of snapshots that the status rules evaluate."""
    long_window_s: int = 3600
    """Window for slow changes: disks, retention, rates of rarely used queues."""
    history_s: int = 86_400
    """How far back arrival times are looked up."""
    points_min: int = 5
    """The status is UNKNOWN if W contains fewer snapshots."""
    allowed_lag: int = 0
    """A queue with this lag or less is OK."""
    allowed_age_s: float = LATE_S
    """A queue whose first unread message is this old or younger is OK."""
    risk_hours: float = RISK_S / 3600
    """AT_RISK if unread messages will be deleted sooner than this."""
    disk_hours: float = 24.0
    """A disk that fills up within this time deletes messages before they expire."""
    silent_days: float = 7.0
    """Groups and topics without any activity for this long are listed as silent."""
    timezone: str = "UTC"
    """Time zone of the brokers, for the hours of `deleteWhen`."""
