# SPDX-License-Identifier: Apache-2.0
"""Extracts the parts of client programs' events that tests compare."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from cometmq.peers.errors import PeerError
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call

Event: TypeAlias = Mapping[str, Any]
UPDATE_AND_CREATE_TOPIC: Final = 17
GET_ROUTEINFO_BY_TOPIC: Final = 105
ROUTE_TIMEOUT_S: Final = 120.0


def named(events: Iterable[Event], name: str) -> list[Event]:
    return [event for event in events if event["event"] == name]


def contents(events: Iterable[Event]) -> dict[str, str]:
    """Return the SHA-256 of each body by message key; raise an error if a key has two bodies."""
    table: dict[str, str] = {}
    for event in events:
        key, digest = event["key"], event["sha256"]
        if table.setdefault(key, digest) != digest:
            raise PeerError(f"two contents under the key {key}")
    return table


def received(events: Iterable[Event]) -> dict[str, str]:
    """Return the `contents` of the messages that a consumer has accepted."""
    return contents(named(events, "received"))


def sent(events: Iterable[Event]) -> dict[str, str]:
    """Return the `contents` of a producer's messages; raise an error unless all were accepted."""
    accepted = named(events, "sent")
    refused = [event for event in accepted if event.get("status", "SEND_OK") != "SEND_OK"]
    if refused:
        raise PeerError(f"not accepted: {refused[:3]}")
    return contents(accepted)


def by_queue(events: Iterable[Event]) -> dict[tuple[str | None, int], list[Event]]:
    queues: dict[tuple[str | None, int], list[Event]] = {}
    for event in named(events, "received"):
        queues.setdefault((event.get("broker"), int(event["queue_id"])), []).append(event)
    return queues


def create_topic(
    namesrv_addr: str, broker_addrs: Iterable[str], topic: str, *, queue_count: int = 4
) -> None:
    """Create a topic on every broker and wait until its route is known."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    for address in broker_addrs:
        answer = call(address, UPDATE_AND_CREATE_TOPIC, fields)
        if answer.code != 0:
            raise PeerError(f"{address} refuses topic {topic}: {answer.code} {answer.remark}")
    wait_until(
        lambda: call(namesrv_addr, GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0,
        ROUTE_TIMEOUT_S,
        f"route of {topic}",
    )
