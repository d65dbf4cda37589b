# SPDX-License-Identifier: Apache-2.0
"""The native message path: plain sends of a commit, plain pulls of a chunk, or the plain records of
a range of the log, in one call.
"""

from cometmq.accel._native import (
    LaneAnswers,
    LaneKeys,
    PanicException,
    PullLane,
    SendLane,
    follow_headers,
    matches,
    read_range,
)

__all__ = [
    "LaneAnswers",
    "LaneKeys",
    "PanicException",
    "PullLane",
    "SendLane",
    "follow_headers",
    "matches",
    "read_range",
]
