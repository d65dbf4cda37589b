# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.consume.queues.reader import ProcessQueue
from cometmq.client.message import MessageExt
from cometmq.testing.client.messages import QUEUE, message_ext


def message(offset: int, body: bytes = b"xy") -> MessageExt:
    return message_ext(offset, body)


def test_held_messages_are_not_added_twice() -> None:
    held = ProcessQueue(QUEUE, 0)
    held.put([message(5), message(6)], 7)
    assert held.put([message(4), message(5)], 7) == [message(4)]
    assert (held.committable, held.span, held.body_bytes) == (4, 2, 6)


def test_late_messages_are_a_prefix_of_the_started_ones() -> None:
    held = ProcessQueue(QUEUE, 0)
    messages = [message(offset) for offset in range(4)]
    held.put(messages, 4)
    held.start(messages[:2], now_ms=100)
    held.start(messages[3:], now_ms=100)
    assert held.late(started_before_ms=99, count_max=16) == []
    assert held.late(started_before_ms=100, count_max=16) == messages[:2]
    assert held.late(started_before_ms=100, count_max=1) == messages[:1]


def test_running_info_shows_the_held_messages() -> None:
    held = ProcessQueue(QUEUE, 0)
    held.put([message(3, bytes(1 << 20)), message(8)], 9)
    info = held.info(committed=2)
    assert (info.cached_msg_count, info.cached_msg_min_offset, info.cached_msg_max_offset) == (
        2,
        3,
        8,
    )
    assert (info.cached_msg_size_in_mib, info.commit_offset) == (1, 2)


@given(st.permutations(range(12)))
def test_the_offset_is_that_of_the_first_unfinished_message(
    order: list[int],
) -> None:
    held = ProcessQueue(QUEUE, 0)
    held.put([message(offset) for offset in range(12)], 12)
    unfinished = set(range(12))
    for offset in order:
        unfinished.discard(offset)
        assert held.remove([message(offset)]) == min(unfinished, default=12)
