# SPDX-License-Identifier: Apache-2.0
from itertools import count

import msgspec
import pytest

from cometmq.ha import state as states
from cometmq.ha.durable import OsFiles
from cometmq.ha.record import Copy, Record
from cometmq.ha.state import STATE_FILE, Boot, Standing, State, StateDamaged, StateFile
from cometmq.testing.remoting.hostile_json import hostile


@pytest.fixture
def new_incarnation():
    numbers = count(1)
    return lambda: f"new-{next(numbers)}"


STATE = State(
    group="orders", ordinal=1, incarnation="old", boot_id="b1", promised=4, standing=Standing.PROVEN
)


@pytest.mark.parametrize(
    ("boot", "is_another_copy"),
    [
        (Boot(boot_id="b1", was_closed=True), False),
        (Boot(boot_id="b2", was_closed=True), False),
        (Boot(boot_id="b1", was_closed=False), False),  # kill -9: the page cache survives
        (Boot(boot_id="b2", was_closed=False), True),  # the host crashed
        (Boot(boot_id="b1", was_closed=False, has_cut_records=True), True),
        (Boot(boot_id="b1", was_closed=True, has_cut_records=True), True),
    ],
)
def test_a_store_that_may_have_lost_something_is_another_copy(
    boot, is_another_copy, new_incarnation
):
    after = states.started(STATE, boot, new_incarnation)
    assert after.copy == Copy(1, "new-1" if is_another_copy else "old")
    assert after.standing is (Standing.SUSPECT if is_another_copy else Standing.PROVEN)
    assert after.promised == 4
    assert after.boot_id == boot.boot_id


def test_a_new_store_has_promised_nothing(new_incarnation):
    state = states.created("orders", 2, "b1", new_incarnation)
    assert state.copy == Copy(2, "new-1")
    assert (state.promised, state.standing) == (0, Standing.NEW)


def test_promises_only_rise():
    assert states.promised(STATE, 7).promised == 7
    assert states.promised(STATE, 3).promised == 4


def test_a_state_is_loaded_as_it_was_saved(tmp_path):
    file = StateFile(tmp_path, OsFiles())
    assert file.load("orders", 1) is None
    file.save(STATE)
    assert StateFile(tmp_path, OsFiles()).load("orders", 1) == STATE


def test_a_damaged_state_says_what_to_do(tmp_path):
    for _, content in hostile({}):
        (tmp_path / STATE_FILE).write_bytes(content)
        with pytest.raises(StateDamaged, match=r"haState\.json cannot be read.*remove the store"):
            StateFile(tmp_path, OsFiles()).load("orders", 1)


@pytest.mark.parametrize(("group", "ordinal"), [("orders", 2), ("bills", 1)])
def test_a_store_of_another_broker_is_refused(tmp_path, group, ordinal):
    file = StateFile(tmp_path, OsFiles())
    file.save(STATE)
    with pytest.raises(StateDamaged, match="belongs to broker 1 of group 'orders', but this is"):
        file.load(group, ordinal)


def test_membership_is_remembered():
    for standing in Standing:
        assert states.proven(msgspec.structs.replace(STATE, standing=standing)) == STATE


def test_a_store_that_was_never_in_sync_has_nothing_to_lose(new_incarnation):
    state = states.created("orders", 1, "b1", new_incarnation)
    after = states.started(state, Boot(boot_id="b2", was_closed=False), new_incarnation)
    assert (after.incarnation, after.standing) == ("new-2", Standing.NEW)
    again = msgspec.structs.replace(STATE, standing=Standing.SUSPECT)
    after = states.started(again, Boot(boot_id="b1", was_closed=True), new_incarnation)
    assert after.standing is Standing.SUSPECT


def test_a_record_is_kept_as_last_seen():
    fresh = msgspec.structs.replace(STATE, standing=Standing.NEW)
    other = Copy(STATE.ordinal + 1, "other")
    record = Record(uid="u", group=STATE.group, epoch=1, holder=other, in_sync=(other,))
    outside = states.saw(fresh, record)
    assert (outside.standing, outside.last_in_sync) == (Standing.NEW, (other,))
    both = record.renewed([fresh.copy, other])
    inside = states.saw(outside, both)
    assert (inside.standing, inside.last_in_sync) == (Standing.PROVEN, both.in_sync)
