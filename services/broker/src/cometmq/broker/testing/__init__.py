# SPDX-License-Identifier: Apache-2.0
"""Helpers for handler tests: peers without sockets, a broker in memory, captured exchanges."""

from cometmq.broker.testing.brokers import MemoryStore, memory_broker
from cometmq.broker.testing.logs import RecordingLog
from cometmq.broker.testing.replay import Answer, expected_answer, replay
from cometmq.remoting.testing.peer import FakePeer

__all__ = [
    "Answer",
    "FakePeer",
    "MemoryStore",
    "RecordingLog",
    "expected_answer",
    "memory_broker",
    "replay",
]
