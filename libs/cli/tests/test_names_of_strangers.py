# SPDX-License-Identifier: Apache-2.0
"""No name that a peer can register hides the other topics, groups and clients from a command."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cometmq.client import Message, sync
from cometmq.client.sync.loop import loop_thread
from cometmq.peers.long_forms import case_count
from cometmq.peers.shared.strangers import ODD_NAMES, Stranger
from cometmq.peers.suite import running_suite

from .every_verb import verbs
from .test_rogue_servers import UNSAFE

TOPIC, GROUP = "GoodTopic", "good-group"
READING = """
cluster
topic list --all
topic describe {topic}
topic route {topic}
topic analyse {topic}
group list
group describe {group}
lag
lag {group}
lag --report page.html --yes
message delayed
message show -t {topic} {id}
message find {topic} -k k
message trace {id}
dlq list
dlq show {group}
txn list
definitions export
report
debug bundle
top
top topics
top groups
top connections
top refused
check broker
check group
check group {group}
check topic
check topic {topic}
check copies
check dlq
check disk
doctor
topicList
topicList -c
topicRoute -t {topic}
topicStatus -t {topic}
topicClusterList -t {topic}
allocateMQ -t {topic} -i 10.0.0.1
getBrokerConfig -b {broker}
brokerStatus -b {broker}
brokerConsumeStats -b {broker}
producer -b {broker}
clusterList
clusterList -m
getNamesrvConfig
getConsumerConfig -g {group}
consumerStatus -g {group}
consumer -g {group}
consumerConnection -g {group}
producerConnection -g senders -t {topic}
consumerProgress
consumerProgress -g {group}
consumerProgress -g {group} -s true
getConsumerStatus -g {group} -t {topic}
queryMsgByUniqueKey -t {topic} -i {id}
queryMsgByKey -t {topic} -k k
queryMsgTraceById -i {id}
printMsg -t {topic}
queryCq -t {topic} -q 0 -i 0
startMonitoring --rounds 1
exportMetadata -c DefaultCluster
exportConfigs -c DefaultCluster
exportMetrics -c DefaultCluster
statsAll
""".strip().splitlines()
FINDING = ("doctor", "check ", "report")
"""Verbs that may find something wrong in what strangers register."""
OTHERS = {
    "produce", "consume", "request", "reply", "message recall", "dlq export", "dlq replay",
    "txn show", "txn check", "txn resolve", "txn verify", "backup", "restore", "topic create",
    "topic alter", "topic delete", "topic clone", "topic trim", "group reset", "group clone",
    "group seek", "group disconnect", "group create", "group alter", "group delete",
    "account list", "account may", "definitions import", "check certificate", "check roundtrip",
    "bench send", "bench consume", "bench latency", "mcp", "context add",
    "config show", "config diff", "updateTopic", "updateTopicPerm", "deleteTopic",
    "updateOrderConf", "updateBrokerConfig", "cleanExpiredCQ", "cleanUnusedTopic",
    "deleteExpiredCommitLog", "updateKvConfig", "deleteKvConfig", "wipeWritePerm", "addWritePerm",
    "updateNamesrvConfig", "sendMessage", "sendMsgStatus", "checkMsgSendRT", "clusterRT",
    "updateSubGroup", "deleteSubGroup", "resetOffsetByTime", "resetOffsetByTimeOld",
    "skipAccumulatedMessage", "cloneGroupOffset", "queryMsgById", "queryMsgByOffset",
    "printMsgByQueue", "consumeMessage", "updateAclConfig", "deleteAclConfig",
    "updateGlobalWhiteAddr", "clusterAclConfigVersion", "getAclConfig",
}  # fmt: skip
"""Verbs that change something, or read one account, message, transaction or setting."""


def test_every_verb_that_reads_is_tried():
    tried = {it.name for it in verbs() for line in READING if f"{line} ".startswith(f"{it.name} ")}
    assert {it.name for it in verbs() if it.asks_a_cluster} - tried == OTHERS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Run a suite with a message, a member and a producer."""
    with (
        running_suite(tmp_path_factory.mktemp("strange")) as suite,
        sync.AdminClient(suite.namesrv) as admin,
        sync.Producer("senders", suite.namesrv) as producer,
        sync.LitePullConsumer(GROUP, suite.namesrv) as consumer,
    ):
        admin.call(lambda it: it.create_topic(TOPIC, queue_count=1))
        sent = [producer.send(Message(TOPIC, b"a", keys=["k"])) for _ in range(2)]
        consumer.subscribe(TOPIC)
        consumer.poll()
        stranger = Stranger(suite.namesrv, suite.broker)
        yield suite, sent[0].message_id, stranger
        loop_thread().run(stranger.close())


@pytest.fixture
def run(call, place, tmp_path, monkeypatch):
    """Return a function that runs all verbs, and returns their statuses and what they name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cometmq.cli.operation.top.FIRST_RATES_S", 0.01)
    suite, message_id, _ = place
    facts = {"topic": TOPIC, "group": GROUP, "id": message_id, "broker": suite.broker}

    def run():
        found = {}
        for verb in READING:
            done = call(*verb.format(**facts).split(), "-n", suite.namesrv)
            assert not UNSAFE.search(done.out + done.err), verb
            named = {it for it in (TOPIC, GROUP, message_id) if it in done.out}
            found[verb] = done.status, named, done.err
        return found

    return run


@pytest.fixture(scope="module")
def before():
    """Return what the verbs name before strangers register anything."""
    return {}


@pytest.mark.long
@settings(
    max_examples=case_count(1, long=6),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.text(max_size=130), max_size=8))
@example(ODD_NAMES)
def test_names_of_strangers_hide_no_others(run, place, before, names):
    before = before or before.update(run()) or before
    loop_thread().run(place[2].register(names, topic=TOPIC, group=GROUP))
    lost = {}
    for verb, (status, named, errors) in run().items():
        honest, known, _ = before[verb]
        is_same = status == honest or (verb.startswith(FINDING) and status in {0, 1})
        if not is_same or known - named:
            lost[verb] = honest, status, known - named, errors[-300:]
    assert lost == {}
