# SPDX-License-Identifier: Apache-2.0
"""Which operator is active, with a fake clock and a Lease in memory."""

import asyncio
import copy
import itertools
import re

import pytest

from cometmq.operator.api import ApiUnreachable
from cometmq.operator.leader import DEADLINE_MS, DURATION_MS, RENEW_MS, Leadership, LeadershipLost
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.operator.api import MemoryApi


class World:
    def __init__(self):
        self.api = MemoryApi()
        self.now_ms = 0
        self.on_sleep = lambda: None

    async def sleep(self, seconds):
        self.now_ms += round(seconds * 1000)
        self.on_sleep()

    def operator(self, identity="one"):
        return Leadership(
            self.api, namespace="ops", name="op", identity=identity, now_ms=lambda: self.now_ms,
            log=RecordingLog(), sleep=self.sleep,
        )  # fmt: skip

    @property
    def lease(self):
        return self.api.objects["Lease", "ops", "op"]

    def write(self, holder):
        """Write the Lease as another operator, or a person, would."""
        spec = {**self.lease["spec"], "holderIdentity": holder}
        self.api.put("Lease", "op", "ops", spec=spec)

    def fail(self, _verb="", _kind=""):
        raise ApiUnreachable("down")


@pytest.fixture
def world():
    return World()


async def test_a_free_lease_is_taken_at_once(world):
    one = world.operator()
    await one.acquire()
    assert one.holds()
    assert world.now_ms == 0
    assert world.lease["spec"]["holderIdentity"] == "one"
    # Kubernetes refuses a time without its six digits.
    assert re.fullmatch(r"[-0-9]{10}T[:0-9]{8}\.[0-9]{6}Z", world.lease["spec"]["renewTime"])


async def test_a_standby_waits_until_the_lease_has_not_changed_for_its_duration(world):
    await world.operator("one").acquire()
    two = world.operator("two")
    await two.acquire()
    assert world.now_ms >= DURATION_MS
    assert world.lease["spec"]["holderIdentity"] == "two"


async def test_a_lease_that_is_renewed_is_not_taken(world):
    one, two = world.operator("one"), world.operator("two")
    await one.acquire()
    ticks = itertools.count(1)

    def renew():
        if next(ticks) > 30:
            raise KeyboardInterrupt
        world.write("one")

    world.on_sleep = renew
    with pytest.raises(KeyboardInterrupt):
        await two.acquire()
    assert not two.holds()


async def test_a_released_lease_is_taken_at_once(world):
    one, two = world.operator("one"), world.operator("two")
    await one.acquire()
    await one.release()
    await two.acquire()
    assert (one.holds(), two.holds()) == (False, True)
    assert world.now_ms == 0


async def test_a_leader_renews_and_ends_when_another_has_the_lease(world):
    one = world.operator("one")
    await one.acquire()
    ticks = itertools.count(1)

    def steal():
        if next(ticks) == 3:
            world.write("two")

    world.on_sleep = steal
    with pytest.raises(LeadershipLost, match="two has the lease"):
        await one.keep()
    assert len(world.api.made("replace")) == 2
    assert not one.holds()


async def test_a_leader_ends_before_a_standby_may_take_over(world):
    one = world.operator("one")
    await one.acquire()
    world.api.before = world.fail
    with pytest.raises(LeadershipLost, match="down"):
        await one.keep()
    assert DEADLINE_MS <= world.now_ms < DURATION_MS
    assert world.now_ms % RENEW_MS == 0


async def test_an_unreachable_server_is_asked_again(world):
    world.api.before = world.fail

    def heal():
        if world.now_ms > 5 * RENEW_MS:
            world.api.before = lambda *_: None

    world.on_sleep = heal
    one = world.operator("one")
    await one.acquire()
    assert one.holds()


async def test_of_two_operators_that_are_equally_fast_one_acts(world):
    """Both have read that there is no Lease, or the same version of one whose time is over."""
    operators = [world.operator(name) for name in ("one", "two")]
    for _ in range(2):  # the first round creates the Lease, the second replaces it
        lease = world.api.objects.get(("Lease", "ops", "op"))
        taken = [await one._take(copy.deepcopy(lease)) for one in operators]
        assert sorted(taken) == [False, True]


async def test_a_process_that_was_stopped_may_not_write_when_it_goes_on(world):
    one = world.operator("one")
    await one.acquire()
    world.now_ms += DEADLINE_MS - 1
    assert one.holds()
    world.now_ms += 1
    assert not one.holds()


async def test_an_answer_that_never_comes_does_not_outlast_the_lease(world, monkeypatch):
    one = world.operator("one")
    await one.acquire()

    async def silent(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(world.api, "get", silent)
    world.on_sleep = lambda: setattr(world, "now_ms", DEADLINE_MS)
    with pytest.raises(LeadershipLost):
        await one.keep()
