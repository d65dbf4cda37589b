# SPDX-License-Identifier: Apache-2.0
"""What consumers report to administrators: rates per topic, options under Java's names, stacks.

Compatibility: the periods are those of the Java client's ConsumerStatsManager. Rates and response
times cover the last minute, failed messages the last hour; the response time of the listener covers
the last hour if the listener has not been called for a minute.
"""

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from cometmq.client.clock import ClockMs, monotonic_ms
from cometmq.client.settings import (
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    LitePullOptions,
    PushOptions,
)
from cometmq.remoting.bodies.running_info import ConsumeStatus
from cometmq.remoting.versions import CURRENT_VERSION, version_name

WINDOW_MS: Final = 60_000
HOUR_MS: Final = 60 * WINDOW_MS
SAMPLE_INTERVAL_S: Final = 5
"""Interval between calls that sample the rates; a sample is due every 10 s."""

_SAMPLE_COUNT: Final = 6
"""Samples per period, so a period begins up to a sixth of its length later than it should."""


class _Totals(msgspec.Struct, gc=False):
    at_ms: int
    ok_count: int = 0
    failed_count: int = 0
    elapsed_ms: int = 0
    call_count: int = 0
    pulled_count: int = 0
    pull_ms: int = 0
    pull_call_count: int = 0


class _Window:
    """Samples of one topic's counters from the last `period_ms`."""

    def __init__(self, period_ms: int, now_ms: int) -> None:
        self._sample_ms = period_ms // _SAMPLE_COUNT
        self._samples: deque[_Totals] = deque([_Totals(now_ms)], _SAMPLE_COUNT)

    @property
    def first(self) -> _Totals:
        return self._samples[0]

    def sample(self, totals: _Totals, now_ms: int) -> None:
        """Store the current counters if the last sample is old enough."""
        if now_ms - self._samples[-1].at_ms >= self._sample_ms:
            self._samples.append(msgspec.structs.replace(totals, at_ms=now_ms))


class TopicRate:
    """Counters of one topic, with samples from the last minute and the last hour."""

    def __init__(self, now_ms: int) -> None:
        self.totals = _Totals(now_ms)
        self._minute = _Window(WINDOW_MS, now_ms)
        self._hour = _Window(HOUR_MS, now_ms)

    def sample(self, now_ms: int) -> None:
        """Store the current counters if the last samples are old enough."""
        self._minute.sample(self.totals, now_ms)
        self._hour.sample(self.totals, now_ms)

    def status(self, now_ms: int) -> ConsumeStatus:
        """Return rates over the last minute, or since the consumer started if that is shorter."""
        first, last, hour = self._minute.first, self.totals, self._hour.first
        seconds = max(1, now_ms - first.at_ms) / 1000
        since = first if last.call_count > first.call_count else hour
        return ConsumeStatus(
            pull_tps=(last.pulled_count - first.pulled_count) / seconds,
            pull_rt=_mean(
                last.pull_ms - first.pull_ms, last.pull_call_count - first.pull_call_count
            ),
            consume_ok_tps=(last.ok_count - first.ok_count) / seconds,
            consume_failed_tps=(last.failed_count - first.failed_count) / seconds,
            consume_failed_msgs=last.failed_count - hour.failed_count,
            consume_rt=_mean(
                last.elapsed_ms - since.elapsed_ms, last.call_count - since.call_count
            ),
        )


def _mean(total: int, count: int) -> float:
    return total / count if count else 0.0


class ConsumeRates:
    """Counters of all topics of one consumer."""

    def __init__(self, clock_ms: ClockMs = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._topics: dict[str, TopicRate] = {}

    def note(self, topic: str, *, ok: int, failed: int, ms: int) -> None:
        totals = self._totals(topic)
        totals.ok_count += ok
        totals.failed_count += failed
        totals.elapsed_ms += ms
        totals.call_count += 1

    def note_pull(self, topic: str, *, count: int, ms: int) -> None:
        totals = self._totals(topic)
        totals.pulled_count += count
        totals.pull_ms += ms
        totals.pull_call_count += 1

    def _totals(self, topic: str) -> _Totals:
        rate = self._topics.get(topic)
        if rate is None:
            rate = self._topics[topic] = TopicRate(self._clock_ms())
        return rate.totals

    async def run(self) -> None:
        """Take samples every few seconds."""
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            self.sample()

    def sample(self) -> None:
        now_ms = self._clock_ms()
        for rate in self._topics.values():
            rate.sample(now_ms)

    def statuses(self, topics: Iterable[str] = ()) -> dict[str, ConsumeStatus]:
        """Return the rates by topic; those of `topics` without messages are 0."""
        now_ms = self._clock_ms()
        idle = {topic: ConsumeStatus() for topic in topics}
        return idle | {topic: rate.status(now_ms) for topic, rate in self._topics.items()}

    def counts(self) -> tuple[int, int]:
        """Return how many messages were consumed and how many failed, over all topics."""
        rates = self._topics.values()
        return sum(r.totals.ok_count for r in rates), sum(r.totals.failed_count for r in rates)


STACKS_COUNT_MAX: Final = 500
_MINUTE_MS: Final = 60_000
_MIB: Final = 1 << 20

_COMMON_NAMES: Final[Mapping[str, str]] = {
    "poll_namesrv_interval_ms": "pollNameServerInterval",
    "heartbeat_interval_ms": "heartbeatBrokerInterval",
    "persist_offset_interval_ms": "persistConsumerOffsetInterval",
    "api_timeout_ms": "mqClientApiTimeout",
    "instance_name": "instanceName",
    "namesrv": "namesrvAddr",
}
_PUSH_NAMES: Final[Mapping[str, str]] = {
    "pull_count_max": "pullBatchSize",
    "queue_count_max": "pullThresholdForQueue",
    "queue_span_max": "consumeConcurrentlyMaxSpan",
    "concurrency": "consumeThreadMax",
    "batch_count_max": "consumeMessageBatchMaxSize",
    "pull_interval_ms": "pullInterval",
    "max_reconsume_times": "maxReconsumeTimes",
    "suspend_queue_ms": "suspendCurrentQueueTimeMillis",
    "drain_ms": "awaitTerminationMillisWhenShutdown",
}
_LITE_NAMES: Final[Mapping[str, str]] = {
    "pull_count_max": "pullBatchSize",
    "queue_count_max": "pullThresholdForQueue",
    "queue_span_max": "consumeMaxSpan",
    "total_count_max": "pullThresholdForAll",
    "auto_commit_interval_ms": "autoCommitIntervalMillis",
    "poll_timeout_ms": "pollTimeoutMillis",
    "suspend_ms": "brokerSuspendMaxTimeMillis",
    "pull_timeout_ms": "consumerTimeoutMillisWhenSuspend",
}


def state_properties(
    namesrv_addresses: list[str], consume_type: str, *, begin_ms: int
) -> dict[str, str]:
    """Return the properties that every consumer reports in addition to its options."""
    return {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in namesrv_addresses),
        "PROP_CONSUME_TYPE": consume_type,
        "PROP_CONSUMER_START_TIMESTAMP": str(begin_ms),
        "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
    }


def option_properties(options: ClientOptions) -> dict[str, str]:
    """Return options under the names used by the Java client."""
    found = _renamed(options, _COMMON_NAMES)
    found |= {"vipChannelEnabled": _text(options.vip_channel), "useTLS": _text(options.tls.enable)}
    if isinstance(options, ConsumerOptions):
        found["messageModel"] = options.message_model.value
        found["consumeFromWhere"] = options.consume_from.value
        if options.consume_from is ConsumeFrom.TIMESTAMP and options.consume_timestamp_ms:
            moment = time.localtime(options.consume_timestamp_ms / 1000)
            found["consumeTimestamp"] = time.strftime("%Y%m%d%H%M%S", moment)
    if isinstance(options, PushOptions):
        found |= _renamed(options, _PUSH_NAMES) | {
            "PROP_CONSUMEORDERLY": _text(options.orderly),
            "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
            "consumeThreadMin": str(options.concurrency),
            "consumeTimeout": str(options.consume_timeout_ms // _MINUTE_MS),
            "pullThresholdSizeForQueue": str(options.queue_bytes_max // _MIB),
            "pullThresholdForTopic": str(options.topic_count_max or -1),
            "pullThresholdSizeForTopic": str(options.topic_bytes_max // _MIB or -1),
            "postSubscriptionWhenPull": _text(options.post_subscription_when_pull),
        }
    if isinstance(options, LitePullOptions):
        found |= _renamed(options, _LITE_NAMES)
        found["pullThresholdSizeForQueue"] = str(options.queue_bytes_max // _MIB)
        found["autoCommit"] = _text(options.auto_commit)
    return found


def stacks() -> str:
    """Return the current stacks of tasks and threads, in the format of jstack."""
    lines: list[str] = []
    for task in islice(asyncio.all_tasks(), STACKS_COUNT_MAX):
        lines.append(f'"{task.get_name()}" task')
        for frame in task.get_stack(limit=16):
            lines += traceback.format_list(traceback.extract_stack(frame, limit=1))
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001  # the documented way to the frames of other threads
    for ident, frame in islice(frames.items(), STACKS_COUNT_MAX):
        lines.append(f'"{names.get(ident, ident)}" thread')
        lines += traceback.format_stack(frame, limit=16)
    return "\n".join(line.rstrip("\n") for line in lines)


def _renamed(options: ClientOptions, names: Mapping[str, str]) -> dict[str, str]:
    return {java: str(getattr(options, own)) for own, java in names.items()}


def _text(is_set: bool) -> str:
    return "true" if is_set else "false"
