# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests: brokers in memory, in one process or in their own, groups of them, name
servers, captured exchanges, generated input.
"""

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
