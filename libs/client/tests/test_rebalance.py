# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from cometmq.client.consume.queues.rebalance import (
    AllocateAveragely,
    AllocateByCircle,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocateStrategy,
)
from cometmq.remoting.bodies.queues import MessageQueue

GOLDEN = Path(__file__).parents[3] / "tests/golden/client/allocations.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))
STRATEGIES: list[tuple[str, AllocateStrategy]] = [
    ("AVG", AllocateAveragely()),
    ("AVG_BY_CIRCLE", AllocateByCircle()),
    ("CONSISTENT_HASH", AllocateByConsistentHash()),
    ("MACHINE_ROOM", AllocateByMachineRoom(["r1", "r2"])),
    (
        "MACHINE_ROOM_NEARBY",
        AllocateMachineRoomNearby(
            AllocateAveragely(),
            broker_room=lambda queue: queue.broker_name.split("@")[0],
            consumer_room=lambda client_id: client_id.rpartition("-")[2],
        ),
    ),
]


def queues_of(rows: list[list[object]]) -> list[MessageQueue]:
    return [MessageQueue("T", str(name), int(str(queue_id))) for name, queue_id in rows]


@pytest.mark.parametrize(("name", "strategy"), STRATEGIES, ids=[name for name, _ in STRATEGIES])
def test_a_strategy_divides_as_java_does(name: str, strategy: AllocateStrategy) -> None:
    assert CASES
    for case in CASES:
        queues, client_ids = queues_of(case["queues"]), case["clientIds"]
        for client_id, expected in zip(client_ids, case["allocations"][name], strict=True):
            mine = strategy.allocate(client_id, queues, client_ids)
            assert sorted(mine) == sorted(queues_of(expected))


@pytest.mark.parametrize(("name", "strategy"), STRATEGIES, ids=[name for name, _ in STRATEGIES])
def test_a_stranger_gets_nothing(name: str, strategy: AllocateStrategy) -> None:
    queues = [MessageQueue("T", "r1@a", queue_id) for queue_id in range(4)]
    assert strategy.allocate("stranger-r1", queues, ["one-r1", "two-r1"]) == []
