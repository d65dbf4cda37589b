# SPDX-License-Identifier: Apache-2.0
"""Version ordinals of RocketMQ and the gates that depend on them.

A release is an ordinal of Java's ``MQVersion.Version``: two per release (snapshot, release).
The gates name the first version whose peers behave differently.
"""

from typing import Final

V3_0_11: Final = 37
V3_4_9: Final = 121
V4_9_4: Final = 401
V5_0_0: Final = 413
V5_3_3: Final = 479
HIGHER_VERSION: Final = 612

CURRENT_VERSION: Final = V4_9_4
"""What our frames say: clients accept SQL filters from brokers of 232 and later only."""

RESET_OFFSET_MIN: Final = 28
"""A client that a broker may ask (220) to reset its offsets."""

REGISTER_WITH_FILTER_SERVERS_MIN: Final = 37
"""A broker whose registration body (103) wraps topics and filter servers; older: topics only."""

CLIENT_CALLS_MIN: Final = 62
"""A client that may be asked for its state (307) and to consume one message (309)."""

REQUEST_MAX_RECONSUME_MIN: Final = V3_4_9
"""A consumer whose own maxReconsumeTimes is honoured when it sends a message back (36)."""

SQL_FILTER_MIN: Final = 232
"""A broker that clients send SQL92 subscriptions to."""

STANDARD_JSON_ROUTE_MIN: Final = V4_9_4
"""A client that asks for routes (105) in standard JSON; ours are always standard."""
