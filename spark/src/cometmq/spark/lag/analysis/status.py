# SPDX-License-Identifier: Apache-2.0
"""The status of a group in a queue: the first matching rule, over the snapshots of W.

Unlike Burrow's window, W covers a period, not a number of commits, and a point counts as fine if
either the lag or the age of the first unread message is within its limit. Bursts and rarely used
queues raise no alarm, and an incomplete window is UNKNOWN instead of OK.
"""

from typing import Final

_STANDS: Final = "c_min = c_max"
_KNOWN: Final = "present AND points_w >= points_min"

RULES: Final[tuple[tuple[str, str], ...]] = (
    ("BROADCAST", "broadcast OR seen_broadcast"),
    ("UNKNOWN", f"NOT ({_KNOWN})"),
    ("LOST", "losing"),
    ("AT_RISK", "time_to_loss_s < risk_s"),
    ("NEVER_COMMITTED", "c IS NULL AND m > n AND always_online"),
    ("UNKNOWN", "lag IS NULL"),
    ("OK", "fine_now"),
    ("STOPPED", f"NOT online AND {_STANDS} AND NOT fine_once"),
    ("REWIND", "went_back AND c < c_max"),
    ("STALLED", f"online AND {_STANDS} AND NOT fine_once"),
    # A job without members, such as a Spark query, has finished if it rests for longer than its
    # batches can take; until then nothing is known.
    ("STOPPED", "NOT online AND rest_s >= window_s / 2 AND NOT fine_once"),
    ("UNKNOWN", "NOT online AND rest_s > 0 AND NOT fine_once AND NOT drains"),
    ("SLOW", "NOT fine_once AND NOT drains"),
    ("CATCHING_UP", "NOT fine_once"),
)
"""Status and SQL condition, in order of precedence; without a match the status is OK."""

STATUS: Final = (
    "CASE "
    + " ".join(f"WHEN coalesce({rule}, false) THEN '{name}'" for name, rule in RULES)
    + " ELSE 'OK' END"
)
