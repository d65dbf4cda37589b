# SPDX-License-Identifier: Apache-2.0
"""`message trace` against a running suite, and its line of time."""

import asyncio
from types import SimpleNamespace

import pytest

from cometmq.cli.messaging.message_trace import of_traces
from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.client.hooks import ConsumeOutcome, MessageKind, TransactionState
from cometmq.client.trace import EndTransaction, Pub, SubAfter, SubBefore, encode_record
from cometmq.peers.processes import wait_until

DEADLINE_S = 120
PUB = Pub(
    1_000, "R", "makers", "T", "A", "tag", "k1 k2", "10.0.0.1:10911", 7, 3, MessageKind.NORMAL
)
BEFORE = SubBefore(2_000, "R", "readers", "r1", "A", 2, "k1")
AFTER = SubAfter("r1", "A", 40, False, "k1", int(ConsumeOutcome.TIME_OUT), 2_040, "readers")


def stored(*records, body=None):
    data = body or "".join(map(encode_record, records)).encode()
    return SimpleNamespace(body=data, born_host="10.0.0.9:5000", offset_message_id="O1")


def moments(*messages, message_id="A", key=None):
    return of_traces(messages, message_id=message_id, key=key)


def test_the_begin_and_the_end_of_a_listener_are_one_moment():
    (sent, consumed), notes = moments(stored(PUB), stored(AFTER), stored(BEFORE))
    assert not notes
    assert (sent.event, sent.group, sent.client, sent.took_ms) == ("sent", "makers", "10.0.0.9", 3)
    assert sent.text == "message of 7 bytes to T at 10.0.0.1:10911"
    assert (consumed.event, consumed.at_ms, consumed.took_ms) == ("consumed", 2_000, 40)
    assert consumed.text == "attempt 3: failed: time out"


def test_a_lost_begin_or_end_is_said():
    ((begun,), _), ((ended,), _) = moments(stored(BEFORE)), moments(stored(AFTER))
    assert (begun.text, begun.took_ms, begun.is_success) == (
        "attempt 3: no end is recorded",
        None,
        None,
    )
    assert (ended.text, ended.at_ms, ended.group) == ("failed: time out", 2_040, "readers")


def test_the_end_of_a_transaction_is_a_moment():
    end = EndTransaction(
        *(3_000, "R", "makers", "T", "A", None, None, "h", MessageKind.TRANSACTION_COMMIT, "x"),
        TransactionState.ROLLBACK, is_from_check=True,
    )  # fmt: skip
    (moment,), _ = moments(stored(end))
    assert (moment.event, moment.text) == ("transaction", "rollback, after a check by the broker")


def test_a_record_of_a_batch_of_java_has_all_ids():
    batch = Pub(1, None, "g", "T", "A,B", None, "k9", "h", 7, 3, MessageKind.NORMAL)
    assert [it.message_id for it in moments(stored(batch), message_id="B")[0]] == ["B"]
    both = moments(stored(batch), message_id=None, key="k9")[0]
    assert [it.message_id for it in both] == ["A", "B"]
    assert moments(stored(batch), message_id=None, key="k")[0] == []


@pytest.mark.parametrize("body", [b"Pub\x01x\x02", b"SubAfter\x01\x02", b"\xff\x00"])
def test_a_broken_trace_is_named_and_the_others_are_shown(body):
    found, notes = moments(stored(body=body), stored(PUB))
    assert len(found) == 1
    assert len(notes) == (body[0] != 0xFF)


def test_the_way_of_a_message_is_shown(ask, suite, topic):
    traces, group = f"{topic}-traces", f"{topic}-readers"
    assert ask("topic", "create", traces, "--queues", 1).status == 0
    message_id = asyncio.run(_live(suite.namesrv, topic, traces, group))
    args = ("message", "trace", message_id, "--trace-topic", traces)

    def events():
        found = ask(*args, "--json")
        return found.status == 0 and len([r for r in found.json if r["seen_by"] == "client"]) == 3

    wait_until(events, DEADLINE_S, "the traces of both attempts")
    rows = ask(*args, "--json").json
    client = [
        (it["event"], it["group"], it["is_success"]) for it in rows if it["seen_by"] == "client"
    ]
    assert client == [
        ("sent", f"{topic}-makers", True), ("consumed", group, False), ("consumed", group, True),
    ]  # fmt: skip
    broker = {it["event"] for it in rows if it["seen_by"] == "broker"}
    assert {"sent", "stored", "retried"} <= broker
    times = [it["at_ms"] for it in rows if it["at_ms"] is not None]
    assert times == sorted(times)
    text = ask(*args).out
    assert "attempt 1: failed" in text
    assert "attempt 2: success" in text
    by_key = ask("message", "trace", "--key", "k-7", "--trace-topic", traces, "--json").json
    assert by_key == rows


async def _live(namesrv, topic, traces, group):
    """Send a message whose consumer fails once; return its id once it is consumed."""
    seen = []
    is_done = asyncio.Event()

    async def listen(messages):
        seen.extend(messages)
        if len(seen) < 2:
            return ConsumeResult(0, delay_level=1)
        is_done.set()
        return ConsumeResult.SUCCESS

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, trace=True, trace_topic=traces)
    consumer = PushConsumer(group, namesrv, listener=listen, options=options)
    consumer.subscribe(topic)
    sending = ProducerOptions(trace=True, trace_topic=traces)
    async with (
        asyncio.timeout(DEADLINE_S),
        consumer,
        Producer(f"{topic}-makers", namesrv, options=sending) as producer,
    ):
        sent = await producer.send(Message(topic, b"body", keys="k-7"))
        await is_done.wait()
    return sent.message_id


def test_brokers_are_asked_without_a_trace_and_the_reason_is_named(ask, topic):
    traces = f"{topic}-none"
    assert ask("topic", "create", traces, "--queues", 1).status == 0
    sent = ask("produce", topic, "body", "--json").json["first_results"][0]["message_id"]
    args = ("message", "trace", sent, "-t", topic, "--trace-topic", traces)
    wait_until(lambda: ask(*args).status == 0, DEADLINE_S, "the index")
    found = ask(*args)
    assert "stored" in found.out
    assert f"the topic {traces} has no trace of {sent}: clients write traces only with" in found.err
    nobody = ask("message", "trace", "nonsense", "--trace-topic", traces)
    nobody.assert_named("nobody knows a message with this id; brokers are asked if you give")
    missing = ask("message", "trace", "nonsense", "--trace-topic", "NoSuchTopic")
    missing.assert_named("no broker has the topic NoSuchTopic (traceTopicEnable=true creates it)")


def test_a_key_finds_the_life_of_a_message_without_a_trace(ask, topic):
    made = ask("produce", topic, "body", "--key", "pay-3", "--json").json
    sent = made["first_results"][0]["message_id"]
    by_id = ("message", "trace", sent, "-t", topic)
    wait_until(lambda: ask(*by_id).status == 0, DEADLINE_S, "the index")
    args = ("message", "trace", "--key", "pay-3", "-t", topic)
    assert ask(*args, "--json").json == ask(*by_id, "--json").json
    found = ask(*args)
    assert sent in found.out
    assert not found.err  # brokers have told it, so nobody misses the topic of traces
    nobody = ask("message", "trace", "--key", "pay-4", "-t", topic)
    nobody.assert_named("nobody knows a message with this key")
    assert nobody.err.count("RMQ_SYS_TRACE_TOPIC") == 1


@pytest.mark.parametrize("args", [(), ("id", "--key", "k")])
def test_an_id_or_a_key_is_needed(ask, args):
    ask("message", "trace", *args).assert_refused(2, "give a message id, or --key")
