# SPDX-License-Identifier: Apache-2.0

import random
from pathlib import Path

import pytest

from cometmq.broker.handlers import HANDLERS
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.testing.broker import FakePeer, memory_broker
from cometmq.testing.broker.replay import frame_of, serve
from cometmq.testing.remoting.golden import load_exchanges

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"
CODES = frozenset({
    Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.CHECK_CLIENT_CONFIG, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ,
    Code.UPDATE_AND_CREATE_TOPIC, Code.DELETE_TOPIC_IN_BROKER, Code.GET_TOPIC_STATS_INFO,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.DELETE_SUBSCRIPTIONGROUP,
    Code.UPDATE_AND_CREATE_TOPIC_LIST, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Code.UPDATE_BROKER_CONFIG, Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_CONSUME_STATS,
})  # fmt: skip
WORDS = (b"null", b"-1", b"[]", b"{}", b"9223372036854775808", b"1e400", b'".."', b"true", b'""')
INPUTS = 3_000
HEAD_BYTES = 8


def damaged(frame: bytes, chance: random.Random) -> bytes:
    """Return the frame with a few bytes changed after its length fields, which remain correct."""
    changed = bytearray(frame)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(HEAD_BYTES, len(changed))
        kind = chance.random()
        if kind < 0.5:
            changed[at] = chance.randrange(256)
        elif kind < 0.75:
            changed[at : at + chance.randint(0, 6)] = chance.choice(WORDS)
        else:
            del changed[at : min(at + chance.randint(1, 5), len(changed) - 1)]
    changed[:4] = (len(changed) - 4).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("seed", range(3))
async def test_a_damaged_request_is_answered(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    frames = [
        exchange.request.data
        for exchange in load_exchanges(GOLDEN)
        if exchange.request.code in CODES
    ]
    broker, codec = memory_broker(storePathRootDir=str(tmp_path)), Codec(COMMANDS)
    served = 0
    for _ in range(INPUTS):
        connection = Connection(codec, FakePeer())
        try:
            calls = connection.receive(damaged(chance.choice(frames), chance), 0)
        except RemoteProtocolError:
            continue
        faulty = [fault.call for fault in connection.faults]
        for call in calls:
            if call.code in CODES and call not in faulty:
                frame_of(call, await serve(broker, call, HANDLERS[call.code]))
                served += 1
    assert served > INPUTS // 20
