# SPDX-License-Identifier: Apache-2.0
"""Messages with any delivery time (timed messages), by the properties of RocketMQ 5 (pure).

A timed message passes through delay levels. It is first stored in the longest level that is not
longer than the remaining time. When that level delivers it, the next level is chosen in the same
way, until its time has come. Each stay in a level is a hop. The property TIMER_OUT_MS has the
delivery time, DELAY the current level.

The last hop may be shorter than the shortest level: its queue entry has the delivery time as its
due time, which dispatch derives from TIMER_OUT_MS, too. Messages before it in the level may delay
it, by at most that level's delay; otherwise, it is up to BATCH_INTERVAL_MS late.

Compatibility: RocketMQ 5 rounds the time down to a second, so it delivers up to a second early.
Here, a message is never early. As in RocketMQ 5, a message with a delay level is not timed, and
neither is one with TIMER_OUT_MS, because it has been delivered before. RocketMQ 4.9 ends the delay
with the first level.
"""

from typing import Final, NamedTuple

from cometmq.broker import refusals
from cometmq.broker.messages import again
from cometmq.remoting.errors import MessageIllegal
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import (
    TIME_DIGITS_MAX,
    PropertyKey,
    append_property,
    parse_properties,
    timed_ms,
    without_property,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.delay_levels import DelayLevels

LEVELS_MAX: Final = 50
"""Maximum number of hops through the longest level, because each hop stores the message again."""
_OUT: Final = PropertyKey.TIMER_OUT_MS.value
_DELAY: Final = PropertyKey.DELAY.value
_DELIVER: Final = PropertyKey.TIMER_DELIVER_MS.value
_UNITS_MS: Final = {
    PropertyKey.TIMER_DELAY_SEC.value: 1_000,
    PropertyKey.TIMER_DELAY_MS.value: 1,
    _DELIVER: 1,
}
"""The properties with which a sender sets the time, by precedence, with their units."""
NAMES: Final = (*_UNITS_MS, _OUT)


class TimerRules(NamedTuple):
    """The settings that decide whether and how long a message waits."""

    levels: DelayLevels
    is_enabled: bool
    delay_s_max: int

    @property
    def delay_ms_max(self) -> int:
        """The longest time that a message may wait."""
        longest_ms = max(self.levels.delays_ms, default=0)
        return min(self.delay_s_max * 1_000, LEVELS_MAX * longest_ms)


def without_timer(text: str, rules: TimerRules) -> str:
    """Return the properties without those that set a time, for a message with a delay level."""
    for name in NAMES if rules.is_enabled else (_OUT,):
        text = without_property(text, name)
    return text


def requested_ms(text: str, rules: TimerRules, now_ms: int) -> int | None:
    """Return the time at which a sent message is to be delivered; None if that is now.

    Raise MessageIllegal for a value that is no number, and for a time that is too far away.
    """
    found = parse_properties(text)
    if not rules.is_enabled or _OUT in found:
        return None
    name = next((name for name in _UNITS_MS if name in found), None)
    if name is None:
        return None
    value = found[name]
    if not (value.isascii() and value.isdecimal() and len(value) <= TIME_DIGITS_MAX):
        raise MessageIllegal(refusals.timer_no_number(name, value, TIME_DIGITS_MAX))
    start_ms = 0 if name == _DELIVER else now_ms
    due_ms = start_ms + int(value) * _UNITS_MS[name]
    if due_ms - now_ms > rules.delay_ms_max:
        limits = {"delay_ms_max": rules.delay_ms_max, "levels_max": LEVELS_MAX}
        raise MessageIllegal(
            refusals.timer_too_far(name, value, delay_ms=due_ms - now_ms, **limits)
        )
    return due_ms if due_ms > now_ms else None


def hop(message: NewMessage, levels: DelayLevels, due_ms: int, now_ms: int) -> None:
    """Redirect a timed message to its next level; its properties already name its real queue."""
    level = levels.hop(due_ms - now_ms) or 1
    text = message.properties
    for name, value in ((_OUT, str(due_ms)), (_DELAY, str(level))):
        text = append_property(without_property(text, name), name, value)
    message.properties = text
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1
    message.tag_code = due_ms  # the queue's entry is due at the end of the level, or earlier


def next_hop(
    record: MessageRecord, levels: DelayLevels, now_ms: int, *, host: bytes
) -> NewMessage | None:
    """Return the message to store when a level delivers a timed one before its time."""
    due_ms = timed_ms(record.properties)
    if due_ms is None or due_ms <= now_ms:
        return None
    message = again(record, record.topic, record.queue_id, host=host)
    hop(message, levels, due_ms, now_ms)
    return message


def is_later_hop(copy: MessageRecord, record: MessageRecord) -> bool:
    """Return whether `copy` is a later hop of the timed message in `record`."""
    return (
        copy.physical_offset > record.physical_offset
        and copy.properties.get(_OUT) == record.properties.get(_OUT)
        and copy.reconsume_times == record.reconsume_times
        and copy.body == record.body
    )
