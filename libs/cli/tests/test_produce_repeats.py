# SPDX-License-Identifier: Apache-2.0
"""`cometmq produce` while a broker hangs: few copies, all with the same message id."""

import json
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.cli.verbs.patience import REPEATS_MAX, MaybeStored, Patience
from cometmq.client import Message, MessageQueue, NoRoute, SendResult, SendStatus
from cometmq.client.errors import SendFailed
from cometmq.peers.demo.run import _send_line
from cometmq.peers.processes import wait_until
from cometmq.remoting.errors import AccessDenied, ConnectionLost, RequestTimeout, SystemBusy

UNANSWERED = SendFailed("which may be stored", brokers=("b",), may_be_stored=True)
UNANSWERED.__cause__ = RequestTimeout("no answer")
BUSY = SystemBusy("busy")
DEFAULT_TOPIC = "TBW102"


class Hanging:
    """A producer with one queue at each of two brokers; sends and requests follow a script.

    An error in `sends` or `answers` is raised; once the script has ended, all calls succeed.
    """

    def __init__(self, *, sends, answers=(), silent=(), topics=("T",)):
        self.options = SimpleNamespace(default_topic=DEFAULT_TOPIC)
        self.admin = self
        self.sent: list[tuple[Any, Any]] = []
        self.asked_count = 0
        self._sends, self._answers = list(sends), list(answers)
        self._silent, self._topics = silent, topics
        self._id_count = 0

    def new_message_id(self):
        self._id_count += 1
        return f"id-{self._id_count}"

    async def queues(self, topic):
        if topic not in self._topics:
            raise NoRoute(topic)
        return [MessageQueue(topic, "a", 3), MessageQueue(topic, "b", 3)]

    async def max_offset(self, queue):
        self.asked_count += 1
        if queue.broker_name in self._silent:
            raise RequestTimeout("silent")
        if self._answers:
            raise self._answers.pop(0)
        return 0

    async def send(self, message, queue=None, timeout_ms=0):
        self.sent.append((message.message_id, queue))
        if self._sends:
            raise self._sends.pop(0)
        return SendResult(SendStatus.SEND_OK, message.message_id, "", queue, 0)

    async def send_ordered(self, message, argument):
        return await self.send(message)


@pytest.mark.parametrize("given", [None, "own"])
async def test_a_message_is_sent_again_with_the_same_id_once_a_broker_answers(given):
    producer: Any = Hanging(sends=[UNANSWERED], answers=[RequestTimeout("silent")] * 4)
    patience = Patience(300)
    await patience.send(producer, Message("T", b"x", message_id=given))
    (first, anywhere), (second, queue) = producer.sent
    assert first == second == (given or "id-1")
    assert (anywhere, queue.topic, queue.queue_id) == (None, "T", 3)
    assert producer.asked_count >= 5
    assert patience.repeated_count == 1


async def test_each_message_has_its_own_id_and_an_answered_failure_is_no_repetition():
    producer: Any = Hanging(sends=[BUSY])
    patience = Patience(300)
    for _ in range(2):
        await patience.send(producer, Message("T", b"x"))
    assert producer.sent == [("id-1", None), ("id-1", None), ("id-2", None)]
    assert (producer.asked_count, patience.repeated_count) == (0, 0)


@pytest.mark.parametrize("refusal", [SystemBusy("busy"), AccessDenied("no")])
async def test_a_refused_request_is_an_answer(refusal):
    producer: Any = Hanging(sends=[UNANSWERED], answers=[refusal], silent="a")
    await Patience(300).send(producer, Message("T", b"x"))
    assert len(producer.sent) == 2


async def test_a_message_is_sent_again_to_a_broker_that_answers():
    producer: Any = Hanging(sends=[UNANSWERED] * 2, silent="a")
    await Patience(300).send(producer, Message("T", b"x"))
    assert {queue.broker_name for _, queue in producer.sent[1:]} == {"b"}


async def test_a_topic_that_the_first_attempt_may_create_is_sent_to_its_first_queue():
    producer: Any = Hanging(sends=[UNANSWERED], silent="a", topics=[DEFAULT_TOPIC])
    await Patience(300).send(producer, Message("T", b"x"))
    assert producer.sent[1] == ("id-1", MessageQueue("T", "b", 0))


async def test_a_retry_of_the_producer_is_counted_too():
    patience = Patience(300)

    class Retrying(Hanging):
        async def send(self, message, queue=None, timeout_ms=0):
            lost: Any = SimpleNamespace(message_id=message.message_id, error=ConnectionLost("cut"))
            patience.after_send(lost)
            return await super().send(message, queue)

    producer: Any = Retrying(sends=[])
    for _ in range(2):
        await patience.send(producer, Message("T", b"x"))
    assert (len(producer.sent), patience.repeated_count) == (2, 2)


async def test_a_broker_that_answers_all_but_sends_gets_few_copies():
    """As a SYNC_MASTER does whose slave hangs."""
    producer: Any = Hanging(sends=[UNANSWERED] * 9)
    with pytest.raises(MaybeStored, match=r"may be waiting for a slave.*: cometmq cluster$"):
        await Patience(300).send(producer, Message("T", b"x"))
    assert len(producer.sent) == 1 + REPEATS_MAX


async def test_a_broker_that_dies_at_each_send_is_not_taken_for_a_waiting_one():
    lost = SendFailed("which may be stored", brokers=("b",), may_be_stored=True)
    lost.__cause__ = ConnectionLost("cut")
    producer: Any = Hanging(sends=[lost] * 4)
    await Patience(300).send(producer, Message("T", b"x"))
    assert len(producer.sent) == 5


async def test_nothing_is_sent_again_while_all_brokers_are_silent():
    producer: Any = Hanging(sends=[UNANSWERED], silent="ab")
    patience = Patience(0.3)
    with pytest.raises(MaybeStored, match=r"may be stored.* failed: silent; gave up after 0.3 s"):
        await patience.send(producer, Message("T", b"x"))
    assert len(producer.sent) == 1
    assert producer.asked_count >= 2
    assert patience.repeated_count == 0


async def test_the_demo_sends_a_line_again_with_the_same_id(monkeypatch):
    monkeypatch.setattr("cometmq.peers.demo.run.SEND_PAUSE_S", 0)
    producer: Any = Hanging(sends=[UNANSWERED, BUSY])
    await _send_line(producer, Message("T", b"x"), "file")
    assert producer.sent == [("id-1", None)] * 3


@pytest.fixture
def cluster(running_cluster, tmp_path):
    with running_cluster(tmp_path) as cluster:
        cluster.start_broker("broker-a")
        yield cluster


SUMMARY = (
    "cometmq: 1 message may be stored more than once: a broker had not answered, so each was sent"
    " again, with the same message id"
)


@pytest.mark.parametrize("is_new", [False, True])
def test_all_copies_have_one_id_and_the_summary_counts_their_messages(
    call, cluster, pipe_to, is_new
):
    """A topic may also be created by the send that a broker does not answer."""
    at = ("-n", cluster.namesrv)
    if not is_new:
        assert call("topic", "create", "Orders", "--queues", 1, *at).status == 0
    cluster.send("broker-a", signal.SIGSTOP)
    sending = pipe_to("produce", "Orders", "one", "--json", "--timeout", "300", *at)
    warning = sending.stderr.readline().decode()
    cluster.send("broker-a", signal.SIGCONT)
    out, err = sending.communicate(timeout=300)
    assert "which may be stored: " in warning
    assert warning.endswith("; trying again for 300 s\n")
    note, *rest = err.decode().splitlines()[::-1]
    assert note == SUMMARY
    assert len(rest) == is_new  # the note that the topic was created
    shown = json.loads(out)
    assert (sending.returncode, shown["sent"], shown["may_be_repeated"]) == (0, 1, 1)
    wait_until(lambda: call("topic", "describe", "Orders", *at).status == 0, 60, "the topic")
    count = sum(row["messages"] for row in call("topic", "describe", "Orders", "--json", *at).json)
    reading = ("consume", "Orders", "--from", "first", "--max", count, "--json", *at)
    copies = [line["message_id"] for line in call(*reading).lines]
    assert {*copies} == {shown["first_results"][0]["message_id"]}
    assert len(copies) <= 4  # three attempts of the client, and one more
