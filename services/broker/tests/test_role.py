# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.broker.role import MASTER_ID, Role, id_of
from cometmq.broker.testing.brokers import memory_broker

GROUP = {
    "groupRecord": "file:/tmp/record",
    "groupMembers": "0=10.0.0.1:10911;1=10.0.0.2:10911",
    "brokerId": "0",
}


@pytest.mark.parametrize("ordinal", [0, 1, 7])
def test_only_a_master_registers_as_a_master(ordinal):
    assert id_of(Role.MASTER, ordinal) == MASTER_ID
    assert {id_of(role, ordinal) for role in (Role.SLAVE, Role.FENCED)} == {ordinal + 1}


def test_a_broker_without_a_group_has_the_role_of_its_settings():
    assert memory_broker().is_master
    slave = memory_broker(brokerRole="SLAVE", brokerId="2")
    assert slave.is_slave
    assert (slave.role.broker_id, slave.registration.identity.epoch) == (2, None)


def test_a_member_of_a_group_accepts_nothing_before_it_has_a_role():
    broker = memory_broker(**GROUP)

    assert (broker.role.role, broker.role.broker_id) == (Role.FENCED, 1)
    assert not broker.is_master
    assert not broker.store.role_writable
    assert not broker.store.needs_replicas


def test_a_role_that_changes_takes_effect_everywhere_at_once():
    broker = memory_broker(**GROUP)

    broker.take_role(Role.MASTER, 7)
    assert broker.is_master
    assert broker.store.role_writable
    assert broker.store.needs_replicas
    identity = broker.registration.identity
    assert (identity.broker_id, identity.epoch) == (0, 7)

    broker.take_role(Role.SLAVE, 8)
    assert broker.is_slave
    assert not broker.store.role_writable
    assert not broker.store.needs_replicas
    identity = broker.registration.identity
    assert (identity.broker_id, identity.epoch) == (1, 8)


def test_the_same_role_again_changes_nothing():
    broker = memory_broker(**GROUP)
    broker.take_role(Role.MASTER, 7)
    identity = broker.registration.identity

    broker.take_role(Role.MASTER, 7)

    assert broker.registration.identity is identity
