# SPDX-License-Identifier: Apache-2.0
"""The route table keeps its invariants under any sequence of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.epochs import Verdict
from cometmq.namesrv.route_table import Master
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.runtime.incremental import finish

from .routes import SILENCE_MS, Routes, broker, check_invariants, queue_facts


def test_a_master_brings_its_topics(routes):
    assert routes.add(broker(), [TopicConfig(topic_name="T", perm=6, read_queue_nums=3)]) is None
    route = routes.route("T")
    assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
    assert route.broker_datas[0].cluster == "C"
    assert queue_facts(routes, "T") == {"broker-a": (3, 6)}
    assert routes.route("other") is None


def test_a_slave_brings_no_topics_and_learns_its_master(routes):
    slave = broker(broker_id=1, address="127.0.0.1:2")
    assert routes.add(slave, ["S"]) is None
    assert routes.route("S") is None
    routes.add(broker(), ["T"])
    assert routes.add(slave, ["S"]) == Master("127.0.0.1:1", "ha-127.0.0.1:1")
    assert routes.route("T").broker_datas[0].broker_addrs == {0: "127.0.0.1:1", 1: "127.0.0.1:2"}


def test_topics_are_taken_only_with_a_new_data_version(routes):
    routes.add(broker(), ["S", "T"], version=1)
    routes.add(broker(), ["U"], version=1)
    assert finish(routes.topics.selecting()) == ["S", "T"]
    routes.add(broker(), ["U"], version=2)
    assert finish(routes.topics.selecting()) == ["S", "T", "U"]


def test_the_first_registration_may_hold_only_a_new_topic(routes):
    routes.add(broker(), ["New"])
    assert routes.ask()[0]
    routes.add(broker(), ["T", "New"])
    assert sorted(finish(routes.topics.selecting())) == ["New", "T"]
    assert not routes.ask()[0]


def test_a_topic_deleted_here_is_back_when_its_broker_registers_again(routes):
    routes.add(broker(), ["T", "U"])
    routes.add(broker("broker-b", address="127.0.0.1:2"), ["T"])
    routes.delete_topic("T")
    assert routes.ask() == (True, DataVersion(1, 0))
    routes.add(broker(), ["T", "U"])
    assert queue_facts(routes, "T").keys() == {"broker-a"}
    assert routes.ask() == (False, DataVersion(1, 0))
    routes.add(broker("broker-b", address="127.0.0.1:2"), ["T"])  # without a question
    assert queue_facts(routes, "T").keys() == {"broker-a", "broker-b"}


def test_a_deleted_topic_is_missed_until_the_broker_sends_all_its_topics(routes):
    routes.add(broker(), ["T", "U"])
    routes.delete_topic("T")
    routes.add(broker(), ["V"], version=2)  # only the change
    routes.add(broker(), [], version=2)  # a sign of life
    assert finish(routes.topics.selecting()) == ["U", "V"]
    assert routes.ask(version=2)[0]
    for part, topics in enumerate([["T"], ["U"], ["V"]]):
        routes.add(broker(), topics, version=part)  # each part has a version of its own
    routes.add(broker(), [], version=2)
    assert sorted(finish(routes.topics.selecting())) == ["T", "U", "V"]
    assert not routes.ask(version=2)[0]


def test_a_broker_that_lost_the_topic_too_is_asked_once(routes):
    routes.add(broker(), ["T", "U"])
    routes.delete_topic("T")
    routes.add(broker(), ["U"])
    assert finish(routes.topics.selecting()) == ["U"]
    assert not routes.ask()[0]


@pytest.mark.parametrize("version", [1, 9])
def test_what_others_register_in_a_brokers_name_lasts_until_it_registers_again(routes, version):
    mine, other = object(), object()
    routes.add(broker(), [TopicConfig(topic_name="T", perm=6)], connection=mine)
    routes.add(broker(), [TopicConfig(topic_name="T", perm=0)], version, connection=other)
    assert queue_facts(routes, "T") == {"broker-a": (16, 0)}
    assert routes.ask(connection=mine)[0]
    routes.add(broker(), ["T"], connection=mine)
    assert queue_facts(routes, "T") == {"broker-a": (16, 6)}
    routes.add(broker(), ["T"], connection=mine)
    assert not routes.ask(connection=mine)[0]


def test_a_change_after_a_foreign_registration_does_not_end_the_doubt(routes):
    mine, other = object(), object()
    routes.add(broker(), ["T"], connection=mine)
    routes.add(broker(), [TopicConfig(topic_name="T", perm=0)], 9, connection=other)
    routes.add(broker(), ["U"], 2, connection=mine)
    assert routes.ask(version=2, connection=mine)[0]
    routes.add(broker(), ["T", "U"], 2, connection=mine)
    assert queue_facts(routes, "T") == {"broker-a": (16, 6)}


def test_a_stranger_who_asks_does_not_end_the_doubt(routes):
    mine, other = object(), object()
    routes.add(broker(), ["T"], connection=mine)
    routes.delete_topic("T")
    assert routes.ask(connection=other)[0]
    assert routes.ask(connection=mine)[0]


def test_a_route_given_out_does_not_change_any_more(routes):
    routes.add(broker(), ["T"])
    given_out = routes.route("T")
    routes.add(broker(broker_id=1, address="127.0.0.1:2"))
    assert given_out.broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}


def test_one_address_has_one_id(routes):
    """A slave that becomes master must not remain registered as its own slave."""
    routes.add(broker(broker_id=1))
    routes.add(broker(broker_id=0), ["T"])
    assert routes.route("T").broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}


def test_an_address_that_changes_its_name_leaves_the_old_group(routes):
    routes.add(broker("old"), ["T"])
    routes.add(broker("new"), ["U"])
    assert list(routes.groups.cluster_info().broker_addr_table) == ["new"]
    assert finish(routes.topics.selecting()) == ["U"]


def test_another_address_replaces_the_old_one_under_its_id(routes):
    routes.add(broker(), ["T"])
    routes.add(broker(address="127.0.0.1:9"), ["T"])
    assert routes.route("T").broker_datas[0].broker_addrs == {0: "127.0.0.1:9"}
    routes.unregister(broker())
    assert routes.route("T").broker_datas[0].broker_addrs == {0: "127.0.0.1:9"}


def test_removing_the_last_address_removes_group_cluster_and_queues(routes):
    routes.add(broker(), ["T", "Shared"])
    routes.add(broker("broker-b", address="127.0.0.1:2"), ["Shared"])
    slave = broker(broker_id=1, address="127.0.0.1:3")
    routes.add(slave)
    routes.unregister(broker())
    assert queue_facts(routes, "T") == {"broker-a": (16, 6)}  # consumers read from the slave
    routes.unregister(slave)
    assert finish(routes.topics.selecting()) == ["Shared"]
    assert routes.groups.cluster_info().cluster_addr_table == {"C": ["broker-b"]}
    routes.unregister(broker("broker-b", address="127.0.0.1:2"))
    assert routes.groups.cluster_info().cluster_addr_table == {}
    assert not routes.groups.cluster_count
    assert not routes.live_brokers()
    assert not routes.topics.count


def test_silent_brokers_expire_and_a_known_version_is_a_sign_of_life(routes):
    routes.add(broker(), ["T"], connection="x")
    routes.add(broker("broker-b", address="127.0.0.1:2"), connection="y")
    known = DataVersion(1, 0)
    assert routes.ask("127.0.0.1:2", 1, connection="y", now_ms=50) == (False, known)
    assert routes.expire(now_ms=SILENCE_MS, silence_ms_max=SILENCE_MS) == []
    gone = routes.expire(now_ms=SILENCE_MS + 1, silence_ms_max=SILENCE_MS)
    assert [live.connection for live in gone] == ["x"]
    assert routes.route("T") is None
    assert routes.expired_count == 1
    assert list(routes.live_brokers()) == ["127.0.0.1:2"]


def test_a_changed_data_version_is_no_sign_of_life(routes):
    routes.add(broker())
    news = routes.ask("127.0.0.1:1", 2, now_ms=SILENCE_MS)
    assert news == (True, DataVersion(1, 0))
    assert routes.ask("unknown", 0) == (True, None)
    assert len(routes.expire(now_ms=SILENCE_MS + 1, silence_ms_max=SILENCE_MS)) == 1


def test_a_closed_connection_drops_the_brokers_that_last_used_it(routes):
    old, new = object(), object()
    routes.add(broker(), ["T"], connection=old)
    routes.add(broker(), ["T"], connection=new)
    assert routes.disconnected(old) == []
    assert routes.disconnected(new) == ["127.0.0.1:1"]
    assert routes.route("T") is None
    assert routes.disconnected_count == 1


def test_write_permission_is_wiped_and_given_back_until_topics_change(routes):
    topics = [TopicConfig(topic_name="T", perm=6), TopicConfig(topic_name="U", perm=7)]
    routes.add(broker(), topics)
    routes.add(broker("broker-b", address="127.0.0.1:2"), ["T"])
    assert finish(routes.topics.wiping_write_perm("broker-a")) == 2
    assert finish(routes.topics.wiping_write_perm("nobody")) == 0
    assert queue_facts(routes, "T") == {"broker-a": (16, 4), "broker-b": (16, 6)}
    assert queue_facts(routes, "U") == {"broker-a": (16, 5)}
    routes.add(broker(), topics, version=1)
    assert queue_facts(routes, "U") == {"broker-a": (16, 5)}
    assert finish(routes.topics.adding_write_perm("broker-a")) == 2
    assert queue_facts(routes, "U") == {"broker-a": (16, 6)}
    routes.add(broker(), topics, version=2)
    assert queue_facts(routes, "U") == {"broker-a": (16, 7)}


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(routes):
    routes.add(broker(), ["T", "U"])
    routes.add(broker("broker-b", address="127.0.0.1:2", cluster="D"), ["T", "U"])
    routes.delete_topic("T", "C")
    routes.delete_topic("T", "NoCluster")
    assert queue_facts(routes, "T") == {"broker-b": (16, 6)}
    routes.delete_topic("T", "D")
    routes.delete_topic("T")
    assert finish(routes.topics.selecting()) == ["U"]
    routes.delete_topic("U")
    assert finish(routes.topics.selecting()) == []


def test_topics_are_listed_by_cluster_and_by_flag(routes):
    flagged = [TopicConfig(topic_name=f"F{flag}", topic_sys_flag=flag) for flag in range(4)]
    routes.add(broker(), flagged)
    routes.add(broker("broker-b", address="127.0.0.1:2", cluster="D"), ["F0"])
    assert finish(routes.topics_of_cluster("D")) == ["F0"]
    assert finish(routes.topics_of_cluster("C")) == ["F0", "F1", "F2", "F3"]
    assert finish(routes.topics_of_cluster("E")) == []
    assert finish(routes.topics.with_flags(wanted=1)) == ["F1", "F3"]
    assert finish(routes.topics.with_flags(wanted=2)) == ["F2", "F3"]
    assert finish(routes.topics.with_flags(wanted=2, unwanted=1)) == ["F2"]


def test_system_topics_are_clusters_and_groups(routes):
    assert routes.groups.system_topics() == ([], None)
    routes.add(broker())
    routes.add(broker("C", address="127.0.0.1:2"))
    assert routes.groups.system_topics() == (["C", "broker-a"], "127.0.0.1:1")


def test_filter_servers_are_part_of_the_route(routes):
    routes.add(broker(), ["T"], filter_servers=["f:1"])
    assert routes.route("T").filter_server_table == {"127.0.0.1:1": ["f:1"]}
    routes.add(broker(), ["T"])
    assert routes.route("T").filter_server_table == {}


def test_equal_topics_share_their_queues(routes):
    routes.add(broker(), ["T", "U"])
    assert routes.route("T").queue_datas[0] is routes.route("U").queue_datas[0]
    finish(routes.topics.wiping_write_perm("broker-a"))
    routes.add(broker(), [TopicConfig(topic_name="T", perm=2)], version=2)
    assert queue_facts(routes, "T") == {"broker-a": (16, 2)}
    assert queue_facts(routes, "U") == {"broker-a": (16, 4)}


NAMES = st.sampled_from(["a", "b", "c"])
BROKERS = st.builds(
    BrokerId,
    st.sampled_from(["C", "D"]),
    NAMES,
    st.integers(0, 2),
    st.sampled_from(["1:1", "2:2", "3:3", "4:4"]),
)
STEPS = st.one_of(
    st.tuples(
        st.just("register"),
        BROKERS,
        st.lists(NAMES, max_size=3),
        st.integers(0, 3),
        st.sampled_from([None, None, 1, 2]),
    ),
    st.tuples(st.just("unregister"), BROKERS),
    st.tuples(st.just("disconnect"), st.integers(0, 3)),
    st.tuples(st.just("expire"), st.integers(0, 50)),
    st.tuples(st.just("delete"), NAMES, st.sampled_from(["C", "D", None])),
    st.tuples(st.just("wipe"), NAMES),
)


@given(st.lists(STEPS, max_size=40))
def test_the_invariants_hold_after_any_history(steps):
    routes = Routes()
    for now_ms, step in enumerate(steps):
        match step:
            case ("register", who, topics, number, epoch):
                if routes.judge(who.broker_name, epoch) is Verdict.ACCEPTED:
                    routes.add(who, topics, number, connection=number, now_ms=now_ms, epoch=epoch)
            case ("unregister", who):
                routes.unregister(who)
            case ("disconnect", number):
                routes.disconnected(number, now_ms=now_ms, keep_ms=5)
            case ("expire", silence_ms):
                routes.expire(now_ms=now_ms, silence_ms_max=silence_ms)
            case ("delete", topic, cluster):
                routes.delete_topic(topic, cluster)
            case ("wipe", name):
                finish(routes.topics.wiping_write_perm(name))
        check_invariants(routes)
