# SPDX-License-Identifier: Apache-2.0
"""The native message path: plain sends of a whole commit in one call."""

from cometmq.accel._native import LaneAnswers, LaneKeys, PanicException, SendLane

__all__ = ["LaneAnswers", "LaneKeys", "PanicException", "SendLane"]
