# SPDX-License-Identifier: Apache-2.0
"""Comparisons of events detect losses, corruption and refusals."""

import pytest

from cometmq.peers.content import by_queue, received, sent
from cometmq.peers.errors import PeerError


def test_two_contents_under_one_key_are_noticed() -> None:
    events: list[dict[str, object]] = [
        {"event": "received", "key": "k", "sha256": "aa"},
        {"event": "received", "key": "k", "sha256": "bb"},
    ]

    with pytest.raises(PeerError, match="two contents"):
        received(events)


def test_a_refused_send_is_noticed() -> None:
    events: list[dict[str, object]] = [
        {"event": "sent", "key": "k", "sha256": "aa", "status": "FLUSH_DISK_TIMEOUT"}
    ]

    with pytest.raises(PeerError, match="not accepted"):
        sent(events)


def test_deliveries_are_grouped_by_queue_in_their_order() -> None:
    events: list[dict[str, object]] = [
        {"event": "started"},
        {"event": "received", "broker": "a", "queue_id": 1, "queue_offset": 0},
        {"event": "received", "broker": "a", "queue_id": 0, "queue_offset": 5},
        {"event": "refused", "broker": "a", "queue_id": 1, "queue_offset": 1},
        {"event": "received", "broker": "a", "queue_id": 1, "queue_offset": 1},
    ]

    offsets = {
        queue: [event["queue_offset"] for event in deliveries]
        for queue, deliveries in by_queue(events).items()
    }
    assert offsets == {("a", 1): [0, 1], ("a", 0): [5]}
