# SPDX-License-Identifier: Apache-2.0
"""The native message path: plain sends of a commit, and plain pulls of a chunk, in one call."""

from cometmq.accel._native import (
    LaneAnswers,
    LaneKeys,
    PanicException,
    PullLane,
    SendLane,
    matches,
)

__all__ = ["LaneAnswers", "LaneKeys", "PanicException", "PullLane", "SendLane", "matches"]
