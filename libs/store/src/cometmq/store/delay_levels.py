# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's delay levels and their delays."""

from typing import Final, NamedTuple

UNKNOWN_LEVEL_DELAY_MS: Final = 1_000

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayLevels(NamedTuple):
    """The delays of levels 1, 2, ... in milliseconds."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "DelayLevels":
        """Parse a setting such as `1s 5m 2h`: one delay per level, separated by spaces."""
        return cls(tuple(int(word[:-1]) * _UNIT_MS[word[-1]] for word in text.split()))

    @property
    def level_max(self) -> int:
        """The highest level."""
        return len(self.delays_ms)

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level; unknown levels get one second, as in RocketMQ."""
        if 1 <= level <= len(self.delays_ms):
            return self.delays_ms[level - 1]
        return UNKNOWN_LEVEL_DELAY_MS
