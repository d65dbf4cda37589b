# SPDX-License-Identifier: Apache-2.0
"""Counts the messages that wait in each delay level, and in levels that are not delivered.

Recalled messages do not count.
"""

from collections.abc import Mapping

from cometmq.broker.delays.positions import Positions
from cometmq.remoting.log import Log
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.remoting.progress import waiting
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.message_store import MessageStore


class Waiting:
    """The waiting messages of all levels that have ever been used."""

    def __init__(
        self, store: MessageStore, levels: DelayLevels, positions: Positions, log: Log
    ) -> None:
        self._store = store
        self._levels = levels
        self._positions = positions
        self._log = log

    def counts(self) -> Mapping[int, int]:
        """Return the number of waiting messages in each level that has been used."""
        found = {}
        recalled = self._positions.recalled
        for number, level in self._positions.levels.items():
            queue = self._store.reader.queue(SCHEDULE_TOPIC, number - 1)
            if queue is not None:
                ends = queue.min_offset, queue.max_offset
                found[number] = waiting(level.offset, *ends, recalled.offsets(number))
        return found

    def stranded(self) -> Mapping[int, int]:
        """Return the number of messages in each level that the settings lack; these messages are
        not delivered.
        """
        served = self._levels.level_max
        return {n: count for n, count in self.counts().items() if count and not 1 <= n <= served}

    def report_stranded(self) -> None:
        """Warn of each level that has messages but is missing in the settings."""
        for number, count in self.stranded().items():
            self._log.warning(
                "delay.level_missing",
                delay_level=number,  # `level` is the severity of a line
                messages=count,
                level_max=self._levels.level_max,
                action="add the level to messageDelayLevel again",
            )
