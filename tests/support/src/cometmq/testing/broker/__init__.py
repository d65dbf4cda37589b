# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests: brokers in memory, in one process or in their own, groups of them, name
servers, captured exchanges, generated input.
"""

from cometmq.testing.broker.brokers import MemoryStore, memory_broker
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.replay import Answer, expected_answer, replay
from cometmq.testing.remoting.peer import FakePeer

__all__ = [
    "Answer",
    "FakePeer",
    "MemoryStore",
    "RecordingLog",
    "expected_answer",
    "memory_broker",
    "replay",
]
