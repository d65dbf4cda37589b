# SPDX-License-Identifier: Apache-2.0
"""What a report looks at, and from where on it calls something bad."""

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[int, Meta(ge=60, le=30 * 86_400)]


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one report."""

    window_s: Seconds = 600
    """W: the status rules look at the snapshots of this time."""
    long_window_s: Seconds = 3600
    """For slow changes: disks, retention, rates of rarely used queues."""
    history_s: Seconds = 86_400
    """How far back the arrival of messages is looked up."""
    points_min: Annotated[int, Meta(ge=3)] = 5
    """Fewer snapshots within W: UNKNOWN."""
    allowed_lag: Annotated[int, Meta(ge=0)] = 0
    """OK at and below, in one queue."""
    allowed_age_s: Annotated[float, Meta(ge=0)] = 30.0
    """OK if the first unread message is not older."""
    risk_hours: Annotated[float, Meta(gt=0)] = 12.0
    """AT_RISK if unread messages are deleted sooner."""
    disk_hours: Annotated[float, Meta(gt=0)] = 24.0
    """A disk that is full within this time deletes messages before their age does."""
    silent_days: Annotated[float, Meta(gt=0)] = 7.0
    """Groups and topics without any change for so long are listed."""
    timezone: str = "UTC"
    """Zone of the brokers, for the hours of `deleteWhen`."""
