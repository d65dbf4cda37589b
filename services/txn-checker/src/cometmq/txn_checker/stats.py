# SPDX-License-Identifier: Apache-2.0
"""Counters for one followed broker."""


class FollowerStats:
    def __init__(self) -> None:
        self.asked_count = 0
        self.unasked_count = 0
        self.aside_count = 0
        self.gone_count = 0
        self.round_count = 0
        self.failed_count = 0
        self.refused_count = 0
        self.half_behind = 0
        self.op_behind = 0
        self.is_following = False
