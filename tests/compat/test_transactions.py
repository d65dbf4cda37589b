# SPDX-License-Identifier: Apache-2.0
"""Transactional messages: the same script has the same outcome with both servers.

Java's broker checks transactions itself; CometMQ's broker relies on a separate txn-checker. A
producer answers according to a plan (see Transact.java), for example `unknown>commit`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq import client
from cometmq.client import Message, MessageExt, TransactionOptions, TransactionState
from cometmq.client.sync import AdminClient, TransactionProducer
from cometmq.client.trace import EndTransaction, decode_trace
from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram, Running
from cometmq.peers.cluster import Cluster, Layout
from cometmq.peers.content import create_topic, named
from cometmq.peers.processes import wait_until
from cometmq.remoting.names import TRACE_TOPIC

pytestmark = [pytest.mark.compat, pytest.mark.first, pytest.mark.timeout(900)]

QUICK = {
    "transactionTimeOut": 2_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 3,
}
PATIENT = {**QUICK, "transactionCheckMax": 15}
ENDLESS = {**QUICK, "transactionCheckMax": 100}
"""RocketMQ also counts rounds in which no producer is connected, and a producer may start late."""
NEVER = {**QUICK, "transactionTimeOut": 600_000}
ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"
OUTCOME_TIMEOUT_S = 120
BOTH = pytest.mark.parametrize("name", ["comet", pytest.param("java", marks=pytest.mark.slow)])
PAIRS = pytest.mark.parametrize(("writer", "reader"), [("comet", "java"), ("java", "comet")])
ENDS = {"clean stop": Cluster.stop, "kill -9": Cluster.kill}

PLANS = {
    "commit": (True, 0),
    "rollback": (False, 0),
    "unknown>commit": (True, 1),
    "unknown>rollback": (False, 1),
    "unknown>unknown>commit": (True, 2),
    "none>rollback": (False, 1),
    "exception>commit": (True, 1),
    "unknown>exception>commit": (True, 2),
    "unknown": (False, 3),
}
"""The result of each plan: whether its message is delivered, and the number of checks."""

STATES = {
    "commit": "COMMIT_MESSAGE",
    "rollback": "ROLLBACK_MESSAGE",
    "unknown": "UNKNOW",
    "none": "UNKNOW",
    "exception": "UNKNOW",
}


class Bench:
    """One cluster, with operations on its transactions."""

    def __init__(self, cluster: Cluster, java: ClientProgram) -> None:
        self.cluster = cluster
        self._java = java

    def topic(self, name: str) -> str:
        create_topic(self.cluster.namesrv_addr, self.cluster.broker_addrs, name)
        return name

    def producer(self, group: str, topic: str, plans: list[str], **options: object) -> Running:
        return self._java.start(
            "transact",
            namesrv=self.cluster.namesrv_addr,
            group=group,
            topic=topic,
            plans=",".join(plans),
            key=topic,
            stay_s=900,
            **options,
        )

    def keys(self, topic: str, stem: str | None = None) -> set[str]:
        """Return the keys of a topic's messages that begin with `stem` (default: the topic)."""
        with AdminClient(self.cluster.namesrv_addr) as admin:
            keys = admin.call(lambda admin: _keys(admin, topic))
        return {key for key in keys if key.rpartition("-")[0] == (stem or topic)}

    def wait_for(self, topic: str, keys: set[str], stem: str | None = None) -> None:
        """Wait until these messages are stored."""
        wait_until(lambda: self.keys(topic, stem) >= keys, OUTCOME_TIMEOUT_S, f"{keys} in {topic}")

    def ends(self, message_id: str) -> list[EndTransaction]:
        """Return a transaction's recorded outcomes, in order, from the traces of its message."""
        with AdminClient(self.cluster.namesrv_addr) as admin:
            messages = admin.call(lambda admin: admin.query_by_key(TRACE_TOPIC, message_id))
        records = [record for message in messages for record in decode_trace(message.body)]
        found = [record for record in records if isinstance(record, EndTransaction)]
        return sorted(
            (record for record in found if record.message_id == message_id),
            key=lambda record: record.timestamp,
        )

    def assert_consumed(self, topic: str, keys: set[str]) -> None:
        assert self.keys(topic) == keys
        group = f"{topic}Readers"
        events = self._java.run(
            "consume",
            namesrv=self.cluster.namesrv_addr,
            topic=topic,
            group=group,
            count=len(keys),
        )
        assert {event["key"] for event in named(events, "received")} == keys


async def _keys(admin: client.AdminClient, topic: str) -> list[str]:
    if await admin.namesrv.route(topic) is None:
        return []
    return [
        message.keys[0]
        for queue in await admin.queues(topic)
        async for pulled in admin.read(queue, 0, await admin.max_offset(queue))
        for message in pulled.messages
    ]


@pytest.fixture(scope="module")
def bench_of(
    tmp_path_factory: pytest.TempPathFactory,
    maker: Callable[[str], type[Cluster]],
    java: ClientProgram,
) -> Iterator[Callable[[str], Bench]]:
    benches: dict[str, Bench] = {}

    def bench_of(name: str) -> Bench:
        if name not in benches:
            folder = tmp_path_factory.mktemp(f"transactions-{name}")
            cluster = stack.enter_context(maker(name)(folder, transaction_conf=QUICK))
            benches[name] = Bench(cluster, java)
        return benches[name]

    with ExitStack() as stack:
        yield bench_of


def _key(topic: str, number: int) -> str:
    return f"{topic}-{number}"


def _delivered(topic: str, plans: list[str]) -> set[str]:
    return {_key(topic, n) for n, plan in enumerate(plans) if PLANS[plan][0]}


def _asked(topic: str, plans: list[str]) -> dict[str, int]:
    return {_key(topic, n): PLANS[plan][1] for n, plan in enumerate(plans) if PLANS[plan][1]}


@BOTH
def test_transactions_end_as_their_producer_says(
    bench_of: Callable[[str], Bench], fresh_name: Callable[[str], str], name: str
) -> None:
    bench = bench_of(name)
    topic = bench.topic(fresh_name("TxPlans"))
    plans = list(PLANS)
    unknown = _key(topic, plans.index("unknown"))
    with bench.producer(f"{topic}Group", topic, plans) as producer:
        producer.wait_for("done")
        wait_until(
            lambda: Counter(e["key"] for e in producer.events("checked")) == _asked(topic, plans),
            OUTCOME_TIMEOUT_S,
            "all questions",
        )
        bench.wait_for(ASIDE, {unknown}, topic)
        bench.assert_consumed(topic, _delivered(topic, plans))
        sent, checked = producer.events("sent"), producer.events("checked")
        producer.stop()
    assert [event["state"] for event in sent] == [STATES[plan.split(">")[0]] for plan in plans]
    ids = {event["key"]: event["msg_id"] for event in sent}
    for event in checked:
        assert event["topic"] == topic
        assert event["transaction_id"] == ids[event["key"]]
        assert event["age_ms"] >= QUICK["transactionTimeOut"]
    assert Counter(event["key"] for event in checked) == _asked(topic, plans)


@BOTH
def test_another_producer_of_the_group_answers_for_one_that_died(
    bench_of: Callable[[str], Bench], fresh_name: Callable[[str], str], name: str
) -> None:
    bench = bench_of(name)
    topic = bench.topic(fresh_name("TxDied"))
    group = f"{topic}Group"
    with bench.producer(group, topic, ["unknown>commit", "unknown>rollback", "hang>commit"]) as one:
        one.wait_for("executed", 3)
        one.kill()
    with bench.producer(group, topic, []) as other:
        other.wait_for("checked", 3)
        bench.wait_for(topic, {_key(topic, 0), _key(topic, 2)})
        bench.assert_consumed(topic, {_key(topic, 0), _key(topic, 2)})
        other.stop()


@contextmanager
def own_producer(
    bench: Bench, group: str, answers: Callable[[str, int], TransactionState | None]
) -> Iterator[tuple[TransactionProducer, list[str]]]:
    """Run our producer; yield it and the keys that it was asked about.

    `answers` maps a message's plan and the number of checks so far to an answer.
    """
    asked: list[str] = []

    def check(message: MessageExt) -> TransactionState | None:
        key = message.keys[0]
        asked.append(key)
        return answers(message.properties["plan"], asked.count(key))

    def execute(message: Message, _argument: Any) -> TransactionState | None:
        return answers(message.properties["plan"], 0)

    with TransactionProducer(
        group,
        bench.cluster.namesrv_addr,
        check=check,
        execute=execute,
        options=TransactionOptions(rollback_on_error=False),  # as in Java, but raised
    ) as producer:
        yield producer, asked


def _answer(plan: str, step: int) -> TransactionState | None:
    words = plan.split(">")
    word = words[min(step, len(words) - 1)]
    if word == "exception":
        raise OSError("as planned")
    return None if word == "none" else TransactionState(STATES[word])


@BOTH
def test_our_producer_does_the_same(
    bench_of: Callable[[str], Bench], fresh_name: Callable[[str], str], name: str
) -> None:
    bench = bench_of(name)
    topic = bench.topic(fresh_name("TxOwn"))
    plans = list(PLANS)
    unknown = _key(topic, plans.index("unknown"))

    def send(producer: TransactionProducer, n: int, plan: str) -> str:
        body = Message(topic, plan.encode(), keys=_key(topic, n), properties={"plan": plan})
        try:
            return producer.send_in_transaction(body).state.value
        except OSError:
            return STATES["exception"]

    with own_producer(bench, f"{topic}Group", _answer) as (producer, asked):
        states = [send(producer, n, plan) for n, plan in enumerate(plans)]
        wait_until(
            lambda: Counter(asked) == _asked(topic, plans), OUTCOME_TIMEOUT_S, "all questions"
        )
        bench.wait_for(ASIDE, {unknown}, topic)
        bench.assert_consumed(topic, _delivered(topic, plans))
    assert states == [STATES[plan.split(">")[0]] for plan in plans]
    assert Counter(asked) == _asked(topic, plans)


class Owners:
    """Servers of both implementations, one after the other, on one store."""

    def __init__(
        self, folder: Path, maker: Callable[[str], type[Cluster]], java: ClientProgram
    ) -> None:
        self._folder = folder
        self._maker = maker
        self._java = java
        self._layout = Layout.fresh(folder, broker_count=1)
        self._count = 0

    def run(self, name: str, conf: dict[str, int]) -> AbstractContextManager[Cluster]:
        self._count += 1
        folder = self._folder / f"{self._count}-{name}"
        settings = {"flushConsumerOffsetInterval": 500}
        return self._maker(name)(folder, settings, layout=self._layout, transaction_conf=conf)

    def bench(self, cluster: Cluster) -> Bench:
        return Bench(cluster, self._java)


@pytest.fixture
def owners(tmp_path: Path, maker: Callable[[str], type[Cluster]], java: ClientProgram) -> Owners:
    return Owners(tmp_path, maker, java)


@pytest.mark.parametrize("end", ENDS)
@PAIRS
def test_the_other_maker_finishes_open_transactions(
    owners: Owners, writer: str, reader: str, end: str
) -> None:
    """The writer has sent no check and has ended some transactions, so neither queue is empty."""
    plans = ["commit", "unknown>commit", "rollback", "unknown>rollback", "commit", "hang>commit"]
    with owners.run(writer, NEVER) as cluster:
        bench = owners.bench(cluster)
        topic = bench.topic("TxHandedOver")
        with bench.producer("TxOwners", topic, plans) as producer:
            producer.wait_for("executed", len(plans))
            bench.wait_for(topic, {_key(topic, 0), _key(topic, 4)})
            producer.kill()
        ENDS[end](cluster)
    with owners.run(reader, ENDLESS) as cluster:
        bench = owners.bench(cluster)
        with bench.producer("TxOwners", topic, []) as producer:
            producer.wait_for("checked", 3)
            committed = {_key(topic, n) for n in (0, 1, 4, 5)}
            bench.wait_for(topic, committed)
            bench.assert_consumed(topic, committed)
            asked = {event["key"] for event in producer.events("checked")}
            producer.stop()
    assert asked == {_key(topic, n) for n in (1, 3, 5)}


@PAIRS
def test_the_other_maker_continues_the_checks(owners: Owners, writer: str, reader: str) -> None:
    """The first owner's checks were answered "unknown"; Java stored copies of the messages."""
    with owners.run(writer, PATIENT) as cluster:
        bench = owners.bench(cluster)
        topic = bench.topic("TxAsked")
        with bench.producer("TxOwners", topic, ["unknown", "commit", "unknown"]) as producer:
            producer.wait_for("checked", 2 * 2)
            producer.kill()
        cluster.stop()
    with owners.run(reader, QUICK) as cluster:
        bench = owners.bench(cluster)
        with bench.producer("TxOwners", topic, []) as producer:
            bench.wait_for(ASIDE, {_key(topic, 0), _key(topic, 2)}, topic)
            bench.assert_consumed(topic, {_key(topic, 1)})
            producer.stop()


@BOTH
def test_a_message_may_have_an_immunity_of_its_own(owners: Owners, name: str) -> None:
    """Java counts rounds within the immunity period as checks, so the test allows extra checks."""
    with owners.run(name, PATIENT) as cluster:
        bench = owners.bench(cluster)
        topic = bench.topic("TxImmune")
        with bench.producer("TxImmuneGroup", topic, ["unknown>commit"], immunity_s=5) as producer:
            producer.wait_for("checked")
            bench.wait_for(topic, {_key(topic, 0)})
            checked = producer.events("checked")
            producer.stop()
    assert checked[0]["age_ms"] >= 5_000


@BOTH
def test_traces_say_how_transactions_ended(
    bench_of: Callable[[str], Bench], fresh_name: Callable[[str], str], name: str
) -> None:
    bench = bench_of(name)
    topic = bench.topic(fresh_name("TxTraced"))
    plans = ["unknown>commit", "rollback"]
    with bench.producer(f"{topic}Group", topic, plans, trace="true") as producer:
        producer.wait_for("checked")
        ids = [event["msg_id"] for event in producer.events("sent")]
        wait_until(
            lambda: {key: len(bench.ends(key)) for key in ids} == {ids[0]: 2, ids[1]: 1},
            OUTCOME_TIMEOUT_S,
            "all traces",
        )
        first, second = bench.ends(ids[0])
        (other,) = bench.ends(ids[1])
        producer.stop()
    assert (first.state, first.is_from_check) == ("UNKNOW", False)
    assert (second.state, second.is_from_check) == ("COMMIT_MESSAGE", True)
    assert (other.state, other.is_from_check) == ("ROLLBACK_MESSAGE", False)
    assert {first.topic, second.topic, other.topic} == {topic}
    with MqAdmin(bench.cluster.namesrv_addr) as mqadmin:
        shown = mqadmin.run("queryMsgTraceById", "-i", ids[0]).output
        found = mqadmin.run("queryMsgByUniqueKey", "-t", topic, "-i", ids[0]).output
    assert f"{topic}Group" in shown
    assert f"{topic}-0" in found
