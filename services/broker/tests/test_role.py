# SPDX-License-Identifier: Apache-2.0
import pytest

from cometmq.broker.role import MASTER_ID, ServedRole, id_of
from cometmq.testing.broker.brokers import memory_broker

GROUP = {
    "groupRecord": "file:/tmp/record",
    "groupMembers": "0=10.0.0.1:10911;1=10.0.0.2:10911",
    "brokerId": "0",
}


@pytest.mark.parametrize("ordinal", [0, 1, 7])
def test_only_a_master_registers_as_a_master(ordinal):
    assert id_of(ServedRole.MASTER, ordinal) == MASTER_ID
    assert {id_of(role, ordinal) for role in (ServedRole.SLAVE, ServedRole.FENCED)} == {ordinal + 1}


def test_a_broker_without_a_group_has_the_role_of_its_settings():
    assert memory_broker().role.is_master
    slave = memory_broker(brokerRole="SLAVE", brokerId="2")
    assert slave.role.is_slave
    assert (slave.role.state.broker_id, slave.registration.registrant.identity.epoch) == (2, None)


def test_a_member_of_a_group_accepts_nothing_before_it_has_a_role():
    broker = memory_broker(**GROUP)

    assert (broker.role.state.role, broker.role.state.broker_id) == (ServedRole.FENCED, 1)
    assert not broker.role.is_master
    assert not broker.store.write_state.role_writable
    assert not broker.store.writer.needs_replicas


def test_a_role_that_changes_takes_effect_everywhere_at_once():
    broker = memory_broker(**GROUP)

    broker.role.take(ServedRole.MASTER, 7)
    assert broker.role.is_master
    assert broker.store.write_state.role_writable
    assert broker.store.writer.needs_replicas
    identity = broker.registration.registrant.identity
    assert (identity.broker_id, identity.epoch) == (0, 7)

    broker.role.take(ServedRole.SLAVE, 8)
    assert broker.role.is_slave
    assert not broker.store.write_state.role_writable
    assert not broker.store.writer.needs_replicas
    identity = broker.registration.registrant.identity
    assert (identity.broker_id, identity.epoch) == (1, 8)


def test_the_same_role_again_changes_nothing():
    broker = memory_broker(**GROUP)
    broker.role.take(ServedRole.MASTER, 7)
    identity = broker.registration.registrant.identity

    broker.role.take(ServedRole.MASTER, 7)

    assert broker.registration.registrant.identity is identity
