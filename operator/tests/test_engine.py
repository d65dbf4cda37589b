# SPDX-License-Identifier: Apache-2.0
"""What the passes over all kinds of objects have in common, with an API server in memory."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from cometmq.client.testing.cluster import eventually
from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.engine import engine as engine_module
from cometmq.operator.engine.context import Context
from cometmq.operator.engine.engine import Engine
from cometmq.operator.engine.managed import Managed, metadata_of
from cometmq.operator.engine.passes import Pass
from cometmq.operator.engine.quiet import Quiet
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.topics_and_groups.objects import DeclaredObjects
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.testing.runtime.clock import FakeClock

KEY = ("Kind", "mq", "one")


class Api:
    """One object, whose finalizers can be patched."""

    def __init__(self, *finalizers):
        self.body: Any = {"metadata": {
            "namespace": "mq", "name": "one", "uid": "u", "resourceVersion": "1",
            "finalizers": list(finalizers),
        }}  # fmt: skip
        self.space: Any = {"metadata": {}}
        self.is_refusing = False

    async def get(self, *_key):
        return self.body

    async def namespace(self, _name):
        return self.space

    async def patch(self, *key_and_patch):
        if self.is_refusing:
            raise ApiRefused(409, "conflict")
        *key, patch = key_and_patch
        assert tuple(key) == KEY
        metadata = self.body["metadata"]
        assert patch["metadata"]["resourceVersion"] == metadata["resourceVersion"]
        metadata["finalizers"] = patch["metadata"]["finalizers"]
        if "deletionTimestamp" in metadata and not metadata["finalizers"]:
            self.body = None

    def delete(self):
        self.body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def context_of(api, clock=None):
    return Context(
        api=api, secrets=Mock(), clock=clock or SystemClock(), log=NO_LOG, wall_time=lambda: "",
        resync_ms=60_000, quiet_ms=1_000,
    )  # fmt: skip


class OnePass(Pass[Managed]):
    finalizer = "ours"

    def __init__(self, key, context):
        super().__init__(key, context)
        self.pauses: list[int | Exception | None] = []
        self.runs = self.closed = self.failures = 0
        self.seen = 0
        self.wanted = True

    def parse(self, body):
        return Managed(**metadata_of(body, self.finalizer))

    async def reconcile(self, _one, _body):
        self.runs += 1
        pause = self.pauses.pop(0) if self.pauses else 60_000
        if isinstance(pause, Exception):
            raise pause
        return pause

    def note_failure(self, _error):
        self.failures += 1

    def wants_finalizer(self, _one):
        return self.wanted

    def view(self):
        return self.seen

    async def close(self):
        self.closed += 1


class OneEngine(Engine[OnePass]):
    def new(self, key):
        return OnePass(key, self.context)


@pytest.fixture
async def engine():
    figures = OperatorFigures()
    one = OneEngine(context_of(Api("ours", "theirs")), figures.count)
    yield one
    await one.close()


def finalizers(api):
    return api.body["metadata"]["finalizers"]


async def test_a_finalizer_is_set_before_the_first_change_and_others_are_kept():
    api = Api("theirs")
    work = OnePass(KEY, context_of(api))
    assert await work.run() == 0
    assert (finalizers(api), work.runs) == (["theirs", "ours"], 0)
    assert await work.run() == 60_000
    work.wanted = False
    assert await work.run() == 0
    assert (finalizers(api), work.runs) == (["theirs"], 1)


async def test_a_deletion_waits_for_its_last_pass_and_then_only_for_others():
    api = Api("ours")
    work = OnePass(KEY, context_of(api))
    api.delete()
    work.pauses = [1_000, None, None]
    assert await work.run() == 1_000
    api.is_refusing = True
    assert await work.run() == 0  # changed since it was read: the next pass looks again
    api.is_refusing = False
    assert await work.run() is None
    assert (api.body, work.closed) == (None, 2)
    assert await work.run() is None
    assert work.runs == 3
    api = Api("theirs")
    api.delete()
    assert await OnePass(KEY, context_of(api)).run() is None
    assert finalizers(api) == ["theirs"]


@pytest.mark.parametrize("space", [None, {"metadata": {"deletionTimestamp": "now"}}])
async def test_an_object_of_a_deleted_namespace_is_released_at_once(space):
    api = Api("ours")
    work = OnePass(KEY, context_of(api))
    api.space = space
    api.delete()
    assert await work.run() is None
    assert (api.body, work.runs, work.closed) == (None, 0, 1)


async def test_a_task_is_woken_by_events_and_by_its_view(engine, monkeypatch):
    monkeypatch.setattr(engine_module, "LOOK_MS", 1)
    engine.wake(KEY)
    work = engine.get(KEY)
    await eventually(lambda: work.runs == 1)
    engine.wake(KEY)
    await eventually(lambda: work.runs == 2)
    work.seen = 1
    await eventually(lambda: work.runs == 3)
    assert len(engine) == 1


async def test_a_pass_that_fails_is_repeated(engine, monkeypatch):
    monkeypatch.setattr(engine_module, "RETRY_MS", 0)
    engine.wake(KEY)
    work = engine.get(KEY)
    work.pauses = [ApiUnreachable("down"), ApiRefused(403, "no")]
    await eventually(lambda: work.runs == 3)
    assert work.failures == 2


async def test_the_task_of_an_object_that_is_gone_ends(engine):
    engine.wake(KEY)
    work = engine.get(KEY)
    await eventually(lambda: work.runs == 1)
    engine.context.api.body = None
    engine.wake(KEY)
    await eventually(lambda: KEY not in engine)
    assert work.closed == 1
    assert list(engine) == []


def test_a_place_is_quiet_once_its_end_has_not_moved_for_a_while():
    clock = FakeClock()
    quiet = Quiet(context_of(Api(), clock))
    assert not quiet.is_quiet("a", 5)
    clock.advance(999)
    assert not quiet.is_quiet("a", 5)
    assert not quiet.is_quiet("b", 5)
    clock.advance(1)
    assert quiet.is_quiet("a", 5)
    assert not quiet.is_quiet("b", 6)
    assert not quiet.is_quiet("c", -1)
    clock.advance(1_000)
    assert not quiet.is_quiet("c", -1)


async def test_an_object_that_vanished_unseen_gives_its_name_up():
    """A watch that starts anew tells nothing of objects that were deleted meanwhile."""
    api = AsyncMock(get=AsyncMock(return_value=None), list_all=AsyncMock(return_value=[]))
    objects = DeclaredObjects(context_of(api), OperatorFigures())

    def body(name, created):
        metadata = {"namespace": "mq", "name": name, "uid": name, "creationTimestamp": created}
        return {"metadata": metadata, "spec": {"name": "same", "nameServers": ["ns:9876"]}}

    objects.changed("Topic", body("old", "2026-01-01T00:00:00Z"))
    (old,) = objects._claims.values()
    objects.changed("Topic", body("new", "2026-01-02T00:00:00Z"))
    assert len(objects.competing(old)) == 1
    objects.start(())
    async with asyncio.timeout(60):
        await objects.loaded()
    await eventually(lambda: len(objects) == 0)
    assert objects.competing(old) == []
    await objects.close()
