# SPDX-License-Identifier: Apache-2.0
"""Answers of brokers, made by hand."""

import msgspec

from cometmq.insight.asking import BrokerAnswers, MasterAnswers, Queue
from cometmq.insight.building import build
from cometmq.insight.history import History, Place
from cometmq.insight.model import Since, Trouble, Unreachable
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.offsets import DelayOffsetTable
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig

NOW_MS = 1_800_000_000_000


def master(
    *, topics=None, groups=(), offsets=None, queues=None, consumers=None, runtime=None, **more
):
    """Return the answers of a master; a topic has one queue with the messages 10 to 50."""
    topics = {"T": TopicConfig(topic_name="T", read_queue_nums=1)} if topics is None else topics
    given = MasterAnswers(
        topics=topics,
        groups={name: SubscriptionGroupConfig(group_name=name) for name in groups},
        offsets=offsets or {},
        delays=more.pop("delays", DelayOffsetTable()),
        producers=more.pop("producers", {}),
        queues={"T": {0: Queue(10, 50, NOW_MS - 5_000)}} if queues is None else queues,
        consumers=dict.fromkeys(groups) | (consumers or {}),
    )
    return BrokerAnswers(runtime or {}, more.pop("settings", {}), given)


def telling(answers, **facts):
    """Return a master's answers with some of their fields replaced."""
    return msgspec.structs.replace(answers, master=msgspec.structs.replace(answers.master, **facts))


def slave(**runtime):
    return BrokerAnswers(runtime, {}, None)


def silent(trouble=Trouble.DOWN):
    return Unreachable(trouble, "connect to 127.0.0.1:1: refused", Since(NOW_MS - 60_000))


def members(*clients, model="CLUSTERING"):
    found = [Connection(f"10.0.0.1:{at}", name) for at, name in enumerate(clients)]
    return ConsumerConnections(found, message_model=model)


def seen(*outcomes, history=None, now_ms=NOW_MS, jump_ms=0):
    """Return a snapshot of these answers: `(name, id, answers)` or just the answers of masters."""
    placed = [
        it if isinstance(it, tuple) else (f"broker-{'abc'[at]}", 0, it)
        for at, it in enumerate(outcomes)
    ]
    history = history or History()
    history.began(now_ms, now_ms - jump_ms)
    return build(
        "127.0.0.1:9876",
        [
            (Place("DefaultCluster", name, number, f"10.1.0.{number}:{at}"), it)
            for at, (name, number, it) in enumerate(placed)
        ],
        history,
        now_ms=now_ms,
        took_ms=1,
    )
