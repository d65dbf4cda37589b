# SPDX-License-Identifier: Apache-2.0
from itertools import product

import pytest

from cometmq.broker.role import Order, OrderRefused, Role, RoleState, obey
from cometmq.broker.testing.brokers import memory_broker

ROWS = [
    (Role.SLAVE, Order.PROMOTE, Role.MASTER),
    (Role.SLAVE, Order.FOLLOW, Role.SLAVE),
    (Role.SLAVE, Order.FENCE, Role.FENCED),
    (Role.MASTER, Order.PROMOTE, None),
    (Role.MASTER, Order.FOLLOW, Role.SLAVE),
    (Role.MASTER, Order.FENCE, Role.FENCED),
    (Role.FENCED, Order.PROMOTE, Role.MASTER),
    (Role.FENCED, Order.FOLLOW, Role.SLAVE),
    (Role.FENCED, Order.FENCE, Role.FENCED),
]


def id_of(role):
    return 0 if role is Role.MASTER else 1


def test_rows_are_total():
    assert {row[:2] for row in ROWS} == set(product(Role, Order))


@pytest.mark.parametrize(("role", "order", "expected"), ROWS)
def test_order_leads_to_its_row(role, order, expected):
    state = RoleState(role, 7, id_of(role))
    if expected is None:
        with pytest.raises(OrderRefused, match="cannot obey"):
            obey(state, order, epoch=8, broker_id=0)
    else:
        assert obey(state, order, epoch=8, broker_id=id_of(expected)) == RoleState(
            expected, 8, id_of(expected)
        )


@pytest.mark.parametrize(
    ("order", "epoch"), [(Order.PROMOTE, 7), (Order.FOLLOW, 6), (Order.FENCE, 6)]
)
def test_stale_orders_are_refused(order, epoch):
    with pytest.raises(OrderRefused, match="is of epoch"):
        obey(RoleState(Role.SLAVE, 7, 1), order, epoch=epoch, broker_id=id_of(Role.SLAVE))


@pytest.mark.parametrize("order", [Order.FOLLOW, Order.FENCE])
def test_orders_other_than_promotion_may_repeat_in_an_epoch(order):
    state = RoleState(Role.SLAVE, 7, 1)
    once = obey(state, order, epoch=7, broker_id=1)
    assert obey(once, order, epoch=7, broker_id=1) == once


def test_only_a_master_has_the_id_of_the_master():
    with pytest.raises(OrderRefused, match="broker id"):
        obey(RoleState(Role.SLAVE, 1, 1), Order.PROMOTE, epoch=2, broker_id=1)
    with pytest.raises(OrderRefused, match="broker id"):
        obey(RoleState(Role.MASTER, 1, 0), Order.FOLLOW, epoch=2, broker_id=0)


def test_a_role_that_changes_takes_effect_everywhere_at_once():
    broker = memory_broker()
    assert broker.is_master
    assert broker.store.role_writable

    broker.obey(Order.FOLLOW, epoch=1, broker_id=2)
    assert not broker.is_master
    assert not broker.store.role_writable
    assert broker.registration.identity.broker_id == 2

    broker.obey(Order.PROMOTE, epoch=2, broker_id=0)
    assert broker.is_master
    assert broker.store.role_writable
    assert broker.registration.identity.broker_id == 0


def test_a_refused_order_changes_nothing():
    broker = memory_broker()
    before = broker.role
    with pytest.raises(OrderRefused):
        broker.obey(Order.PROMOTE, epoch=1, broker_id=0)
    assert broker.role == before
    assert broker.is_master
