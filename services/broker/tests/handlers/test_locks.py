# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import pytest

from cometmq.broker.handlers import locks
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.locks import LockBatch, LockBatchReply
from cometmq.testing.broker import expected_answer, memory_broker, replay
from cometmq.testing.broker.replay import answered_exchanges, name_of
from cometmq.testing.remoting.golden import Exchange

GOLDEN = Path(__file__).parents[4] / "tests" / "golden"


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "041-*"), ids=name_of)
async def test_captured_locks(exchange: Exchange) -> None:
    broker = memory_broker()
    expected = expected_answer(exchange)
    asked = decode_json(LockBatch, (exchange.request.body_text or "").encode())
    granted = decode_json(LockBatchReply, expected.body).lock_ok_mq_set
    held = [queue for queue in asked.mq_set if queue not in granted]
    broker.clients.locks.lock(asked.consumer_group, "another client", held, now_ms=0)

    answer = await replay(broker, exchange, locks.lock_batch_mq)

    assert (answer.code, answer.remark, answer.ext) == (0, expected.remark, expected.ext)
    assert json.loads(answer.body) == json.loads(expected.body)


@pytest.mark.parametrize("exchange", answered_exchanges(GOLDEN, "042-*"), ids=name_of)
async def test_captured_unlocks(exchange: Exchange) -> None:
    broker = memory_broker()
    asked = decode_json(LockBatch, (exchange.request.body_text or "").encode())
    broker.clients.locks.lock(asked.consumer_group, asked.client_id, asked.mq_set, now_ms=0)

    assert await replay(broker, exchange, locks.unlock_batch_mq) == expected_answer(exchange)

    assert broker.clients.locks.count == 0
