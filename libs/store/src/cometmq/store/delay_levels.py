# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's delay levels and their delays."""

from typing import Final, NamedTuple

UNKNOWN_LEVEL_DELAY_MS: Final = 1_000

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayLevels(NamedTuple):
    """The delays of levels 1, 2 and so on, in milliseconds."""

    delays_ms: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "DelayLevels":
        """Parse a setting such as `1s 5m 2h`: one delay per level, separated by spaces."""
        return cls(tuple(int(word[:-1]) * _UNIT_MS[word[-1]] for word in text.split()))

    @property
    def level_max(self) -> int:
        """The highest level; 0 if there are no levels."""
        return len(self.delays_ms)

    @property
    def numbers(self) -> range:
        """The valid levels: 1 to `level_max`."""
        return range(1, self.level_max + 1)

    def clamp(self, level: int) -> int:
        """Return the requested level, but at most the highest one."""
        return min(level, self.level_max)

    def hop(self, left_ms: int) -> int | None:
        """Return the level for the next wait of a message that must wait `left_ms` in all: the one
        with the longest delay up to `left_ms`, or else the shortest delay. None if no level has a
        delay.
        """
        found: int | None = None
        for level, delay_ms in enumerate(self.delays_ms, 1):
            if delay_ms <= 0:
                continue
            best_ms = 0 if found is None else self.delays_ms[found - 1]
            is_better = delay_ms < best_ms if best_ms > left_ms else best_ms < delay_ms <= left_ms
            if found is None or is_better:
                found = level
        return found

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level; unknown levels get one second, as in RocketMQ."""
        if 1 <= level <= len(self.delays_ms):
            return self.delays_ms[level - 1]
        return UNKNOWN_LEVEL_DELAY_MS
