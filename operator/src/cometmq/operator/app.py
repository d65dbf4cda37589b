# SPDX-License-Identifier: Apache-2.0
"""The operator as a program: a standby until it holds the Lease, then the manager of all groups."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from cometmq.ha.places.kube_api import Api, in_cluster
from cometmq.operator.api import LIMITS, KubeApi
from cometmq.operator.broker_groups.group_elector import Addresses
from cometmq.operator.broker_groups.groups import Groups
from cometmq.operator.engine.context import Context
from cometmq.operator.leader import Leadership, LeadershipLost
from cometmq.operator.metrics import ELECTOR_FAMILIES, FAMILIES, OperatorFigures, electors
from cometmq.operator.secrets import Secrets
from cometmq.operator.settings import OperatorSettings
from cometmq.operator.topics_and_groups.objects import DeclaredObjects
from cometmq.operator.watches import watch
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import Clock
from cometmq.runtime.metrics import StatsCollector
from cometmq.runtime.settings import Loaded


class OperatorApp:
    def __init__(
        self,
        settings: Loaded[OperatorSettings],
        *,
        log: Log,
        clock: Clock,
        admin: AdminHttp | None = None,
        api: Api | None = None,
        addresses: Addresses | None = None,
    ) -> None:
        """`api` overrides the API server of the pod's cluster, and `addresses` overrides the
        brokers' addresses.
        """
        self._settings = settings.value
        self._log = log
        self._clock = clock
        self._api = api
        self._addresses = addresses
        self._stack = AsyncExitStack()
        self._folder = Path()
        """Holds certificates while the operator runs."""
        self._leadership: Leadership | None = None
        self._figures = OperatorFigures()
        self._groups: Groups | None = None
        self._objects: DeclaredObjects | None = None
        self.acting = asyncio.Event()
        """Set while this operator manages groups."""
        if admin is not None:
            admin.add_ready_check("operator", self.fault)
            admin.registry.add(StatsCollector(FAMILIES, self.figures))
            admin.registry.add(StatsCollector(ELECTOR_FAMILIES, lambda: electors(self.figures())))

    def check(self) -> None:
        """Raise SettingsError outside a pod."""
        if self._api is None:
            in_cluster()

    def fault(self) -> str | None:
        """Return why this operator cannot work; None if it can, or is a standby."""
        return None if self._leadership is not None else "the operator has not started"

    def figures(self) -> OperatorFigures:
        """Return the figures for metrics; a standby manages no groups."""
        figures, groups = self._figures, self._groups
        figures.is_acting = self.acting.is_set()
        figures.groups = [] if groups is None else groups.figures()
        figures.declared = [] if self._objects is None else self._objects.figures()
        return figures

    async def start(self) -> None:
        """Start as a standby; the API server need not be reachable yet."""
        settings, connected = self._settings, self._api or in_cluster(limits=LIMITS)
        async with AsyncExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="cometmq-operator-")
            self._folder = Path(stack.enter_context(folder))
            api = await stack.enter_async_context(KubeApi(connected))
            self._figures.requests = api.requests
            self._leadership = Leadership(
                api,
                namespace=settings.namespace,
                name=settings.lease_name,
                identity=settings.identity,
                now_ms=self._clock.monotonic_ms,
                wall_time=wall_time,
                log=self._log,
            )
            leadership = self._leadership
            stack.push_async_callback(leadership.release)
            tasks = TaskSet(self._log)
            stack.push_async_callback(tasks.close)
            tasks.keep(lambda: self._run(leadership, api), name="operator")
            self._stack = stack.pop_all()
        self._log.info("operator.ready", identity=settings.identity)

    async def stop(self) -> None:
        """Stop, and release the Lease; brokers keep running."""
        await self._stack.aclose()
        self._log.info("operator.stopped")

    async def _run(self, leadership: Leadership, api: KubeApi) -> None:
        while True:
            await leadership.acquire()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(leadership.keep(), name="operator-lease")
                    group.create_task(self._act(api), name="operator-acting")
            except* LeadershipLost as lost:
                self._log.warning("leader.lost", error=str(lost.exceptions[0]))

    async def _act(self, api: KubeApi) -> None:
        settings = self._settings
        namespaces = tuple(filter(None, settings.watch_namespaces.split(";")))
        context = Context(
            api=api,
            secrets=Secrets(api, now_ms=self._clock.monotonic_ms, folder=self._folder),
            clock=self._clock,
            log=self._log,
            wall_time=api_time,
            image=settings.default_image,
            operator_namespace=settings.namespace,
            resync_ms=settings.resync_mills,
            quiet_ms=settings.drain_quiet_mills,
        )
        figures = self._figures
        groups = self._groups = Groups(
            context, figures, record_of=api.record, addresses=self._addresses
        )
        objects = self._objects = DeclaredObjects(context, figures)
        objects.start(namespaces)
        self.acting.set()
        try:
            await watch(groups, objects, api, namespaces, self._log)
        finally:
            self.acting.clear()
            self._groups = self._objects = None
            await groups.close()
            await objects.close()


def wall_time() -> str:
    """Return the time in the format of Leases."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def api_time() -> str:
    """Return the time in the format of conditions and Events."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
