# SPDX-License-Identifier: Apache-2.0
"""Routes of broker groups with failover: lost masters, their successors, epochs."""

import pytest

from cometmq.namesrv.epochs import Verdict
from cometmq.runtime.incremental import finish

from .routes import KEEP_MS, SILENCE_MS, broker, check_invariants, registration

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
    assert routes.epochs.refused_count == 1


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
