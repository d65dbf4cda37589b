# SPDX-License-Identifier: Apache-2.0
"""Consume rates per topic, as reported to administrators."""

from collections import deque
from typing import Final

import msgspec

from cometmq.client.clock import ClockMs, monotonic_ms
from cometmq.remoting.bodies.running_info import ConsumeStatus

WINDOW_MS: Final = 60_000
_SAMPLE_MS: Final = 10_000


class _Totals(msgspec.Struct, gc=False):
    at_ms: int
    ok_count: int = 0
    failed_count: int = 0
    elapsed_ms: int = 0
    call_count: int = 0
    pulled_count: int = 0
    pull_ms: int = 0
    pull_call_count: int = 0


class TopicRate:
    """Counters of one topic, with samples from the last minute."""

    def __init__(self, now_ms: int) -> None:
        self.totals = _Totals(now_ms)
        self._samples: deque[_Totals] = deque([_Totals(now_ms)], WINDOW_MS // _SAMPLE_MS)

    def sample(self, now_ms: int) -> None:
        """Store the current counts if the last sample is old enough."""
        if now_ms - self._samples[-1].at_ms >= _SAMPLE_MS:
            self._samples.append(msgspec.structs.replace(self.totals, at_ms=now_ms))

    def status(self, now_ms: int) -> ConsumeStatus:
        """Return rates over the last minute, or since the consumer started if that is shorter."""
        first, last = self._samples[0], self.totals
        seconds = max(1, now_ms - first.at_ms) / 1000
        calls = last.call_count - first.call_count
        pulls = last.pull_call_count - first.pull_call_count
        return ConsumeStatus(
            pull_tps=(last.pulled_count - first.pulled_count) / seconds,
            pull_rt=(last.pull_ms - first.pull_ms) / pulls if pulls else 0.0,
            consume_ok_tps=(last.ok_count - first.ok_count) / seconds,
            consume_failed_tps=(last.failed_count - first.failed_count) / seconds,
            consume_failed_msgs=last.failed_count,
            consume_rt=(last.elapsed_ms - first.elapsed_ms) / calls if calls else 0.0,
        )


class ConsumeRates:
    """Counters of all topics of one consumer."""

    def __init__(self, clock_ms: ClockMs = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._topics: dict[str, TopicRate] = {}

    def note(self, topic: str, *, ok: int, failed: int, ms: int) -> None:
        """Count one call to the listener."""
        totals = self._totals(topic)
        totals.ok_count += ok
        totals.failed_count += failed
        totals.elapsed_ms += ms
        totals.call_count += 1

    def note_pull(self, topic: str, *, count: int, ms: int) -> None:
        """Count one pull that found messages."""
        totals = self._totals(topic)
        totals.pulled_count += count
        totals.pull_ms += ms
        totals.pull_call_count += 1

    def _totals(self, topic: str) -> _Totals:
        rate = self._topics.get(topic)
        if rate is None:
            rate = self._topics[topic] = TopicRate(self._clock_ms())
        return rate.totals

    def sample(self) -> None:
        """Take samples; called every few seconds."""
        now_ms = self._clock_ms()
        for rate in self._topics.values():
            rate.sample(now_ms)

    def statuses(self) -> dict[str, ConsumeStatus]:
        """Return the rates by topic."""
        now_ms = self._clock_ms()
        return {topic: rate.status(now_ms) for topic, rate in self._topics.items()}

    def counts(self) -> tuple[int, int]:
        """Return how many messages were consumed and how many failed, over all topics."""
        rates = self._topics.values()
        return sum(r.totals.ok_count for r in rates), sum(r.totals.failed_count for r in rates)
