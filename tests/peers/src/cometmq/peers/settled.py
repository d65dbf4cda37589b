# SPDX-License-Identifier: Apache-2.0
"""Waits for work that servers do after they answer, such as dispatching and saving offsets.

A Java broker dispatches a message to its queue and to the index some time after it has answered the
send. It also serves request codes on different threads: an offset that a leaving client commits
without waiting for an answer may be stored only after the client's next request is served.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from cometmq.peers.cluster import Cluster
from cometmq.peers.errors import PeerError
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call

SETTLE_TIMEOUT_S: Final = 120.0
QUEUE_COUNT: Final = 4
QUERY_CONSUMER_OFFSET: Final = 14
GET_BROKER_RUNTIME_INFO: Final = 28
GET_MAX_OFFSET: Final = 30
_T = TypeVar("_T")


def wait_for_dispatch(cluster: Cluster) -> None:
    """Wait until all stored messages are in their queues and in the index."""
    wait_until(
        lambda: all(_bytes_behind(address) == 0 for address in cluster.broker_addrs),
        SETTLE_TIMEOUT_S,
        "everything dispatched",
    )


def _bytes_behind(address: str) -> int:
    """Return the undispatched bytes of the log; a Java broker needs some seconds to report them."""
    answer = call(address, GET_BROKER_RUNTIME_INFO)
    return int(json.loads(answer.body)["table"]["dispatchBehindBytes"]) if answer.code == 0 else -1


def committed(
    cluster: Cluster, topic: str, group: str, *, queue_count: int = QUEUE_COUNT
) -> list[int]:
    """Return a group's offset in each queue of a topic, or -1 where it has none."""
    answers = [
        call(
            cluster.broker_addrs[0],
            QUERY_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)},
        )
        for queue_id in range(queue_count)
    ]
    return [int(answer.fields.get("offset", -1)) for answer in answers]


def wait_for_offsets(
    cluster: Cluster, topic: str, group: str, total: int, *, queue_count: int = QUEUE_COUNT
) -> None:
    """Wait until a group's offsets in a topic add up to `total`; its queues must begin at 0."""
    wait_until(
        lambda: sum(committed(cluster, topic, group, queue_count=queue_count)) == total,
        SETTLE_TIMEOUT_S,
        f"{group} has stored that it consumed {total} of {topic}",
    )


def wait_for_messages(cluster: Cluster, topic: str, total: int, *, queue_count: int) -> None:
    """Wait until the queues of a topic hold `total` messages."""

    def held() -> int:
        queues = ({"topic": topic, "queueId": str(number)} for number in range(queue_count))
        answers = [call(cluster.broker_addrs[0], GET_MAX_OFFSET, queue) for queue in queues]
        return sum(int(answer.fields.get("offset", 0)) for answer in answers)

    wait_until(lambda: held() >= total, SETTLE_TIMEOUT_S, f"{total} messages in {topic}")


def agreed(first: Callable[[], _T], second: Callable[[], _T]) -> _T:
    """Poll two sources until they agree; return the value.

    The state that both report, such as connections, may change between the two calls.
    """
    answers: list[_T] = []

    def is_same() -> bool:
        answers[:] = [first(), second()]
        return answers[0] == answers[1]

    with contextlib.suppress(PeerError):
        wait_until(is_same, SETTLE_TIMEOUT_S, "agreed")
    if answers[0] != answers[1]:
        raise PeerError(f"no agreement:\n{answers[0]!r}\n{answers[1]!r}")
    return answers[0]


def text_of(path: Path) -> str:
    """Return the text of a file that may be replaced at any time; empty if it is missing."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return ""
