# SPDX-License-Identifier: Apache-2.0
"""A task per object, which makes passes over it: after events, after changes of the view, and at
intervals.

A pass may be interrupted anywhere, and the next one starts from the beginning: it reads the current
state, and every write is idempotent or names the version or uid that it was based on. kopf keeps
the finalizer: it adds it before the first change, and removes it once a pass has let the object go.
"""

import asyncio
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import kopf
import msgspec

from cometmq.operator.api import ApiRefused, ApiUnreachable, Body, KubeApi
from cometmq.operator.managed import FINALIZER, Key, Managed
from cometmq.operator.secrets import Secrets
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.clock import Clock

RETRY_MS: Final = 2_000
LOOK_MS: Final = 250
"""Interval at which a waiting task compares the view (`Pass.view`), which takes no request."""
PACE_MS: Final = 200
"""Shortest time between the starts of two passes over an object, however many events arrive."""
FINALIZER_MS: Final = 5_000
"""Pause of an object that waits for kopf; each step of kopf wakes it."""

M = TypeVar("M", bound=Managed)


class Context(msgspec.Struct, kw_only=True):
    """What the passes over all objects share: settings, services, and Events."""

    api: KubeApi
    secrets: Secrets
    clock: Clock
    log: Log
    wall_time: Callable[[], str]
    """Returns the time in the API's format."""
    image: str = ""
    operator_namespace: str = ""
    resync_ms: int
    """Pause between passes over an idle group."""
    quiet_ms: int
    """A queue or log in which no message is stored for this long counts as unused by producers."""
    claims: Mapping[Any, Collection[Any]] = {}
    """kopf's index of the claims of Topics and ConsumerGroups, by entry. kopf's thread changes
    indexes, so readers copy a collection before they look at it."""
    pods: Mapping[Any, Collection[Any]] = {}
    """kopf's index of the pods (`PodAddress`), by namespace and group."""
    posting: contextvars.Context | None = None
    """The context of kopf's handlers, which leads to its queue of Events; None before the first."""

    async def is_ending(self, namespace: str) -> bool:
        """Return whether a namespace is being deleted."""
        found = await self.api.namespace(namespace)
        return found is None or "deletionTimestamp" in found["metadata"]


class Report(Protocol):
    """Tells users about a change of an object."""

    def __call__(self, reason: str, text: str, *, is_warning: bool = False) -> None: ...


class Pass(ABC, Generic[M]):
    """Passes over one object; the fields kept between them are hints, and may be lost."""

    def __init__(self, key: Key, context: Context) -> None:
        self.key = key
        self.context = context
        self._body: Any = {}
        """The object as last read."""
        self.let_go = asyncio.Event()
        """Set once the deletion of the object may go on; kopf then removes the finalizer."""

    async def run(self) -> int | None:
        """Reconcile the object once; return the pause before the next pass, or None if it is gone.

        Raise ApiUnreachable or ApiRefused if a call to the API fails, and msgspec.ValidationError
        for an invalid spec; the next pass starts from the beginning.
        """
        body = await self.context.api.get(*self.key)
        if body is None:
            return None
        self._body, one = body, self.parse(body)
        if one.is_deleting:
            if not one.has_finalizer:
                return None
            if self.let_go.is_set():
                await self._remove_finalizer(body)
            elif await self.is_released(one):
                await self._let_go()
            if self.let_go.is_set():
                return FINALIZER_MS
        elif self.wants_finalizer(one) and not one.has_finalizer:
            return FINALIZER_MS
        pause_ms = await self.reconcile(one, body)
        if pause_ms is None:
            await self._let_go()
        return FINALIZER_MS if pause_ms is None else pause_ms

    def report(self, reason: str, text: str, *, is_warning: bool = False) -> None:
        """Log a change of the object, and let kopf write an Event; nothing depends on Events."""
        log, posting = self.context.log, self.context.posting
        log.info("object.changed", object="/".join(self.key), reason=reason, text=text)
        tell, about = kopf.warn if is_warning else kopf.info, kopf.Body(self._body)
        try:
            if posting is not None:
                posting.copy().run(tell, about, reason=reason, message=text)
        except (RuntimeError, LookupError) as error:  # kopf has just stopped
            log.warning("event.lost", object="/".join(self.key), error=str(error))

    async def _remove_finalizer(self, body: Body) -> None:
        """Remove kopf's finalizer, which is still there a while after the object may go.

        kopf does not serve a kind whose definition is being deleted, as discovery says that its
        objects cannot be patched.
        """
        metadata = body["metadata"]
        others = [one for one in metadata["finalizers"] if one != FINALIZER]
        wanted = {"finalizers": others, "resourceVersion": metadata["resourceVersion"]}
        try:
            await self.context.api.patch(*self.key, {"metadata": wanted})
        except ApiRefused as error:
            if error.status != 409:
                raise

    async def _let_go(self) -> None:
        await self.close()
        self.let_go.set()

    @abstractmethod
    def parse(self, body: Body) -> M:
        """Raise msgspec.ValidationError for an invalid spec."""

    @abstractmethod
    async def reconcile(self, one: M, body: Body) -> int | None:
        """Read, decide, act and report; return the pause before the next pass, or None if the
        deletion of the object may go on.
        """

    def wants_finalizer(self, _one: M) -> bool:
        """Return whether the object has to wait for the operator before it is deleted."""
        return True

    async def is_released(self, one: M) -> bool:
        """Return whether the finalizer can be removed without a further step: true if the namespace
        is being deleted, which must not wait for brokers; the operator may have lost its rights.
        """
        return await self.context.is_ending(one.namespace)

    def view(self) -> object:
        """Return state outside of Kubernetes whose change starts a pass; None if there is none."""
        return None

    async def attend(self) -> None:
        """Do what cannot wait for a pass, until cancelled."""

    async def close(self) -> None:
        """Stop what runs between passes; the next pass starts it again."""


P = TypeVar("P", bound=Pass[Any])

Count = Callable[[str, str, float], None]
"""Takes the kind, the result (done, failed) and the duration of a pass in seconds."""


class _Task(msgspec.Struct, Generic[P]):
    work: P
    wake: asyncio.Event
    attending: asyncio.Task[None]


class ObjectTasks(ABC, Generic[P]):
    """The tasks of the objects of one kind, or of similar kinds."""

    def __init__(self, context: Context, count: Count) -> None:
        self.context = context
        self._count = count
        self._objects: dict[Key, _Task[P]] = {}
        self._tasks = TaskSet(context.log)
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: Key) -> bool:
        return key in self._objects

    def __iter__(self) -> Iterator[P]:
        return iter([one.work for one in self._objects.values()])

    def get(self, key: Key) -> P | None:
        """Return the passes over an object; None if it has no task."""
        found = self._objects.get(key)
        return None if found is None else found.work

    @abstractmethod
    def new(self, key: Key) -> P:
        """Create the passes over an object that has no task yet."""

    def ended(self, key: Key) -> None:
        """Forget all state about an object that no longer exists."""

    def wake(self, key: Key) -> None:
        """Start a pass over an object soon; the first call for an object creates its task."""
        if self._is_closed:  # kopf, which stops after the tasks, has more events
            return
        found = self._objects.get(key)
        if found is None:
            work, name = self.new(key), "-".join(key)
            attending = self._tasks.keep(work.attend, name=f"attend-{name}")
            found = self._objects[key] = _Task(work, asyncio.Event(), attending)
            self._tasks.keep(lambda: self._run(key), name=name)
        found.wake.set()

    async def until_let_go(self, key: Key) -> None:
        """Wait until an object that is being deleted may go."""
        self.wake(key)
        if self._is_closed:
            raise asyncio.CancelledError  # which leaves the finalizer to the next operator
        await self._objects[key].work.let_go.wait()

    async def close(self) -> None:
        """Stop all tasks; brokers keep running, and another operator may take over."""
        self._is_closed = True
        await self._tasks.close()
        for one in self._objects.values():
            await one.work.close()
        self._objects.clear()

    async def _run(self, key: Key) -> None:
        one, clock = self._objects[key], self.context.clock
        while True:
            one.wake.clear()
            view = one.work.view()
            started_ms, result = clock.monotonic_ms(), "done"
            try:
                pause_ms = await one.work.run()
            except (ApiUnreachable, ApiRefused, msgspec.ValidationError) as error:
                name = "/".join(key)
                self.context.log.warning("object.unattended", object=name, error=str(error))
                result, pause_ms = "failed", RETRY_MS
            took_ms = clock.monotonic_ms() - started_ms
            self._count(key[0], result, took_ms / 1000)
            if pause_ms is None and not one.wake.is_set():
                await one.work.close()
                if not one.wake.is_set():
                    one.work.let_go.set()
                    one.attending.cancel()
                    del self._objects[key]
                    self.ended(key)
                    return
            await asyncio.sleep(max(0, PACE_MS - took_ms) / 1000)
            await self._rest(one, view, pause_ms or 0)

    async def _rest(self, one: _Task[P], view: object, pause_ms: int) -> None:
        """Wait until the pause ends, an event arrives, or the view changes."""
        now_ms = self.context.clock.monotonic_ms
        end_ms = now_ms() + pause_ms
        while (left_ms := end_ms - now_ms()) > 0:
            look_ms = left_ms if view is None else min(left_ms, LOOK_MS)
            try:
                async with asyncio.timeout(look_ms / 1000):
                    await one.wake.wait()
            except TimeoutError:
                if one.work.view() == view:
                    continue
            return
