# SPDX-License-Identifier: Apache-2.0
"""Commands name brokers without write permission in routes, and topics that no broker creates."""

import pytest

NAMES = ("broker-a", "broker-b")


@pytest.fixture(scope="module")
def cluster(running_cluster, tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        for name in NAMES:
            cluster.start_broker(name)
        yield cluster


@pytest.fixture
def run(call, cluster):
    return lambda *args: call(*args, "-n", cluster.namesrv)


@pytest.fixture
def topic(run):
    """Create a topic on broker-a only."""
    name = "OfBrokerA"
    run("topic", "create", name, "-b", "broker-a")
    return name


@pytest.fixture
def wiped(run, topic):
    assert topic
    assert run("wipeWritePerm", "-b", "broker-a").status == 0
    yield
    assert run("addWritePerm", "-b", "broker-a").status == 0


NOTE = (
    "producers send nothing to broker broker-a: the name server lists its topics as read-only"
    " (wipeWritePerm); to undo this: cometmq addWritePerm -b broker-a"
)


@pytest.mark.usefixtures("wiped")
def test_a_broker_without_write_permission_is_named(run, topic):
    cluster = run("cluster", "--json")
    assert {it["broker"]: it["state"] for it in cluster.json} == {
        "broker-a": "read-only",
        "broker-b": "ok",
    }
    assert cluster.err == f"cometmq: {NOTE}\n"
    listed = run("topic", "list")
    assert (listed.status, listed.err) == (0, f"cometmq: {NOTE}\n")
    refused = run("produce", topic, "x")
    refused.assert_refused(1, f"the topic {topic} accepts no messages: {NOTE}\n")


def test_a_new_topic_needs_one_broker_with_write_permission(run):
    for name in NAMES:
        run("wipeWritePerm", "-b", name)
    refused = run("produce", "BrandNew", "x")
    for name in NAMES:
        run("addWritePerm", "-b", name)
    refused.assert_refused(1, "the topic BrandNew accepts no messages: ")
    assert all(f"cometmq addWritePerm -b {name}" in refused.err for name in NAMES)


def test_a_broker_whose_setting_forbids_sends_is_named(run, cluster, topic):
    address = cluster.addresses["broker-a"]
    setting = ("updateBrokerConfig", "-b", address, "-k", "brokerPermission", "-v")
    assert run(*setting, 4).status == 0
    refused = run("produce", topic, "x")
    assert run(*setting, 6).status == 0
    refused.assert_refused(1, f"the topic {topic} accepts no messages: producers send nothing to")
    assert refused.err.endswith(
        "broker broker-a: its setting brokerPermission is 4; to undo this: cometmq"
        f" updateBrokerConfig -b {address} -k brokerPermission -v 6\n"
    )
    assert run("cluster").err == ""


def test_a_read_only_topic_is_no_read_only_broker(run, topic):
    assert run("topic", "alter", topic, "--perm", "r", "--yes").status == 0
    refused = run("produce", topic, "x")
    assert run("topic", "alter", topic, "--perm", "rw").status == 0
    refused.assert_refused(1, f"the topic {topic} accepts no messages: broker-a has no write")
    assert f"cometmq topic alter {topic} --perm rw" in refused.err
    assert run("topic", "list").err == ""


@pytest.mark.parametrize("command", ["wipeWritePerm", "addWritePerm"])
def test_the_write_permission_of_an_unknown_broker_is_refused(run, cluster, command):
    done = run(command, "-b", "broker-x")
    assert done.status == 1
    assert done.out.rstrip().endswith("OK, 0"), "mqadmin's words stay for scripts"
    assert done.err == (
        f"cometmq: {cluster.namesrv}: no broker broker-x is registered here, so nothing was"
        " changed; the brokers are: broker-a, broker-b\n"
    )


def test_a_misspelt_topic_is_one_error_at_brokers_that_used_to_create_topics(
    call, running_cluster, tmp_path
):
    """The broker's topic table keeps TBW102 from the run with autoCreateTopicEnable=true."""
    with running_cluster(tmp_path) as cluster:
        cluster.start_broker("broker-a")
        assert call("produce", "Orders", "x", "-n", cluster.namesrv).status == 0
        assert cluster.children["broker-a"].stop(60) == 0
        cluster.start_broker("broker-a", **{"auto-create-topic-enable": "false"})
        refused = call("produce", "Ordesr", "x", "-n", cluster.namesrv)
        refused.assert_refused(1, "broker-a has no topic Ordesr, and does not create it: check")
        assert call("consume", "Ordesr", "-n", cluster.namesrv).status == 1
