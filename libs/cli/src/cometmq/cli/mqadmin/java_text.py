# SPDX-License-Identifier: Apache-2.0
"""Texts in mqadmin's forms: times, messages, and the running state of members."""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from cometmq.cli.connecting import wrong_usage
from cometmq.cli.mqadmin.frame import local_time
from cometmq.cli.option_sets import opt
from cometmq.client.admin import MessageTrack
from cometmq.client.admin.broker_consumers import END
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import MessageExt, SendResult
from cometmq.insight import message_json, times
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo
from cometmq.remoting.integers import whole
from cometmq.remoting.message.properties import PropertyKey

FORMS: Final = "milliseconds since 1970, 2026-11-20#10:00:00:000 or 90m (ago)"

FIRST_MS_MAX: Final = 1_000  # a time in the first second of 1970 means the first message

Begin = Annotated[
    str | None, opt("-b", "--beginTimestamp", f"Only messages stored since this time: {FORMS}.")
]
End = Annotated[
    str | None, opt("-e", "--endTimestamp", f"Only messages stored before this time: {FORMS}.")
]


def parsed_moment(text: str) -> int:
    """Return a time; `now` and -1 stand for the END of a queue.

    Scripts that were written for mqadmin give 0 or 1 for the first message. Larger numbers before
    1973 are rejected, because they are seconds or offsets.
    """
    if text in {"now", "-1"}:
        return END
    number = whole(text)
    if number is not None and number < FIRST_MS_MAX:
        return 0
    try:
        return times.parsed(text, now_ms=wall_ms())
    except InvalidArgument as error:
        raise wrong_usage(str(error)) from error


def past_moment(text: str | None, option: str) -> int | None:
    """Return a time; refuse a time in the future."""
    if text is None:
        return None
    found = parsed_moment(text)
    if found > wall_ms():
        raise wrong_usage(f"{option}: {text} is in the future")
    return found


def word(value: object) -> str:
    """Return a value as Java writes it in a string."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def bracketed(name: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Return pairs as `Name [key=value, key=value]`."""
    return f"{name} [{', '.join(f'{key}={word(value)}' for key, value in pairs)}]"


def fields(value: msgspec.Struct, names: Iterable[str]) -> list[tuple[str, Any]]:
    """Return fields of a body under their wire names, in the given order."""
    info = {field.encode_name: field.name for field in msgspec.structs.fields(value)}
    return [(name, getattr(value, info[name])) for name in names]


def mapping(values: Mapping[str, object]) -> str:
    """Return a mapping as `{key=value, key=value}`."""
    return "{" + ", ".join(f"{key}={word(value)}" for key, value in values.items()) + "}"


def queue(place: MessageQueue) -> str:
    """Return a queue as `MessageQueue [topic=..., brokerName=..., queueId=...]`."""
    names = ("topic", "brokerName", "queueId")
    return bracketed("MessageQueue", fields(place, names))


def send_result(result: SendResult) -> str:
    """Return a result as `SendResult [...]`, with its queue and offset."""
    return bracketed(
        "SendResult",
        [
            ("sendStatus", result.status.name),
            ("msgId", result.message_id),
            ("offsetMsgId", result.offset_message_id),
            ("messageQueue", queue(result.queue)),
            ("queueOffset", result.queue_offset),
        ],
    )


def message(found: MessageExt) -> str:
    """Return a message as Java writes it, but without its body."""
    return bracketed(
        "MessageExt",
        [
            ("brokerName", found.queue.broker_name),
            ("queueId", found.queue.queue_id),
            ("queueOffset", found.queue_offset),
            ("sysFlag", found.sys_flag),
            ("bornTimestamp", found.born_timestamp),
            ("bornHost", f"/{found.born_host}"),
            ("storeTimestamp", found.store_timestamp),
            ("storeHost", f"/{found.store_host}"),
            ("msgId", found.offset_message_id),
            ("commitLogOffset", found.physical_offset),
            ("reconsumeTimes", found.reconsume_times),
            ("topic", found.topic),
            ("flag", found.flag),
            ("properties", mapping(found.properties)),
        ],
    )


def moment(timestamp_ms: int) -> str:
    """Return a time without separators, for example 20261120100000000."""
    text = local_time(timestamp_ms, with_ms=True)
    return "".join(letter for letter in text if letter.isdigit())


BODY_FOLDER: Final = Path("rocketmq", "msgbodys")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW

Found = Sequence[tuple[MessageExt, Sequence[MessageTrack]]]


def found_text(found: Found, *, with_id: bool = True) -> str:
    """Return messages with their consumption status; bodies are written to files."""
    counts: dict[str, int] = {}
    lines: list[str] = []
    for message, tracks in found:
        number = counts[message.message_id] = counts.get(message.message_id, -1) + 1
        facts = _facts(message, write_body(message, number))
        lines += [f"{name + ':':<20} {value}" for name, value in facts[0 if with_id else 1 :]]
        lines += ["\n", *map(_track, tracks)] if tracks else ["\n\nWARN: No Consumer"]
    return "\n".join(lines)


def write_body(message: MessageExt, number: int = 0) -> Path:
    """Write a body where mqadmin does: to the system's folder for temporary files.

    The producer chose the id, so characters that could escape the folder are replaced, and links
    are not followed.
    """
    name = _UNSAFE.sub("_", message.message_id)
    path = Path(tempfile.gettempdir(), BODY_FOLDER, f"{name}_{number}" if number else name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, _FLAGS, 0o600), "wb") as file:
            file.write(message.body)
    except OSError as error:
        raise ClientError(f"the body cannot be written: {error}") from error
    return path


def _facts(message: MessageExt, path: Path) -> list[tuple[str, Any]]:
    return [
        ("OffsetID", message.offset_message_id),
        ("Topic", message.topic),
        ("Tags", f"[{word(message.tag)}]"),
        ("Keys", f"[{word(message.properties.get(PropertyKey.KEYS))}]"),
        ("Queue ID", message.queue.queue_id),
        ("Queue Offset", message.queue_offset),
        ("CommitLog Offset", message.physical_offset),
        ("Reconsume Times", message.reconsume_times),
        ("Born Timestamp", local_time(message.born_timestamp, with_ms=True)),
        ("Store Timestamp", local_time(message.store_timestamp, with_ms=True)),
        ("Born Host", message.born_host),
        ("Store Host", message.store_host),
        ("System Flag", message.sys_flag),
        ("Properties", mapping(message.properties)),
        ("Message Body Path", path),
    ]


def _track(track: MessageTrack) -> str:
    pairs = [
        ("consumerGroup", track.consumer_group),
        ("trackType", track.track_type),
        ("exceptionDesc", track.exception_desc),
    ]
    return bracketed("MessageTrack", pairs)


def as_object(message: MessageExt) -> dict[str, Any]:
    """Return a message as JSON data."""
    found: dict[str, Any] = json.loads(message_json.render(message))
    return found


SETTLING_MS: Final = 120_000
"""Subscriptions of a group may differ for this long while a new version is rolled out."""
BLOCKED_MS: Final = 60_000

_QUEUE_FIELDS: Final = (
    "commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount",
    "cachedMsgSizeInMiB", "transactionMsgMinOffset", "transactionMsgMaxOffset",
    "transactionMsgCount", "locked", "tryUnlockTimes", "lastLockTimestamp", "droped",
    "lastPullTimestamp", "lastConsumeTimestamp",
)  # fmt: skip
_RATES_HEADING: Final = "%-64s  %14s %14s %14s %14s %18s %25s" % (  # noqa: UP031  # columns
    "#Topic", "#Pull RT", "#Pull TPS", "#Consume RT", "#ConsumeOK TPS", "#ConsumeFailed TPS",
    "#ConsumeFailedMsgsInHour",
)  # fmt: skip


def described(info: ConsumerRunningInfo) -> str:
    """Return the running state of a consumer as RocketMQ's `formatString` does."""
    sections = [
        ("#Consumer Properties#", [f"{k:<40}: {v}" for k, v in info.properties.items()]),
        ("#Consumer Subscription#", list(_subscriptions(info))),
        ("#Consumer Offset#", list(_offsets(info))),
        ("#Consumer MQ Detail#", list(_queues(info))),
        ("#Consumer RT&TPS#", list(_rates(info))),
    ]
    if info.jstack is not None:
        sections.append(("#Consumer jstack#", [info.jstack]))
    return "\n\n".join("\n".join((title, *lines, "")) for title, lines in sections)


def _subscriptions(info: ConsumerRunningInfo) -> Iterator[str]:
    for number, wanted in enumerate(info.subscription_set, 1):
        yield (
            f"{number:03} Topic: {wanted.topic:<40} "
            f"ClassFilter: {word(wanted.class_filter_mode):<8} "
            f"SubExpression: {wanted.sub_string}"
        )


def _place(queue: MessageQueue) -> str:
    return f"{queue.topic:<64}  {queue.broker_name:<32}  {queue.queue_id:<4}"


def _offsets(info: ConsumerRunningInfo) -> Iterator[str]:
    yield f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  #Consumer Offset"
    for queue, state in sorted(info.mq_table.items()):
        yield f"{_place(queue)}  {state.commit_offset}"


def _queues(info: ConsumerRunningInfo) -> Iterator[str]:
    yield f"{'#Topic':<64}  {'#Broker Name':<32}  {'#QID':<4}  #ProcessQueueInfo"
    for queue, state in sorted(info.mq_table.items()):
        pairs = [
            (name, moment(value) if name.endswith("Timestamp") else value)
            for name, value in fields(state, _QUEUE_FIELDS)
        ]
        yield f"{_place(queue)}  {bracketed('ProcessQueueInfo', pairs)}"


def _rates(info: ConsumerRunningInfo) -> Iterator[str]:
    yield _RATES_HEADING
    for topic, found in info.status_table.items():
        yield (
            f"{topic:<64}  {found.pull_rt:14.2f} {found.pull_tps:14.2f} {found.consume_rt:14.2f} "
            f"{found.consume_ok_tps:14.2f} {found.consume_failed_tps:18.2f} "
            f"{found.consume_failed_msgs:25}"
        )


# -- problems ---------------------------------------------------------------------------------


def is_same_subscription(infos: Mapping[str, ConsumerRunningInfo], *, now_ms: int) -> bool:
    """Return whether the members' subscriptions are equal, or may differ because of a rollout."""
    wanted = []
    for info in infos.values():
        started_ms = whole(info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")) or 0
        if not _is_push(info) or now_ms - started_ms <= SETTLING_MS:
            return True
        wanted.append({(s.topic, s.sub_string, s.expression_type) for s in info.subscription_set})
    return all(found and found == wanted[0] for found in wanted)


def troubles(client_id: str, info: ConsumerRunningInfo, *, now_ms: int) -> Iterator[str]:
    """Yield problems in the queues of a member: not locked, not released, blocked."""
    if not _is_push(info):
        return
    is_orderly = info.properties.get("PROP_CONSUMEORDERLY", "false") == "true"
    for place, state in sorted(info.mq_table.items()):
        trouble = _order_trouble(state, now_ms) if is_orderly else _trouble(state, now_ms)
        if trouble:
            yield f"{client_id} {queue(place)} {trouble}"


def _is_push(info: ConsumerRunningInfo) -> bool:
    return info.properties.get("PROP_CONSUME_TYPE") == "CONSUME_PASSIVELY"


def _order_trouble(state: ProcessQueueInfo, now_ms: int) -> str:
    if not state.locked:
        return f"can't lock for a while, {now_ms - state.last_lock_timestamp}ms"
    if state.droped and state.try_unlock_times > 0:
        return f"unlock {state.try_unlock_times} times, still failed"
    return ""


def _trouble(state: ProcessQueueInfo, now_ms: int) -> str:
    idle_ms = now_ms - state.last_consume_timestamp
    if idle_ms > BLOCKED_MS and state.cached_msg_count > 0:
        return f"can't consume for a while, maybe blocked, {idle_ms}ms"
    return ""
