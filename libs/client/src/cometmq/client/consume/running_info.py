# SPDX-License-Identifier: Apache-2.0
"""The state that consumers report to administrators: options under Java's names, and stacks."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from cometmq.client.settings import (
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    LitePullOptions,
    PushOptions,
)
from cometmq.remoting.versions import CURRENT_VERSION, version_name

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
    found = dict(_renamed(options, _COMMON_NAMES))
    found["vipChannelEnabled"] = _text(options.vip_channel)
    found["useTLS"] = _text(options.tls.enable)
    if isinstance(options, ConsumerOptions):
        found |= _consumer_properties(options)
    if isinstance(options, PushOptions):
        found |= _push_properties(options)
    if isinstance(options, LitePullOptions):
        found |= dict(_renamed(options, _LITE_NAMES))
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


def _consumer_properties(options: ConsumerOptions) -> dict[str, str]:
    found = {
        "messageModel": options.message_model.value,
        "consumeFromWhere": options.consume_from.value,
    }
    if options.consume_from is ConsumeFrom.TIMESTAMP and options.consume_timestamp_ms:
        moment = time.localtime(options.consume_timestamp_ms / 1000)
        found["consumeTimestamp"] = time.strftime("%Y%m%d%H%M%S", moment)
    return found


def _push_properties(options: PushOptions) -> dict[str, str]:
    return {
        **dict(_renamed(options, _PUSH_NAMES)),
        "PROP_CONSUMEORDERLY": _text(options.orderly),
        "PROP_THREADPOOL_CORE_SIZE": str(options.concurrency),
        "consumeThreadMin": str(options.concurrency),
        "consumeTimeout": str(options.consume_timeout_ms // _MINUTE_MS),
        "pullThresholdSizeForQueue": str(options.queue_bytes_max // _MIB),
        "pullThresholdForTopic": str(options.topic_count_max or -1),
        "pullThresholdSizeForTopic": str(options.topic_bytes_max // _MIB or -1),
        "postSubscriptionWhenPull": _text(options.post_subscription_when_pull),
    }


def _renamed(options: ClientOptions, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for own, java in names.items():
        yield java, str(getattr(options, own))


def _text(is_set: bool) -> str:
    return "true" if is_set else "false"
