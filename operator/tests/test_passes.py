# SPDX-License-Identifier: Apache-2.0
"""What the passes over all kinds of objects have in common, with an API server in memory."""

import asyncio
import contextvars

import pytest

from cometmq.client.testing.cluster import eventually
from cometmq.operator import passes
from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.managed import FINALIZER, Managed, metadata_of
from cometmq.operator.metrics import OperatorFigures
from cometmq.operator.passes import ObjectTasks, Pass
from cometmq.operator.topics_and_groups.declared_pass import DeclaredObjects
from cometmq.operator.topics_and_groups.item import declared_of
from cometmq.operator.unconsumed import Quiet
from cometmq.testing.operator.api import MemoryApi, context_of
from cometmq.testing.runtime.clock import FakeClock

KEY = ("Topic", "mq", "one")


def api_with(*finalizers):
    api = MemoryApi()
    api.put("Topic", "one", metadata={"finalizers": list(finalizers)})
    return api


class OnePass(Pass[Managed]):
    def __init__(self, key, context):
        super().__init__(key, context)
        self.pauses: list[int | Exception | None] = []
        self.runs = self.closed = self.seen = 0
        self.wanted = True

    def parse(self, body):
        return Managed(**metadata_of(body))

    async def reconcile(self, _one, _body):
        self.runs += 1
        pause = self.pauses.pop(0) if self.pauses else 60_000
        if isinstance(pause, Exception):
            raise pause
        return pause

    def wants_finalizer(self, _one):
        return self.wanted

    def view(self):
        return self.seen

    async def close(self):
        self.closed += 1


class OneKind(ObjectTasks[OnePass]):
    def new(self, key):
        return OnePass(key, self.context)


@pytest.fixture
async def tasks(monkeypatch):
    monkeypatch.setattr(passes, "PACE_MS", 0)
    monkeypatch.setattr(passes, "RETRY_MS", 0)
    one = OneKind(context_of(api_with(FINALIZER)), OperatorFigures().count)
    yield one
    await one.close()


async def test_nothing_is_changed_before_kopf_has_set_its_finalizer():
    api = api_with("theirs")
    work = OnePass(KEY, context_of(api))
    assert await work.run() == passes.FINALIZER_MS
    assert work.runs == 0
    work.wanted = False
    assert await work.run() == 60_000
    assert work.runs == 1
    assert api.made("patch") == []


async def test_a_deletion_waits_for_its_last_pass_and_then_only_for_kopf(tasks):
    api = tasks.context.api
    api.delete_as_user("Topic", "one")
    tasks.wake(KEY)
    work = tasks.get(KEY)
    work.pauses = [0, 0, None]
    await tasks.until_let_go(KEY)
    assert (work.runs, work.closed, api.made("patch")) == (3, 1, [])
    await tasks.until_let_go(KEY)  # kopf may ask again, or not serve the kind any more
    await eventually(lambda: KEY not in tasks)
    assert work.runs == 3
    assert api.objects[KEY]["metadata"]["finalizers"] == []


async def test_an_object_that_waits_for_others_only_needs_no_pass():
    api = api_with("theirs")
    api.delete_as_user("Topic", "one")
    work = OnePass(KEY, context_of(api))
    assert await work.run() is None
    assert work.runs == 0


@pytest.mark.parametrize("space", [None, {"metadata": {"deletionTimestamp": "now"}}])
async def test_an_object_of_a_deleted_namespace_is_released_at_once(space):
    api = api_with(FINALIZER)
    api.objects["Namespace", "", "mq"] = space
    api.delete_as_user("Topic", "one")
    work = OnePass(KEY, context_of(api))
    await work.run()
    assert work.let_go.is_set()
    assert (work.runs, work.closed) == (0, 1)


async def test_a_task_is_woken_by_events_and_by_its_view(tasks, monkeypatch):
    monkeypatch.setattr(passes, "LOOK_MS", 1)
    tasks.wake(KEY)
    work = tasks.get(KEY)
    await eventually(lambda: work.runs == 1)
    tasks.wake(KEY)
    await eventually(lambda: work.runs == 2)
    work.seen = 1
    await eventually(lambda: work.runs == 3)
    assert len(tasks) == 1


async def test_a_thousand_events_a_second_cause_few_passes(tasks, monkeypatch):
    monkeypatch.setattr(passes, "PACE_MS", 200)
    for _ in range(1_000):
        tasks.wake(KEY)
        await asyncio.sleep(0.001)
    work = tasks.get(KEY)
    seen = work.runs
    assert 1 <= seen <= 1 + (1_000 + 10_000) // 200
    assert len(tasks.context.api.calls) == seen
    await eventually(lambda: work.runs == seen + 1)  # the last event is not lost


async def test_a_pass_that_fails_is_repeated(tasks):
    tasks.wake(KEY)
    work = tasks.get(KEY)
    work.pauses = [ApiUnreachable("down"), ApiRefused(403, "no")]
    await eventually(lambda: work.runs == 3)


async def test_the_task_of_an_object_that_is_gone_ends(tasks):
    tasks.wake(KEY)
    work = tasks.get(KEY)
    await eventually(lambda: work.runs == 1)
    tasks.context.api.objects.clear()
    tasks.wake(KEY)
    await eventually(lambda: KEY not in tasks)
    assert work.closed == 1
    assert list(tasks) == []


async def test_an_event_that_kopf_does_not_take_stops_nothing(tasks):
    tasks.context.posting = contextvars.Context()  # of no operator
    work = OnePass(KEY, tasks.context)
    await work.run()
    work.report("Changed", "text")


def test_a_place_is_quiet_once_its_end_has_not_moved_for_a_while():
    clock = FakeClock()
    quiet = Quiet(clock.monotonic_ms, 1_000)
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
    """After a lost watch, kopf is not told of objects that were deleted meanwhile."""

    def claim(name, created):
        metadata = {"namespace": "mq", "name": name, "uid": name, "creationTimestamp": created}
        spec = {"name": "same", "nameServers": ["ns:9876"]}
        return declared_of("Topic", {"metadata": metadata, "spec": spec}).claim

    old, new = claim("old", "2026-01-01T00:00:00Z"), claim("new", "2026-01-02T00:00:00Z")
    context = context_of(MemoryApi(), claims={old.entry: {old, new}})
    objects = DeclaredObjects(context, OperatorFigures())
    assert objects.competing(new) == [old]
    objects.changed(old.key, old.entry, ())
    await eventually(lambda: old.key not in objects and new.key not in objects)
    assert objects.competing(new) == objects.competing(old) == []
    await objects.close()
