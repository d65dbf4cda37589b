# SPDX-License-Identifier: Apache-2.0
"""Whether a group member serves or refuses a request, or waits with its answer."""

import asyncio

import pytest

from cometmq.broker.copies.gate.diversion import KINDS
from cometmq.broker.handlers import HANDLERS
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import (
    ServiceNotAvailable,
    SystemBusy,
)
from cometmq.remoting.raw import FLAG_ONEWAY

from .gate_rig import (
    BEAT,
    COMMIT,
    LOCK,
    PULL,
    SEND,
    TOPIC,
    Rig,
    turns,
    until,
)


def test_every_request_of_the_table_has_a_handler():
    assert KINDS.keys() <= HANDLERS.keys()


@pytest.mark.parametrize("prefix", [
    "SEND_M", "SEND_B", "UPDATE_AND_CREATE_TOPIC", "UPDATE_AND_CREATE_SUB", "DELETE_TOPIC",
    "DELETE_SUB", "UPDATE_CONSUMER", "LOCK", "UNLOCK", "END_", "CONSUMER_SEND",
])  # fmt: skip
def test_requests_that_store_or_change_anything_are_in_the_table(prefix):
    codes = {code for code in map(RequestCode, HANDLERS) if code.name.startswith(prefix)}
    assert codes
    assert codes <= KINDS.keys()


async def test_a_master_serves_at_once():
    rig = Rig()
    for code in (SEND, LOCK, PULL, BEAT):
        assert rig.ask(code).remark == "served"
    assert (await rig.ask(TOPIC)).remark == "served"


async def test_only_a_master_changes_tables_and_answers_locks():
    rig = Rig(is_master=False)
    with pytest.raises(ServiceNotAvailable, match="not the master"):
        rig.ask(LOCK)
    with pytest.raises(ServiceNotAvailable, match="not the master"):
        await rig.ask(TOPIC)
    assert rig.served == []
    assert rig.ask(PULL).remark == "served"


async def test_a_change_is_refused_while_too_few_copies_are_in_sync():
    """A single copy could lose the change. Offset commits are still accepted, because messages are
    still delivered.
    """
    rig = Rig()
    rig.leader.enough = False
    with pytest.raises(ServiceNotAvailable, match="nothing was changed: fewer copies"):
        await rig.ask(TOPIC)
    assert rig.served == []
    assert (await rig.ask(COMMIT)).remark == "served"


async def test_a_change_is_not_answered_if_too_few_copies_are_left_meanwhile():
    rig = Rig()
    rig.changes = 3
    asked = asyncio.get_running_loop().create_task(rig.ask(TOPIC))
    await until(lambda: rig.served)
    rig.leader.tables, rig.leader.enough = 3, False
    with pytest.raises(SystemBusy, match="the other copies have not confirmed it"):
        await asked


async def test_a_change_is_answered_when_the_copies_have_it():
    rig = Rig()
    rig.changes = 3
    rig.leader.tables = 2
    asked = asyncio.get_running_loop().create_task(rig.ask(TOPIC))
    await until(lambda: rig.served)
    await turns()
    assert rig.served == [b"x"]
    assert not asked.done()
    rig.leader.tables = 3
    rig.leader.moved.set()
    assert (await asked).remark == "served"


async def test_a_commit_is_answered_when_the_copies_have_it():
    rig = Rig()
    rig.changes = 3
    asked = asyncio.get_running_loop().create_task(rig.ask(COMMIT))
    await until(lambda: rig.served)
    await turns()
    assert rig.served == [b"x"]
    assert not asked.done()
    rig.leader.tables = 3
    rig.leader.moved.set()
    assert (await asked).remark == "served"


async def test_a_commit_without_an_answer_waits_for_nothing():
    rig = Rig()
    rig.changes = 3
    assert rig.ask(COMMIT, flag=FLAG_ONEWAY).remark == "served"


async def test_a_change_that_the_copies_do_not_get_is_not_confirmed():
    rig = Rig()
    rig.changes = 3
    with pytest.raises(SystemBusy, match="have not confirmed it"):
        await rig.ask(TOPIC)


async def test_a_change_under_a_leadership_that_ends_is_not_confirmed():
    rig = Rig()
    rig.changes = 3
    asked = asyncio.get_running_loop().create_task(rig.ask(TOPIC))
    await until(lambda: rig.served)
    rig.permission.confirmation = None
    with pytest.raises(SystemBusy):
        await asked


async def test_a_lock_waits_until_nobody_else_can_be_master():
    rig = Rig()
    rig.leader.unlogged = False
    asked = asyncio.get_running_loop().create_task(rig.ask(LOCK))
    await turns()
    assert rig.served == []
    assert not asked.done()
    rig.leader.unlogged = True
    assert (await asked).remark == "served"


async def test_reads_wait_until_the_ends_of_queues_are_confirmed():
    rig = Rig()
    rig.leader.readable = False
    asked = asyncio.get_running_loop().create_task(rig.ask(PULL))
    await turns()
    assert rig.served == []
    assert not asked.done()
    rig.leader.readable = True
    rig.leader.moved.set()
    assert (await asked).remark == "served"


async def test_reads_of_a_slave_wait_until_its_copy_is_confirmed():
    rig = Rig(is_master=False)
    rig.may_read_copy = False
    with pytest.raises(SystemBusy, match="not yet confirmed"):
        await rig.ask(PULL)
    assert rig.served == []
