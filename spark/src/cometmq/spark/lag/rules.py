# SPDX-License-Identifier: Apache-2.0
"""A report's time windows, and the limits beyond which a status is bad."""

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[int, Meta(ge=60, le=30 * 86_400)]


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one report."""

    window_s: Seconds = 600
    """Length of W, the window of snapshots that the status rules evaluate."""
    long_window_s: Seconds = 3600
    """Window for slow changes: disks, retention, rates of rarely used queues."""
    history_s: Seconds = 86_400
    """How far back arrival times are looked up."""
    points_min: Annotated[int, Meta(ge=3)] = 5
    """The status is UNKNOWN if W contains fewer snapshots."""
    allowed_lag: Annotated[int, Meta(ge=0)] = 0
    """A queue with this lag or less is OK."""
    allowed_age_s: Annotated[float, Meta(ge=0)] = 30.0
    """A queue whose first unread message is this old or younger is OK."""
    risk_hours: Annotated[float, Meta(gt=0)] = 12.0
    """AT_RISK if unread messages will be deleted sooner than this."""
    disk_hours: Annotated[float, Meta(gt=0)] = 24.0
    """A disk that fills up within this time deletes messages before they expire."""
    silent_days: Annotated[float, Meta(gt=0)] = 7.0
    """Groups and topics without any change for this long are listed as silent."""
    timezone: str = "UTC"
    """Time zone of the brokers, for the hours of `deleteWhen`."""
