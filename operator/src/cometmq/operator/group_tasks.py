# SPDX-License-Identifier: Apache-2.0
"""Runs one task per group, which is woken by events and by elections."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.ha.port import RecordPort
from cometmq.operator.api import ApiRefused, ApiUnreachable
from cometmq.operator.events import Reporter
from cometmq.operator.members import Addresses, Members
from cometmq.operator.metrics import GroupFigures, OperatorFigures
from cometmq.operator.reconcile import Context, Pass
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.clock import Clock

RETRY_MS: Final = 2_000
POINT_RETRY_MS: Final = 500
LOOK_MS: Final = 250
"""Interval at which a waiting task checks its members for changes, without sending requests."""

Key = tuple[str, str]


class Looked(msgspec.Struct):
    """The state of one managed group: its members, its passes, and the event that wakes its
    task.
    """

    members: Members
    work: Pass
    wake: asyncio.Event


class Groups:
    def __init__(
        self,
        context: Context,
        *,
        record_of: Callable[[str, str], RecordPort],
        clock: Clock,
        log: Log,
        addresses: Addresses | None = None,
        figures: OperatorFigures | None = None,
    ) -> None:
        """`record_of` returns the record of the group with this namespace and name."""
        self._context = context
        self._record_of = record_of
        self._clock = clock
        self._log = log
        self._addresses = addresses
        self._figures = figures or OperatorFigures()
        self._groups: dict[Key, Looked] = {}
        self._tasks = TaskSet(log)

    def __len__(self) -> int:
        return len(self._groups)

    def wake(self, namespace: str, name: str) -> None:
        """Start a pass over a group now; the first call for a group creates its task."""
        key = (namespace, name)
        looked = self._groups.get(key)
        if looked is None:
            looked = self._groups[key] = self._new(namespace, name)
            self._tasks.keep(lambda: self._run(key), name=f"group-{namespace}-{name}")
            self._tasks.keep(lambda: self._point(key), name=f"master-{namespace}-{name}")
        looked.wake.set()

    def note(self, kind: str, namespace: str, name: str, group: str, version: str) -> None:
        """Note the version of an owned object and wake its group, which repairs the object if
        another client changed it.
        """
        looked = self._groups.get((namespace, group))
        if looked is not None:
            looked.work.forget(kind, name, version)
            looked.wake.set()

    def figures(self) -> list[GroupFigures]:
        return [
            GroupFigures(
                namespace=namespace,
                name=name,
                status=looked.work.status,
                elector=elector.stats if elector else None,
                operations=looked.work.operations,
            )
            for (namespace, name), looked in self._groups.items()
            for elector in (looked.members.elector,)
        ]

    async def close(self) -> None:
        """Stop all tasks; brokers keep running, and another operator may take over."""
        await self._tasks.close()
        for looked in self._groups.values():
            await looked.members.close()
        self._groups.clear()

    def _new(self, namespace: str, name: str) -> Looked:
        context = self._context
        members = Members(
            self._record_of(namespace, name),
            clock=self._clock,
            log=self._log,
            addresses=self._addresses,
        )
        now_ms = self._clock.monotonic_ms
        reporter = Reporter(context.api, wall_time=context.wall_time, now_ms=now_ms, log=self._log)
        work = Pass(context, members, reporter, now_ms)
        return Looked(members, work, asyncio.Event())

    async def _run(self, key: Key) -> None:
        looked = self._groups[key]
        while True:
            looked.wake.clear()
            view = _view(looked.members)
            started_ms, result = self._clock.monotonic_ms(), "done"
            try:
                pause_ms = await looked.work.run(*key)
            except (ApiUnreachable, ApiRefused, msgspec.ValidationError) as error:
                result = "failed"
                self._log.warning("group.unattended", group="/".join(key), error=str(error))
                pause_ms = RETRY_MS
            figures = self._figures
            figures.passes[result] += 1
            figures.pass_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1000)
            if pause_ms is None:
                if not looked.wake.is_set():
                    del self._groups[key]
                    looked.members.master_opened.set()
                    return
                continue
            await self._rest(looked, view, pause_ms)

    async def _point(self, key: Key) -> None:
        """Point the Service of a group at each master that opens, without waiting for a pass."""
        looked = self._groups[key]
        opened = looked.members.master_opened
        while self._groups.get(key) is looked:
            await opened.wait()
            opened.clear()
            try:
                await looked.work.point_at_master()
            except (ApiUnreachable, ApiRefused) as error:
                self._log.warning("master_service.unmoved", group="/".join(key), error=str(error))
                await asyncio.sleep(POINT_RETRY_MS / 1000)
                opened.set()

    async def _rest(self, looked: Looked, view: object, pause_ms: int) -> None:
        """Wait until the pause ends, an event arrives, or the members' state changes."""
        end_ms = self._clock.monotonic_ms() + pause_ms
        while (left_ms := end_ms - self._clock.monotonic_ms()) > 0:
            try:
                async with asyncio.timeout(min(left_ms, LOOK_MS) / 1000):
                    await looked.wake.wait()
            except TimeoutError:
                if _view(looked.members) == view:
                    continue
            return


def _view(members: Members) -> object:
    """Return the members' states for the status, without figures that grow with each message."""
    record = members.record
    return (
        record and (record.epoch, record.holder, record.in_sync, record.copies),
        tuple((one.copy, one.role, one.epoch) for one in members.statuses),
        members.fault,
    )
