# SPDX-License-Identifier: Apache-2.0
"""The route table keeps its invariants under any sequence of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.namesrv.broker_groups import BrokerId
from cometmq.namesrv.epochs import Verdict
from cometmq.namesrv.route_table import Master, Registration, RouteTable
from cometmq.remoting.bodies.topic_config import DataVersion, TopicConfig
from cometmq.runtime.incremental import finish

SILENCE_MS = 120_000
KEEP_MS = 10_000


def broker(name="broker-a", broker_id=0, address="127.0.0.1:1", cluster="C"):
    return BrokerId(cluster, name, broker_id, address)


def registration(who, topics=(), version=1, filter_servers=(), epoch=None):
    configs = [TopicConfig(topic_name=t) if isinstance(t, str) else t for t in topics]
    version = DataVersion(version, 0)
    return Registration(who, f"ha-{who.address}", version, configs, filter_servers, epoch)


class Routes(RouteTable):
    """A wrapper around a table, with shorthand for tests."""

    def judge(self, name, epoch, *, is_proven=False):
        return self.epochs.judge(name, epoch, is_proven=is_proven, now_ms=0)

    def register(self, registration, **options):
        return finish(self.registering(registration, **options))

    def route(self, topic):
        return finish(self.routing(topic))

    def add(
        self, who, topics=(), version=1, *, connection=None, now_ms=0, filter_servers=(),
        epoch=None,
    ):  # fmt: skip
        return self.register(
            registration(who, topics, version, filter_servers, epoch),
            connection=connection,
            now_ms=now_ms,
            keep_ms=KEEP_MS,
        )

    def lose(self, connection, now_ms=0):
        return self.disconnected(connection, now_ms=now_ms, keep_ms=KEEP_MS)

    def ask(self, address="127.0.0.1:1", version=1, *, connection=None, now_ms=0):
        return self.query_data_version(
            address, DataVersion(version, 0), connection=connection, now_ms=now_ms
        )

    def masters(self, topic="T"):
        """Return the master's address as clients see it, and whether the topic has a route."""
        route = self.route(topic)
        return None if route is None else [g.broker_addrs.get(0) for g in route.broker_datas]


@pytest.fixture
def routes():
    return Routes()


def queue_facts(routes, topic):
    route = routes.route(topic)
    return {q.broker_name: (q.read_queue_nums, q.perm) for q in route.queue_datas}


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
    assert routes.stats()[:3] == (0, 0, 0)


def test_unregistering_an_unknown_broker_does_nothing(routes):
    routes.add(broker(), ["T"])
    routes.unregister(broker("nobody"))
    routes.unregister(broker(broker_id=5))
    assert routes.route("T") is not None


def test_silent_brokers_expire_and_a_known_version_is_a_sign_of_life(routes):
    routes.add(broker(), ["T"], connection="x")
    routes.add(broker("broker-b", address="127.0.0.1:2"), connection="y")
    known = DataVersion(1, 0)
    assert routes.ask("127.0.0.1:2", 1, connection="y", now_ms=50) == (False, known)
    assert routes.expire(now_ms=SILENCE_MS, silence_ms_max=SILENCE_MS) == []
    gone = routes.expire(now_ms=SILENCE_MS + 1, silence_ms_max=SILENCE_MS)
    assert [live.connection for live in gone] == ["x"]
    assert routes.route("T") is None
    assert routes.stats().expired_count == 1
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
    assert routes.stats().disconnected_count == 1


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


# ---- groups with failover --------------------------------------------------------------------

OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"


def failed_over(routes, now_ms=100):
    """Lose the master of a group in epoch 4 while its slave remains alive."""
    routes.add(broker(), ["T"], connection="old", epoch=4)
    routes.add(broker(broker_id=1, address=NEW), ["T"], connection="new", epoch=4)
    assert routes.lose("old", now_ms) == [OLD]


def test_a_lost_master_stays_in_the_routes_until_the_next_one_registers(routes):
    failed_over(routes)
    assert routes.masters() == [OLD]
    assert OLD not in routes.live_brokers()
    assert routes.holder(broker(address=NEW)) is None


def test_a_successor_takes_the_id_of_the_master_before_it(routes):
    routes.add(broker(), epoch=3)
    routes.add(broker(broker_id=2, address="127.0.0.1:3"), epoch=4)  # the group's epoch rises
    assert routes.holder(broker(address=NEW), 4) is None
    assert routes.holder(broker(address=NEW), 3) == OLD
    assert routes.holder(broker(address=NEW)) == OLD


def test_refusals_are_counted_per_epoch(routes):
    routes.add(broker(), epoch=3)
    for count in (1, 2):
        assert routes.judge("broker-a", 2) is Verdict.STALE
        assert routes.epochs.refusals("broker-a") == count
    routes.add(broker(), epoch=4)
    assert routes.epochs.refusals("broker-a") == 0
    routes.add(broker(address=NEW), ["T"], connection="new", now_ms=200, epoch=5)
    assert routes.masters() == [NEW]
    assert routes.route("T").broker_datas[0].broker_addrs == {0: NEW}


def test_a_lost_master_leaves_the_routes_after_a_while(routes):
    failed_over(routes, now_ms=100)
    routes.expire(now_ms=100 + KEEP_MS - 1, silence_ms_max=SILENCE_MS)
    assert routes.masters() == [OLD]
    assert routes.expire(now_ms=100 + KEEP_MS, silence_ms_max=SILENCE_MS) == []
    assert routes.masters() == [None]
    assert routes.route("T").broker_datas[0].broker_addrs == {1: NEW}


def test_the_queues_of_a_group_stay_known_while_its_only_broker_is_away(routes):
    routes.add(broker(), ["T"], connection="old", epoch=4)
    routes.lose("old")
    assert routes.masters() == [OLD]
    routes.expire(now_ms=KEEP_MS, silence_ms_max=SILENCE_MS)
    assert routes.masters() is None
    assert finish(routes.topics.selecting()) == []
    assert routes.groups.cluster_info().broker_addr_table == {}


def test_a_demoted_master_stays_the_master_of_the_routes_until_the_next_one_registers(routes):
    routes.add(broker(), ["T"], connection="old", epoch=4)
    # The demoted master now forwards requests.
    routes.add(broker(broker_id=2), ["T"], connection="old", epoch=5)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: OLD, 2: OLD}
    routes.add(broker(address=NEW), ["T"], connection="new", epoch=5)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: NEW, 2: OLD}
    assert set(routes.live_brokers()) == {OLD, NEW}


@pytest.mark.parametrize("goes", ["disconnects", "unregisters"])
def test_a_demoted_master_that_goes_is_dropped_everywhere(routes, goes):
    routes.add(broker(), ["T"], connection="old", epoch=4)
    routes.add(broker(broker_id=2), ["T"], connection="old", epoch=5)
    if goes == "disconnects":
        assert routes.lose("old") == [OLD]
    else:
        routes.unregister(broker())
        routes.unregister(broker(broker_id=2))
    assert routes.masters() is None
    assert routes.groups.cluster_info().broker_addr_table == {}


def test_a_kept_master_can_be_unregistered_or_return(routes):
    failed_over(routes)
    routes.unregister(broker())
    assert routes.masters() == [None]
    routes.add(broker(), ["T", "U"], connection="back", epoch=4)
    assert routes.masters("U") == [OLD]
    routes.lose("back")
    assert routes.add(broker(broker_id=1, address=NEW), epoch=4) is None
    routes.add(broker(), ["T"], connection="again", epoch=4)
    assert set(routes.live_brokers()) == {OLD, NEW}


def test_epochs_below_the_highest_are_stale(routes):
    assert routes.judge("broker-a", 4) is Verdict.ACCEPTED
    failed_over(routes)
    assert routes.judge("broker-a", 3) is Verdict.STALE
    assert {routes.judge("broker-a", epoch) for epoch in (4, 5, None)} == {Verdict.ACCEPTED}
    assert routes.judge("broker-b", 1) is Verdict.ACCEPTED
    assert routes.stats().stale_count == 1


def test_the_first_proof_removes_what_strangers_registered_under_the_name(routes):
    stranger = broker(address="127.0.0.1:66")
    routes.add(stranger, ["T"], epoch=9)
    routes.add(broker(broker_id=1, address="127.0.0.1:67"), epoch=9)
    assert routes.judge("broker-a", 4, is_proven=True) is Verdict.ACCEPTED
    proven = registration(broker(broker_id=1, address=NEW), epoch=4)._replace(is_proven=True)
    routes.register(proven, connection=None, now_ms=0)
    assert set(routes.live_brokers()) == {NEW}
    assert routes.masters("T") is None
    assert routes.judge("broker-a", 9) is Verdict.UNPROVEN
    assert routes.judge("broker-a", None) is Verdict.UNPROVEN
    check_invariants(routes)


def test_equal_topics_share_their_queues(routes):
    routes.add(broker(), ["T", "U"])
    assert routes.route("T").queue_datas[0] is routes.route("U").queue_datas[0]
    finish(routes.topics.wiping_write_perm("broker-a"))
    routes.add(broker(), [TopicConfig(topic_name="T", perm=2)], version=2)
    assert queue_facts(routes, "T") == {"broker-a": (16, 2)}
    assert queue_facts(routes, "U") == {"broker-a": (16, 4)}


def test_a_group_that_has_gone_may_begin_again_with_its_first_epoch(routes):
    routes.add(broker(), ["T"], connection="old", epoch=57)
    routes.unregister(broker())
    assert routes.judge("broker-a", 1) is Verdict.ACCEPTED


def test_without_epochs_a_lost_master_is_dropped_at_once(routes):
    """RocketMQ's brokers register without an epoch, and RocketMQ drops a lost master at once."""
    routes.add(broker(), ["T"], connection="old")
    routes.add(broker(broker_id=1, address=NEW), connection="new")
    routes.lose("old")
    assert routes.route("T").broker_datas[0].broker_addrs == {1: NEW}
    routes.add(broker(), ["T"], connection="old")
    routes.add(broker(broker_id=2), ["T"], connection="old")
    assert routes.route("T").broker_datas[0].broker_addrs == {1: NEW, 2: OLD}


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


def check_invariants(routes):
    info = routes.groups.cluster_info()
    addresses = [
        a for group in info.broker_addr_table.values() for a in group.broker_addrs.values()
    ]
    kept = [info.broker_addr_table[name].broker_addrs[0] for name in routes._kept]
    assert set(routes._kept) <= set(routes.epochs.names()) <= set(info.broker_addr_table)
    for address in kept:
        addresses.remove(address)
    assert len(set(addresses)) == len(addresses)
    assert set(addresses) == set(routes.live_brokers())
    assert all(group.broker_addrs for group in info.broker_addr_table.values())
    named = {name for names in info.cluster_addr_table.values() for name in names}
    assert named == set(info.broker_addr_table)
    assert all(info.cluster_addr_table.values())
    for topic in finish(routes.topics.selecting()):
        assert {q.broker_name for q in routes.route(topic).queue_datas} <= named
