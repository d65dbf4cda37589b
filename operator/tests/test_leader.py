# SPDX-License-Identifier: Apache-2.0
"""Which operator is active, with a fake clock and a Lease in memory."""

import itertools
from typing import Any

import pytest

from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.leader import DEADLINE_MS, DURATION_MS, RENEW_MS, Leadership, LeadershipLost
from cometmq.testing.broker.logs import RecordingLog


class FakeApi:
    def __init__(self):
        self.lease = None
        self.versions = itertools.count(1)
        self.is_reachable = True
        self.writes = 0

    async def get(self, kind, namespace, name):
        if not self.is_reachable:
            raise ApiUnreachable("down")
        return None if self.lease is None else {**self.lease}

    async def create(self, kind, namespace, body):
        if self.lease is not None:
            raise ApiRefused(409, "exists")
        return self.write(body["spec"])

    async def patch(self, kind, namespace, name, body):
        if not self.is_reachable:
            raise ApiUnreachable("down")
        if self.lease is None:
            return None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiRefused(409, "conflict")
        return self.write(body["spec"])

    def write(self, spec):
        self.writes += 1
        metadata = {"uid": "u", "resourceVersion": str(next(self.versions))}
        self.lease = {"metadata": metadata, "spec": dict(spec)}
        return self.lease


class World:
    def __init__(self):
        self.api: Any = FakeApi()
        self.now_ms = 0
        self.on_sleep = lambda: None

    async def sleep(self, seconds):
        self.now_ms += round(seconds * 1000)
        self.on_sleep()

    def operator(self, identity="one"):
        return Leadership(
            self.api, namespace="ops", name="op", identity=identity, now_ms=lambda: self.now_ms,
            wall_time=lambda: "2026-01-01T00:00:00.000000Z", log=RecordingLog(), sleep=self.sleep,
        )  # fmt: skip


@pytest.fixture
def world():
    return World()


async def test_a_free_lease_is_taken_at_once(world):
    one = world.operator()
    await one.acquire()
    assert one.is_leader
    assert world.now_ms == 0
    assert world.api.lease["spec"]["holderIdentity"] == "one"


async def test_a_standby_waits_until_the_lease_has_not_changed_for_its_duration(world):
    await world.operator("one").acquire()
    two = world.operator("two")
    await two.acquire()
    assert world.now_ms >= DURATION_MS
    assert world.api.lease["spec"]["holderIdentity"] == "two"


async def test_a_lease_that_is_renewed_is_not_taken(world):
    one, two = world.operator("one"), world.operator("two")
    await one.acquire()
    ticks = itertools.count(1)

    def renew():
        if next(ticks) > 30:
            raise KeyboardInterrupt
        world.api.write(world.api.lease["spec"])

    world.on_sleep = renew
    with pytest.raises(KeyboardInterrupt):
        await two.acquire()
    assert not two.is_leader


async def test_a_released_lease_is_taken_at_once(world):
    one, two = world.operator("one"), world.operator("two")
    await one.acquire()
    await one.release()
    await two.acquire()
    assert (one.is_leader, two.is_leader) == (False, True)
    assert world.now_ms == 0


async def test_a_leader_renews_and_ends_when_another_has_the_lease(world):
    one = world.operator("one")
    await one.acquire()
    ticks = itertools.count(1)

    def steal():
        if next(ticks) == 3:
            world.api.write({"holderIdentity": "two"})

    world.on_sleep = steal
    with pytest.raises(LeadershipLost, match="two has the lease"):
        await one.keep()
    assert world.api.writes == 4
    assert not one.is_leader


async def test_a_leader_ends_before_a_standby_may_take_over(world):
    one = world.operator("one")
    await one.acquire()
    world.api.is_reachable = False
    with pytest.raises(LeadershipLost, match="down"):
        await one.keep()
    assert DEADLINE_MS <= world.now_ms < DURATION_MS
    assert world.now_ms % RENEW_MS == 0


async def test_an_unreachable_server_is_asked_again(world):
    world.api.is_reachable = False

    def heal():
        world.api.is_reachable = world.now_ms > 5 * RENEW_MS

    world.on_sleep = heal
    one = world.operator("one")
    await one.acquire()
    assert one.is_leader
