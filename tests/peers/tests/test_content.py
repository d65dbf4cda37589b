# SPDX-License-Identifier: Apache-2.0
"""Comparisons of events detect losses, corruption and refusals."""

import pytest

from cometmq.peers.content import received, sent
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
