# SPDX-License-Identifier: Apache-2.0
"""Version ordinals of RocketMQ, and the feature gates that depend on them.

A version is an ordinal of Java's `MQVersion.Version`, which has two per release (snapshot,
release). Each gate is the first version whose peers behave differently.
"""

from collections.abc import Iterator
from typing import Final

V3_0_11: Final = 37
V3_4_9: Final = 121
V4_9_4: Final = 401
V5_0_0: Final = 413
V5_3_3: Final = 479
HIGHER_VERSION: Final = 612

CURRENT_VERSION: Final = V4_9_4
"""The version that CometMQ sends; clients send SQL filters only to brokers with 232 or later."""

RESET_OFFSET_MIN: Final = 28
"""The first client that resets its offsets when a broker asks (220)."""

CLIENT_CALLS_MIN: Final = 62
"""The first client that answers questions about its state (307) and consumes one message on request
(309)."""

REQUEST_MAX_RECONSUME_MIN: Final = V3_4_9
"""The first consumer whose own maxReconsumeTimes is honoured when it sends a message back (36)."""

SQL_FILTER_MIN: Final = 232
"""The first broker to which clients send SQL92 subscriptions."""

STANDARD_JSON_ROUTE_MIN: Final = V4_9_4
"""The first client that asks for routes (105) in standard JSON, which CometMQ always sends."""

ACTING_MASTER_ROUTE_MIN: Final = V5_0_0
"""The first client that finds `enableActingMaster` in its routes (105)."""

PULL_OFFSET_MIN: Final = V5_0_0
"""The first tool that shows messages in flight, from a group's progress (208)."""


_FIRST_NAMES: Final = (
    "SNAPSHOT", "ALPHA1", "BETA1", "BETA2", "BETA3", "BETA4", "BETA5", "BETA6_SNAPSHOT", "BETA6",
    "BETA7_SNAPSHOT", "BETA7", "BETA8_SNAPSHOT", "BETA8", "BETA9_SNAPSHOT", "BETA9", "FINAL",
)  # fmt: skip
"""The names of 3.0.0, which predate the pattern of two ordinals per release."""


def version_name(ordinal: int) -> str:
    """Return the name of a version as Java's tools show it, for example `V4_9_4`."""
    return _NAMES[max(0, min(ordinal, HIGHER_VERSION))]


def _releases() -> Iterator[str]:
    for patch in range(1, 16):
        yield f"V3_0_{patch}"
    for minor in range(1, 10):
        for patch in range(0 if minor < 3 else 1, 10):
            yield f"V3_{minor}_{patch}"
    for number in range(400, 600):
        yield f"V{number // 100}_{number // 10 % 10}_{number % 10}"


_NAMES: Final = (
    *(f"V3_0_0_{name}" for name in _FIRST_NAMES),
    *(name for release in _releases() for name in (f"{release}_SNAPSHOT", release)),
    "HIGHER_VERSION",
)
